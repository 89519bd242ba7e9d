"""OpenAI's two wires: Responses for OpenAI's reasoning models, Chat Completions for the rest and for every server that
imitates it. Imported on first use: the SDK takes most of a second."""

from functools import partial
from hashlib import sha256
from typing import cast, get_args

import httpx2
import openai
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from openai.types.shared import ReasoningEffort
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

from shared.domain.agents import ModelOptions
from shared.domain.model_catalog import family_of
from shared.domain.model_providers import PROVIDERS
from shared.domain.model_servers import Quirks
from worker.models.provider import ModelCall, Route
from worker.models.sdk_model import WireModel

_NO_RESPONSES_API = (
    "[OpenAI's reasoning models are asked over the Responses API, which this server may not have. The handle "
    "openai_compatible/{model} asks it over Chat Completions.]"
)


def build(route: Route, client: httpx2.AsyncClient) -> WireModel:
    """The model at the end of a route, on the shared client."""
    sdk = _sdk(route, client)
    errors = (openai.OpenAIError,)
    if route.wire == "responses":
        _complete_event_types()
        responses = OpenAIResponsesModel(route.model, provider=OpenAIProvider(openai_client=sdk))
        reasons = bool(responses.profile.get("supports_thinking"))
        is_openais_own = route.base_url == PROVIDERS["openai"].default_url
        return WireModel(
            responses,
            lambda call, _messages: _responses_settings(call, reasons),
            errors=errors,
            hint_if_not_found="" if is_openais_own else _NO_RESPONSES_API.format(model=route.model),
        )
    if route.provider == "openai":
        provider = OpenAIProvider(openai_client=sdk)
    else:
        provider = OpenAICompatibleProvider(route.provider, openai_client=sdk)
    quirks = PROVIDERS[route.provider].quirks
    chat = OpenAIChatModel(route.model, provider=provider, profile=_profile(quirks))
    return WireModel(
        chat,
        lambda call, _messages: _chat_settings(call, route, quirks),
        safe_call_id=None if quirks.call_id_length is None else partial(_short_call_id, length=quirks.call_id_length),
        errors=errors,
        takes_forced_calls=quirks.takes_forced_calls,
    )


def _sdk(route: Route, client: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    if route.api_version and not route.base_url.endswith("/v1"):
        # Azure's older addresses name the deployment in the path and want a version; its newer ones are like OpenAI's.
        return openai.AsyncAzureOpenAI(
            api_key=route.api_key,
            azure_endpoint=route.base_url.removesuffix("/openai"),
            api_version=route.api_version,
            max_retries=0,
            http_client=client,
            timeout=client.timeout,
        )
    return openai.AsyncOpenAI(
        api_key=route.api_key,
        base_url=route.base_url,
        max_retries=0,
        http_client=client,
        timeout=client.timeout,
    )


def _profile(quirks: Quirks) -> OpenAIModelProfile:
    """What pydantic-ai has to know of the server."""
    profile = OpenAIModelProfile(
        openai_chat_streaming_requires_finish_reason=True,
        openai_chat_supports_max_completion_tokens=quirks.limit_field == "max_completion_tokens",
    )
    if quirks.reasoning_goes_back == "never":
        profile["openai_chat_send_back_thinking_parts"] = False
    elif quirks.reasoning_goes_back == "always":
        profile["openai_chat_send_back_thinking_parts"] = "field"
        profile["openai_chat_thinking_field"] = "reasoning_content"
        profile["openai_chat_thinking_requires_field_on_tool_calls"] = True
        profile["thinking_enabled_by_default"] = True
    return profile


def _short_call_id(call_id: str, length: int) -> str:
    """The id if it is as short as the server's own; else one that always comes out the same for this one."""
    if len(call_id) == length and call_id.isalnum() and call_id.isascii():
        return call_id
    return sha256(call_id.encode()).hexdigest()[:length]


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
    if text := _text_options(call):
        settings["extra_body"] = {"text": text}
    if call.thread_id:
        settings["openai_prompt_cache_key"] = call.thread_id
    _add_common(settings, call)
    return settings


def _text_options(call: ModelCall) -> dict[str, object]:
    """The field `text` of a Responses request: how the answer is to look. Chat has its format one level deeper."""
    text: dict[str, object] = {}
    chosen = _chosen_format(call.options)
    if chosen is not None:
        schema = chosen.get("json_schema")
        text["format"] = {"name": "answer", **schema, "type": "json_schema"} if isinstance(schema, dict) else chosen
    if call.options.verbosity is not None and family_of(call.handle).takes_verbosity:
        text["verbosity"] = call.options.verbosity
    return text


def _chat_settings(call: ModelCall, route: Route, quirks: Quirks) -> ModelSettings:
    options = call.options
    is_openais_own = route.provider == "openai"
    settings = OpenAIChatModelSettings()
    if options.temperature is not None and family_of(call.handle).takes_temperature:
        settings["temperature"] = options.temperature
    extra: dict[str, object] = {}
    chosen = _chosen_format(options)
    if chosen is not None:
        extra["response_format"] = chosen
    if options.verbosity is not None and family_of(call.handle).takes_verbosity:
        extra["verbosity"] = options.verbosity
    if options.reasoning and options.reasoning_effort is not None and not is_openais_own:
        # The models that OpenAI itself serves over this wire do not reason, and refuse the field.
        extra["reasoning_effort"] = options.reasoning_effort
    if quirks.has_thinking_switch and family_of(call.handle).can_think:
        extra["thinking"] = {"type": "enabled" if options.reasoning else "disabled"}
    if not quirks.takes_stream_options:
        extra["stream_options"] = None
    if call.beginning and quirks.continues_answers == "when told":
        extra |= {"continue_final_message": True, "add_generation_prompt": False}
    if extra:
        settings["extra_body"] = extra
    if call.thread_id and is_openais_own:
        settings["openai_prompt_cache_key"] = call.thread_id
    _add_common(settings, call, parallel=quirks.takes_parallel_tool_calls)
    return settings


def _chosen_format(options: ModelOptions) -> dict[str, object] | None:
    """The format that was asked for; None for text, which every model answers in anyway."""
    chosen = options.response_format
    return None if chosen is None or chosen.get("type") == "text" else chosen


def _add_common(settings: ModelSettings, call: ModelCall, *, parallel: bool = True) -> None:
    if call.options.max_output_tokens is not None:
        settings["max_tokens"] = call.options.max_output_tokens
    if call.tools and parallel and family_of(call.handle).takes_parallel_tool_calls:
        settings["parallel_tool_calls"] = call.options.parallel_tool_calls
