"""Anthropic's Messages: builds requests, and turns an answer's events into ours. No I/O."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.models import DEFAULT_LIMIT, PROVIDERS, answer_limit_of, claude_model, family_of, takes_format
from worker.models.answer_parts import (
    CountedTokens,
    GrowingCall,
    GrowingThought,
    arguments_text,
    reason_in,
)
from worker.models.history_mapping import (
    AnswerPart,
    AssistantTurn,
    FileData,
    Given,
    Image,
    ImageLink,
    Prompt,
    ReasoningPart,
    Result,
    TextPart,
    ToolCallPart,
    Turn,
    UserTurn,
    map_history,
)
from worker.models.http_model import Answer, url_below
from worker.models.model_errors import stream_error
from worker.models.provider import ModelCall, Route, WireRequest
from worker.models.special_tokens import Decoder, number_in, read_json
from worker.models.tool_schema import is_claudes_format, parameters_of, schema_of, without_titles

# A request of Anthropic's Messages.


PROVIDER_NAME = "anthropic"
"""The provider name in stored answers over this protocol, for any server."""

REDACTED = "redacted_thinking"
"""The name of reasoning that only the provider can read."""

DEFAULT_THINKING_TOKENS = 8_192
LEAST_THINKING_TOKENS = 1_024
"""The API's own minimum, and the least number of tokens that is left for the answer."""

_API_VERSION = "2026-10-21"
_DROPS_THINKING = {"prefix_mismatch_behavior": "drop_block"}
_MAY_DROP_THINKING = "thinking-binding-controls-2026-08-01"
"""The beta with which a request asks the API to drop thinking that it would refuse."""
_THINKING_REFUSED = "The block is bound to a different conversation"

_CACHED = {"type": "ephemeral", "ttl": "5m"}
_NOT_CACHED = ("thinking", REDACTED)
_UNSAFE_IN_CALL_ID = re.compile(r"[^a-zA-Z0-9_-]")

_Block = dict[str, Any]


