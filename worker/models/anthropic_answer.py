"""An answer over Anthropic's Messages: events in, ours out. No I/O. At its end: the wire as a whole."""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import httpx2
import msgspec

from shared.domain.errors import ModelError
from worker.models.answer_end import CountedTokens, FinishReason, WholeAnswer, judge, reason_in
from worker.models.answer_parts import AnswerParts, GrowingCall, GrowingThought
from worker.models.anthropic_request import PROVIDER_NAME, REDACTED, AnthropicRequest
from worker.models.call_ids import CallIds
from worker.models.decoding import Decoder, number_in
from worker.models.kept_answer import Given, write_kept
from worker.models.model_errors import stream_error
from worker.models.provider import ModelCall, ModelEvent, Route, WireRequest
from worker.models.turns import Called, Reasoned, Said


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: Any = None
    input_transformations: Any = None
    """What the provider has left out of the request."""


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None
    input_transformations: Any = None
    error: Any = None


class _WholeMessage(_Message):
    """From a server that does not stream."""

    content: list[_Block] = []
    stop_reason: str | None = None


_EVENTS = Decoder(_Event)
_WHOLE = Decoder(_WholeMessage)

_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class AnthropicAnswer:
    """One answer, from its first event to its last."""

    def __init__(self, call: ModelCall, route: Route, new_call_id: Callable[[], str]) -> None:
        self._call = call
        self._route = route
        self._parts = AnswerParts(CallIds(call, new_call_id))
        self._blocks: dict[int, GrowingThought | GrowingCall] = {}
        self._given = Given(PROVIDER_NAME, route.model, None, "")
        self._raw_reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._dropped: Any = None
        self.is_over = False
        """The server says that nothing follows."""

    @property
    def has_begun(self) -> bool:
        return self._parts.has_begun

    @property
    def has_reason(self) -> bool:
        return bool(self._raw_reason)

    def told(self) -> list[ModelEvent]:
        """The events since they were last asked for."""
        return self._parts.told()

    def take(self, data: bytes) -> None:
        """The next event of the stream. Raises `ModelError` for an error in it, or one that cannot be read."""
        event = _EVENTS.decode(data)
        match event.type:
            case "content_block_delta" if event.delta is not None:
                self._take_delta(event.index, event.delta)
            case "content_block_start" if event.content_block is not None:
                self._begin(event.index, event.content_block)
            case "content_block_stop":
                self._parts.close()
            case "message_start" if event.message is not None:
                self._take_message(event.message)
            case "message_delta":
                self._count(event.usage)
                self._dropped = event.input_transformations or self._dropped
                self._raw_reason = (event.delta and event.delta.stop_reason) or self._raw_reason
            case "message_stop":
                self.is_over = True
            case "message":
                self._take_whole(_WHOLE.decode(data))
            case "error":
                raise stream_error(event.error, provider=self._route.provider)
            case _ if event.error:
                raise stream_error(event.error, provider=self._route.provider)
            case _:
                # New kinds of event may appear at any time.
                return

    def finish(self) -> None:
        """The end of the stream. Raises `ModelError` when it was not the end of the answer."""
        parts = self._parts.finish()
        reason = reason_in(_REASONS, self._raw_reason)
        details = {"input_transformations": self._dropped} if self._dropped else None
        given = msgspec.structs.replace(self._given, reason=reason or "error", details=details)
        finished = judge(
            self._call,
            WholeAnswer(
                reason=reason,
                text="".join(part.text for part in parts if isinstance(part, Said | Reasoned)),
                arguments=[part.arguments for part in parts if isinstance(part, Called)],
                counted=_counted(self._usage),
                provider_response=write_kept(parts, given),
                details=self._raw_reason,
            ),
        )
        self._parts.tell(finished)

    def _take_message(self, message: _Message) -> None:
        self._given = Given(PROVIDER_NAME, message.model or self._route.model, message.id, "")
        self._dropped = message.input_transformations
        self._count(message.usage)

    def _take_whole(self, message: _WholeMessage) -> None:
        self._take_message(message)
        for index, block in enumerate(message.content):
            self._begin(index, block)
            self._parts.close()
        self._raw_reason = message.stop_reason or "end_turn"

    def _count(self, usage: object) -> None:
        """Later counts take the place of earlier ones."""
        if isinstance(usage, Mapping):
            fields = cast("Mapping[str, Any]", usage)
            self._usage.update((name, value) for name, value in fields.items() if value is not None)

    def _begin(self, index: int, block: _Block) -> None:
        match block.type:
            case "text" if block.text:
                self._parts.say(block.text)
            case "thinking":
                thought = self._blocks[index] = self._parts.begin_thought()
                thought.signature = block.signature
                if block.thinking:
                    self._parts.add_thought(thought, block.thinking)
            case "redacted_thinking":
                thought = self._blocks[index] = self._parts.begin_thought(REDACTED)
                thought.signature = block.data
            case "tool_use":
                call = self._blocks[index] = self._parts.begin_call(block.id)
                self._parts.name_call(call, block.name or "")
                if block.input:
                    self._parts.argue(call, json.dumps(block.input, ensure_ascii=False))
            case _:
                return

    def _take_delta(self, index: int, delta: _Delta) -> None:
        block = self._blocks.get(index)
        match delta.type:
            case "text_delta" if delta.text:
                self._parts.say(delta.text)
            case "thinking_delta" if delta.thinking:
                thought = block if isinstance(block, GrowingThought) else self._parts.begin_thought()
                self._blocks[index] = thought
                self._parts.add_thought(thought, delta.thinking)
            case "signature_delta" if isinstance(block, GrowingThought):
                block.signature = delta.signature
            case "input_json_delta" if isinstance(block, GrowingCall) and delta.partial_json:
                self._parts.argue(block, delta.partial_json)
            case _:
                return


def _counted(usage: Mapping[str, Any]) -> CountedTokens:
    if "input_tokens" not in usage:
        return CountedTokens()  # the beginning of the stream is missing: what is there is no whole count
    read, written = number_in(usage, "cache_read_input_tokens"), number_in(usage, "cache_creation_input_tokens")
    prompt = number_in(usage, "input_tokens")
    return CountedTokens(
        prompt=-1 if min(prompt, read, written) < 0 else prompt + read + written,
        completion=number_in(usage, "output_tokens"),
        cached=read,
        cache_written=written,
        reasoning=number_in(usage, "output_tokens_details", "thinking_tokens"),
    )


class AnthropicWire:
    """A `DirectWire`: where Messages are asked."""

    def __init__(self, route: Route, new_call_id: Callable[[], str]) -> None:
        self.route = route
        base = httpx2.URL(route.base_url)
        self.url = base.copy_with(path=base.path.rstrip("/") + "/v1/messages")
        self._request = AnthropicRequest(route)
        self._new_call_id = new_call_id

    def request(self, call: ModelCall) -> WireRequest:
        return self._request.first(call)

    def request_after(self, call: ModelCall, error: ModelError) -> WireRequest | None:
        return self._request.after(call, error)

    def answer(self, call: ModelCall) -> AnthropicAnswer:
        return AnthropicAnswer(call, self.route, self._new_call_id)
