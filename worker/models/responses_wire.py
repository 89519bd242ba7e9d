"""OpenAI's Responses, for OpenAI's reasoning models. Imported on first use: the SDK takes most of a second."""

import warnings
from typing import cast, get_args

import httpx2
import openai
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from openai.types.shared import ReasoningEffort
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.profiles.openai import openai_model_profile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from shared.domain.agents import ModelOptions
from shared.domain.models import PROVIDERS, family_of
from worker.models.provider import ModelCall, Route
from worker.models.sdk_model import WireModel

_NO_RESPONSES_API = (
    "[OpenAI's reasoning models are asked over the Responses API, which this server may not have. The handle "
    "openai_compatible/{model} asks it over Chat Completions.]"
)

_NEWEST_KNOWN = "gpt-6.1-sol"
"""The newest reasoning model that the SDK knows. Newer ones are asked like it; otherwise the SDK would take them for
models that do not reason, send them a temperature, and not ask for their encrypted reasoning."""


def build(route: Route, client: httpx2.AsyncClient) -> WireModel:
    """The model at the end of a route, on the shared client."""
    _complete_event_types()
    # Some servers repeat a call's arguments in another spelling. The SDK would report that outside of our logs.
    warnings.filterwarnings("ignore", message="The provider sent a", category=UserWarning)
    sdk = openai.AsyncOpenAI(
        api_key=route.api_key, base_url=route.base_url, max_retries=0, http_client=client, timeout=client.timeout
    )
    provider = OpenAIProvider(openai_client=sdk)
    model = OpenAIResponsesModel(route.model, provider=provider)
    if family_of(route.handle).can_think and not model.profile.get("supports_thinking"):
        model = OpenAIResponsesModel(route.model, provider=provider, profile=openai_model_profile(_NEWEST_KNOWN))
    reasons = bool(model.profile.get("supports_thinking"))
    is_openais_own = route.base_url == PROVIDERS["openai"].default_url
    return WireModel(
        model,
        lambda call: _settings(call, reasons),
        takes_strict=True,
        errors=(openai.OpenAIError,),
        hint_if_not_found="" if is_openais_own else _NO_RESPONSES_API.format(model=route.model),
    )


def _complete_event_types() -> None:
    """Makes pydantic build its schemas now, in the thread of the import. Otherwise it would build them at the first
    event and block the process for half a second."""
    for annotated in (ResponseStreamEvent, ResponseOutputItem):
        for event in get_args(get_args(annotated)[0]):
            event.model_rebuild()


def _settings(call: ModelCall, reasons: bool) -> ModelSettings:
    options = call.options
    # The provider stores nothing of the conversation: the answer contains the data that it needs again, encrypted.
    settings = OpenAIResponsesModelSettings(openai_store=False)
    if reasons and options.reasoning:
        settings["openai_reasoning_summary"] = "auto"
        if options.reasoning_effort is not None:
            # Passed on unchanged; the provider knows the levels of this model.
            settings["openai_reasoning_effort"] = cast(ReasoningEffort, options.reasoning_effort)
    elif reasons and (effort := call.demanded_option("reasoning_effort")) is not None:
        settings["openai_reasoning_effort"] = cast(ReasoningEffort, effort)
    elif reasons:
        settings["thinking"] = False
    else:
        settings.update(cast("OpenAIResponsesModelSettings", options.sampling))
    if text := _text_options(call):
        settings["extra_body"] = {"text": text}
    if call.thread_id:
        settings["openai_prompt_cache_key"] = call.thread_id
    if call.options.max_output_tokens is not None:
        settings["max_tokens"] = call.options.max_output_tokens
    if call.tools and family_of(call.handle).takes_parallel_tool_calls:
        settings["parallel_tool_calls"] = call.options.parallel_tool_calls
    return settings


def _text_options(call: ModelCall) -> dict[str, object]:
    """The field `text` of a Responses request: the format of the answer. Chat has its format one level deeper."""
    text: dict[str, object] = {}
    chosen = _chosen_format(call.options)
    if chosen is not None:
        schema = chosen.get("json_schema")
        text["format"] = {"name": "answer", **schema, "type": "json_schema"} if isinstance(schema, dict) else chosen
    if call.options.verbosity is not None and family_of(call.handle).takes_verbosity:
        text["verbosity"] = call.options.verbosity
    return text


def _chosen_format(options: ModelOptions) -> dict[str, object] | None:
    """Returns the requested format; None for text, because that is the default."""
    chosen = options.response_format
    return None if chosen is None or chosen.get("type") == "text" else chosen
