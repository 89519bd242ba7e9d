"""OpenAI's two wires: Responses for OpenAI's reasoning models, Chat Completions for the rest and for every server that
imitates it. Imported on first use: the SDK takes most of a second."""

from collections.abc import Sequence
from typing import cast, get_args

import httpx2
import openai
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from openai.types.shared import ReasoningEffort
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIChatModelSettings,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.settings import ModelSettings

from shared.domain.model_catalog import family_of
from worker.models.provider import ModelCall, Route
from worker.models.sdk_model import WireModel

_NEEDS_FINISH_REASON = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)


def build(route: Route, client: httpx2.AsyncClient) -> WireModel:
    """The model at the end of a route, on the shared client."""
    sdk = openai.AsyncOpenAI(
        api_key=route.api_key,
        base_url=route.base_url,
        max_retries=0,
        http_client=client,
        timeout=client.timeout,
    )
    errors = (openai.OpenAIError,)
    if route.wire == "responses":
        _complete_event_types()
        responses = OpenAIResponsesModel(route.model, provider=OpenAIProvider(openai_client=sdk))
        reasons = bool(responses.profile.get("supports_thinking"))
        return WireModel(responses, lambda call, _messages: _responses_settings(call, reasons), errors=errors)
    if route.provider == "openai":
        provider = OpenAIProvider(openai_client=sdk)
    else:
        provider = OpenAICompatibleProvider(route.provider, openai_client=sdk)
    chat = OpenAIChatModel(route.model, provider=provider, profile=_NEEDS_FINISH_REASON)
    return WireModel(chat, lambda call, messages: _chat_settings(call, messages, route), errors=errors)


def _complete_event_types() -> None:
    """Have pydantic build its schemas now, in the thread of the import. They would be built at the first event, which
    would hold up everything else in the process for half a second."""
    for annotated in (ResponseStreamEvent, ResponseOutputItem):
        for event in get_args(get_args(annotated)[0]):
            event.model_rebuild()


def _responses_settings(call: ModelCall, reasons: bool) -> ModelSettings:
    options = call.options
    # Nothing of the conversation is left with the provider: what it needs again comes back encrypted in the answer.
    settings = OpenAIResponsesModelSettings(openai_store=False)
    if reasons and options.reasoning:
        settings["openai_reasoning_summary"] = "auto"
        if options.reasoning_effort is not None:
            # Passed on as it is; the provider knows which levels this model has.
            settings["openai_reasoning_effort"] = cast(ReasoningEffort, options.reasoning_effort)
    elif reasons:
        settings["thinking"] = False
    elif options.temperature is not None:
        settings["temperature"] = options.temperature
    _add_common(settings, call)
    return settings


def _chat_settings(call: ModelCall, _messages: Sequence[ModelMessage], route: Route) -> ModelSettings:
    options = call.options
    settings = OpenAIChatModelSettings()
    if options.temperature is not None and family_of(call.handle).takes_temperature:
        settings["temperature"] = options.temperature
    extra: dict[str, object] = {}
    if options.response_format is not None and options.response_format.get("type") != "text":
        extra["response_format"] = options.response_format
    if options.reasoning and options.reasoning_effort is not None and route.provider != "openai":
        # The models that OpenAI itself serves over this wire do not reason, and refuse the field.
        extra["reasoning_effort"] = options.reasoning_effort
    if extra:
        settings["extra_body"] = extra
    _add_common(settings, call)
    return settings


def _add_common(settings: ModelSettings, call: ModelCall) -> None:
    if call.options.max_output_tokens is not None:
        settings["max_tokens"] = call.options.max_output_tokens
    if call.tools and family_of(call.handle).takes_parallel_tool_calls:
        settings["parallel_tool_calls"] = call.options.parallel_tool_calls
