"""An answer over OpenAI's Chat Completions: chunks in, events out. No I/O.

Servers that imitate the wire send much that OpenAI does not: what is not understood is passed over, unless nothing of
the answer would be left.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from shared.domain.model_providers import PROVIDERS
from worker.models.answer_end import CountedTokens, FinishReason, WholeAnswer, judge, reason_in
from worker.models.answer_parts import AnswerParts, GrowingCall
from worker.models.call_ids import CallIds
from worker.models.chat_request import FROM_TAGS, THINK_TAGS
from worker.models.decoding import Decoder, number_in
from worker.models.kept_answer import Given, write_kept
from worker.models.model_errors import stream_error
from worker.models.provider import ModelCall, ModelEvent, Route
from worker.models.special_tokens import tokenizes_text
from worker.models.turns import Called, Reasoned, Said


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None
    """Text; some servers give the object."""


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None
    """Google's signatures, over its imitation of the wire."""


class _Delta(msgspec.Struct):
    content: Any = None
    """Text; some servers give a list of parts."""
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: Any = None
    """All of the answer, from a server that does not stream. Beside a delta, what has come of it so far."""
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_CHUNKS = Decoder(_Chunk)
_WHOLE = Decoder(_Delta)

_DONE = b"[DONE]"

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "length": "length",
    "model_length": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
    "error": "error",
    "abort": "error",
    "max_tokens": "length",
    "safety": "content_filter",
    "refusal": "content_filter",
}
"""OpenAI's, Together's `eos`, Mistral's `model_length` and `error`, `abort` of vLLM and SGLang, and words that gateways
pass on from other wires. Any other word is an end as good as `stop`."""

_TEXT_MAY_BEGIN_BLANK = ("qwen/", "deepseek/", "moonshotai/", "openai/gpt-oss")
"""Beginnings of the names under which hosts serve models that write blank lines before they call a tool."""


