"""Lists of models on Letta's wire: what the configured providers are known to have."""

from collections.abc import Mapping
from typing import Any

from shared.domain.errors import InvalidRequest
from shared.domain.model_catalog import EMBEDDINGS, MODELS, KnownEmbedding, KnownModel
from shared.domain.model_providers import BUILTIN_IS_OFF, PROVIDERS, is_builtin, offered


def wire_models(environment: Mapping[str, str], *, builtin: bool) -> list[dict[str, Any]]:
    """The models of every provider that is configured. Servers with models of their own (Ollama) are not asked.

    `builtin`: whether the built-in models are on.
    """
    return [
        _wire_model(model, environment) for model in MODELS if offered(model.provider, environment, builtin=builtin)
    ]


def wire_embeddings(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """The embedding models of every provider that is configured."""
    return [
        _wire_embedding(model, environment)
        for model in EMBEDDINGS
        if PROVIDERS[model.provider].is_configured(environment)
    ]


def refuse_builtin(handle: str | None, *, builtin: bool) -> None:
    """Raises `InvalidRequest` for a built-in model where they are off.

    A provider's key may come later, and only the workers have it; that the built-in models are off is known here.
    """
    if handle is not None and is_builtin(handle) and not builtin:
        raise InvalidRequest(f"the model {handle!r} cannot be used. {BUILTIN_IS_OFF}")


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
        "provider_category": "base",
        "model_wrapper": None,
        "context_window": model.family.context_window,
        "put_inner_thoughts_in_kwargs": False,
        "temperature": None,
        "max_tokens": model.max_output_tokens,
        "enable_reasoner": model.family.can_think,
        "reasoning_effort": None,
        "max_reasoning_tokens": 0,
        "effort": None,
        "frequency_penalty": None,
        "compatibility_type": None,
        "verbosity": None,
        "tier": None,
        "parallel_tool_calls": True,
        "response_format": None,
        "strict": False,
        "return_logprobs": False,
        "top_logprobs": None,
        "return_token_ids": False,
        "tool_call_parser": None,
        "max_context_window": model.family.context_window,
    }


def _wire_embedding(model: KnownEmbedding, environment: Mapping[str, str]) -> dict[str, Any]:
    provider = PROVIDERS[model.provider]
    return {
        "handle": f"{model.provider}/{model.name}",
        "name": model.name,
        "display_name": model.name,
        "provider_type": provider.wire_type,
        "provider_name": provider.name,
        "model_type": "embedding",
        "embedding_endpoint_type": provider.wire_type,
        "embedding_endpoint": provider.url(environment),
        "embedding_model": model.name,
        "embedding_dim": model.dimensions,
        "embedding_chunk_size": 300,
        "batch_size": 32,
        "azure_endpoint": None,
        "azure_version": None,
        "azure_deployment": None,
    }
