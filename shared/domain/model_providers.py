"""The model providers: one table of how each is reached, which variables say so, and where it differs from its wire.

The API's lists and the worker's calls read the same rows, and a test compares them with the table of `docs/models.md`.
"""

import re
from collections.abc import Mapping

from shared.domain.model_servers import Address, Provider, Quirks, Wire

BUILTIN = "builtin"
DEFAULT_HANDLE = "builtin/echo"
OPENAI_PROXY = "openai-proxy"

BUILTIN_IS_OFF = (
    "The built-in models are off here: choose a provider's model, or set HOLDFAST_BUILTIN_MODELS=true for the API and "
    "the workers."
)


def _keyed(
    name: str, default_url: str, *, wire: Wire = "chat", version: str = "", quirks: Quirks | None = None
) -> Provider:
    """A provider whose variables are named after it: `NAME_BASE_URL` and `NAME_API_KEY`."""
    address = Address(f"{name.upper()}_BASE_URL", (f"{name.upper()}_API_KEY",))
    return Provider(name, name, wire, (address,), default_url, True, version, quirks=quirks or Quirks())


_OPENAI_KEY = ("OPENAI_API_KEY",)
_OPENAI_URLS = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
_OPENAI = tuple(Address(name, _OPENAI_KEY) for name in _OPENAI_URLS)
_OPENAI_URL = "https://api.openai.com/v1"
_COMPATIBLE = Address("OPENAI_COMPATIBLE_BASE_URL", ("OPENAI_COMPATIBLE_API_KEY",))
_GEMINI = tuple(Address(name, ("GEMINI_API_KEY",)) for name in ("GOOGLE_GEMINI_BASE_URL", "GEMINI_BASE_URL"))
_LM_STUDIO = (Address("LMSTUDIO_BASE_URL", ("LMSTUDIO_API_KEY",)),)
_OLDER_LIMIT = Quirks(limit_field="max_tokens")
_CONTINUES = Quirks(continues_answers="by itself")

PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(BUILTIN, "openai", "builtin", quirks=_CONTINUES),
        Provider(
            "openai",
            "openai",
            "chat",
            _OPENAI,
            _OPENAI_URL,
            needs_key=True,
        ),
        _keyed("anthropic", "https://api.anthropic.com", wire="anthropic", version="/v1", quirks=_CONTINUES),
        *(
            Provider(
                name,
                "google_ai",
                "google",
                _GEMINI,
                "https://generativelanguage.googleapis.com",
                needs_key=True,
                version="/v1beta",
                quirks=_CONTINUES,
            )
            for name in ("google_ai", "gemini")
        ),
        Provider(
            "azure",
            "azure",
            "chat",
            (
                Address("AZURE_BASE_URL", ("AZURE_API_KEY",), "AZURE_API_VERSION"),
                Address("AZURE_OPENAI_ENDPOINT", ("AZURE_OPENAI_API_KEY",), "OPENAI_API_VERSION"),
            ),
            needs_key=True,
            default_api_version="2025-04-01-preview",
        ),
        _keyed("openrouter", "https://openrouter.ai/api/v1"),
        _keyed("groq", "https://api.groq.com/openai/v1", quirks=Quirks(reasoning_goes_back="never")),
        _keyed(
            "together",
            "https://api.together.xyz/v1",
            quirks=Quirks(limit_field="max_tokens", reasoning_goes_back="never"),
        ),
        _keyed("xai", "https://api.x.ai/v1", quirks=Quirks(counts_reasoning_apart=True)),
        _keyed(
            "deepseek",
            "https://api.deepseek.com/v1",
            quirks=Quirks(
                limit_field="max_tokens",
                takes_parallel_tool_calls=False,
                reasoning_goes_back="always",
                # "Thinking mode does not support this tool_choice", and all but one of the models think.
                takes_forced_calls=False,
            ),
        ),
        _keyed(
            "mistral",
            "https://api.mistral.ai/v1",
            quirks=Quirks(
                limit_field="max_tokens", takes_stream_options=False, reasoning_goes_back="never", call_id_length=9
            ),
        ),
        _keyed(
            "zai",
            "https://api.z.ai/api/paas/v4",
            quirks=Quirks(
                limit_field="max_tokens",
                takes_parallel_tool_calls=False,
                reasoning_goes_back="never",
                takes_forced_calls=False,  # "Tool choice must be auto"
                has_thinking_switch=True,
            ),
        ),
        _keyed(
            "minimax",
            "https://api.minimax.io/anthropic",
            wire="anthropic",
            version="/v1",
            quirks=Quirks(least_temperature=0.01),
        ),
        Provider(
            "ollama",
            "ollama",
            "chat",
            (Address("OLLAMA_BASE_URL"),),
            "http://127.0.0.1:11434/v1",
            version="/v1",
            quirks=_OLDER_LIMIT._replace(continues_answers="by itself"),
        ),
        *(
            Provider(name, "openai", "chat", _LM_STUDIO, "http://127.0.0.1:1234/v1", version="/v1", quirks=_OLDER_LIMIT)
            for name in ("lmstudio", "lmstudio_openai")
        ),
        Provider(
            "vllm",
            "vllm",
            "chat",
            (Address("VLLM_BASE_URL", ("VLLM_API_KEY",)), Address("VLLM_API_BASE", ("VLLM_API_KEY",))),
            version="/v1",
            quirks=Quirks(continues_answers="when told"),
        ),
        Provider(
            "openai_compatible",
            "openai",
            "chat",
            (
                _COMPATIBLE,
                *(Address(name, ("OPENAI_COMPATIBLE_API_KEY", *_OPENAI_KEY)) for name in _OPENAI_URLS),
            ),
        ),
        # How Letta's servers name the models behind their OPENAI_BASE_URL. Programs and agent files carry the name to
        # servers that have no such gateway; there OpenAI itself is asked.
        Provider(OPENAI_PROXY, "openai", "chat", (*_OPENAI, _COMPATIBLE), _OPENAI_URL),
    )
}

