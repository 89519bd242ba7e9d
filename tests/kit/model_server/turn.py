"""The answers that the model server plays to requests."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any, Literal

Break = Literal["end", "drop", "reset", "garbage", "garbage_only", "error_event"]
"""A failure inside a stream: it ends cleanly but early; the connection is closed; it is reset; an event is not
JSON and the stream goes on; the same and the stream ends; the provider sends an error event and ends."""

ErrorKind = Literal["rate_limit", "auth", "server", "overloaded", "context", "bad_request", "not_found"]

FOREVER = 3600.0


@dataclass(frozen=True)
class Call:
    """A tool call. `arguments` as text is sent as it is, valid or not (Gemini has only objects)."""

    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict[str, Any])
    id: str | None = None
    """Made up when None."""


@dataclass(frozen=True)
class Failure:
    """An HTTP error instead of a stream."""

    kind: ErrorKind = "server"
    message: str | None = None
    """The error's text. None: a text like the real provider's."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    status: int | None = None
    """The status. None: the usual one of the kind."""


@dataclass(frozen=True)
class Turn:
    """One answer. Text and reasoning are sent word by word, arguments in pieces of eight characters."""

    text: str = ""
    reasoning: str = ""
    signature: str = "c2lnbmVkLWJ5LXRoZS1zZXJ2ZXI="
    """Base64, as every provider's is. Goes with the reasoning where the wire has signatures."""
    calls: list[Call] = field(default_factory=list[Call])
    finish: Literal["stop", "length", "content_filter"] | None = "stop"
    """None: the whole answer, but without its end."""
    pace: float = 0.0
    """Seconds before each piece."""
    resume: asyncio.Event | None = None
    """Ends a silence early, after the test has seen its event."""
    silent_before_headers: float = 0.0
    silent_after_headers: float = 0.0
    """After the headers and the opening event, if the wire has one."""
    silent_after: int | None = None
    """Pieces after which the stream goes silent until the client leaves or the server is closed."""
    failure: Failure | None = None
    break_: Break | None = None
    break_after: int = 0
    """Pieces that are sent before the stream breaks."""
    raw: tuple[bytes, ...] = ()
    """Sent as the body, chunk by chunk, instead of everything above: for servers that are odd in other ways."""
    usage: bool = True
    """Whether usage is reported."""
    prompt_tokens: int = 11
    cached_tokens: int = 3
    written_tokens: int = 0
    """Tokens written to the cache, if the protocol reports them."""

    @property
    def output_tokens(self) -> int:
        return len(words(self.text)) + len(words(self.reasoning)) + 5 * len(self.calls)

    @property
    def reasoning_tokens(self) -> int:
        return len(words(self.reasoning))


@dataclass(frozen=True)
class Frame:
    """Bytes of a stream. Only pieces count for pace, silence and breaks."""

    kind: Literal["opening", "piece", "closing"]
    data: bytes


def words(text: str) -> list[str]:
    """The text in the pieces in which it is sent."""
    return re.findall(r"\s*\S+\s*$|\s*\S+", text) if text.strip() else ([text] if text else [])


def argument_pieces(arguments: str) -> list[str]:
    """A call's arguments in the pieces in which they are sent."""
    return [arguments[start : start + 8] for start in range(0, len(arguments), 8)]


STATUSES: dict[ErrorKind, int] = {
    "rate_limit": 429,
    "auth": 401,
    "server": 500,
    "overloaded": 503,
    "context": 400,
    "bad_request": 400,
    "not_found": 404,
}

MESSAGES: dict[ErrorKind, str] = {
    "rate_limit": "You are sending requests too quickly.",
    "auth": "The key that was provided is not valid.",
    "server": "The server had an error while it worked on your request.",
    "overloaded": "The model is overloaded right now.",
    "bad_request": "A field of the request is not valid.",
    "not_found": "There is no model of this name.",
}
