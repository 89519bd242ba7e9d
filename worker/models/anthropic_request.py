"""A request of Anthropic's Messages."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.model_catalog import DEFAULT_LIMIT, answer_limit_of, family_of
from shared.domain.model_providers import PROVIDERS
from worker.models.anthropic_models import claude_model
from worker.models.history_mapping import map_history
from worker.models.provider import ModelCall, Route, WireRequest
from worker.models.tool_schema import NO_PARAMETERS, without_titles
from worker.models.turns import (
    Answered,
    AnswerPart,
    Asked,
    Called,
    Image,
    ImageLink,
    Prompt,
    Reasoned,
    Result,
    Said,
    Turn,
)

PROVIDER_NAME = "anthropic"
"""How answers over this wire are signed where they are kept, whoever gave them."""

REDACTED = "redacted_thinking"
"""The name of reasoning that only the provider can read."""

DEFAULT_THINKING_TOKENS = 8_192
LEAST_THINKING_TOKENS = 1_024
"""The API's own minimum; also what is left for the answer at least."""

_API_VERSION = "2026-10-21"
_DROPS_THINKING = {"prefix_mismatch_behavior": "drop_block"}
_MAY_DROP_THINKING = "thinking-binding-controls-2026-08-01"
"""The beta that a request names which has refused thinking dropped."""
_THINKING_REFUSED = "The block is bound to a different conversation"

_CACHED = {"type": "ephemeral", "ttl": "5m"}
_NOT_CACHED = ("thinking", REDACTED)
_UNSAFE_IN_CALL_ID = re.compile(r"[^a-zA-Z0-9_-]")

_Block = dict[str, Any]


class AnthropicRequest:
    """Makes the requests of one route."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._model = claude_model(route.model)
        self._least_temperature = PROVIDERS[route.provider].quirks.least_temperature

    def first(self, call: ModelCall) -> WireRequest:
        """The request. Raises `ModelError` for what cannot be sent."""
        turns = self._turns(call)
        return self._request(call, turns, drops_thinking=self._model.binds_thinking and _has_dropped_thinking(turns))

    def after(self, call: ModelCall, error: ModelError) -> WireRequest | None:
        """The request in other words, if that may help against the error.

        Something before the model's thinking has changed, a block of memory for example: the thinking is left out.
        """
        if not self._model.binds_thinking or error.error_type != ModelErrorType.BAD_REQUEST:
            return None
        if _THINKING_REFUSED not in error.message:
            return None
        return self._request(call, self._turns(call), drops_thinking=True)

    def _turns(self, call: ModelCall) -> list[Turn]:
        turns = map_history(call, provider_name=PROVIDER_NAME, safe_call_id=_safe_call_id)
        return [*turns, Answered([Said(call.beginning)])] if call.beginning else turns

    def _request(self, call: ModelCall, turns: Sequence[Turn], *, drops_thinking: bool) -> WireRequest:
        headers = {"authorization": f"Bearer {self._route.api_key}", "anthropic-version": _API_VERSION}
        messages = [message for turn in turns if (message := _message(turn))["content"]]
        body: dict[str, Any] = {
            "model": self._route.model,
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
        # A thinking model takes no temperature, and the newest take none at all.
        if options.temperature is not None and thinking is None and self._model.takes_temperature:
            fields["temperature"] = max(self._least_temperature, min(options.temperature, 1.0))
        return fields

    def _thinking(self, call: ModelCall, max_tokens: int) -> _Block | None:
        """How to ask for thinking; None when the answer's limit leaves no room for it."""
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
        forced = call.must_call and self._model.takes_forced_calls
        tools = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": without_titles(tool.parameters or NO_PARAMETERS),
            }
            for tool in call.tools
        ]
        choice = {
            "type": "any" if forced else "auto",
            "disable_parallel_tool_use": not call.options.parallel_tool_calls,
        }
        return {"tools": tools, "tool_choice": choice}


def _message(turn: Turn) -> dict[str, Any]:
    if isinstance(turn, Answered):
        content = [block for part in turn.parts if (block := _answer_block(part)) is not None]
        return {"role": "assistant", "content": content}
    return {"role": "user", "content": [block for part in turn.parts for block in _asked_blocks(part)]}


def _asked_blocks(part: Prompt | Result) -> list[_Block]:
    if isinstance(part, Prompt):
        content = [part.content] if isinstance(part.content, str) else part.content
        return [_content_block(one) for one in content]
    text = json.dumps(part.envelope, ensure_ascii=False)
    content = [_content_block(one) for one in (text, *part.images)]
    return [{"type": "tool_result", "tool_use_id": part.call_id, "content": content, "is_error": False}]


def _content_block(content: str | Image) -> _Block:
    if isinstance(content, str):
        return {"type": "text", "text": content}
    if isinstance(content, ImageLink):
        return {"type": "image", "source": {"type": "url", "url": content.url}}
    source = {"type": "base64", "data": content.base64, "media_type": content.media_type}
    return {"type": "image", "source": source}


def _answer_block(part: AnswerPart) -> _Block | None:
    match part:
        case Said(text=text):
            return {"type": "text", "text": text} if text else None
        case Called(id=call_id, name=name, arguments=arguments):
            return {"type": "tool_use", "id": call_id, "name": name, "input": msgspec.Raw(arguments.encode())}
        case Reasoned(id=name, text=text, signature=signature):
            if not signature:
                return None  # it would be refused
            if name == REDACTED:
                return {"type": REDACTED, "data": signature}
            return {"type": "thinking", "thinking": text, "signature": signature}


def _mark_for_cache(body: dict[str, Any]) -> None:
    """Have the provider keep what it has read up to each of three marks: the last tool, the instructions and the last
    message. What the next request has in common with this one then costs a tenth.

    Keeping costs a quarter more, so a call outside a conversation, which no other follows, keeps nothing.
    """
    for blocks in (body.get("tools"), body.get("system"), body["messages"][-1]["content"]):
        cached = [block for block in blocks or () if block.get("type") not in _NOT_CACHED]
        if cached:
            cached[-1]["cache_control"] = _CACHED


def _may_think(turns: Sequence[Turn]) -> bool:
    """Whether thinking may be on.

    Between a tool's result and the model's next words the API wants the thinking that led to the call; a call made by
    another model, or by an answer that was rebuilt, has none.
    """
    for turn in reversed(turns):
        match turn:
            case Asked() if not _has_results(turn):
                break
            case Answered(parts=parts) if any(isinstance(part, Reasoned) and part.signature for part in parts):
                return True
            case _:
                continue
    return not _has_results(turns[-1])


def _has_results(turn: Turn) -> bool:
    return isinstance(turn, Asked) and any(isinstance(part, Result) for part in turn.parts)


def _has_dropped_thinking(turns: Sequence[Turn]) -> bool:
    """Whether the provider has said of an answer that it dropped thinking for it. Then it wants to be asked for that
    again."""
    for turn in turns:
        details = turn.details if isinstance(turn, Answered) else None
        changes = cast("list[Mapping[str, Any]]", (details or {}).get("input_transformations") or [])
        if any(change.get("reason") == "prefix_binding_mismatch" for change in changes):
            return True
    return False


def _safe_call_id(call_id: str) -> str:
    """The API takes letters, digits, `_` and `-`; other servers' ids may hold dots and colons."""
    return _UNSAFE_IN_CALL_ID.sub("_", call_id)
