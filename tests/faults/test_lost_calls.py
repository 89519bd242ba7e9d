"""A worker that dies after it has asked a model: the call is paid for, so it is counted, whether or not a word of its
answer was shown."""

from pathlib import Path
from typing import Any

import pytest

from shared.concurrency import background
from shared.domain.budgets import day_of
from shared.sql.engine import Database
from shared.sql.runs.budgets import BudgetStore
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.careful_client import ask_until_answered
from tests.kit.product.processes import Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

COUNTED = 1000
"""Tokens of the prompt of each call that is answered, as its provider says."""

SAYS_AND_WAITS = '''
def wait(folder: str) -> str:
    """
    Waits until it may return.

    Args:
        folder (str): Where it looks.
    """
    import os, time
    open(os.path.join(folder, "started"), "w").close()
    while not os.path.exists(os.path.join(folder, "go-on")):
        time.sleep(0.02)
    return "done"
'''
MANY = {"agent_daily_tokens": 1_000_000, **PLAIN_TOOLS}


async def asked(product: Product, **fields: Any) -> str:
    """A run of a new agent."""
    agent = await product.agent(**fields)
    path = f"/v1/agents/{agent.id}/messages/async"
    run = await ask_until_answered(product.http, path, {"input": "Hello", "stream_tokens": True})
    return str(run["id"])


async def used(product: Product, run_id: str) -> dict[str, Any]:
    """What a run has used that has ended well."""
    assert (await product.ended(run_id))["status"] == "completed"
    return (await product.http.get(f"/v1/runs/{run_id}/usage")).json()


async def in_account(product: Product, database: Database) -> int:
    """Tokens of the one agent's account."""
    [total] = await BudgetStore(database).totals(day_of(product.context.clock.now()))
    return total.used.tokens


@pytest.mark.parametrize("silence", ["silent_before_headers", "silent_after_headers"])
@pytest.mark.parametrize("deaths", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
async def test_a_call_that_had_shown_nothing_was_not_counted(
    product: Product, processes: Processes, models: ModelServer, database: Database, silence: str, deaths: int
) -> None:
    silent: dict[str, Any] = {silence: 3600.0}
    models.play(*[Turn(text="Never.", **silent)] * deaths)
    models.answer_with(lambda _: Turn(text="All of it.", prompt_tokens=COUNTED))
    run_id = await asked(product, system="You have a long instruction. " * 40)
    for number in range(1, deaths + 1):
        worker = await processes.worker(**MANY)
        await wait_until(lambda number=number: len(models.requests) == number, description="the model to be asked")
        await worker.kill()
        await end_leases(product.context.redis)
    await processes.worker(**MANY)
    usage = await used(product, run_id)
    estimate = usage["prompt_tokens"] - COUNTED
    assert estimate >= 250 * deaths, "each lost call had the instructions in its prompt"
    assert usage["completion_tokens"] == 3
    assert await in_account(product, database) == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_the_lost_call_of_a_compaction_was_not_counted(
    product: Product, processes: Processes, models: ModelServer, database: Database
) -> None:
    models.play(Turn(text="I see."), Turn(text="Never.", silent_before_headers=3600.0))
    models.answer_with(lambda _: Turn(text="Summary: words.", prompt_tokens=COUNTED))
    worker = await processes.worker(**MANY)
    agent = await product.agent()
    said = await product.client.agents.messages.create_async(agent.id, input="A long story. " * 100)
    await product.ended(said.id)

    async def compact() -> None:
        await product.http.post(f"/v1/agents/{agent.id}/summarize", json={}, timeout=150)

    async with background(compact(), name="compact"):
        await wait_until(lambda: len(models.requests) == 2, description="the model to be asked for a summary")
        await worker.kill()
        await end_leases(product.context.redis)
        await processes.worker(**MANY)
        await wait_until(lambda: len(models.requests) == 3, description="another worker to ask")
        runs = (await product.http.get("/v1/runs/", params={"agent_id": agent.id})).json()
        usages = [await used(product, run["id"]) for run in runs]

    assert usages[0]["prompt_tokens"] - COUNTED >= 250, "the lost call had the story in its prompt"
    total = sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)
    assert await in_account(product, database) == total


async def test_a_worker_that_dies_in_a_tool_has_lost_no_call(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path
) -> None:
    models.call("wait", folder=str(tmp_path))
    models.answer_with(lambda _: Turn(text="All of it.", prompt_tokens=COUNTED))
    tool = await product.tool(SAYS_AND_WAITS)
    worker = await processes.worker(**MANY)
    run_id = await asked(product, tools=[tool])
    await wait_until((tmp_path / "started").exists, description="the tool to start")
    await worker.kill()
    await end_leases(product.context.redis)
    await processes.worker(**MANY)
    assert (await used(product, run_id))["prompt_tokens"] == COUNTED + 11


async def test_a_worker_that_leaves_behind_a_step_has_lost_no_call(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path
) -> None:
    models.call("wait", folder=str(tmp_path))
    models.answer_with(lambda _: Turn(text="All of it.", prompt_tokens=COUNTED))
    tool = await product.tool(SAYS_AND_WAITS)
    worker = await processes.worker(drain_s=60.0, **MANY)
    run_id = await asked(product, tools=[tool])
    await wait_until((tmp_path / "started").exists, description="the tool to start")
    worker.ask_to_end()
    await wait_until(lambda: "runs_may_finish_steps" in worker.log.read_text(), description="the worker to hear of it")
    (tmp_path / "go-on").touch()
    assert await worker.ended() == 0
    assert len(models.requests) == 1
    await processes.worker(**MANY)
    assert (await used(product, run_id))["prompt_tokens"] == COUNTED + 11


async def test_a_worker_that_leaves_in_a_call_has_lost_it(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.play(Turn(text="Never.", silent_before_headers=3600.0))
    models.answer_with(lambda _: Turn(text="All of it.", prompt_tokens=COUNTED))
    worker = await processes.worker(drain_s=0.1, **MANY)
    run_id = await asked(product, system="You have a long instruction. " * 40)
    await wait_until(lambda: models.requests, description="the model to be asked")
    assert await worker.terminate() == 0
    await processes.worker(**MANY)
    assert (await used(product, run_id))["prompt_tokens"] >= COUNTED + 250