class AnthropicWire:
    """The `ProviderProtocol` of Messages, for one route."""

    def __init__(self, route: Route, new_call_id: Callable[[], str]) -> None:
        self.route = route
        self.url = url_below(route.base_url, "/v1/messages")
        self._new_call_id = new_call_id
        self._model = claude_model(route.model)
        self._least_temperature = PROVIDERS[route.provider].quirks.least_temperature

    def request(self, call: ModelCall) -> WireRequest:
        turns = self._turns(call)
        return self._request(call, turns, drops_thinking=self._model.binds_thinking and _has_dropped_thinking(turns))

    def request_after(self, call: ModelCall, error: ModelError) -> WireRequest | None:
        """If something before the model's thinking has changed, a memory block for example, leaves the thinking out."""
        if not self._model.binds_thinking or error.error_type != ModelErrorType.BAD_REQUEST:
            return None
        if _THINKING_REFUSED not in error.message:
            return None
        return self._request(call, self._turns(call), drops_thinking=True)

    def answer(self, call: ModelCall) -> Answer:
        return AnthropicAnswer(call, self.route, self._new_call_id)

    def _turns(self, call: ModelCall) -> list[Turn]:
        turns = map_history(call, provider_name=PROVIDER_NAME, safe_call_id=_safe_call_id)
        return [*turns, AssistantTurn([TextPart(call.beginning)])] if call.beginning else turns

    def _request(self, call: ModelCall, turns: Sequence[Turn], *, drops_thinking: bool) -> WireRequest:
        headers = {"authorization": f"Bearer {self.route.api_key}", "anthropic-version": _API_VERSION}
        messages = [message for turn in turns if (message := _message(turn))["content"]]
        body: dict[str, Any] = {
            "model": self.route.model,
            "stream": True,
            "messages": messages,
            **self._options(call, turns),
        }
        if drops_thinking and body.get("thinking", {}).get("type", "adaptive") == "adaptive":
            headers["anthropic-beta"] = _MAY_DROP_THINKING
            body["thinking"] = {"type": "adaptive", **body.get("thinking", {}), "block_binding": _DROPS_THINKING}
        if call.system:
            body["system"] = [{"type": "text", "text": call.system}]
        if call.tools:
            body |= self._tools(call)
        if call.thread_id:
            _mark_for_cache(body)
        return WireRequest(headers, msgspec.json.encode(body))

    def _options(self, call: ModelCall, turns: Sequence[Turn]) -> _Block:
        options = call.options
        limit = options.max_output_tokens or answer_limit_of(call.handle) or DEFAULT_LIMIT
        fields: _Block = {"max_tokens": min(limit, self._model.most_output_tokens or limit)}
        thinking = None
        # A call cannot be forced from a model that thinks.
        if options.reasoning and not call.must_call and family_of(call.handle).can_think and _may_think(turns):
            thinking = self._thinking(call, limit)
        fields |= {"thinking": thinking} if thinking is not None else self._without_thinking()
        # A thinking model takes neither option, the newest never do, and the others refuse them together.
        if thinking is None and self._model.takes_temperature:
            if options.temperature is not None and call.demanded_option("top_p") is None:
                fields["temperature"] = max(self._least_temperature, min(options.temperature, 1.0))
            elif options.top_p is not None:
                fields["top_p"] = options.top_p
        if output := self._output(call):
            fields["output_config"] = fields.get("output_config", {}) | output
        return fields

    def _output(self, call: ModelCall) -> _Block:
        """The output options that the run demands, and its agent's format if the API certainly takes it."""
        effort, chosen = call.demanded_option("reasoning_effort"), schema_of(call.options.response_format)
        if chosen is not None and "response_format" not in call.demanded:
            takes = takes_format(self.route.model) and is_claudes_format(chosen) and not call.beginning
            chosen = chosen if takes else None
        says_effort = effort not in (None, "none") and call.options.reasoning
        output: _Block = {"effort": effort} if says_effort else {}
        return output if chosen is None else output | {"format": {"type": "json_schema", "schema": chosen}}

    def _thinking(self, call: ModelCall, max_tokens: int) -> _Block | None:
        """Returns the option that requests thinking; None if the answer's limit leaves no room for it."""
        if self._model.thinks_adaptively:
            return {"type": "adaptive", "display": "summarized"}
        wanted = call.options.max_reasoning_tokens or DEFAULT_THINKING_TOKENS
        budget = min(max(wanted, LEAST_THINKING_TOKENS), max_tokens - LEAST_THINKING_TOKENS)
        if budget < LEAST_THINKING_TOKENS:
            return None
        return {"type": "enabled", "budget_tokens": budget}

    def _without_thinking(self) -> _Block:
        match self._model.without_thinking:
            case "unsaid":
                return {}
            case "least":
                return {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
            case words:
                return {"thinking": {"type": words}}

    def _tools(self, call: ModelCall) -> _Block:
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": without_titles(parameters_of(tool))}
            for tool in call.tools
        ]
        if not call.may_call:
            return {"tools": tools, "tool_choice": {"type": "none"}}
        choice: _Block = {"type": "auto"}
        if call.must_call and self._model.takes_forced_calls:
            choice = {"type": "tool", "name": call.forced_tool} if call.forced_tool else {"type": "any"}
        choice["disable_parallel_tool_use"] = not call.options.parallel_tool_calls
        return {"tools": tools, "tool_choice": choice}


def _message(turn: Turn) -> dict[str, Any]:
    if isinstance(turn, AssistantTurn):
        content = [block for part in turn.parts if (block := _answer_block(part)) is not None]
        return {"role": "assistant", "content": content}
    return {"role": "user", "content": [block for part in turn.parts for block in _asked_blocks(part)]}


