"""Google's Gemini API. Imported on first use."""

import re
import warnings
from typing import cast

import httpx2
from google.genai import errors
from google.genai.types import ThinkingConfigDict
from pydantic_ai.models.google import GoogleModel, GoogleModelSettings
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.settings import ModelSettings

from worker.models.provider import ModelCall, Route
from worker.models.sdk_model import WireModel

_TAKES_BUDGET = re.compile("gemini-[123]")
"""From Gemini 4 on, the API refuses a number of tokens for thinking."""


def build(route: Route, client: httpx2.AsyncClient) -> WireModel:
    """The model at the end of a route, on the shared client."""
    # A finish reason that the SDK does not know still ends an answer. The SDK would report it outside of our logs.
    warnings.filterwarnings("ignore", message=r".* is not a valid \w+$", category=UserWarning)
    provider = GoogleProvider(api_key=route.api_key, base_url=route.base_url, http_client=client)
    model = GoogleModel(route.model, provider=provider)
    return WireModel(
        model,
        lambda call: _settings(call, route.model, model.profile),
        results_as_objects=True,
        takes_images_as_data=True,
        takes_format=True,
        errors=(errors.APIError,),
    )


def _settings(call: ModelCall, model: str, profile: ModelProfile) -> ModelSettings:
    options = call.options
    settings = GoogleModelSettings()
    settings.update(cast("GoogleModelSettings", options.sampling))
    if options.max_output_tokens is not None:
        settings["max_tokens"] = options.max_output_tokens
    if not profile.get("supports_thinking"):
        return settings
    if not options.reasoning:
        settings["thinking"] = False
        return settings
    if (effort := call.demanded_option("reasoning_effort")) is not None:
        settings["thinking"] = effort
        return settings
    thinking = ThinkingConfigDict(include_thoughts=True)
    if options.max_reasoning_tokens is not None and _TAKES_BUDGET.match(model):
        thinking["thinking_budget"] = options.max_reasoning_tokens
    settings["google_thinking_config"] = thinking
    return settings
