"""The SDK's stream events, as ours. One `AnswerEvents` follows one answer from its first event to its last."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple, cast

import msgspec
from pydantic_ai import messages as sdk
from pydantic_ai.models import StreamedResponse
from pydantic_core import PydanticSerializationError

from shared.domain.errors import ModelError
from worker.models.answer_parts import CallIds, CountedTokens, WholeAnswer, judge
from worker.models.decoding import is_json, read_json, whole_number
from worker.models.model_errors import stream_error
from worker.models.provider import CallArguments, CallFinished, CallStarted, ModelCall, ModelEvent, Text, Thought
from worker.models.sdk_fields import ENDS, SdkFields
from worker.models.special_tokens import JoinedPieces, revealed_halves, sound, whole_characters, with_hidden_halves
from worker.models.sse import EventStream, is_whole, unstreamed_answers

# A server's answer in the form that the SDKs can read: bytes in, bytes out. No I/O.
#
# The SDKs read what OpenAI and Google write of their wires. What servers send beyond that is put right here, as it is
# on the wires that are asked without an SDK: byte order marks, ends of lines, characters in halves, counts that come
# more than once, answers that are no stream, and whatever comes behind an answer's end.


_DONE = b"[DONE]"

_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""Characters at which the HTTP client's reader of lines would cut an event, and how JSON writes them."""

_INCOMPLETE = "response.incomplete"
_TELLING_WORDS = (b'"error"', b"finishReason", b"blockReason", b"response.completed", b"response.incomplete")
"""One of them is in an event that ends an answer, well or badly. Most events are not read for it."""

_NO_REASONS = (None, "", "FINISH_REASON_UNSPECIFIED")


class _Content(msgspec.Struct):
    parts: list[Any] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    """Gemini's answer to a question that it does not take."""

    block_reason: str | None = None
    block_reason_message: str | None = None


class _Event(msgspec.Struct, rename="camel"):
    """What says that an answer has ended, or that it goes on all the same."""

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
        """What the server says of the end, beside a reason."""
        feedback = self.prompt_feedback or _Feedback()
        messages = [candidate.finish_message for candidate in self.candidates or ()]
        said = (*messages, feedback.block_reason, feedback.block_reason_message)
        return whole_characters(": ".join(one for one in said if one))

    @property
    def is_content(self) -> bool:
        contents = [candidate.content for candidate in self.candidates or ()]
        return any(part != {"text": ""} for content in contents if content for part in content.parts or ())


class StreamEnd(NamedTuple):
    """What a stream has said of its answer's end."""

    has_reason: bool = False
    """It has said why the answer ends, in whatever word."""
    is_cut: bool = False
    """The word says that the answer is incomplete."""
    words: str = ""
    """What the server has said beside the word."""


class SdkEvents:
    """One answer, from its first byte to its last."""

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type
        self._stream = EventStream()
        self._fields = SdkFields()
        self._usage: Any = None
        """The last counts that a response had on its way."""
        self.is_garbled = False
        """The stream held an event that is not JSON. Nothing is read behind it."""
        self.failure: ModelError | None = None
        """The error that the server has sent. Nothing is read behind it."""
        self.ended_as = StreamEnd()
        self.said_behind_end = 0
        """Events of the answer that came all the same: some servers give a reason with every event."""

    def feed(self, chunk: bytes) -> bytes:
        """What the server has sent. Raises `EventTooLong`."""
        return self._readable(self._stream.feed(chunk))

    def cut(self) -> bytes:
        """The connection has broken. What came last may be whole: the end of the answer, or all that was sent in place
        of a stream. Raises as `end`."""
        if is_whole(self._stream.before_events):
            return self.end()
        return self._readable(self._stream.end())

    def end(self) -> bytes:
        """The end of the response. Raises `ModelError` for one that is no answer."""
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
            # Behind the end, it takes nothing from the answer.
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
                # As on the other wires: one of the SDKs cannot read every form of it.
                self.failure = stream_error(event.error, provider="")
                return b""
            self.ended_as = StreamEnd(event.is_end, event.type == _INCOMPLETE, event.words)
        data = with_hidden_halves(self._with_last_usage(data))
        for character, escape in _LINE_ENDS:
            data = data.replace(character, escape)
        return b"data: %b\n\n" % data.replace(b"\n", b" ")

    def _with_last_usage(self, data: bytes) -> bytes:
        """The event with the counts of the answer if it is the last one, else without any. The SDK adds them up."""
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
    """The counts as whole numbers, where a server has written 12.0."""
    match usage:
        case dict():
            return {name: _whole_counts(one) for name, one in cast("dict[str, object]", usage).items()}
        case float():
            return whole_number(usage) or 0
        case _:
            return usage


