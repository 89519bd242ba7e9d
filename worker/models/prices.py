"""What a call of a model costs: by the operator's own table, or by the published prices that `genai-prices` brings.

Prices change, and contracts differ: the operator's table goes first. A model on a server of one's own costs nothing
unless the table says so. A model whose price nobody knows has none; it is never taken to be free.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shared.domain.errors import InvalidRequest
from shared.domain.limits import NANO
from shared.domain.models import OPENAI_PROXY, PROVIDERS, split_handle
from shared.domain.runs import Usage

PER = 1_000_000
"""Tokens that a price of the table is for, as in providers' price lists."""

OWN_SERVERS = ("builtin", "ollama", "lmstudio", "lmstudio_openai", "vllm")
"""Providers whose models run on machines of the operator's."""

PUBLISHED_AS: Mapping[str, str] = {"google_ai": "google", "gemini": "google", "xai": "x-ai"}
"""How `genai-prices` calls a provider, where its name is another."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars for a million tokens. Cached input costs what input costs, unless the table says otherwise."""

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        given = (self.input, self.output, self.cached_input or 0, self.cache_write or 0)
        if not all(0 <= price < PER for price in given):
            raise ValueError("a price is in US dollars for a million tokens, and not below zero")

    def nano_usd(self, usage: Usage) -> int:
        """The price of a call, in thousand-millionths of a dollar, rounded up."""
        cached = 0 if self.cached_input is None else usage.cached_input_tokens
        written = 0 if self.cache_write is None else usage.cache_write_tokens
        plain = max(usage.prompt_tokens - cached - written, 0)
        dollars = plain * self.input + usage.completion_tokens * self.output
        dollars += cached * (self.cached_input or 0) + written * (self.cache_write or 0)
        return -int(-dollars * NANO // PER)


class Prices:
    """The prices of a worker. `own` are the operator's, by handle or by `provider/*`."""

    def __init__(self, own: Mapping[str, Price]) -> None:
        self._own = own
        self._published: Any = None

    @classmethod
    def read(cls, file: Path | None) -> "Prices":
        """The prices with the operator's table, a JSON file. Raises `InvalidRequest` for one that cannot be read."""
        if file is None:
            return cls({})
        try:
            own = msgspec.json.decode(file.read_bytes(), type=dict[str, Price])
            for handle in own:
                split_handle(handle)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidRequest(
                f"HOLDFAST_PRICES_FILE: {file}: {reason}. Write it as "
                '{"openai/gpt-4o": {"input": 2.5, "output": 10}, "openrouter/*": {…}}, in US dollars per million tokens'
            ) from error
        return cls(own)

    def nano_usd(self, handle: str, usage: Usage) -> int | None:
        """What the call costs, in thousand-millionths of a dollar; None when the model's price is not known."""
        provider, model = handle.split("/", 1)
        own = self._own.get(handle) or self._own.get(f"{provider}/*")
        if own is not None:
            return own.nano_usd(usage)
        if provider in OWN_SERVERS:
            return 0
        return self._by_published_price(provider, model, usage)

    def _by_published_price(self, provider: str, model: str, usage: Usage) -> int | None:
        if PROVIDERS[provider].wire == "builtin" or provider in ("openai_compatible", OPENAI_PROXY):
            return None
        if self._published is None:
            self._published = importlib.import_module("genai_prices")
        published = self._published
        used = published.Usage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        try:
            price = published.calc_price(used, model_ref=model, provider_id=PUBLISHED_AS.get(provider, provider))
        except (LookupError, ValueError):
            return None
        return -int(-price.total_price * NANO // 1)
