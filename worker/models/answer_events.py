"""Translates the SDK's stream events to ours. One `AnswerEvents` follows one answer from first event to last."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from pydantic_ai import messages as sdk
from pydantic_ai.models import StreamedResponse
from pydantic_core import PydanticSerializationError

from worker.models.answer_parts import BETWEEN_THOUGHTS, CallIds, CountedTokens, WholeAnswer, finalize
from worker.models.event_streams import StreamEnd
from worker.models.provider import CallArguments, CallFinished, CallStarted, ModelCall, ModelEvent, Text, Thought
from worker.models.special_tokens import JoinedPieces, revealed_halves, sound, whole_number


class AnswerEvents:
    """Translates the events of one answer to ours, and checks at its end whether it is complete."""

    def __init__(self, call: ModelCall, ids: CallIds) -> None:
        self._call = call
        self._ids = ids
        self._own_ids: dict[int, str] = {}
        """Our id of a tool call by the SDK's number of its part."""
        self._numbers: dict[int, int] = {}
        """Our number of a tool call by the SDK's number of its part."""
        self._finished: dict[int, str] = {}
        """Arguments of the calls that were emitted as a whole."""
        self._characters: defaultdict[int, JoinedPieces] = defaultdict(JoinedPieces)
        """The text of each part, by the SDK's number of the part."""
        self._thought_part: int | None = None
        self._thought = False

    def translate(self, event: sdk.ModelResponseStreamEvent) -> Iterator[ModelEvent]:
        """Returns our events for one of the SDK's; none for kinds that we do not show."""
        match event:
            case sdk.PartDeltaEvent(index=index, delta=delta):
                yield from self._delta(index, delta)
            case sdk.PartStartEvent(index=index, part=part):
                yield from self._start(index, part)
            case sdk.PartEndEvent(index=index, part=sdk.ToolCallPart() as part):
                # Its arguments may begin later.
                if part.args and self._numbers[index] == len(self._finished):
                    yield self._finished_call(index, part)
            case sdk.PartEndEvent(index=index, part=sdk.TextPart()):
                yield from self._text(self._characters[index].rest())
            case sdk.PartEndEvent(index=index, part=sdk.ThinkingPart(signature=signature)):
                yield from self._thought_events(index, self._characters[index].rest())
                if signature is not None:
                    yield Thought("", signature)
            case _:
                # New kinds of event may appear in any release; unknown kinds are not shown.
                return

    def finish(self, response: StreamedResponse, end: StreamEnd) -> Iterator[ModelEvent]:
        """Returns the last events. Raises `ModelError` if the answer was cut short, refused or empty."""
        answer = response.get()
        for index, part in enumerate(answer.parts):
            if isinstance(part, sdk.ToolCallPart):
                yield from self._argument_events(index, self._characters[index].rest())
            if isinstance(part, sdk.ToolCallPart) and self._finished.get(index) != _arguments(part):
                yield from self._start(index, part, arguments=False)
                yield self._finished_call(index, part)
        reason = answer.finish_reason if end.has_reason or answer.state != "incomplete" else None
        yield finalize(
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
                words=end.words or sound(str((answer.provider_details or {}).get("refusal", ""))),
            ),
        )

    def _start(self, index: int, part: sdk.ModelResponsePart, *, arguments: bool = True) -> Iterator[ModelEvent]:
        match part:
            case sdk.TextPart(content=text):
                yield from self._text(self._joined(index, text))
            case sdk.ThinkingPart(content=text):
                yield from self._thought_events(index, self._joined(index, text))
            case sdk.ToolCallPart():
                text = self._joined(index, _written(part.args)) if part.args and arguments else ""
                if index not in self._numbers:
                    self._numbers[index] = len(self._numbers)
                    self._own_ids[index] = self._ids.own(sound(part.tool_call_id))
                    yield CallStarted(self._numbers[index], self._own_ids[index], sound(part.tool_name), bool(text))
                yield from self._argument_events(index, text)
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
            yield Thought((BETWEEN_THOUGHTS if begins_another else "") + text)

    def _argument_events(self, index: int, text: str) -> Iterator[CallArguments]:
        if text:
            yield CallArguments(self._numbers[index], text)

    def _with_own_id(self, index: int, part: sdk.ModelResponsePart) -> sdk.ModelResponsePart:
        return replace(part, tool_call_id=self._own_ids[index]) if isinstance(part, sdk.ToolCallPart) else part

    def _finished_call(self, index: int, part: sdk.ToolCallPart) -> CallFinished:
        self._finished[index] = _arguments(part)
        return CallFinished(self._numbers[index], self._own_ids[index], sound(part.tool_name), self._finished[index])


def _reason(known: str | None, end: StreamEnd) -> str | None:
    """Returns `length` for an incomplete answer without a clear reason. Reasons unknown to the SDK count as `stop`."""
    if end.is_cut and known in (None, "stop", "tool_call"):
        return "length"
    return known or ("stop" if end.has_reason else None)


def _counted(answer: sdk.ModelResponse) -> CountedTokens:
    usage = answer.usage
    return CountedTokens(
        # The SDK keeps any value that the server has sent.
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
    """Returns the answer as JSON if the provider needs some of it back unchanged; otherwise None, because text and
    calls suffice."""
    if all(
        isinstance(part, sdk.TextPart | sdk.ToolCallPart) and part.id is None and not part.provider_details
        for part in answer.parts
    ):
        return None
    try:
        return sound(sdk.ModelMessagesTypeAdapter.dump_json([answer]).decode())
    except PydanticSerializationError:
        # Half a character (see `special_tokens.py`): an answer that cannot be kept unchanged is rebuilt from text and
        # calls.
        return None
