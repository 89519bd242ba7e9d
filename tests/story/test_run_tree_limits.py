"""What bounds agents that call agents: the budget of their tree, and how long a call waits."""

import json
from typing import Any

import pytest

from tests.kit.product import Product
from tests.story.test_run_trees import children_of, done, giving, make, results, saying, script


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"run_token_budget": 1_500, "child_wait": 2.0, "builtin_models": True, "sweep_s": 0.3, "lease_s": 2.0}


async def test_each_run_of_a_tree_had_a_budget_of_its_own(product: Product) -> None:
    top, leaf = await make(product, "top", "run_agent"), await make(product, "leaf")
    long = script(saying("word ", repeat=1_000))
    run = await done(product, top, giving((leaf, long), then="Too much."))
    assert (run["status"], run["metadata"]["cause"]) == ("failed", "budget")
    assert "together with the other runs of its tree" in json.dumps(run["metadata"]["error"])
    [child] = await children_of(product, run["id"])
    assert child["status"] == "completed"


async def test_a_call_waits_for_an_answer_as_long_as_the_operator_allows(product: Product) -> None:
    top, leaf = await make(product, "top", "run_agent"), await make(product, "leaf")
    slow = script(saying("", first_delay_ms=60_000))
    run = await done(product, top, giving((leaf, slow), then="I go on."))
    assert run["status"] == "completed"
    [result] = await results(product, top)
    assert result["status"] == "error"
    assert "has not answered within 2 s" in result["tool_return"]
    [child] = await children_of(product, run["id"])
    assert child["status"] == "running"
    await product.http.post(f"/v1/agents/{leaf}/messages/cancel", json={"run_ids": [child["id"]]})
