"""Which model providers there are, how each is configured, and what is known of the common models.

Data only. A model that is not listed here works as well: the lists feed `GET /v1/models` and the defaults. Figures are
the providers' published limits; the windows of the GPT-5 family are those of the input.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

WireProvider = Literal["openai", "anthropic", "google_ai", "ollama", "vllm", "openrouter"]


class Provider(NamedTuple):
    """A way to reach models; `name` is the part of a handle before the first slash."""

    name: str
    wire_type: WireProvider
    """What Letta's wire calls this kind of provider."""
    key_variables: tuple[str, ...] = ()
    url_variables: tuple[str, ...] = ()
    default_url: str | None = None
    needs_key: bool = True

    def is_configured(self, environment: Mapping[str, str]) -> bool:
        """Whether the environment has what the provider needs to be asked."""
        needed = self.key_variables if self.needs_key else self.url_variables
        return not needed or any(environment.get(name) for name in needed)

    def url(self, environment: Mapping[str, str]) -> str | None:
        """Where the provider is reached."""
        return next((environment[name] for name in self.url_variables if environment.get(name)), self.default_url)


class KnownModel(NamedTuple):
    """A model that is offered in lists."""

    provider: str
    name: str
    context_window: int
    max_output_tokens: int
    reasons: bool = False
    """The model can show its reasoning."""


class KnownEmbedding(NamedTuple):
    """An embedding model. Holdfast keeps the handle and never calls it."""

    provider: str
    name: str
    dimensions: int


DEFAULT_HANDLE = "builtin/echo"
DEFAULT_CONTEXT_WINDOW = 128_000
BUILTIN_CONTEXT_WINDOW = 32_000

_GOOGLE_URL = "https://generativelanguage.googleapis.com"
_OPENROUTER_URL = "https://openrouter.ai/api/v1"

PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("builtin", "openai", needs_key=False),
        Provider("openai", "openai", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",), "https://api.openai.com/v1"),
        Provider(
            "anthropic", "anthropic", ("ANTHROPIC_API_KEY",), ("ANTHROPIC_BASE_URL",), "https://api.anthropic.com"
        ),
        Provider("google_ai", "google_ai", ("GEMINI_API_KEY",), ("GOOGLE_GEMINI_BASE_URL",), _GOOGLE_URL),
        Provider("gemini", "google_ai", ("GEMINI_API_KEY",), ("GOOGLE_GEMINI_BASE_URL",), _GOOGLE_URL),
        Provider("openrouter", "openrouter", ("OPENROUTER_API_KEY",), ("OPENROUTER_BASE_URL",), _OPENROUTER_URL),
        Provider("ollama", "ollama", (), ("OLLAMA_BASE_URL",), "http://127.0.0.1:11434/v1", needs_key=False),
        Provider("lmstudio", "openai", (), ("LMSTUDIO_BASE_URL",), "http://127.0.0.1:1234/v1", needs_key=False),
        Provider("vllm", "vllm", ("VLLM_API_KEY",), ("VLLM_BASE_URL", "VLLM_API_BASE"), needs_key=False),
        Provider(
            "openai_compatible",
            "openai",
            ("OPENAI_COMPATIBLE_API_KEY",),
            ("OPENAI_COMPATIBLE_BASE_URL", "OPENAI_BASE_URL"),
            needs_key=False,
        ),
    )
}

MODELS: tuple[KnownModel, ...] = (
    KnownModel("builtin", "echo", BUILTIN_CONTEXT_WINDOW, 4_096),
    KnownModel("builtin", "slow", BUILTIN_CONTEXT_WINDOW, 4_096),
    KnownModel("builtin", "scripted", BUILTIN_CONTEXT_WINDOW, 4_096, reasons=True),
    KnownModel("openai", "gpt-4.1", 1_047_576, 16_384),
    KnownModel("openai", "gpt-4o", 128_000, 16_384),
    KnownModel("openai", "gpt-4o-mini", 128_000, 16_384),
    KnownModel("openai", "gpt-5", 272_000, 128_000, reasons=True),
    KnownModel("openai", "gpt-5-mini", 272_000, 128_000, reasons=True),
    KnownModel("openai", "o3", 200_000, 100_000, reasons=True),
    KnownModel("openai", "o4-mini", 200_000, 100_000, reasons=True),
    KnownModel("anthropic", "claude-3-5-haiku-20241022", 200_000, 8_192),
    KnownModel("anthropic", "claude-haiku-4-5-20251001", 200_000, 64_000, reasons=True),
    KnownModel("anthropic", "claude-opus-4-1-20250805", 200_000, 32_000, reasons=True),
    KnownModel("anthropic", "claude-sonnet-4-5-20250929", 200_000, 64_000, reasons=True),
    KnownModel("google_ai", "gemini-2.5-flash", 1_048_576, 65_536, reasons=True),
    KnownModel("google_ai", "gemini-2.5-pro", 1_048_576, 65_536, reasons=True),
)

EMBEDDINGS: tuple[KnownEmbedding, ...] = (
    KnownEmbedding("openai", "text-embedding-3-large", 3072),
    KnownEmbedding("openai", "text-embedding-3-small", 1536),
    KnownEmbedding("openai", "text-embedding-ada-002", 1536),
    KnownEmbedding("google_ai", "text-embedding-004", 768),
)

_WINDOWS_BY_FAMILY = (
    ("gpt-4.1", 1_047_576),
    ("gpt-5", 272_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
    ("claude", 200_000),
    ("gemini", 1_048_576),
)


def split_handle(handle: str) -> tuple[str, str]:
    """Provider and model of a handle. Raises `ValueError`, with what would be right, if it names no known provider."""
    provider, _, model = handle.partition("/")
    if provider not in PROVIDERS or not model:
        known = ", ".join(PROVIDERS)
        raise ValueError(
            f"unknown model handle {handle!r}: give <provider>/<model>, e.g. {DEFAULT_HANDLE!r}; providers are {known}"
        )
    return provider, model


def context_window_of(handle: str) -> int:
    """Tokens that the model can take in. An unknown model is taken to have the default window."""
    provider, _, model = handle.partition("/")
    if provider == "builtin":
        return BUILTIN_CONTEXT_WINDOW
    # OpenRouter's models carry their maker: `openrouter/anthropic/claude-…`.
    name = model.rpartition("/")[2]
    return next((window for family, window in _WINDOWS_BY_FAMILY if name.startswith(family)), DEFAULT_CONTEXT_WINDOW)
