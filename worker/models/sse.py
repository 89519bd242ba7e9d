"""Server-sent events, as far as models' answers use them: bytes in, the data of whole events out. No I/O.

Written after "Server-sent events" in the HTML standard. Names and ids of events are ignored, because every provider
puts the type into the data. llama.cpp's server has a field of its own for errors, which is read as data.
"""

import re
from typing import Any, cast

from shared.domain.errors import ModelError, ModelErrorType
from worker.models.model_errors import message_in, stream_error
from worker.models.special_tokens import is_json, read_json, whole_characters

LONGEST_EVENT = 32 * 1024 * 1024
"""Bytes. Far more than any answer has; a server that never ends an event must not fill the memory."""


BYTE_ORDER_MARK = b"\xef\xbb\xbf"

LONGEST_TEXT = 8 * 1024 * 1024
"""Bytes that are kept of a response that is no stream of events."""


class EventTooLong(ValueError):
    """A server sends an endless event."""


class EventStream:
    """The events of one response, however its bytes are split."""

    def __init__(self) -> None:
        self._unfinished: list[bytes] = []
        """The line that has not ended yet, in its pieces."""
        self._data: list[bytes] = []
        """The lines of data of the event that has not ended yet."""
        self._size = 0
        self._after_return = False
        self._beginning: bytes | None = b""
        """The first bytes, until it is clear whether they are a byte order mark; None afterwards."""
        self.before_events: bytearray | None = bytearray()
        """The bytes of the response before its first event; None after it."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that end in this chunk. Raises `EventTooLong`."""
        if self._beginning is not None:
            chunk = self._without_mark(self._beginning + chunk)
        if self.before_events is not None and len(self.before_events) < LONGEST_TEXT:
            self.before_events += chunk
        chunk = self._with_line_feeds(chunk)
        self._size += len(chunk)
        if self._size > LONGEST_EVENT:
            raise EventTooLong(f"an event of the stream is longer than {LONGEST_EVENT} bytes")
        first, *lines = chunk.split(b"\n")
        self._unfinished.append(first)
        if not lines:
            return []
        ended: list[bytes] = []
        for line in (b"".join(self._unfinished), *lines[:-1]):
            self._take(line, ended)
        self._unfinished = [lines[-1]]
        if ended or not self._data:
            self._size = len(lines[-1]) + sum(map(len, self._data))
        return self._seen(ended)

    def end(self) -> list[bytes]:
        """Ends the response: the data of an event without an empty line after it, if the data is complete. Some servers
        omit the line after the last event; most responses without it broke off in the middle of an event."""
        ended: list[bytes] = []
        self._take(b"".join(self._unfinished), ended)
        self._take(b"", ended)
        self._unfinished = []
        return self._seen([data for data in ended if is_json(data)])

    def _seen(self, ended: list[bytes]) -> list[bytes]:
        if ended:
            self.before_events = None
        return ended

    def _without_mark(self, chunk: bytes) -> bytes:
        """The beginning of the stream without its byte order mark."""
        if chunk and len(chunk) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(chunk):
            self._beginning = chunk
            return b""
        self._beginning = None if chunk else b""
        return chunk.removeprefix(BYTE_ORDER_MARK)

    def _take(self, line: bytes, ended: list[bytes]) -> None:
        if not line:
            if data := b"\n".join(self._data):
                ended.append(data)
            self._data = []
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line.startswith(b"error:") and (error := line[6:].strip()).startswith(b"{"):
            self._data.append(b'{"error": %b}' % error)

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        """The chunk with a single LF at the end of each line. A line may also end in CR, or in CR and LF."""
        if self._after_return and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_return = False
        if b"\r" not in chunk:
            return chunk
        self._after_return = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


# Responses that a server has sent instead of the requested stream of events.


_ANSWERS = ("choices", "candidates", "output", "content")
"""A complete answer has one of these fields: Chat Completions', Gemini's, Responses', and Anthropic's."""

_PASSES = re.compile(
    r"overload|capacity|busy|try again|temporar|unavailable|time[d ]?-?out|bad gateway|internal|rate limit",
    re.IGNORECASE,
)
"""Words of errors that a retry may avoid."""

_MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)

_EXCERPT = 200
"""Characters of an unexpected text that an error contains."""


def is_whole(said: bytes | bytearray | None) -> bool:
    """Whether a body that came instead of a stream is complete, although its connection broke before its end."""
    text = bytes(said or b"").strip()
    return text[:1] in (b"{", b"[") and is_json(text)


def unstreamed_answers(body: bytes, content_type: str, provider: str = "") -> list[dict[str, Any]]:
    """The whole answers in a body without events; none if it is an empty stream. Raises `ModelError` with the server's
    words for an error, and with the content type for anything else."""
    text = body.strip()
    if text[:1] not in (b"{", b"[", b"<") and text and content_type.startswith("text/event-stream"):
        return []
    named = content_type.partition(";")[0].strip() or "no content type"
    if not text:
        raise ModelError(
            ModelErrorType.ERROR,
            f"The server answered with nothing ({named}), where a stream of events was asked for.",
            retryable=True,
        )
    try:
        found = read_json(text)
    except (ValueError, RecursionError):
        raise _unreadable(named, text.decode(errors="replace")) from None
    parts = cast("list[object]", found) if isinstance(found, list) else [found]
    answers = [cast("dict[str, Any]", part) for part in parts if isinstance(part, dict)]
    for answer in answers:
        if answer.get("error"):
            raise _refusal(answer["error"], provider)
        if not any(isinstance(answer.get(field), list) for field in _ANSWERS):
            raise _unreadable(named, message_in(answer) or text.decode(errors="replace"))
    if not answers:
        raise _unreadable(named, text.decode(errors="replace"))
    return answers


def _refusal(error: object, provider: str) -> ModelError:
    """An error in a response with a successful status. Without a known code, only its words show whether a retry may
    help."""
    refusal = stream_error(error, provider=provider)
    if refusal.error_type is not ModelErrorType.ERROR or refusal.status is not None or _PASSES.search(refusal.message):
        return refusal
    return ModelError(refusal.error_type, refusal.message, retryable=False)


def _unreadable(content_type: str, text: str) -> ModelError:
    words = whole_characters(" ".join(_MARKUP.sub(" ", text).split())[:_EXCERPT])
    return ModelError(
        ModelErrorType.ERROR,
        f"The server answered with {content_type}, where a stream of events was asked for: {words or 'no text'}",
        retryable=_PASSES.search(words) is not None,
    )