def _asked_blocks(part: Prompt | Result) -> list[_Block]:
    if isinstance(part, Prompt):
        content = [part.content] if isinstance(part.content, str) else part.content
        return [_content_block(one) for one in content]
    # The API refuses blank text, between thinking and a call as well as in a result.
    content = [_content_block(one) for one in (part.text, *part.images) if not isinstance(one, str) or one.strip()]
    return [{"type": "tool_result", "tool_use_id": part.call_id, "content": content, "is_error": False}]


def _content_block(content: str | Image | FileData) -> _Block:
    if isinstance(content, str):
        return {"type": "text", "text": content}
    if isinstance(content, FileData):
        source = {"type": "base64", "data": content.base64, "media_type": content.media_type}
        return {"type": "document", "source": source, "title": content.name}
    if isinstance(content, ImageLink):
        return {"type": "image", "source": {"type": "url", "url": content.url}}
    source = {"type": "base64", "data": content.base64, "media_type": content.media_type}
    return {"type": "image", "source": source}


def _answer_block(part: AnswerPart) -> _Block | None:
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case ToolCallPart(id=call_id, name=name, arguments=arguments):
            return {"type": "tool_use", "id": call_id, "name": name, "input": msgspec.Raw(arguments.encode())}
        case ReasoningPart(id=name, text=text, signature=signature):
            if not signature:
                return None  # the API would refuse it
            if name == REDACTED:
                return {"type": REDACTED, "data": signature}
            return {"type": "thinking", "thinking": text, "signature": signature}


def _mark_for_cache(body: dict[str, Any]) -> None:
    """Sets three marks up to which the provider caches the request: the last tool, the instructions and the last
    message. The part that the next request shares with this one then costs a tenth.

    Caching costs a quarter more, so a call outside a conversation, which no other call follows, caches nothing.
    """
    for blocks in (body.get("tools"), body.get("system"), body["messages"][-1]["content"]):
        cached = [block for block in blocks or () if block.get("type") not in _NOT_CACHED]
        if cached:
            cached[-1]["cache_control"] = _CACHED


def _may_think(turns: Sequence[Turn]) -> bool:
    """Whether thinking may be on.

    Between a tool's result and the model's next text the API wants the thinking that led to the call; a call made by
    another model, or by an answer that was rebuilt, has none.
    """
    for turn in reversed(turns):
        match turn:
            case UserTurn() if not _has_results(turn):
                break
            case AssistantTurn(parts=parts) if any(isinstance(one, ReasoningPart) and one.signature for one in parts):
                return True
            case _:
                continue
    return not _has_results(turns[-1])


def _has_results(turn: Turn) -> bool:
    return isinstance(turn, UserTurn) and any(isinstance(part, Result) for part in turn.parts)


def _has_dropped_thinking(turns: Sequence[Turn]) -> bool:
    """Whether the provider reported that it dropped thinking for an answer. Later requests must then ask for that
    again."""
    for turn in turns:
        details = turn.details if isinstance(turn, AssistantTurn) else None
        changes = cast("list[Mapping[str, Any]]", (details or {}).get("input_transformations") or [])
        if any(change.get("reason") == "prefix_binding_mismatch" for change in changes):
            return True
    return False


def _safe_call_id(call_id: str) -> str:
    """The API allows letters, digits, `_` and `-`; other servers' ids may contain dots and colons."""
    return _UNSAFE_IN_CALL_ID.sub("_", call_id)


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: Any = None
    input_transformations: Any = None
    """The parts of the request that the provider has left out."""


class _AnswerBlock(msgspec.Struct):
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
    partial_json: Any = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: Any = None
    """A message, or the text of an error."""
    content_block: _AnswerBlock | None = None
    delta: _Delta | None = None
    usage: Any = None
    input_transformations: Any = None
    error: Any = None


class _WholeMessage(_Message):
    """The answer of a server that does not stream."""

    content: list[_AnswerBlock] = []
    stop_reason: str | None = None


_EVENTS = Decoder(_Event)
_STARTS = Decoder(_Message)
_WHOLE = Decoder(_WholeMessage)


