"""Limits on the length of texts that the server keeps: messages, and the source of tools.

The whole body is limited before it is parsed. These limits apply to texts that the server stores, sends to models and
parses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from shared.domain.errors import InvalidRequest
from shared.process.settings import Settings


@dataclass(frozen=True)
class InputLimits:
    """The text limits of this server."""

    message_chars: int
    """For all texts of one message together. Images count only towards the body's limit."""
    tool_source_chars: int

    @classmethod
    def of(cls, settings: Settings) -> "InputLimits":
        """The limits that the settings define."""
        return cls(settings.max_message_chars, settings.max_tool_source_chars)

    def refuse_long_messages(self, given: Sequence[object], field: str = "messages") -> None:
        """Raises `InvalidRequest` for the first message that is too long. `given` has the countable parts of each
        message, as JSON values. `field` is the place of the messages in the body."""
        for place, message in enumerate(given):
            length = sum(map(len, _texts(message)))
            if length > self.message_chars:
                raise InvalidRequest(
                    f"{field}[{place}] has {length} characters, {self.message_chars} are allowed "
                    "(HOLDFAST_MAX_MESSAGE_CHARS): send less, or in several messages",
                    field=f"{field}[{place}]",
                )

    def refuse_long_text(self, text: str, field: str) -> None:
        """Raises `InvalidRequest` if a text for a model is longer than a message may be."""
        if len(text) > self.message_chars:
            raise InvalidRequest(
                f"{field} has {len(text)} characters, {self.message_chars} are allowed (HOLDFAST_MAX_MESSAGE_CHARS): "
                "send less",
                field=field,
            )

    def refuse_long_source(self, source: object, field: str = "source_code") -> None:
        """Raises `InvalidRequest` if a source is too long. Other checks refuse a source that is no text."""
        if isinstance(source, str) and len(source) > self.tool_source_chars:
            raise InvalidRequest(
                f"{field} has {len(source)} characters, {self.tool_source_chars} are allowed "
                "(HOLDFAST_MAX_TOOL_SOURCE_CHARS): move data out of the tool",
                field=field,
            )


def _texts(value: object) -> Iterable[str]:
    """Every text of a JSON value except the data of images. The depth of the body is limited already."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, object]", value).items():
            if name != "source":
                yield from _texts(item)
