"""Server-sent events, to the extent that models' answers use them: bytes in, the data of whole events out, or bytes
that the SDKs can parse. No I/O.

Follows "Server-sent events" in the HTML standard. Names and ids of events are ignored, because every provider
puts the type into the data. llama.cpp's server has a field of its own for errors, which is read as data.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from worker.models.answer_parts import reason_in
from worker.models.model_errors import message_in, stream_error
from worker.models.sdk_fields import ENDS, GeminiEvent, SdkFields
from worker.models.special_tokens import (
    excerpt_of,
    fitted,
    is_json,
    not_json,
    read_json,
    whole_characters,
    whole_number,
    with_hidden_halves,
)

LONGEST_EVENT = 32 * 1024 * 1024
"""Bytes. Far more than any answer has; a server that never ends an event must not fill the memory."""


BYTE_ORDER_MARK = b"\xef\xbb\xbf"

LONGEST_TEXT = 8 * 1024 * 1024
"""Bytes that are kept of a response that is not a stream of events."""


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
            if data := b"\n".join(self._data).strip():
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
    words = excerpt_of(text)
    return ModelError(
        ModelErrorType.ERROR,
        f"The server answered with {content_type}, where a stream of events was asked for: {words or 'no text'}",
        retryable=_PASSES.search(words) is not None,
    )


# A server's answer in a form that the SDKs can parse: bytes in, bytes out. No I/O.
#
# The SDKs parse the exact protocols of OpenAI and Google. Other servers' deviations are corrected here, as the
# protocols without an SDK do: byte order marks, line ends, split characters, repeated counts, answers without a
# stream, and data after an answer's end.


_DONE = b"[DONE]"

_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""Characters at which the HTTP client's line reader would split an event, and their JSON escapes."""

_INCOMPLETE = "response.incomplete"
_TELLING_WORDS = (
    b'"error"',
    b'"message"',
    b"finishReason",
    b"blockReason",
    b"response.completed",
    b"response.incomplete",
)
"""Every event that ends an answer, successfully or not, contains one of these. Other events need not be parsed for
that."""


class _Feedback(msgspec.Struct, rename="camel"):
    """Gemini's answer to a prompt that it refuses."""

    block_reason: str | None = None
    block_reason_message: str | None = None


class _Event(GeminiEvent, rename="camel"):
    """The fields that show that an answer has ended, or that it continues nevertheless."""

    type: str | None = None
    """The Responses API's."""
    prompt_feedback: _Feedback | None = None
    error: Any = None
    message: Any = None
    """The error's words, from servers that send them without `error`."""

    @property
    def is_error(self) -> bool:
        return bool(self.error or (self.message and not self.type and not self.candidates))

    @property
    def reasons(self) -> list[str]:
        found = [candidate.finish_reason for candidate in self.candidates or ()]
        return [reason for reason in found if reason and reason != "FINISH_REASON_UNSPECIFIED"]

    @property
    def end(self) -> "StreamEnd":
        is_refused = self.prompt_feedback is not None and bool(self.prompt_feedback.block_reason)
        is_cut = self.type == _INCOMPLETE or "length" in map(reason_in, self.reasons)
        return StreamEnd(self.type in ENDS or is_refused or bool(self.reasons), is_cut, self._words)

    @property
    def _words(self) -> str:
        """The server's text about the end, in addition to a reason."""
        feedback = self.prompt_feedback or _Feedback()
        messages = [candidate.finish_message for candidate in self.candidates or ()]
        said = (*messages, feedback.block_reason, feedback.block_reason_message)
        return whole_characters(": ".join(one for one in said if one))

    @property
    def is_content(self) -> bool:
        contents = [candidate.content for candidate in self.candidates or ()]
        return any(part.text != "" for content in contents if content for part in content.parts or ())


class StreamEnd(NamedTuple):
    """A stream's information about its answer's end."""

    has_reason: bool = False
    """The server has given a reason for the end, in any term."""
    is_cut: bool = False
    """The reason means that the answer is incomplete."""
    words: str = ""
    """The server's text in addition to the reason."""


