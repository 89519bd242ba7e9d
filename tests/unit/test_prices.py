"""What a call costs: by the operator's table first, then by published prices, and never nothing by mistake."""

import json
from pathlib import Path

import pytest

from shared.domain.errors import InvalidRequest
from shared.domain.models import MODELS
from shared.domain.runs import Usage
from worker.models.registry import Price, Prices

MILLION = Usage(prompt_tokens=1_000_000, completion_tokens=1_000_000)
DOLLAR = 1_000_000_000


def test_a_table_goes_before_published_prices() -> None:
    own = Prices({"openai/gpt-4o-mini": Price(1, 2), "openrouter/*": Price(3, 4)})
    assert own.nano_usd("openai/gpt-4o-mini", MILLION) == 3 * DOLLAR
    assert own.nano_usd("openrouter/some/model", MILLION) == 7 * DOLLAR


@pytest.mark.parametrize(
    "handle",
    ["openai/gpt-4o-mini", "anthropic/claude-sonnet-4-5-20250929", "google_ai/gemini-2.5-pro", "xai/grok-4"],
)
def test_published_prices_are_known(handle: str) -> None:
    price = Prices({}).nano_usd(handle, MILLION)
    assert price is not None
    assert DOLLAR / 10 < price < 1000 * DOLLAR


@pytest.mark.parametrize("handle", list({model.provider: model.handle for model in reversed(MODELS)}.values()))
def test_the_first_model_of_a_provider_has_a_price(handle: str) -> None:
    """`letta/auto` may choose it, and a worker calls no model without a price under a budget in money."""
    assert Prices({}).nano_usd(handle, MILLION) is not None


@pytest.mark.parametrize(
    "handle", ["openai/no-such-model", "openai_compatible/mine", "openai-proxy/gpt-4o", "together/what"]
)
def test_what_nobody_knows_has_no_price(handle: str) -> None:
    assert Prices({}).nano_usd(handle, MILLION) is None


@pytest.mark.parametrize("handle", ["ollama/qwen3", "vllm/qwen3", "builtin/echo"])
def test_a_model_on_a_server_of_ones_own_costs_nothing(handle: str) -> None:
    assert Prices({}).nano_usd(handle, MILLION) == 0
    assert Prices({handle.split("/")[0] + "/*": Price(1, 1)}).nano_usd(handle, MILLION) == 2 * DOLLAR


def test_cached_input_has_a_price_of_its_own() -> None:
    usage = Usage(prompt_tokens=1000, completion_tokens=10, cached_input_tokens=600, cache_write_tokens=100)
    assert Price(10, 20).nano_usd(usage) == (1000 * 10 + 10 * 20) * 1000
    assert Price(10, 20, cached_input=1, cache_write=12).nano_usd(usage) == (300 * 10 + 600 + 1200 + 200) * 1000


def test_a_part_of_a_thousand_millionth_counts_as_one() -> None:
    assert Price(0.0001, 0).nano_usd(Usage(prompt_tokens=1)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "truncated"),
        (json.dumps({"openai/gpt-4o": {"input": 1}}), "missing required field `output`"),
        (json.dumps({"openai/gpt-4o": {"input": 1, "output": 2, "cache": 3}}), "unknown field `cache`"),
        (json.dumps({"openai/gpt-4o": {"input": -1, "output": 2}}), "not below zero"),
        (json.dumps({"gpt-4o": {"input": 1, "output": 2}}), "unknown model handle"),
    ],
)
def test_a_wrong_table_is_refused_at_the_start(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "prices.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"HOLDFAST_PRICES_FILE: .*US dollars per million tokens") as refused:
        Prices.read(file)
    assert said in str(refused.value)


def test_a_table_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"HOLDFAST_PRICES_FILE: .*No such file"):
        Prices.read(tmp_path / "none.json")


def test_a_table_is_read(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"openai/gpt-4o": {"input": 2.5, "output": 10, "cached_input": 1.25}}))
    assert Prices.read(file).nano_usd("openai/gpt-4o", MILLION) == 12.5 * DOLLAR
