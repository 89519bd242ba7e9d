"""Model options: the wire's three forms in requests, and the two in answers.

A request may contain the older `llm_config`, the newer `model_settings`, and single fields beside them. A later one of
these three wins over an earlier one. Settings without an effect are stored and returned.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec.structs import asdict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.input_limits import Settings
from api.offered_models import OfferedModels
from shared.domain.agents import Agent, ModelOptions
from shared.domain.models import (
    EMBEDDINGS,
    PROVIDERS,
    KnownEmbedding,
    KnownModel,
    answer_limit_of,
    context_window_of,
    family_of,
    leaves_choice,
    split_handle,
)
from shared.network.server_models import FoundModels

_WITHOUT_EFFECT: Mapping[str, Any] = {
    "provider_category": "base",
    "model_wrapper": None,
    "put_inner_thoughts_in_kwargs": False,
    "frequency_penalty": None,
    "compatibility_type": None,
    "tier": None,
    "return_logprobs": False,
    "top_logprobs": None,
    "return_token_ids": False,
    "tool_call_parser": None,
}
"""Fields of a model on the wire that always have this value here."""

KEPT_SETTINGS = "model_settings"
"""Key of `Agent.extra`: the settings that are only stored and returned."""


def _known_handle(handle: str) -> str:
    if not leaves_choice(handle):
        split_handle(handle)
    return handle


Handle = Annotated[str, AfterValidator(_known_handle)]
"""`provider/model` with a provider that Holdfast knows, or a value that leaves the choice to `OfferedModels`. The
provider's key may come later."""

FORMATS = ("text", "json_object", "json_schema")


def _known_format(said: dict[str, Any]) -> dict[str, Any]:
    if said.get("type") not in FORMATS:
        raise ValueError(f"type must be one of {', '.join(FORMATS)}")
    described: Any = said.get("json_schema")
    if said["type"] == "json_schema" and not (isinstance(described, dict) and "schema" in described):
        raise ValueError('json_schema is missing, or has no schema: give {"name": "…", "schema": {…}}')
    return said


AnswerFormat = Annotated[Settings, AfterValidator(_known_format)]
"""The form of the model's answer, as in OpenAI's chat completions."""

Tokens = Annotated[int, Field(ge=0)]
Temperature = Annotated[float, Field(ge=0, le=2)]
Verbosity = Literal["low", "medium", "high"]

_TEMPERATURE_IS_ONE = frozenset({"openai", "anthropic", "google_ai", "gemini"})
"""Providers whose models use this temperature by default."""


class LlmConfigFields(BaseModel):
    """The older `llm_config`."""

    handle: Handle | None = None
    model: str | None = None
    model_endpoint_type: str | None = None
    context_window: Tokens | None = None
    temperature: Temperature | None = None
    max_tokens: Tokens | None = None
    enable_reasoner: bool | None = None
    reasoning_effort: str | None = None
    max_reasoning_tokens: Tokens | None = None
    parallel_tool_calls: bool | None = None
    response_format: AnswerFormat | None = None
    verbosity: Verbosity | None = None

    def full_handle(self, shown: str | None = None) -> str | None:
        """The model that the config names. Clients change the `model` of a config that they received, but not its
        handle: if the handle still equals `shown`, `model` counts. Raises `ValueError` for an endpoint type that is no
        provider."""
        if self.handle is None and self.model is not None and self.model_endpoint_type is not None:
            return _known_handle(f"{self.model_endpoint_type}/{self.model}")
        provider, _, name = (self.handle or "").partition("/")
        if self.handle == shown and self.model and self.model != name and provider in PROVIDERS:
            named = self.model_endpoint_type
            is_moved = named in PROVIDERS and named != PROVIDERS[provider].wire_type
            return f"{named if is_moved else provider}/{self.model}"
        return self.handle

    def options(self) -> dict[str, Any]:
        """The options that the config sets."""
        handle = self.full_handle()
        # A client that sends our answer back must not turn the model's own window into a chosen one.
        is_default_window = handle is not None and self.context_window == context_window_of(handle)
        return {
            "context_window": None if is_default_window else self.context_window,
            "temperature": self.temperature,
            "max_output_tokens": self.max_tokens,
            "reasoning": self.enable_reasoner,
            "reasoning_effort": self.reasoning_effort,
            "max_reasoning_tokens": self.max_reasoning_tokens or None,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self.response_format,
            "verbosity": self.verbosity,
        }


class EmbeddingConfigFields(BaseModel):
    """The older `embedding_config`. Only its handle is stored."""

    handle: str | None = None
    embedding_model: str | None = None
    embedding_endpoint_type: str | None = None

    def full_handle(self) -> str | None:
        """The embedding model that the config names."""
        if self.handle is None and self.embedding_model is not None:
            return f"{self.embedding_endpoint_type or 'openai'}/{self.embedding_model}"
        return self.handle