class SdkEvents:
    """One answer, from its first byte to its last."""

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type
        self._stream = EventStream()
        self._fields = SdkFields()
        self._usage: Any = None
        """The latest counts in the response."""
        self.failure: ModelError | None = None
        """The error that the server has sent, or that an event is not JSON. Later events are not read."""
        self.ended_as = StreamEnd()
        self.said_behind_end = 0
        """Events of the answer that came after the reason, because some servers give a reason with every event."""

    def feed(self, chunk: bytes) -> bytes:
        """Reads bytes from the server. Raises `EventTooLong`."""
        return self._readable(self._stream.feed(chunk))

    def cut(self) -> bytes:
        """The connection has broken. The last bytes may be complete: the end of the answer, or a whole answer in place
        of a stream. Raises like `end`."""
        if is_whole(self._stream.before_events):
            return self.end()
        return self._readable(self._stream.end())

    def end(self) -> bytes:
        """Ends the response. Raises `ModelError` if it is not an answer."""
        events = self._stream.end()
        said = self._stream.before_events
        if said is not None:
            events = [
                data for answer in unstreamed_answers(bytes(said), self._content_type) for data in _events(answer)
            ]
        return self._readable(events)

    def _readable(self, events: Iterable[bytes]) -> bytes:
        return b"".join(map(self._event, events))

    def _event(self, data: bytes) -> bytes:
        if self.failure is not None:
            return b""
        if data.strip() == _DONE:
            return b"data: [DONE]\n\n"
        if not is_json(data):
            if not self.ended_as.has_reason:  # after the answer's end an error does not invalidate it
                self.failure = not_json(data)
            return b""
        return b"".join(map(self._completed, self._fields.completed(data)))

    def _completed(self, data: bytes) -> bytes:
        if not self._continues_with(data):
            return b""
        data = with_hidden_halves(self._with_last_usage(data))
        for character, escape in _LINE_ENDS:
            data = data.replace(character, escape)
        return b"data: %b\n\n" % data.replace(b"\n", b" ")

    def _continues_with(self, data: bytes) -> bool:
        """Reads an event for an error, and for the answer's end. Returns whether the event is part of the answer."""
        if self.ended_as.has_reason:
            event = _read(data)
            self.said_behind_end += event.is_content
            return not event.is_error and bool(event.candidates or event.usage_metadata)
        if any(word in data for word in _TELLING_WORDS):
            event = _read(data)
            if event.is_error:
                # Parsed here, because one of the SDKs cannot parse every form of it.
                self.failure = stream_error(event.error or read_json(data), provider="")
                return False
            self.ended_as = event.end
        return True

    def _with_last_usage(self, data: bytes) -> bytes:
        """The event with the answer's counts if it is the last one, else without any. The SDK adds counts up."""
        if b'"response.' not in data or (self._usage is None and b'"usage"' not in data):
            return data
        found = read_json(data)
        event = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        kind, response = event.get("type"), event.get("response")
        if not isinstance(kind, str) or not isinstance(response, dict):
            return data
        whole = cast("dict[str, Any]", response)
        given = whole.get("usage")
        self._usage = _whole_counts(given) or self._usage
        usage = self._usage if kind in (*ENDS, "response.failed") else None
        if json.dumps(given) == json.dumps(usage):
            return data
        return json.dumps({**event, "response": {**whole, "usage": usage}}).encode()


def _whole_counts(usage: object) -> object:
    """The counts as whole numbers, if a server has written 12.0."""
    match usage:
        case dict():
            return {name: _whole_counts(one) for name, one in cast("dict[str, object]", usage).items()}
        case float():
            return whole_number(usage) or 0
        case _:
            return usage


def _events(answer: dict[str, Any]) -> list[bytes]:
    """Converts a whole answer to the events of a stream."""
    output = answer.get("output")
    if not isinstance(output, list):
        return [json.dumps(answer).encode()]  # Gemini's chunks have the form of a whole answer
    begun: dict[str, Any] = {**answer, "status": "in_progress", "output": [], "usage": None}
    end = "response.incomplete" if answer.get("status") == "incomplete" else "response.completed"
    events = [{"type": "response.created", "response": begun}, {"type": end, "response": answer}]
    return [json.dumps({"sequence_number": number, **event}).encode() for number, event in enumerate(events)]


_EVENT = msgspec.inspect.type_info(_Event)


def _read(data: bytes) -> _Event:
    try:
        return msgspec.convert(fitted(read_json(data), _EVENT), _Event)
    except (ValueError, RecursionError):
        return _Event()
