"""The model providers, how each is reached, and what is known of their models.

This module is data only. A model that is not listed works as well: the lists feed `GET /v1/models` and the defaults.
Figures are the providers' published limits; the windows of the GPT-5 family are those of the input. The API's lists and
the worker's calls read the same tables.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

WireProvider = Literal["openai", "anthropic", "google_ai", "ollama", "vllm", "openrouter"]

Wire = Literal["builtin", "chat", "responses", "anthropic", "google"]
"""What a server speaks: OpenAI's Chat Completions or Responses, Anthropic's Messages, Google's Gemini. `builtin` models
are played by the worker itself."""


class Address(NamedTuple):
    """One way to say where a provider's server is: the variable with its base URL, and those that may hold its key."""

    url_variable: str
    key_variables: tuple[str, ...] = ()


class Provider(NamedTuple):
    """A way to reach models; `name` is the part of a handle before the first slash."""

    name: str
    wire_type: WireProvider
    """What Letta's wire calls this kind of provider."""
    wire: Wire
    addresses: tuple[Address, ...] = ()
    """The first address whose URL is set counts, else the first of all with the default URL. URL and key belong
    together, so that a key never goes to another server."""
    default_url: str | None = None
    needs_key: bool = False
    version: str = ""
    """The path below the server's address. Operators give addresses with and without it."""

    def is_configured(self, environment: Mapping[str, str]) -> bool:
        """Whether the environment has what the provider needs to be asked, or says where its server is."""
        if self.needs_key:
            return self.key(environment) is not None
        return not self.addresses or any(environment.get(address.url_variable) for address in self.addresses)

    def key(self, environment: Mapping[str, str]) -> str | None:
        """The key for the address that is used."""
        address = self._address(environment)
        names = address.key_variables if address else ()
        return next((environment[name] for name in names if environment.get(name)), None)

    def base_url(self, environment: Mapping[str, str]) -> str | None:
        """Where the SDK is to send its requests, with the credentials that the operator may have put into the URL.

        None: the environment does not say, and there is no default.
        """
        address = self._address(environment)
        url = (environment.get(address.url_variable) if address else None) or self.default_url
        if url is None:
            return None
        url = url.rstrip("/")
        if self.wire in ("anthropic", "google"):
            return url.removesuffix(self.version)  # these SDKs add it themselves
        return url if url.endswith(self.version) else url + self.version

    def url(self, environment: Mapping[str, str]) -> str | None:
        """Where the provider is reached, as it may be shown to callers."""
        url = self.base_url(environment)
        return None if url is None else without_credentials(url)

    def _address(self, environment: Mapping[str, str]) -> Address | None:
        first = self.addresses[0] if self.addresses else None
        return next((address for address in self.addresses if environment.get(address.url_variable)), first)


class ModelFamily(NamedTuple):
    """What models whose names begin alike have in common, as far as a wire has to know it."""

    pattern: str
    """Matched against the beginning of the model's name, without the maker that routers put before it."""
    context_window: int
    """Tokens that the model can take in."""
    can_think: bool = True
    """The model can reason before it answers, and show it. An unknown model counts as one that can."""
    uses_responses: bool = False
    """OpenAI serves the model over Responses."""
    takes_temperature: bool = True
    """Over OpenAI's wires; Anthropic's models take none while they think."""
    takes_parallel_tool_calls: bool = True
    """The model takes the option that allows or forbids several calls in one answer."""


class KnownModel(NamedTuple):
    """A model that is offered in lists."""

    provider: str
    name: str
    max_output_tokens: int

    @property
    def handle(self) -> str:
        return f"{self.provider}/{self.name}"

    @property
    def family(self) -> ModelFamily:
        return family_of(self.handle)


class KnownEmbedding(NamedTuple):
    """An embedding model. Holdfast keeps the handle and never calls it."""

    provider: str
    name: str
    dimensions: int


BUILTIN = "builtin"
DEFAULT_HANDLE = "builtin/echo"
DEFAULT_CONTEXT_WINDOW = 128_000

BUILTIN_IS_OFF = (
    "The built-in models are off here: choose a provider's model, or set HOLDFAST_BUILTIN_MODELS=true for the API and "
    "the workers."
)

PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(BUILTIN, "openai", "builtin"),
        Provider(
            "openai",
            "openai",
            "chat",
            (Address("OPENAI_BASE_URL", ("OPENAI_API_KEY",)),),
            "https://api.openai.com/v1",
            needs_key=True,
        ),
        Provider(
            "anthropic",
            "anthropic",
            "anthropic",
            (Address("ANTHROPIC_BASE_URL", ("ANTHROPIC_API_KEY",)),),
            "https://api.anthropic.com",
            needs_key=True,
            version="/v1",
        ),
        *(
            Provider(
                name,
                "google_ai",
                "google",
                (Address("GOOGLE_GEMINI_BASE_URL", ("GEMINI_API_KEY",)),),
                "https://generativelanguage.googleapis.com",
                needs_key=True,
                version="/v1beta",
            )
            for name in ("google_ai", "gemini")
        ),
        Provider(
            "openrouter",
            "openrouter",
            "chat",
            (Address("OPENROUTER_BASE_URL", ("OPENROUTER_API_KEY",)),),
            "https://openrouter.ai/api/v1",
            needs_key=True,
        ),
        Provider("ollama", "ollama", "chat", (Address("OLLAMA_BASE_URL"),), "http://127.0.0.1:11434/v1", version="/v1"),
        Provider(
            "lmstudio", "openai", "chat", (Address("LMSTUDIO_BASE_URL"),), "http://127.0.0.1:1234/v1", version="/v1"
        ),
        Provider(
            "vllm",
            "vllm",
            "chat",
            (Address("VLLM_BASE_URL", ("VLLM_API_KEY",)), Address("VLLM_API_BASE", ("VLLM_API_KEY",))),
            version="/v1",
        ),
        Provider(
            "openai_compatible",
            "openai",
            "chat",
            (
                Address("OPENAI_COMPATIBLE_BASE_URL", ("OPENAI_COMPATIBLE_API_KEY",)),
                Address("OPENAI_BASE_URL", ("OPENAI_COMPATIBLE_API_KEY", "OPENAI_API_KEY")),
            ),
        ),
    )
}