NOT_SERVED: Mapping[str, str] = {
    "letta": (
        "models of 'letta/' are served by Letta's own cloud. Give the agent another model: one of a provider whose key "
        "the workers have, such as openai/gpt-4o-mini with OPENAI_API_KEY, or a local one, such as ollama/qwen3"
    ),
    "bedrock": (
        "Holdfast does not sign requests for Amazon Bedrock. Claude models are reached with anthropic/<model>; "
        "Bedrock's own are reached through a gateway that speaks OpenAI's API (LiteLLM, for example) with "
        "openai_compatible/<model> and OPENAI_COMPATIBLE_BASE_URL"
    ),
    "google_vertex": (
        "Holdfast does not sign requests for Vertex AI. The same Gemini models are reached with google_ai/<model> and "
        "GEMINI_API_KEY, or through a gateway that speaks OpenAI's API (LiteLLM, for example) with "
        "openai_compatible/<model> and OPENAI_COMPATIBLE_BASE_URL"
    ),
}
"""Providers that programs name and that cannot be asked, with what to do instead."""

LONGEST_HANDLE = 300
"""Characters. Models on a server of one's own may be named after a path."""

_CHANGES_A_PATH = re.compile(r"\.\.|(^|/)\.(/|$)|[\x00-\x1f\x7f\\?#%&]")
"""What a model's name may not contain. Some wires put the name into the URL of the request, where this would lead the
provider's key to another place."""


_SERVERS_CHOICE = re.compile(r"letta/auto(-[a-z]{1,30})?")


def split_handle(handle: str) -> tuple[str, str]:
    """Provider and model of a handle. Raises `ValueError`, which says what a handle looks like, when this can be
    none."""
    provider, _, model = handle.partition("/")
    if provider in NOT_SERVED and model:
        raise ValueError(
            f"the model {handle[:LONGEST_HANDLE]!r} is not served here: {NOT_SERVED[provider]}. "
            f"Providers are {', '.join(PROVIDERS)}"
        )
    if provider not in PROVIDERS or not model:
        known = ", ".join(PROVIDERS)
        raise ValueError(
            f"unknown model handle {handle[:LONGEST_HANDLE]!r}: give <provider>/<model>, e.g. {DEFAULT_HANDLE!r}; "
            f"providers are {known}"
        )
    if len(handle) > LONGEST_HANDLE:
        raise ValueError(f"a model handle may have {LONGEST_HANDLE} characters, this one has {len(handle)}")
    if _CHANGES_A_PATH.search(model):
        raise ValueError(
            f"impossible model handle {handle!r}: a model's name has no '..', no '.' between slashes, none of "
            r"\ ? # % & and no control characters"
        )
    return provider, model


def leaves_choice(handle: str) -> bool:
    """Whether the handle names no model, but leaves the choice to the server: `letta/auto`, `letta/auto-fast` and so
    on, for which Letta's cloud picks one. It is no handle that a worker can ask."""
    return _SERVERS_CHOICE.fullmatch(handle) is not None


def is_builtin(handle: str) -> bool:
    """Whether the handle names a model that the worker plays itself."""
    return handle.partition("/")[0] == BUILTIN


def offered(provider: str, environment: Mapping[str, str], *, builtin: bool) -> bool:
    """Whether lists show the provider's models. `builtin` is the setting that turns the built-in ones on."""
    return builtin if provider == BUILTIN else PROVIDERS[provider].is_configured(environment)


def can_embed(handle: str | None) -> bool:
    """Whether the handle's provider serves embeddings over OpenAI's wire. Google does, beside its own."""
    try:
        provider, _ = split_handle(handle or "")
    except ValueError:
        return False
    return PROVIDERS[provider].wire in ("chat", "google")
