"""Known models and providers: names, context windows, abilities, variables and addresses."""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from shared.domain.model_servers import Address, Provider, Quirks, Wire

# The model providers: one table with each one's addresses, variables, and differences from its protocol.
#
# The API's lists and the worker's calls read the same rows, and a test compares them with the table of
# `docs/models.md`.


BUILTIN = "builtin"
CODE = "code"
"""The provider of agents of an operator's own code: no model is called, the agent itself answers."""
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
        Provider(CODE, "openai", "builtin"),
        Provider("openai", "openai", "chat", _OPENAI, _OPENAI_URL, needs_key=True, quirks=Quirks(takes_files=True)),
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
                # "Thinking mode does not support this tool_choice", and the models think unless a request forbids it.
                takes_forced_calls=False,
                has_thinking_switch=True,
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
            (_COMPATIBLE, *(Address(name, ("OPENAI_COMPATIBLE_API_KEY", *_OPENAI_KEY)) for name in _OPENAI_URLS)),
        ),
        # Letta's servers give this name to the models behind their OPENAI_BASE_URL. Programs and agent files bring the
        # name to servers without such a gateway; these call OpenAI itself.
        Provider(OPENAI_PROXY, "openai", "chat", (*_OPENAI, _COMPATIBLE), _OPENAI_URL),
    )
}

