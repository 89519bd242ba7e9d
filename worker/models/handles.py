"""From a handle such as `openrouter/meta-llama/llama-3` to where it leads: which wire, which server, which key.

Everything comes from the environment that the process was started with. A handle that leads nowhere is told to the
caller with the variable that is missing, before anything is imported or sent.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.model_catalog import MODELS, PROVIDERS

Wire = Literal["chat", "responses", "anthropic", "google", "builtin"]

NO_KEY = "none"
"""Sent where a server asks for no key; the SDKs insist on one."""

_RESPONSES_MODELS = re.compile(r"gpt-5|o[134](-|$)")


class Route(msgspec.Struct, frozen=True):
    """Where the calls of one handle go. Hashable: it is the key under which built models are kept."""

    handle: str
    provider: str
    model: str
    wire: Wire
    api_key: str = ""
    base_url: str = ""
    """Empty: the SDK's own default."""

    def __repr__(self) -> str:
        """Without the key, so that it never reaches a log."""
        return f"Route({self.handle!r}, {self.wire!r}, base_url={self.base_url!r})"


class _ChatServer(msgspec.Struct, frozen=True):
    """A server that speaks OpenAI's Chat Completions, and the variables that say where it is."""

    base_url_variables: tuple[str, ...]
    key_variable: str | None = None
    key_required: bool = False
    default_base_url: str | None = None
    path: str = ""
    """Added to a base URL that does not end in it."""


_CHAT_SERVERS: Mapping[str, _ChatServer] = {
    "ollama": _ChatServer(("OLLAMA_BASE_URL",), default_base_url="http://127.0.0.1:11434/v1", path="/v1"),
    "lmstudio": _ChatServer(("LMSTUDIO_BASE_URL",), default_base_url="http://127.0.0.1:1234/v1", path="/v1"),
    "vllm": _ChatServer(("VLLM_BASE_URL", "VLLM_API_BASE"), "VLLM_API_KEY", path="/v1"),
    "openrouter": _ChatServer(("OPENROUTER_BASE_URL",), "OPENROUTER_API_KEY", True, "https://openrouter.ai/api/v1"),
}


def route_for(handle: str, environment: Mapping[str, str]) -> Route:
    """Where the handle leads. Raises `ModelError` when it leads nowhere."""
    provider, _, model = handle.partition("/")
    if provider not in PROVIDERS or not model:
        known = ", ".join(PROVIDERS)
        raise ModelError(
            ModelErrorType.BAD_REQUEST,
            f"The model handle {handle!r} is not `provider/model` with a known provider. Providers: {known}.",
        )
    match provider:
        case "builtin":
            return Route(handle, provider, model, "builtin")
        case "openai":
            wire: Wire = "responses" if _RESPONSES_MODELS.match(model) else "chat"
            key = _required_key(handle, environment, "OPENAI_API_KEY")
            return Route(handle, provider, model, wire, key, environment.get("OPENAI_BASE_URL", ""))
        case "anthropic":
            key = _required_key(handle, environment, "ANTHROPIC_API_KEY")
            base_url = _without_suffix(environment.get("ANTHROPIC_BASE_URL", ""), "/v1")
            return Route(handle, provider, model, "anthropic", key, base_url)
        case "google_ai" | "gemini":
            key = _required_key(handle, environment, "GEMINI_API_KEY")
            base_url = _without_suffix(environment.get("GOOGLE_GEMINI_BASE_URL", ""), "/v1beta")
            return Route(handle, "google_ai", model, "google", key, base_url)
        case "openai_compatible":
            return _compatible_route(handle, model, environment)
        case _:
            return _chat_route(handle, provider, model, environment)


def known_handles(environment: Mapping[str, str]) -> list[str]:
    """Handles to show in a list: the well-known models of every provider that is set up. Others work as well."""
    return [
        f"{model.provider}/{model.name}" for model in MODELS if PROVIDERS[model.provider].is_configured(environment)
    ]


def _chat_route(handle: str, provider: str, model: str, environment: Mapping[str, str]) -> Route:
    server = _CHAT_SERVERS[provider]
    given = (environment.get(variable) for variable in server.base_url_variables)
    base_url = next((url for url in given if url), server.default_base_url)
    if base_url is None:
        raise _missing_base_url(handle, server.base_url_variables[0])
    if server.key_required and server.key_variable:
        key = _required_key(handle, environment, server.key_variable)
    else:
        key = environment.get(server.key_variable or "", "") or NO_KEY
    base_url = base_url.rstrip("/")
    if not base_url.endswith(server.path):
        base_url += server.path
    return Route(handle, provider, model, "chat", key, base_url)


def _compatible_route(handle: str, model: str, environment: Mapping[str, str]) -> Route:
    """Key and base URL are taken as a pair, so that an OpenAI key is never sent to somebody else's server."""
    if base_url := environment.get("OPENAI_COMPATIBLE_BASE_URL"):
        key = environment.get("OPENAI_COMPATIBLE_API_KEY") or NO_KEY
    elif base_url := environment.get("OPENAI_BASE_URL"):
        key = environment.get("OPENAI_COMPATIBLE_API_KEY") or environment.get("OPENAI_API_KEY") or NO_KEY
    else:
        raise _missing_base_url(handle, "OPENAI_COMPATIBLE_BASE_URL")
    return Route(handle, "openai_compatible", model, "chat", key, base_url)


def _required_key(handle: str, environment: Mapping[str, str], variable: str) -> str:
    key = environment.get(variable)
    if not key:
        raise ModelError(ModelErrorType.AUTHENTICATION, f"The model {handle!r} needs a key: set {variable}.")
    return key


def _missing_base_url(handle: str, variable: str) -> ModelError:
    return ModelError(ModelErrorType.BAD_REQUEST, f"The model {handle!r} needs a server's address: set {variable}.")


def _without_suffix(base_url: str, suffix: str) -> str:
    return base_url.rstrip("/").removesuffix(suffix)
