"""The SDK's stream events, as ours. One `AnswerEvents` follows one answer from its first event to its last."""

import json
from collections.abc import Iterator

from pydantic_ai import messages as sdk
from pydantic_ai.models import StreamedResponse
from pydantic_core import PydanticSerializationError

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import estimate_tokens
from shared.domain.runs import Usage
from worker.models.provider import (
    CallArguments,
    CallFinished,
    CallStarted,
    Finished,
    ModelCall,
    ModelEvent,
    Text,
    Thought,
)
from worker.models.user_content import replace_surrogates

_BETWEEN_THOUGHTS = "\n\n"


class AnswerEvents:
    """Turns the events of one answer into ours, and judges at its end whether it is whole."""

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self._numbers: dict[int, int] = {}
        """Our number of a tool call by the SDK's number of its part."""
        self._told: dict[int, str] = {}
        """Arguments of the calls that were told as whole."""
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
            case sdk.PartEndEvent(part=sdk.ThinkingPart(signature=str(signature))):
                yield Thought("", signature)
            case _:
                # New kinds of event may appear in any release; what we do not know is not ours to show.
                return

    def finish(self, response: StreamedResponse) -> Iterator[ModelEvent]:
        """The last events. Raises `ModelError` when the answer was cut short, refused or empty."""
        answer = response.get()
        for index, part in enumerate(answer.parts):
            if isinstance(part, sdk.ToolCallPart) and self._told.get(index) != _arguments(part):
                yield from self._start(index, part, arguments=False)
                yield self._finished_call(index, part)
        reason = answer.finish_reason
        if reason is None or answer.state == "incomplete":
            raise ModelError(
                ModelErrorType.ERROR,
                "The model's stream ended before its answer did (no finish reason).",
                retryable=True,
            )
        if reason == "error":
            raise ModelError(
                ModelErrorType.ERROR, f"The model ended its answer with an error: {answer.provider_details}"
            )
        if not _has_content(answer) and not self._call.beginning:
            raise ModelError(
                ModelErrorType.ERROR, f"LLM provider returned empty content in response (finish reason: {reason})."
            )
        ends_in_calls = any(isinstance(part, sdk.ToolCallPart) for part in answer.parts)
        ended_early = reason in ("length", "content_filter")
        yield Finished(
            reason="tool_calls" if ends_in_calls and not ended_early else "stop" if reason == "tool_call" else reason,
            usage=self._usage(answer),
            provider_response=_kept(answer),
        )

    def _start(self, index: int, part: sdk.ModelResponsePart, *, arguments: bool = True) -> Iterator[ModelEvent]:
        match part:
            case sdk.TextPart(content=text) if text:
                yield Text(replace_surrogates(text))
            case sdk.ThinkingPart(content=text) if text:
                yield self._thought_event(index, text)
            case sdk.ToolCallPart():
                if index not in self._numbers:
                    self._numbers[index] = len(self._numbers)
                    yield CallStarted(self._numbers[index], part.tool_call_id, part.tool_name)
                if part.args and arguments:
                    yield CallArguments(self._numbers[index], _arguments(part))
            case _:
                return

    def _delta(self, index: int, delta: sdk.ModelResponsePartDelta) -> Iterator[ModelEvent]:
        match delta:
            case sdk.TextPartDelta(content_delta=text) if text:
                yield Text(replace_surrogates(text))
            case sdk.ThinkingPartDelta(content_delta=str(text)) if text:
                yield self._thought_event(index, text)
            case sdk.ToolCallPartDelta(args_delta=arguments) if arguments and index in self._numbers:
                text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                yield CallArguments(self._numbers[index], replace_surrogates(text))
            case _:
                return

    def _thought_event(self, index: int, text: str) -> Thought:
        begins_another = self._thought and self._thought_part != index
        self._thought, self._thought_part = True, index
        return Thought((_BETWEEN_THOUGHTS if begins_another else "") + replace_surrogates(text))

    def _finished_call(self, index: int, part: sdk.ToolCallPart) -> CallFinished:
        self._told[index] = _arguments(part)
        return CallFinished(self._numbers[index], part.tool_call_id, part.tool_name, self._told[index])

    def _usage(self, answer: sdk.ModelResponse) -> Usage:
        usage = answer.usage
        # Some servers report -1 for what they have not counted: a budget would be given tokens back.
        prompt, completion = max(usage.input_tokens, 0), max(usage.output_tokens, 0)
        if not prompt and not completion:
            return self._estimated_usage(answer)
        # DeepSeek counts them in a field of its own.
        cached = usage.cache_read_tokens or usage.details.get("prompt_cache_hit_tokens", 0)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_input_tokens=max(cached, 0),
            cache_write_tokens=max(usage.cache_write_tokens, 0),
            reasoning_tokens=max(usage.output_reasoning_tokens, 0),
            context_tokens=prompt + completion,
        )

    def _estimated_usage(self, answer: sdk.ModelResponse) -> Usage:
        """For servers that report no usage at all."""
        prompt = self._call.estimated_tokens()
        written = "".join(part.content for part in answer.parts if isinstance(part, sdk.TextPart | sdk.ThinkingPart))
        completion = estimate_tokens(written + "".join(self._told.values()))
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            context_tokens=prompt + completion,
            estimated=True,
        )


def _arguments(part: sdk.ToolCallPart) -> str:
    if isinstance(part.args, dict):
        return replace_surrogates(json.dumps(part.args, ensure_ascii=False))
    return replace_surrogates(part.args or "{}")


def _has_content(answer: sdk.ModelResponse) -> bool:
    return any(
        isinstance(part, sdk.ToolCallPart) or (isinstance(part, sdk.TextPart | sdk.ThinkingPart) and part.content)
        for part in answer.parts
    )


def _kept(answer: sdk.ModelResponse) -> str | None:
    """The answer as JSON if the provider wants some of it back unchanged; else None, as text and calls say it all."""
    if all(
        isinstance(part, sdk.TextPart | sdk.ToolCallPart) and part.id is None and not part.provider_details
        for part in answer.parts
    ):
        return None
    try:
        return sdk.ModelMessagesTypeAdapter.dump_json([answer]).decode()
    except PydanticSerializationError:
        # Half a character (see `replace_surrogates`): what cannot be kept unchanged is rebuilt from text and calls.
        return None