class Effort(BaseModel):
    """Reasoning in the form of OpenAI's settings."""

    reasoning_effort: str | None = None


class Thinking(BaseModel):
    """Reasoning in the form of Anthropic's settings."""

    type: Literal["enabled", "disabled"] | None = None
    budget_tokens: Tokens | None = None


class ThinkingConfig(BaseModel):
    """Reasoning in the form of Gemini's settings."""

    include_thoughts: bool | None = None
    thinking_budget: Tokens | None = None


class ModelSettingsFields(BaseModel):
    """The newer `model_settings` of all providers in one class. Unknown fields are in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    provider_type: str | None = None
    max_output_tokens: Tokens | None = None
    parallel_tool_calls: bool | None = None
    temperature: Temperature | None = None
    reasoning: Effort | None = None
    thinking: Thinking | None = None
    thinking_config: ThinkingConfig | None = None
    response_format: AnswerFormat | None = None
    response_schema: AnswerFormat | None = None
    verbosity: Verbosity | None = None

    def options(self) -> dict[str, Any]:
        """The options that the settings set."""
        changes: dict[str, Any] = {
            "max_output_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls,
            "temperature": self.temperature,
            "response_format": self.response_format or self.response_schema,
            "verbosity": self.verbosity,
        }
        if self.reasoning is not None and self.reasoning.reasoning_effort is not None:
            changes["reasoning"] = self.reasoning.reasoning_effort != "none"
            changes["reasoning_effort"] = self.reasoning.reasoning_effort
        if self.thinking is not None and self.thinking.type is not None:
            changes["reasoning"] = self.thinking.type == "enabled"
            changes["max_reasoning_tokens"] = self.thinking.budget_tokens
        if self.thinking_config is not None:
            changes["reasoning"] = self.thinking_config.include_thoughts
            changes["max_reasoning_tokens"] = self.thinking_config.thinking_budget
        return changes


def shown_defaults(handle: str) -> dict[str, Any]:
    """The values in `model_settings` for options that are not set: the provider's defaults, where they are known."""
    provider = handle.partition("/")[0]
    if provider not in _TEMPERATURE_IS_ONE:
        return {}
    # The settings of other providers have no field for it.
    effort = {"reasoning_effort": "minimal"} if provider == "openai" and not family_of(handle).can_think else {}
    return {"max_output_tokens": answer_limit_of(handle), "temperature": 1.0, **effort}


def without_defaults(
    changes: Mapping[str, Any], before: ModelOptions, shown_for: str, handle: str | None
) -> dict[str, Any]:
    """The changes, without defaults that the client received for unset options and only sends back.

    Settings in a request for another model count as sent back only if all of them are unchanged. Otherwise they are
    meant for that model, and one of them may well equal the last model's default.
    """
    defaults = shown_defaults(shown_for)
    shown = asdict(changed_options(ModelOptions(), defaults, asdict(before)))
    if handle not in {None, shown_for} and any(changes.get(name) != shown[name] for name in defaults):
        return dict(changes)
    return {
        name: value
        for name, value in changes.items()
        if getattr(before, name) is not None or name not in defaults or value != defaults[name]
    }


def without_shown_limit(config: LlmConfigFields, before: ModelOptions, shown_for: str) -> dict[str, Any]:
    """The options that the config sets, without a default limit of answers that the client only sends back from this
    agent or another: the next model has its own limit."""
    changes = config.options()
    shown = {shown_defaults(handle).get("max_output_tokens") for handle in (shown_for, config.full_handle()) if handle}
    if before.max_output_tokens is None and changes["max_output_tokens"] in shown:
        del changes["max_output_tokens"]
    return changes


def changed_options(options: ModelOptions, *changes: Mapping[str, Any]) -> ModelOptions:
    """The options after the changes; later ones win. None leaves an option unchanged."""
    values = {name: getattr(options, name) for name in ModelOptions.__struct_fields__}
    for change in changes:
        values.update({name: value for name, value in change.items() if value is not None})
    return ModelOptions(**values)


def changed_by_settings(options: ModelOptions, settings: Mapping[str, Any]) -> ModelOptions:
    """The options after a conversation's own `model_settings`. Raises `ValueError` for invalid settings."""
    return changed_options(options, ModelSettingsFields.model_validate(settings).options())


