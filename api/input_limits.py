"""How long a text of a request may be that is kept: a message, and the source of a tool.

The whole body is bounded before it is parsed. These limits are for what stays, is sent to models, and is parsed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from shared.domain.errors import InvalidRequest
from shared.process.settings import Settings


@dataclass(frozen=True)
class InputLimits:
    """The limits of this server."""

    message_chars: int
    """Of all texts of one message together. Images count by the body's limit alone."""
    tool_source_chars: int

    @classmethod
    def of(cls, settings: Settings) -> "InputLimits":
        """Those that the settings say."""
        return cls(settings.max_message_chars, settings.max_tool_source_chars)

    def refuse_long_messages(self, given: Sequence[object], field: str = "messages") -> None:
        """Raises `InvalidRequest` for the first message that is too long. Of each is given what counts, as JSON values;
        `field` is where the messages stand in the body."""
        for place, message in enumerate(given):
            length = sum(map(len, _texts(message)))
            if length > self.message_chars:
                raise InvalidRequest(
                    f"{field}[{place}] has {length} characters, {self.message_chars} are allowed "
                    "(HOLDFAST_MAX_MESSAGE_CHARS): send less, or in several messages",
                    field=f"{field}[{place}]",
                )

    def refuse_long_text(self, text: str, field: str) -> None:
        """Raises `InvalidRequest` for a text for a model that is longer than a message may be."""
        if len(text) > self.message_chars:
            raise InvalidRequest(
                f"{field} has {len(text)} characters, {self.message_chars} are allowed (HOLDFAST_MAX_MESSAGE_CHARS): "
                "send less",
                field=field,
            )

    def refuse_long_source(self, source: object, field: str = "source_code") -> None:
        """Raises `InvalidRequest` for a source that is too long. What is no text is for others to refuse."""
        if isinstance(source, str) and len(source) > self.tool_source_chars:
            raise InvalidRequest(
                f"{field} has {len(source)} characters, {self.tool_source_chars} are allowed "
                "(HOLDFAST_MAX_TOOL_SOURCE_CHARS): move data out of the tool",
                field=field,
            )


def _texts(value: object) -> Iterable[str]:
    """Every text of a JSON value but the data of images. The body's depth is bounded."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, object]", value).items():
            if name != "source":
                yield from _texts(item)
