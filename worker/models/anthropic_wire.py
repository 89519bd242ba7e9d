"""Anthropic's Messages API. Imported on first use: the SDK takes more than a second."""

import re
from collections.abc import Sequence

import anthropic
import httpx2
from anthropic.types.beta import BetaThinkingConfigParam
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ThinkingPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.settings import ModelSettings

from shared.domain.model_catalog import DEFAULT_LIMIT, answer_limit_of, family_of
from shared.domain.model_providers import PROVIDERS
from worker.models.provider import ModelCall, Route
from worker.models.sdk_model import WireModel

DEFAULT_THINKING_TOKENS = 8_192
LEAST_THINKING_TOKENS = 1_024
"""The API's own minimum; also what is left for the answer at least."""

_UNSAFE_IN_CALL_ID = re.compile(r"[^a-zA-Z0-9_-]")


def build(route: Route, client: httpx2.AsyncClient) -> WireModel:
    """The model at the end of a route, on the shared client."""
    sdk = anthropic.AsyncAnthropic(
        api_key=route.api_key,
        base_url=route.base_url,
        max_retries=0,
        http_client=client,
        timeout=client.timeout,
    )
    model = AnthropicModel(route.model, provider=AnthropicProvider(anthropic_client=sdk))
    return WireModel(
        model,
        lambda call, messages: _settings(
            call, messages, model.profile, least_temperature=PROVIDERS[route.provider].quirks.least_temperature
        ),
        safe_call_id=_safe_call_id,
        errors=(anthropic.AnthropicError,),
    )


def _settings(
    call: ModelCall, messages: Sequence[ModelMessage], profile: ModelProfile, *, least_temperature: float
) -> ModelSettings:
    options = call.options
    limit = options.max_output_tokens or answer_limit_of(call.handle) or DEFAULT_LIMIT
    settings = AnthropicModelSettings(max_tokens=limit)
    if call.thread_id:
        _mark_for_cache(settings)
    thinking = None
    # A call cannot be forced from a model that thinks.
    if options.reasoning and not call.must_call and family_of(call.handle).can_think and _may_think(messages):
        thinking = _thinking(call, limit, profile)
    if thinking is not None:
        settings["anthropic_thinking"] = thinking
    else:
        settings["thinking"] = False
    # A thinking model takes no temperature, and the newest take none at all.
    if (
        options.temperature is not None
        and thinking is None
        and not profile.get("anthropic_disallows_sampling_settings")
    ):
        settings["temperature"] = max(least_temperature, min(options.temperature, 1.0))
    if call.tools:
        settings["parallel_tool_calls"] = options.parallel_tool_calls
    return settings


def _mark_for_cache(settings: AnthropicModelSettings) -> None:
    """Have the provider keep what it has read up to each of three marks: the last tool, the instructions and the last
    message. What the next request has in common with this one then costs a tenth.

    Keeping costs a quarter more, so a call outside a conversation, which no other follows, keeps nothing.
    """
    settings["anthropic_cache_tool_definitions"] = True
    settings["anthropic_cache_instructions"] = True
    settings["anthropic_cache_messages"] = True


def _thinking(call: ModelCall, max_tokens: int, profile: ModelProfile) -> BetaThinkingConfigParam | None:
    """How to ask for thinking; None when the answer's limit leaves no room for it."""
    if profile.get("anthropic_supports_adaptive_thinking"):
        return {"type": "adaptive", "display": "summarized"}
    wanted = call.options.max_reasoning_tokens or DEFAULT_THINKING_TOKENS
    budget = min(max(wanted, LEAST_THINKING_TOKENS), max_tokens - LEAST_THINKING_TOKENS)
    if budget < LEAST_THINKING_TOKENS:
        return None
    return {"type": "enabled", "budget_tokens": budget}


def _may_think(messages: Sequence[ModelMessage]) -> bool:
    """Whether thinking may be on.

    Between a tool's result and the model's next words the API wants the thinking that led to the call; a call made by
    another model, or by an answer that was rebuilt, has none.
    """
    for message in reversed(messages):
        match message:
            case ModelRequest(parts=parts) if not any(isinstance(part, ToolReturnPart) for part in parts):
                break
            case ModelResponse(parts=parts) if any(isinstance(part, ThinkingPart) and part.signature for part in parts):
                return True
            case _:
                continue
    return not any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)


def _safe_call_id(call_id: str) -> str:
    """The API takes letters, digits, `_` and `-`; other servers' ids may hold dots and colons."""
    return _UNSAFE_IN_CALL_ID.sub("_", call_id)