def _events(answer: dict[str, Any]) -> list[bytes]:
    """A whole answer as the events of a stream."""
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


_BETWEEN_THOUGHTS = "\n\n"


class AnswerEvents:
    """Turns the events of one answer into ours, and judges at its end whether it is whole."""

    def __init__(self, call: ModelCall, ids: CallIds) -> None:
        self._call = call
        self._ids = ids
        self._own_ids: dict[int, str] = {}
        """Our id of a tool call by the SDK's number of its part."""
        self._numbers: dict[int, int] = {}
        """Our number of a tool call by the SDK's number of its part."""
        self._told: dict[int, str] = {}
        """Arguments of the calls that were told as whole."""
        self._characters: defaultdict[int, JoinedPieces] = defaultdict(JoinedPieces)
        """Of each part, by the SDK's number of it."""
        self._thought_part: int | None = None
        self._thought = False

    def translate(self, event: sdk.ModelResponseStreamEvent) -> Iterator[ModelEvent]:
        """Our events for one of the SDK's; none for those that we do not show."""
        match event:
            case sdk.PartDeltaEvent(index=index, delta=delta):
                yield from self._delta(index, delta)
            case sdk.PartStartEvent(index=index, part=part):
                yield from self._start(index, part)
            case sdk.PartEndEvent(index=index, part=sdk.ToolCallPart() as part):
                yield self._finished_call(index, part)
            case sdk.PartEndEvent(index=index, part=sdk.TextPart()):
                yield from self._text(self._characters[index].rest())
            case sdk.PartEndEvent(index=index, part=sdk.ThinkingPart(signature=signature)):
                yield from self._thought_events(index, self._characters[index].rest())
                if signature is not None:
                    yield Thought("", signature)
            case _:
                # New kinds of event may appear in any release; what we do not know is not ours to show.
                return

    def finish(self, response: StreamedResponse, end: StreamEnd) -> Iterator[ModelEvent]:
        """The last events. Raises `ModelError` when the answer was cut short, refused or empty."""
        answer = response.get()
        for index, part in enumerate(answer.parts):
            if isinstance(part, sdk.ToolCallPart):
                yield from self._argument_events(index, self._characters[index].rest())
            if isinstance(part, sdk.ToolCallPart) and self._told.get(index) != _arguments(part):
                yield from self._start(index, part, arguments=False)
                yield self._finished_call(index, part)
        reason = answer.finish_reason if end.has_reason or answer.state != "incomplete" else None
        yield judge(
            self._call,
            WholeAnswer(
                reason=_reason(reason, end),
                text="".join(
                    part.content for part in answer.parts if isinstance(part, sdk.TextPart | sdk.ThinkingPart)
                ),
                arguments=[_arguments(part) for part in answer.parts if isinstance(part, sdk.ToolCallPart)],
                counted=_counted(answer),
                provider_response=_kept(replace(answer, parts=[*map(self._with_own_id, count(), answer.parts)])),
                details=answer.provider_details,
                words=end.words,
            ),
        )

    def _start(self, index: int, part: sdk.ModelResponsePart, *, arguments: bool = True) -> Iterator[ModelEvent]:
        match part:
            case sdk.TextPart(content=text):
                yield from self._text(self._joined(index, text))
            case sdk.ThinkingPart(content=text):
                yield from self._thought_events(index, self._joined(index, text))
            case sdk.ToolCallPart():
                if index not in self._numbers:
                    self._numbers[index] = len(self._numbers)
                    self._own_ids[index] = self._ids.own(sound(part.tool_call_id))
                    yield CallStarted(self._numbers[index], self._own_ids[index], sound(part.tool_name))
                if part.args and arguments:
                    yield from self._argument_events(index, self._joined(index, _written(part.args)))
            case _:
                return

    def _delta(self, index: int, delta: sdk.ModelResponsePartDelta) -> Iterator[ModelEvent]:
        match delta:
            case sdk.TextPartDelta(content_delta=text):
                yield from self._text(self._joined(index, text))
            case sdk.ThinkingPartDelta(content_delta=str(text)):
                yield from self._thought_events(index, self._joined(index, text))
            case sdk.ToolCallPartDelta(args_delta=arguments) if arguments and index in self._numbers:
                yield from self._argument_events(index, self._joined(index, _written(arguments)))
            case _:
                return

    def _joined(self, index: int, piece: str) -> str:
        return self._characters[index].more(revealed_halves(piece))

    def _text(self, text: str) -> Iterator[Text]:
        if text:
            yield Text(text)

    def _thought_events(self, index: int, text: str) -> Iterator[Thought]:
        if text:
            begins_another = self._thought and self._thought_part != index
            self._thought, self._thought_part = True, index
            yield Thought((_BETWEEN_THOUGHTS if begins_another else "") + text)

    def _argument_events(self, index: int, text: str) -> Iterator[CallArguments]:
        if text:
            yield CallArguments(self._numbers[index], text)

    def _with_own_id(self, index: int, part: sdk.ModelResponsePart) -> sdk.ModelResponsePart:
        return replace(part, tool_call_id=self._own_ids[index]) if isinstance(part, sdk.ToolCallPart) else part

    def _finished_call(self, index: int, part: sdk.ToolCallPart) -> CallFinished:
        self._told[index] = _arguments(part)
        return CallFinished(self._numbers[index], self._own_ids[index], sound(part.tool_name), self._told[index])


