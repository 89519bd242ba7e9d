"""A server's answer in a form that the SDKs can parse: bytes in, bytes out. No I/O.

The SDKs parse the exact protocols of OpenAI and Google. This module corrects other servers' deviations, as the
protocols without an SDK do: byte order marks, line ends, split characters, repeated counts, answers that are no stream,
and data after an answer's end.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import msgspec

from shared.domain.errors import ModelError
from worker.models.model_errors import stream_error
from worker.models.sdk_fields import ENDS, SdkFields
from worker.models.special_tokens import is_json, read_json, whole_characters, whole_number, with_hidden_halves
from worker.models.sse import EventStream, is_whole, unstreamed_answers

_DONE = b"[DONE]"

_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""Characters at which the HTTP client's line reader would split an event, and their JSON escapes."""

_INCOMPLETE = "response.incomplete"
_TELLING_WORDS = (b'"error"', b"finishReason", b"blockReason", b"response.completed", b"response.incomplete")
"""Every event that ends an answer, successfully or not, contains one of these. Other events need not be parsed for
that."""

_NO_REASONS = (None, "", "FINISH_REASON_UNSPECIFIED")


class _Content(msgspec.Struct):
    parts: list[Any] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    """Gemini's answer to a prompt that it refuses."""

    block_reason: str | None = None
    block_reason_message: str | None = None


class _Event(msgspec.Struct, rename="camel"):
    """The fields that show that an answer has ended, or that it continues all the same."""

    type: str | None = None
    """The Responses wire's."""
    candidates: list[_Candidate] | None = None
    """Gemini's."""
    prompt_feedback: _Feedback | None = None
    usage_metadata: Any = None
    error: Any = None

    @property
    def is_end(self) -> bool:
        reasons = [candidate.finish_reason for candidate in self.candidates or ()]
        is_refused = self.prompt_feedback is not None and bool(self.prompt_feedback.block_reason)
        return self.type in ENDS or is_refused or any(reason not in _NO_REASONS for reason in reasons)

    @property
    def words(self) -> str:
        """The server's text about the end, in addition to a reason."""
        feedback = self.prompt_feedback or _Feedback()
        messages = [candidate.finish_message for candidate in self.candidates or ()]
        said = (*messages, feedback.block_reason, feedback.block_reason_message)
        return whole_characters(": ".join(one for one in said if one))

    @property
    def is_content(self) -> bool:
        contents = [candidate.content for candidate in self.candidates or ()]
        return any(part != {"text": ""} for content in contents if content for part in content.parts or ())


class StreamEnd(NamedTuple):
    """A stream's information about its answer's end."""

    has_reason: bool = False
    """The server has given a reason for the end, in any term."""
    is_cut: bool = False
    """The word says that the answer is incomplete."""
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
        self.is_garbled = False
        """The stream had an event that is not JSON. Later events are not read."""
        self.failure: ModelError | None = None
        """The error that the server has sent. Later events are not read."""
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
        if self.is_garbled or self.failure is not None:
            return b""
        if data.strip() == _DONE:
            return b"data: [DONE]\n\n"
        if not is_json(data):
            # After the answer's end an error does not invalidate it.
            self.is_garbled = not self.ended_as.has_reason
            return b""
        data = self._fields.completed(data)
        if not data:
            return b""
        if self.ended_as.has_reason:
            event = _read(data)
            if event.error or not (event.candidates or event.usage_metadata):
                return b""
            self.said_behind_end += event.is_content
        elif any(word in data for word in _TELLING_WORDS):
            event = _read(data)
            if event.error:
                # Parsed here, because one of the SDKs cannot parse every form of it.
                self.failure = stream_error(event.error, provider="")
                return b""
            self.ended_as = StreamEnd(event.is_end, event.type == _INCOMPLETE, event.words)
        data = with_hidden_halves(self._with_last_usage(data))
        for character, escape in _LINE_ENDS:
            data = data.replace(character, escape)
        return b"data: %b\n\n" % data.replace(b"\n", b" ")

    def _with_last_usage(self, data: bytes) -> bytes:
        """The event with the answer's counts if it is the last one, else without any. The SDK adds counts up."""
        if b'"response.' not in data or (self._usage is None and b'"usage"' not in data):
            return data
        found = read_json(data)
        event = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        kind, response = event.get("type"), event.get("response")
        if not isinstance(kind, str) or not isinstance(response, dict):
            return data
        told = cast("dict[str, Any]", response)
        given = told.get("usage")
        self._usage = _whole_counts(given) or self._usage
        usage = self._usage if kind in (*ENDS, "response.failed") else None
        if json.dumps(given) == json.dumps(usage):
            return data
        return json.dumps({**event, "response": {**told, "usage": usage}}).encode()


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
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for place, item in enumerate(cast("list[object]", output)):
        if isinstance(item, dict):
            events += _item_events(place, cast("dict[str, Any]", item))
    end = "response.incomplete" if answer.get("status") == "incomplete" else "response.completed"
    events.append({"type": end, "response": answer})
    return [json.dumps({"sequence_number": number, **event}).encode() for number, event in enumerate(events)]


def _item_events(place: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    at: dict[str, Any] = {"output_index": place, "item_id": item.get("id")}
    begun = {**item, "arguments": ""} if "arguments" in item else item
    events: list[dict[str, Any]] = [{"type": "response.output_item.added", "output_index": place, "item": begun}]
    for kind, parts, index in (
        ("response.output_text.delta", item.get("content"), "content_index"),
        ("response.reasoning_summary_text.delta", item.get("summary"), "summary_index"),
    ):
        for number, part in enumerate(cast("list[object]", parts) if isinstance(parts, list) else []):
            match part:
                case {"text": str(text)}:
                    events.append({"type": kind, **at, index: number, "delta": text, "logprobs": []})
                case _:
                    continue
    return [*events, {"type": "response.output_item.done", "output_index": place, "item": item}]


def _read(data: bytes) -> _Event:
    try:
        return msgspec.convert(read_json(data), _Event)
    except (ValueError, RecursionError):
        return _Event()