class AnthropicAnswer(Answer):
    """The `Answer` of Messages."""

    def __init__(self, call: ModelCall, route: Route, new_call_id: Callable[[], str]) -> None:
        super().__init__(call, route, new_call_id)
        self._blocks: dict[int, GrowingThought | GrowingCall] = {}
        self._given = Given(PROVIDER_NAME, route.model, None, None)
        self._usage: dict[str, Any] = {}
        self._dropped: Any = None

    def take(self, data: bytes) -> None:
        event = _EVENTS.decode(data)
        match event.type:
            case "content_block_delta" if event.delta is not None:
                self._take_delta(event.index, event.delta)
            case "content_block_start" if event.content_block is not None:
                self._begin(event.index, event.content_block)
            case "content_block_stop":
                self._parts.close()
            case "message_start" if event.message:
                self._take_message(_STARTS.convert(event.message))
            case "message_delta":
                self._count(event.usage)
                self._dropped = event.input_transformations or self._dropped
                self._raw_reason = (event.delta and event.delta.stop_reason) or self._raw_reason
            case "message_stop":
                self.is_over = True
            case "message":
                self._take_whole(_WHOLE.decode(data))
            case kind if event.error or kind == "error" or (not kind and event.message):
                raise stream_error(event.error or read_json(data), provider=self._route.provider)
            case _:
                # New kinds of event may appear at any time.
                return

    def finish(self) -> None:
        details = {"input_transformations": self._dropped} if self._dropped else None
        given = msgspec.structs.replace(self._given, reason=reason_in(self._raw_reason), details=details)
        self._end(given, _counted(self._usage))

    def _take_message(self, message: _Message) -> None:
        self._given = Given(PROVIDER_NAME, message.model or self._route.model, message.id, None)
        self._dropped = message.input_transformations
        self._count(message.usage)

    def _take_whole(self, message: _WholeMessage) -> None:
        self._take_message(message)
        for index, block in enumerate(message.content):
            self._begin(index, block)
            self._parts.close()
        self._raw_reason = message.stop_reason or "end_turn"

    def _count(self, usage: object) -> None:
        """Later counts replace earlier ones. Some servers count the request only at its beginning, and send 0 later."""
        given = cast("Mapping[str, Any]", usage if isinstance(usage, Mapping) else {})
        counted = {name: one for name, one in given.items() if one is not None}
        if not any(one for name, one in counted.items() if "input_tokens" in name):
            counted = {name: one for name, one in counted.items() if "input_tokens" not in name}
        self._usage |= counted

    def _begin(self, index: int, block: _AnswerBlock) -> None:
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
                call.first_arguments = arguments_text(block.input) if block.input else ""
            case _:
                return

    def _take_delta(self, index: int, delta: _Delta) -> None:
        block = self._blocks.get(index)
        match delta.type:
            case "text_delta" | "" if delta.text:
                self._parts.say(delta.text)
            case "thinking_delta" | "" if delta.thinking:
                thought = block if isinstance(block, GrowingThought) else self._parts.begin_thought()
                self._blocks[index] = thought
                self._parts.add_thought(thought, delta.thinking)
            case "signature_delta" | "" if isinstance(block, GrowingThought) and delta.signature:
                block.signature = delta.signature
            case "input_json_delta" | "" if isinstance(block, GrowingCall) and delta.partial_json:
                self._parts.argue(block, arguments_text(delta.partial_json))
            case _:
                return


def _counted(usage: Mapping[str, Any]) -> CountedTokens:
    if "input_tokens" not in usage:
        return CountedTokens()  # the beginning of the stream is missing, so the counts are incomplete
    read, written = number_in(usage, "cache_read_input_tokens"), number_in(usage, "cache_creation_input_tokens")
    prompt = number_in(usage, "input_tokens")
    return CountedTokens(
        prompt=-1 if min(prompt, read, written) < 0 else prompt + read + written,
        completion=number_in(usage, "output_tokens"),
        cached=read,
        cache_written=written,
        reasoning=number_in(usage, "output_tokens_details", "thinking_tokens"),
    )