NOT_SERVED: Mapping[str, str] = {
    "letta": (
        "models of 'letta/' are served by Letta's own cloud. Give the agent another model: one of a provider whose key "
        "the workers have, such as openai/gpt-6-luna with OPENAI_API_KEY, or a local one, such as ollama/qwen3"
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
"""Providers that programs name but Holdfast does not support, with advice."""

LONGEST_HANDLE = 300
"""Characters. Models on a server of one's own may be named after a path."""

_CHANGES_A_PATH = re.compile(r"\.\.|(^|/)\.(/|$)|[\x00-\x1f\x7f\\?#%&]")
"""Text that a model's name must not contain. Some protocols put the name into the URL of the request, where this would
send the provider's key to another address."""


_SERVERS_CHOICE = re.compile(r"letta/auto(-[a-z]{1,30})?")


def split_handle(handle: str) -> tuple[str, str]:
    """Provider and model of a handle. Raises `ValueError`, which describes the form of a handle, if this is not one."""
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
    names = [one.handle for one in MODELS if one.provider == provider == BUILTIN]
    if names and handle not in names:
        raise ValueError(f"there is no built-in model {handle!r}: there are {', '.join(names)}")
    return provider, model


def leaves_choice(handle: str) -> bool:
    """Whether the handle names no model, but leaves the choice to the server: `letta/auto`, `letta/auto-fast` and so
    on, for which Letta's cloud picks one. A worker cannot call it."""
    return _SERVERS_CHOICE.fullmatch(handle) is not None


def is_builtin(handle: str) -> bool:
    """Whether the handle names a model that the worker plays itself."""
    return handle.partition("/")[0] == BUILTIN


def code_agent_of(handle: str) -> str | None:
    """The name of the agent of an operator's own code that the handle names; None for a model."""
    provider, _, name = handle.partition("/")
    return name if provider == CODE else None


def code_handle(name: str) -> str:
    """The handle of an agent of an operator's own code."""
    return f"{CODE}/{name}"


def offered(provider: str, environment: Mapping[str, str], *, builtin: bool) -> bool:
    """Whether lists show the provider's models. `builtin` is the setting that turns the built-in ones on."""
    return builtin if provider == BUILTIN else PROVIDERS[provider].is_configured(environment)


def can_embed(handle: str | None) -> bool:
    """Whether the handle's provider serves embeddings over OpenAI's wire. Google does, beside its own protocol."""
    try:
        provider, _ = split_handle(handle or "")
    except ValueError:
        return False
    return PROVIDERS[provider].wire in ("chat", "google")


class ModelFamily(NamedTuple):
    """The properties, needed for requests, that models with the same name prefix share."""

    pattern: str
    """Matched against the beginning of the model's name, without the maker that routers put before it."""
    context_window: int
    """Tokens that the model can take in."""
    can_think: bool = True
    """The model can reason before it answers, and show it. Unknown models count as able."""
    always_thinks: bool = False
    """A request cannot keep the model from reasoning. Noted only of models whose servers have a switch for it."""
    uses_responses: bool = False
    """OpenAI serves the model over Responses."""
    takes_temperature: bool = True
    """Over OpenAI's wires; Anthropic's models take none while they think."""
    takes_parallel_tool_calls: bool = True
    """The model takes the option that allows or forbids several calls in one answer."""
    takes_verbosity: bool = False
    """A request can choose how long the model's answers are."""
    continues_answers: bool = True
    """The model continues an answer whose beginning is in the request, if its server allows that."""


class KnownModel(NamedTuple):
    """A model that is offered in lists."""

    provider: str
    name: str
    max_output_tokens: int
    own_window: int | None = None
    """The context window that the model's server reports; None: the family's value counts."""

    @property
    def handle(self) -> str:
        return f"{self.provider}/{self.name}"

    @property
    def family(self) -> ModelFamily:
        return family_of(self.handle)

    @property
    def window(self) -> int:
        return self.own_window or self.family.context_window


class KnownEmbedding(NamedTuple):
    """An embedding model that is offered in lists. Passages of archives are embedded with it."""

    provider: str
    name: str
    dimensions: int


DEFAULT_CONTEXT_WINDOW = 128_000
DEFAULT_LIMIT = 16_384
"""The limit of an answer's tokens if the provider demands one and none was chosen."""

# The windows and abilities of families are from the providers' pages about their models and OpenAI's guide "Using
# GPT-6", as of November 2026. Models that their makers have retired stay: other servers still have them. OpenAI's
# windows are what a request may have, without the room that OpenAI keeps for the answer.

FAMILIES: tuple[ModelFamily, ...] = (
    ModelFamily(r"builtin/(echo|slow)$", 32_000, can_think=False),
    ModelFamily(r"builtin/", 32_000),
    ModelFamily(r"gpt-4\.1", 1_047_576, can_think=False),
    ModelFamily(r"gpt-4", 128_000, can_think=False),
    ModelFamily(r"gpt-5[.\d]*-chat", 272_000, can_think=False, uses_responses=True, takes_verbosity=True),
    ModelFamily(
        r"gpt-(5\.[4-9](?!-(mini|nano))|[6-9])",
        922_000,
        uses_responses=True,
        takes_temperature=False,
        takes_verbosity=True,
    ),
    ModelFamily(r"gpt-5", 272_000, uses_responses=True, takes_temperature=False, takes_verbosity=True),
    ModelFamily(r"o[134]\b", 200_000, uses_responses=True, takes_temperature=False, takes_parallel_tool_calls=False),
    ModelFamily(r"claude-(instant|2|3(?![-.]7))", 200_000, can_think=False),
    ModelFamily(r"claude-(3[-.]7|(opus|sonnet|haiku)-4(?![-.][6-9]))", 200_000),
    ModelFamily(r"claude", 1_000_000, continues_answers=False),
    ModelFamily(r"gemini-(1|2\.0)", 1_048_576, can_think=False),
    ModelFamily(r"gemini-2", 1_048_576),
    ModelFamily(r"gemini", 1_048_576, continues_answers=False),
    ModelFamily(r"grok-4\.(3|20)\b", 1_000_000),
    ModelFamily(r"grok-(4\.[5-9]|[5-9])", 500_000),
    ModelFamily(r"grok-4", 256_000),
    ModelFamily(r"grok", 131_072),
    ModelFamily(r"deepseek-(v[4-9]|flash|pro)", 1_000_000),
    ModelFamily(r"deepseek", 128_000),
    ModelFamily(r"mistral-((large|medium)-(latest|2512|2604)|small-(latest|2603))", 256_000),
    ModelFamily(r"(mistral|ministral|magistral|devstral)", 128_000),
    ModelFamily(r"gpt-oss", 131_072, continues_answers=False),
    ModelFamily(r"(?i)qwen2", 32_768, can_think=False),
    ModelFamily(r"(?i)qwen3", 131_072),
    ModelFamily(r"(?i)glm-5\.2", 1_000_000),
    ModelFamily(r"(?i)glm-(5\.[3-9]|[6-9])", 1_000_000, always_thinks=True),
    ModelFamily(r"(?i)glm-", 200_000),
    ModelFamily(r"(?i)minimax-m[3-9]", 1_000_000),
    ModelFamily(r"(?i)minimax-m2", 200_000),
    ModelFamily(r"", DEFAULT_CONTEXT_WINDOW),
)
"""The first match counts; the last one is for unknown models."""

# The models that their providers serve and do not retire within weeks, with the longest answer of each, from the
# providers' pages about models and deprecations, as of November 2026. The first of a provider does everyday work at a
# moderate and published price: `letta/auto` may choose it. OpenAI retires the models of GPT-4 on 2027-01-14.

MODELS: tuple[KnownModel, ...] = (
    KnownModel("openai", "gpt-6.1-sol", 128_000),
    KnownModel("openai", "gpt-6.2-sol", 128_000),
    KnownModel("openai", "gpt-6.2-astra", 128_000),
    KnownModel("openai", "gpt-6-luna", 128_000),
    KnownModel("openai", "gpt-4.1", 32_768),
    KnownModel("openai", "gpt-4o", 16_384),
    KnownModel("openai", "gpt-4o-mini", 16_384),
    KnownModel("anthropic", "claude-sonnet-5-5", 128_000),
    KnownModel("anthropic", "claude-opus-5-5", 128_000),
    KnownModel("anthropic", "claude-fable-5-2", 128_000),
    KnownModel("anthropic", "claude-haiku-5-5", 128_000),
    KnownModel("anthropic", "claude-haiku-4-5-20251001", 64_000),
    KnownModel("anthropic", "claude-sonnet-4-5-20250929", 64_000),
    KnownModel("google_ai", "gemini-3.8-flash", 65_536),
    KnownModel("google_ai", "gemini-4-argon", 65_536),
    KnownModel("google_ai", "gemini-3.5-flash-lite", 65_536),
    KnownModel("xai", "grok-4.7", 64_000),
    KnownModel("xai", "grok-4.3", 30_000),
    KnownModel("deepseek", "deepseek-flash", 384_000),
    KnownModel("deepseek", "deepseek-v4-pro", 384_000),
    KnownModel("mistral", "mistral-large-latest", 16_384),
    KnownModel("mistral", "mistral-medium-latest", 16_384),
    KnownModel("mistral", "mistral-small-latest", 16_384),
    KnownModel("groq", "openai/gpt-oss-120b", 65_536),
    KnownModel("groq", "openai/gpt-oss-20b", 65_536),
    KnownModel("groq", "qwen/qwen3.8-27b", 16_384),
    KnownModel("together", "zai-org/GLM-5.3", 131_072),
    KnownModel("together", "zai-org/GLM-5.3-Flash", 131_072),
    KnownModel("zai", "glm-5.3", 131_072),
    KnownModel("zai", "glm-5.2", 131_072),
    KnownModel("minimax", "MiniMax-M3", 128_000),
    KnownModel("builtin", "echo", 4_096),
    KnownModel("builtin", "slow", 4_096),
    KnownModel("builtin", "scripted", 4_096),
)

# From OpenAI's and Google's pages about embeddings, as of November 2026.

EMBEDDINGS: tuple[KnownEmbedding, ...] = (
    KnownEmbedding("openai", "text-embedding-3-large", 3072),
    KnownEmbedding("openai", "text-embedding-3-small", 1536),
    KnownEmbedding("openai", "text-embedding-ada-002", 1536),
    KnownEmbedding("google_ai", "gemini-embedding-001", 3072),
    KnownEmbedding("google_ai", "gemini-embedding-2", 3072),
)


def family_of(handle: str) -> ModelFamily:
    """Returns the family of a model by its name."""
    # OpenRouter's models carry their maker: `openrouter/anthropic/claude-…`.
    name = handle if is_builtin(handle) else handle.rpartition("/")[2]
    return next(family for family in FAMILIES if re.match(family.pattern, name))


def continues_answers(handle: str, *, reasons: bool) -> bool:
    """Whether the model can continue an answer whose beginning it is given. `reasons`: the request asks for reasoning.
    Claude then refuses to continue in the middle; other models have shown their reasoning before any text."""
    family, provider = family_of(handle), PROVIDERS[handle.partition("/")[0]]
    if provider.quirks.continues_answers == "never" or not family.continues_answers:
        return False
    return not (reasons and family.can_think and provider.wire == "anthropic")


def context_window_of(handle: str) -> int:
    """Tokens that the model can take in. An unknown model gets the default window."""
    return family_of(handle).context_window


def answer_limit_of(handle: str) -> int | None:
    """The tokens that an answer may have if no limit was chosen; None if only the provider knows."""
    provider, _, model = handle.partition("/")
    if PROVIDERS[provider].wire == "anthropic":
        return min(claude_model(model).most_output_tokens or DEFAULT_LIMIT, DEFAULT_LIMIT)
    return next((known.max_output_tokens for known in MODELS if known.handle == handle), None)


def window_of(handle: str, chosen: int | None) -> int:
    """The tokens that a request to the model may have: the chosen window, but at most the model's known one."""
    family = family_of(handle)
    if not chosen:
        return family.context_window
    return min(chosen, family.context_window) if family.pattern else chosen


# The differences between requests to Anthropic's models. From Anthropic's pages "Extended thinking", "Adaptive
# thinking" and "Models overview", as pydantic-ai read them (`profiles/anthropic.py`). A model that is not listed gets
# the requests of the older ones.


class ClaudeModel(NamedTuple):
    """The properties that models with the same name prefix share."""

    pattern: str
    """Matched against the beginning of the model's name."""
    most_output_tokens: int | None = None
    """The API refuses a request for more."""
    thinks_adaptively: bool = False
    """The model decides itself how long it thinks; others get a number of tokens."""
    without_thinking: Literal["unsaid", "disabled", "between_tools", "least"] = "unsaid"
    """How a request turns thinking off: by leaving the field out, or with this value. Some models always think; their
    requests ask for the least."""
    takes_temperature: bool = True
    takes_forced_calls: bool = True
    binds_thinking: bool = False
    """The API refuses returned thinking if anything before it has changed."""


_LONG = 128_000

CLAUDE_MODELS: tuple[ClaudeModel, ...] = (
    ClaudeModel(r"claude-(fable-5-[12]|mythos-5-2)", _LONG, True, "least", False, False, True),
    ClaudeModel(r"claude-mythos-5-1", _LONG, True, "least", False, False),
    ClaudeModel(r"claude-(fable|mythos)-5", _LONG, True, "least", False),
    ClaudeModel(r"claude-mythos-preview", None, True),
    ClaudeModel(r"claude-opus-5-5", _LONG, True, "least", False, False, True),
    ClaudeModel(r"claude-sonnet-5-5", _LONG, True, "between_tools", False, False, True),
    ClaudeModel(r"claude-haiku-5-5", _LONG, True, "disabled", False, True, True),
    ClaudeModel(r"claude-(opus|sonnet)-5", _LONG, True, "disabled", False),
    ClaudeModel(r"claude-opus-4-[78]", _LONG, True, "unsaid", False),
    ClaudeModel(r"claude-(opus|sonnet)-4-6", _LONG, True),
    ClaudeModel(r"claude-(haiku|opus|sonnet)-4-5", 64_000),
    ClaudeModel(r"claude-3-5", 8_192),
    ClaudeModel(r"claude-3-(haiku|opus|sonnet)", 4_096),
    ClaudeModel(r""),
)
"""The first match counts."""

_TAKES_EFFORT = re.compile(r"claude-((fable|mythos)-5|opus-4-[5-8]|sonnet-4-6|(opus|sonnet|haiku)-5)")
_TAKES_FORMAT = re.compile(r"claude-((fable|mythos)-5|opus-4-1|(opus|sonnet|haiku)-4-[5-8]|(opus|sonnet|haiku)-5)")


def takes_effort(model: str) -> bool:
    """Whether a request may have a word for how much the model is to think."""
    return _TAKES_EFFORT.match(model) is not None


def takes_format(model: str) -> bool:
    """Whether a request may have a JSON schema that the answer fits."""
    return _TAKES_FORMAT.match(model) is not None


def claude_model(model: str) -> ClaudeModel:
    """Returns the properties of a model by its name."""
    return next(known for known in CLAUDE_MODELS if re.match(known.pattern, model))