FAMILIES: tuple[ModelFamily, ...] = (
    ModelFamily(r"builtin/(echo|slow)$", 32_000, can_think=False),
    ModelFamily(r"builtin/", 32_000),
    ModelFamily(r"gpt-4\.1", 1_047_576, can_think=False),
    ModelFamily(r"gpt-4", 128_000, can_think=False),
    ModelFamily(r"gpt-5", 272_000, uses_responses=True, takes_temperature=False),
    ModelFamily(r"o[134]\b", 200_000, uses_responses=True, takes_temperature=False, takes_parallel_tool_calls=False),
    ModelFamily(r"claude-(instant|2|3-(5|opus|haiku|sonnet))", 200_000, can_think=False),
    ModelFamily(r"claude", 200_000),
    ModelFamily(r"gemini-(1|2\.0)", 1_048_576, can_think=False),
    ModelFamily(r"gemini", 1_048_576),
    ModelFamily(r"", DEFAULT_CONTEXT_WINDOW),
)
"""The first match counts; the last one is for models that nothing is known of."""

MODELS: tuple[KnownModel, ...] = (
    KnownModel("builtin", "echo", 4_096),
    KnownModel("builtin", "slow", 4_096),
    KnownModel("builtin", "scripted", 4_096),
    KnownModel("openai", "gpt-4.1", 16_384),
    KnownModel("openai", "gpt-4o", 16_384),
    KnownModel("openai", "gpt-4o-mini", 16_384),
    KnownModel("openai", "gpt-5", 128_000),
    KnownModel("openai", "gpt-5-mini", 128_000),
    KnownModel("openai", "o3", 100_000),
    KnownModel("openai", "o4-mini", 100_000),
    KnownModel("anthropic", "claude-3-5-haiku-20241022", 8_192),
    KnownModel("anthropic", "claude-haiku-4-5-20251001", 64_000),
    KnownModel("anthropic", "claude-opus-4-1-20250805", 32_000),
    KnownModel("anthropic", "claude-sonnet-4-5-20250929", 64_000),
    KnownModel("google_ai", "gemini-2.5-flash", 65_536),
    KnownModel("google_ai", "gemini-2.5-pro", 65_536),
)

EMBEDDINGS: tuple[KnownEmbedding, ...] = (
    KnownEmbedding("openai", "text-embedding-3-large", 3072),
    KnownEmbedding("openai", "text-embedding-3-small", 1536),
    KnownEmbedding("openai", "text-embedding-ada-002", 1536),
    KnownEmbedding("google_ai", "text-embedding-004", 768),
)

LONGEST_HANDLE = 300
"""Characters. Models on a server of one's own may be named after a path."""

_CHANGES_A_PATH = re.compile(r"\.\.|(^|/)\.(/|$)|[\x00-\x1f\x7f\\?#%&]")
"""What a model's name may not contain. Some wires put the name into the URL of the request, where this would lead the
provider's key to another place."""

_CREDENTIALS = re.compile(r"(?<=//)[^/]*@|[?#].*")


def split_handle(handle: str) -> tuple[str, str]:
    """Provider and model of a handle. Raises `ValueError`, which says what a handle looks like, when this can be
    none."""
    provider, _, model = handle.partition("/")
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


def is_builtin(handle: str) -> bool:
    """Whether the handle names a model that the worker plays itself."""
    return handle.partition("/")[0] == BUILTIN


def offered(provider: str, environment: Mapping[str, str], *, builtin: bool) -> bool:
    """Whether lists show the provider's models. `builtin` is the setting that turns the built-in ones on."""
    return builtin if provider == BUILTIN else PROVIDERS[provider].is_configured(environment)


def family_of(handle: str) -> ModelFamily:
    """What is known of a model by its name."""
    # OpenRouter's models carry their maker: `openrouter/anthropic/claude-…`.
    name = handle if is_builtin(handle) else handle.rpartition("/")[2]
    return next(family for family in FAMILIES if re.match(family.pattern, name))


def context_window_of(handle: str) -> int:
    """Tokens that the model can take in. An unknown model is taken to have the default window."""
    return family_of(handle).context_window


def without_credentials(url: str) -> str:
    """The URL without user, password and query, where operators put keys."""
    return _CREDENTIALS.sub("", url)