class ChatAnswer:
    """One answer, from its first chunk to its last."""

    def __init__(self, call: ModelCall, route: Route, new_id: Callable[[], str]) -> None:
        self._call = call
        self._route = route
        self._parts = AnswerParts(CallIds(call, new_id), mends_tokens=tokenizes_text(route.model))
        self._calls: dict[int, GrowingCall] = {}
        self._drops_blank_beginnings = route.model.lower().startswith(_TEXT_MAY_BEGIN_BLANK)
        self._in_tags = False
        self._raw_reason: str | None = None
        self._is_refused = False
        self._usage: Any = None
        self._model = route.model
        self._response_id: str | None = None
        self.is_over = False
        """The server says that nothing follows."""

    @property
    def has_begun(self) -> bool:
        return self._parts.has_begun

    @property
    def has_reason(self) -> bool:
        return reason_in(_REASONS, self._raw_reason) not in (None, "error")

    def told(self) -> list[ModelEvent]:
        """The events since they were last asked for."""
        return self._parts.told()

    def take(self, data: bytes) -> None:
        """The next event of the stream. Raises `ModelError` for an error in it, or one that cannot be read."""
        if data.startswith(_DONE):
            self.is_over = True
            return
        chunk = _CHUNKS.decode(data)
        if chunk.error:
            raise stream_error(chunk.error, provider=self._route.provider)
        # Later counts include earlier ones.
        self._usage = chunk.usage or self._usage
        self._response_id = chunk.id or self._response_id
        self._model = chunk.model or self._model
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        self._raw_reason = choice.finish_reason or self._raw_reason
        if choice.delta is not None:
            self._take_delta(choice.delta)
        elif choice.message:
            self._raw_reason = self._raw_reason or "stop"
            self._take_delta(_WHOLE.convert(choice.message))

    def finish(self) -> None:
        """The end of the stream. Raises `ModelError` when it was not the end of the answer."""
        parts = self._parts.finish()
        provider = self._route.provider
        reason = "content_filter" if self._is_refused else reason_in(_REASONS, self._raw_reason)
        given = Given(provider, self._model, self._response_id, reason or "error")
        finished = judge(
            self._call,
            WholeAnswer(
                reason=reason,
                text="".join(part.text for part in parts if isinstance(part, Said | Reasoned)),
                arguments=[part.arguments for part in parts if isinstance(part, Called)],
                counted=_counted(self._usage, reasoning_is_apart=PROVIDERS[provider].quirks.counts_reasoning_apart),
                provider_response=write_kept(parts, given),
                details=self._raw_reason,
            ),
        )
        self._parts.tell(finished)

    def _take_delta(self, delta: _Delta) -> None:
        if delta.refusal:
            self._is_refused = True
            return
        for name, text in (("reasoning", delta.reasoning), ("reasoning_content", delta.reasoning_content)):
            if isinstance(text, str) and text:
                self._parts.think(text, name)
                break
        if delta.content:
            self._take_text(delta.content if isinstance(delta.content, str) else _joined(delta.content))
        for call in delta.tool_calls or ():
            self._take_call(call)

    def _take_text(self, text: str) -> None:
        """Text, or reasoning between tags. A tag is one token, so it comes by itself."""
        if self._in_tags:
            self._in_tags = text != THINK_TAGS[1]
            if self._in_tags:
                self._parts.think(text, FROM_TAGS)
            return
        if text == THINK_TAGS[0]:
            self._in_tags = True
            self._parts.begin_thought(FROM_TAGS)
            return
        if self._drops_blank_beginnings and not self._parts.is_saying and text.isspace():
            return
        self._parts.say(text)

    def _take_call(self, piece: _ToolCall) -> None:
        function = piece.function or _Function()
        call = self._call_of(piece, function)
        if piece.extra_content:
            call.details = {"extra_content": piece.extra_content}
        if function.name:
            self._parts.name_call(call, function.name)
        arguments = function.arguments
        if arguments:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            self._parts.argue(call, text)

    def _call_of(self, piece: _ToolCall, function: _Function) -> GrowingCall:
        """The call that the piece belongs to; a new one if it begins another."""
        if piece.index is None:
            # Without a number, a name begins a call, and everything else goes on with the last one.
            last = self._parts.open_call
            return last if last is not None and not function.name else self._parts.begin_call(piece.id)
        call = self._calls.get(piece.index)
        if call is None or (piece.id and function.name and call.is_whole() and _begins_another(piece, function, call)):
            # Some servers send whole calls, all with the number 0.
            call = self._calls[piece.index] = self._parts.begin_call(piece.id)
        return call


def _begins_another(piece: _ToolCall, function: _Function, call: GrowingCall) -> bool:
    """Whether a named piece is not the end of this call, which is whole: it has an id or arguments of its own."""
    arguments = function.arguments
    return piece.id != call.given_id or isinstance(arguments, dict) or str(arguments or "").lstrip().startswith("{")


def _joined(content: object) -> str:
    """The text of content that came as a list of parts."""
    if not isinstance(content, list):
        return ""
    texts: list[str] = []
    for part in cast("list[object]", content):
        match part:
            case str():
                texts.append(part)
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                continue
    return "".join(texts)


def _counted(usage: object, *, reasoning_is_apart: bool) -> CountedTokens:
    reasoning = number_in(usage, "completion_tokens_details", "reasoning_tokens")
    return CountedTokens(
        prompt=number_in(usage, "prompt_tokens"),
        completion=number_in(usage, "completion_tokens") + (max(reasoning, 0) if reasoning_is_apart else 0),
        # DeepSeek counts them in a field of its own.
        cached=number_in(usage, "prompt_tokens_details", "cached_tokens")
        or number_in(usage, "prompt_cache_hit_tokens"),
        cache_written=number_in(usage, "prompt_tokens_details", "cache_write_tokens"),
        reasoning=reasoning,
    )