def wire_llm_config(agent: Agent, environment: Mapping[str, str]) -> dict[str, Any]:
    """The `llm_config` of an agent. None means the provider's default. A known limit of answers has the same value as
    in `model_settings`."""
    name, _, model = agent.model.partition("/")
    provider = PROVIDERS[name]
    options = agent.options
    kept = agent.extra.get(KEPT_SETTINGS, {})
    return {
        "model": model,
        "display_name": None,
        "model_endpoint_type": provider.wire_type,
        "model_endpoint": provider.url(environment),
        "provider_name": name,
        "context_window": options.context_window or context_window_of(agent.model),
        "handle": agent.model,
        "temperature": options.temperature,
        "max_tokens": _shown_options(agent).max_output_tokens,
        "enable_reasoner": options.reasoning,
        "reasoning_effort": options.reasoning_effort,
        "max_reasoning_tokens": options.max_reasoning_tokens or 0,
        "effort": kept.get("effort"),
        "verbosity": options.verbosity or kept.get("verbosity"),
        "parallel_tool_calls": options.parallel_tool_calls,
        "response_format": options.response_format,
        "strict": kept.get("strict", False),
        **_WITHOUT_EFFECT,
    }


def wire_model_settings(agent: Agent) -> dict[str, Any]:
    """The `model_settings` of an agent, in its provider's form, with the provider's defaults where they are known."""
    options = _shown_options(agent)
    provider_type = PROVIDERS[agent.model.partition("/")[0]].wire_type
    settings: dict[str, Any] = {
        "max_output_tokens": options.max_output_tokens,
        "parallel_tool_calls": options.parallel_tool_calls,
        "provider_type": provider_type,
        "temperature": options.temperature,
    }
    match provider_type:
        case "anthropic":
            kind = "enabled" if options.reasoning else "disabled"
            settings["thinking"] = {"type": kind, "budget_tokens": options.max_reasoning_tokens}
            settings |= {"response_format": options.response_format, "strict": False, "effort": None, "verbosity": None}
        case "google_ai":
            budget = options.max_reasoning_tokens
            settings["thinking_config"] = {"include_thoughts": options.reasoning, "thinking_budget": budget}
            settings["response_schema"] = options.response_format
        case "zai":
            settings["thinking"] = {"type": "enabled" if options.reasoning else "disabled", "clear_thinking": False}
            settings["response_format"] = options.response_format
        case _:
            settings["reasoning"] = {"reasoning_effort": options.reasoning_effort if options.reasoning else "none"}
            settings |= {"response_format": options.response_format, "strict": False}
    chosen = {} if options.verbosity is None else {"verbosity": options.verbosity}
    return settings | agent.extra.get(KEPT_SETTINGS, {}) | chosen


def wire_embedding_config(handle: str | None, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The `embedding_config` of a handle. Holdfast stores it for its clients and does not use it."""
    if handle is None:
        return None
    name, _, model = handle.partition("/")
    provider = PROVIDERS.get(name)
    known = next((known for known in EMBEDDINGS if known.name == model), None)
    return {
        "embedding_endpoint_type": provider.wire_type if provider else name,
        "embedding_endpoint": provider.url(environment) if provider else None,
        "embedding_model": model,
        "embedding_dim": known.dimensions if known else 1536,
        "embedding_chunk_size": 300,
        "handle": handle,
        "batch_size": 32,
        "azure_endpoint": None,
        "azure_version": None,
        "azure_deployment": None,
    }


def _shown_options(agent: Agent) -> ModelOptions:
    return changed_options(ModelOptions(), shown_defaults(agent.model), asdict(agent.options))


# Lists of models on Letta's wire.


def wire_models(models: OfferedModels, found: FoundModels) -> list[dict[str, Any]]:
    """The models of every configured provider: those `found` on its server, else the well-known ones."""
    return [_wire_model(model, models.environment) for model in models.listed(found)]


def wire_embeddings(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """The embedding models of every configured provider."""
    return [
        _wire_embedding(model, environment)
        for model in EMBEDDINGS
        if PROVIDERS[model.provider].is_configured(environment)
    ]


def _wire_model(model: KnownModel, environment: Mapping[str, str]) -> dict[str, Any]:
    provider = PROVIDERS[model.provider]
    return {
        "handle": model.handle,
        "name": model.name,
        "display_name": model.name,
        "provider_type": provider.wire_type,
        "provider_name": provider.name,
        "model_type": "llm",
        "model": model.name,
        "model_endpoint_type": provider.wire_type,
        "model_endpoint": provider.url(environment),
        "context_window": model.window,
        "temperature": None,
        "max_tokens": model.max_output_tokens,
        "enable_reasoner": model.family.can_think,
        "reasoning_effort": None,
        "max_reasoning_tokens": 0,
        "effort": None,
        "verbosity": None,
        "parallel_tool_calls": True,
        "response_format": None,
        "strict": False,
        "max_context_window": model.window,
        **_WITHOUT_EFFECT,
    }


def _wire_embedding(model: KnownEmbedding, environment: Mapping[str, str]) -> dict[str, Any]:
    provider = PROVIDERS[model.provider]
    return {
        "name": model.name,
        "display_name": model.name,
        "provider_type": provider.wire_type,
        "provider_name": provider.name,
        "model_type": "embedding",
        **(wire_embedding_config(f"{model.provider}/{model.name}", environment) or {}),
        "embedding_dim": model.dimensions,
    }
