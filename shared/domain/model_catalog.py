"""What is known of models by their names: windows, what they can do, and which of them lists show.

This module is data only. A model that is not listed works as well: the lists feed `GET /v1/models` and the defaults.
Figures are the providers' published limits; the windows of the GPT-5 family are those of the input. The API's lists and
the worker's calls read the same tables.
"""

import re
from typing import NamedTuple

from shared.domain.model_providers import PROVIDERS, is_builtin


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
    takes_verbosity: bool = False
    """The model can be told how long its answers are to be."""
    continues_answers: bool = True
    """The model goes on with an answer of which it is given the beginning, where its server lets it."""


class KnownModel(NamedTuple):
    """A model that is offered in lists."""

    provider: str
    name: str
    max_output_tokens: int
    own_window: int | None = None
    """Tokens that the model's server says it takes in; None: what is known of the family counts."""

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
"""Tokens of an answer, where the provider demands a limit and nobody has chosen one."""

FAMILIES: tuple[ModelFamily, ...] = (
    ModelFamily(r"builtin/(echo|slow)$", 32_000, can_think=False),
    ModelFamily(r"builtin/", 32_000),
    ModelFamily(r"gpt-4\.1", 1_047_576, can_think=False),
    ModelFamily(r"gpt-4", 128_000, can_think=False),
    ModelFamily(r"gpt-5", 272_000, uses_responses=True, takes_temperature=False, takes_verbosity=True),
    ModelFamily(r"o[134]\b", 200_000, uses_responses=True, takes_temperature=False, takes_parallel_tool_calls=False),
    ModelFamily(r"claude-(instant|2|3-(5|opus|haiku|sonnet))", 200_000, can_think=False),
    ModelFamily(r"claude-(3-7|(opus|sonnet|haiku)-4-([015]\b|\d{8}))", 200_000),
    ModelFamily(r"claude", 200_000, continues_answers=False),
    ModelFamily(r"gemini-(1|2\.0)", 1_048_576, can_think=False),
    ModelFamily(r"gemini-2", 1_048_576),
    ModelFamily(r"gemini", 1_048_576, continues_answers=False),
    ModelFamily(r"grok-4", 256_000),
    ModelFamily(r"grok", 131_072),
    ModelFamily(r"deepseek", 128_000),
    ModelFamily(r"(mistral|ministral|magistral|devstral)", 128_000),
    ModelFamily(r"gpt-oss", 131_072, continues_answers=False),
    ModelFamily(r"(?i)qwen2", 32_768, can_think=False),
    ModelFamily(r"(?i)qwen3", 131_072),
    ModelFamily(r"glm-", 200_000),
    ModelFamily(r"MiniMax-M2", 200_000),
    ModelFamily(r"", DEFAULT_CONTEXT_WINDOW),
)
"""The first match counts; the last one is for models that nothing is known of."""

MODELS: tuple[KnownModel, ...] = (
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
    KnownModel("xai", "grok-4", 64_000),
    KnownModel("deepseek", "deepseek-chat", 8_192),
    KnownModel("deepseek", "deepseek-reasoner", 65_536),
    KnownModel("mistral", "mistral-large-latest", 16_384),
    KnownModel("mistral", "mistral-small-latest", 16_384),
    KnownModel("groq", "openai/gpt-oss-120b", 65_536),
    KnownModel("groq", "qwen/qwen3-32b", 40_960),
    KnownModel("together", "Qwen/Qwen2.5-72B-Instruct-Turbo", 8_192),
    KnownModel("zai", "glm-4.6", 65_536),
    KnownModel("minimax", "MiniMax-M2.1", 65_536),
    KnownModel("builtin", "echo", 4_096),
    KnownModel("builtin", "slow", 4_096),
    KnownModel("builtin", "scripted", 4_096),
)

EMBEDDINGS: tuple[KnownEmbedding, ...] = (
    KnownEmbedding("openai", "text-embedding-3-large", 3072),
    KnownEmbedding("openai", "text-embedding-3-small", 1536),
    KnownEmbedding("openai", "text-embedding-ada-002", 1536),
    KnownEmbedding("google_ai", "text-embedding-004", 768),
)


def family_of(handle: str) -> ModelFamily:
    """What is known of a model by its name."""
    # OpenRouter's models carry their maker: `openrouter/anthropic/claude-…`.
    name = handle if is_builtin(handle) else handle.rpartition("/")[2]
    return next(family for family in FAMILIES if re.match(family.pattern, name))


def continues_answers(handle: str, *, reasons: bool) -> bool:
    """Whether the model can be given the beginning of its answer, and says the rest. `reasons`: it is asked to reason
    first. Claude then refuses to go on in the middle; others have shown that they reason before they said anything."""
    family, provider = family_of(handle), PROVIDERS[handle.partition("/")[0]]
    if provider.quirks.continues_answers == "never" or not family.continues_answers:
        return False
    return not (reasons and family.can_think and provider.wire == "anthropic")


def context_window_of(handle: str) -> int:
    """Tokens that the model can take in. An unknown model is taken to have the default window."""
    return family_of(handle).context_window


def answer_limit_of(handle: str) -> int | None:
    """Tokens that an answer may have when nobody has chosen a limit; None where only the provider knows."""
    known = next((model.max_output_tokens for model in MODELS if model.handle == handle), None)
    if PROVIDERS[handle.partition("/")[0]].wire == "anthropic":
        return min(known or DEFAULT_LIMIT, DEFAULT_LIMIT)
    return known


def window_of(handle: str, chosen: int | None) -> int:
    """Tokens that a request to the model may have: what was chosen, and no more than the model is known to take in."""
    family = family_of(handle)
    if not chosen:
        return family.context_window
    return min(chosen, family.context_window) if family.pattern else chosen
