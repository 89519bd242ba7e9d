"""What bounds agents that call agents: the budget of their tree, and how long a call waits."""

import json
from typing import Any

import pytest

from tests.kit.product import Product
from tests.kit.wait_until import wait_until
from tests.story.test_run_trees import begin, children_of, done, giving, make, results, saying, script


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"run_token_budget": 1_500, "child_wait": 4.0, "builtin_models": True, "sweep_s": 0.3, "lease_s": 2.0}


async def test_each_run_of_a_tree_had_a_budget_of_its_own(product: Product) -> None:
    top, leaf = await make(product, "top", "run_agent"), await make(product, "leaf")
    long = script(saying("word ", repeat=1_000))
    run = await done(product, top, giving((leaf, long), then="Too much."))
    assert (run["status"], run["metadata"]["cause"]) == ("failed", "budget")
    assert "together with the other runs of its tree" in json.dumps(run["metadata"]["error"])
    [child] = await children_of(product, run["id"])
    assert child["status"] == "completed"


async def test_a_call_waits_for_an_answer_as_long_as_the_operator_allows(product: Product) -> None:
    """The next wait of the run ended only with the answer that nobody waited for any more."""
    top, slow_one = await make(product, "top", "run_agent"), await make(product, "slow")
    await make(product, "quick")
    slow = {"agent": "slow", "task": script(saying("", first_delay_ms=600_000))}
    quick = {"agent": "quick", "task": script(saying("Quick.", first_delay_ms=500))}
    calls = [{"calls": [{"name": "run_agent", "arguments": arguments}]} for arguments in (slow, quick)]
    run = await done(product, top, script(*calls, saying("I have one answer.")))
    assert run["status"] == "completed"
    late, in_time = await results(product, top)
    assert late["status"] == "error"
    assert "has not answered within 4 s" in late["tool_return"]
    assert in_time["tool_return"] == "Quick."
    child = next(one for one in await children_of(product, run["id"]) if one["agent_id"] == slow_one)
    assert child["status"] == "running"
    await product.http.post(f"/v1/agents/{slow_one}/messages/cancel", json={"run_ids": [child["id"]]})


async def test_an_agent_that_got_another_name_was_not_found_again(product: Product) -> None:
    top, leaf = await make(product, "top", "run_agent"), await make(product, "leaf")
    run_id = await begin(product, top, giving(("leaf", script(saying("Here.", first_delay_ms=1_000)))))
    await wait_until(lambda: children_of(product, run_id), description="the child")
    await product.http.patch(f"/v1/agents/{leaf}", json={"name": "renamed"})
    await make(product, "leaf")
    await product.ended(run_id)
    [result] = await results(product, top)
    assert result["tool_return"] == "Here."


async def test_an_agent_whose_run_was_deleted_was_asked_again(product: Product) -> None:
    top = await make(product, "top", "run_agent")
    await make(product, "quick")
    await make(product, "slow")
    tasks = ("quick", script(saying("Quick."))), ("slow", script(saying("Slow.", first_delay_ms=1_000)))
    run_id = await begin(product, top, giving(*tasks))

    async def ended() -> str | None:
        found = await children_of(product, run_id)
        return next((run["id"] for run in found if run["status"] == "completed"), None)

    quick = await wait_until(ended, description="the quick answer")
    assert (await product.http.delete(f"/v1/runs/{quick}")).is_success
    await product.ended(run_id)
    first, second = await results(product, top)
    assert "was deleted before its answer was read" in first["tool_return"]
    assert second["tool_return"] == "Slow."
    assert len(await children_of(product, run_id)) == 1