def _reason(known: str | None, end: StreamEnd) -> str | None:
    """What is incomplete is cut off, whatever word a server has for it; of other words, each is an end."""
    if end.is_cut and known in (None, "stop", "tool_call"):
        return "length"
    return known or ("stop" if end.has_reason else None)


def _counted(answer: sdk.ModelResponse) -> CountedTokens:
    usage = answer.usage
    return CountedTokens(
        # The SDK keeps whatever the server has sent.
        prompt=whole_number(usage.input_tokens) or 0,
        completion=whole_number(usage.output_tokens) or 0,
        cached=whole_number(usage.cache_read_tokens) or 0,
        cache_written=whole_number(usage.cache_write_tokens) or 0,
        reasoning=whole_number(usage.output_reasoning_tokens) or 0,
    )


def _arguments(part: sdk.ToolCallPart) -> str:
    return sound(_written(part.args or "{}"))


def _written(arguments: str | Mapping[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _kept(answer: sdk.ModelResponse) -> str | None:
    """The answer as JSON if the provider wants some of it back unchanged; else None, as text and calls say it all."""
    if all(
        isinstance(part, sdk.TextPart | sdk.ToolCallPart) and part.id is None and not part.provider_details
        for part in answer.parts
    ):
        return None
    try:
        return sound(sdk.ModelMessagesTypeAdapter.dump_json([answer]).decode())
    except PydanticSerializationError:
        # Half a character (see `characters.py`): what cannot be kept unchanged is rebuilt from text and calls.
        return None
