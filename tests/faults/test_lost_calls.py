"""A worker that dies after it has asked a model: the call is paid for, so it is counted, whether or not a word of its
answer was shown."""

from pathlib import Path
from typing import Any

import pytest

from shared.concurrency import background
from shared.domain.limits import day_of
from shared.sql.engine import Database
from shared.sql.runs.budgets import BudgetStore
from tests.faults.test_cancel_lost import record_cancel
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
LONG = "You have a long instruction. " * 40
MANY = {"agent_daily_tokens": 1_000_000, **PLAIN_TOOLS}


async def asked(product: Product, **fields: Any) -> str:
    """A run of a new agent."""
    agent = await product.agent(**fields)
    path = f"/v1/agents/{agent.id}/messages/async"
    run = await ask_until_answered(product.http, path, {"input": "Hello", "stream_tokens": True})
    return str(run["id"])


async def used(product: Product, run_id: str, *, status: str = "completed") -> dict[str, Any]:
    """What a run has used that has ended so."""
    assert (await product.ended(run_id))["status"] == status
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
    run_id = await asked(product, system=LONG)
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
    run_id = await asked(product, system=LONG)
    await wait_until(lambda: models.requests, description="the model to be asked")
    assert await worker.terminate() == 0
    await processes.worker(**MANY)
    assert (await used(product, run_id))["prompt_tokens"] >= COUNTED + 250


@pytest.mark.parametrize(
    ("silence", "mode"),
    [
        ("silent_before_headers", "interrupt"),
        (None, "interrupt"),
        pytest.param("silent_after_headers", "interrupt", marks=pytest.mark.exhaustive),
        pytest.param("silent_before_headers", "rollback", marks=pytest.mark.exhaustive),
        pytest.param(None, "rollback", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_lost_call_was_not_counted_when_the_api_cancelled_its_run(
    product: Product, processes: Processes, models: ModelServer, database: Database, silence: str | None, mode: str
) -> None:
    silent: dict[str, Any] = {"silent_after": 2} if silence is None else {silence: 3600.0}
    models.play(Turn(text="one two three", **silent))
    worker = await processes.worker(**MANY)
    run_id = await asked(product, system=LONG)
    await wait_until(lambda: models.requests, description="the model to be asked")
    if silence is None:
        await wait_until(lambda: models.requests[0].pieces_sent >= 2, description="the first words")
    await worker.kill()
    await end_leases(product.context.redis)
    cancelled = await product.http.post(f"/v1/runs/{run_id}/cancel", json={"mode": mode})
    assert cancelled.json()["status"] == "cancelled"
    usage = await used(product, run_id, status="cancelled")
    assert 250 <= usage["prompt_tokens"] < 800, "the instructions were in its prompt, once"
    assert await in_account(product, database) == usage["prompt_tokens"] + usage["completion_tokens"]
    [total] = await BudgetStore(database).totals(day_of(product.context.clock.now()))
    assert total.reserved.tokens == 0


async def test_the_price_of_a_lost_call_was_not_counted_when_the_api_cancelled_its_run(
    product: Product, processes: Processes, models: ModelServer, database: Database, tmp_path: Path
) -> None:
    """The API knows no prices: what it counts is what the worker has set aside for the prompt."""
    prices = tmp_path / "prices.json"
    prices.write_text('{"openai/*": {"input": 1000, "output": 500000}}')
    models.play(Turn(silent_before_headers=3600.0))
    worker = await processes.worker(project_daily_cost=1e6, prices_file=str(prices))
    run_id = await asked(product, system=LONG)
    await wait_until(lambda: models.requests, description="the model to be asked")
    await worker.kill()
    await end_leases(product.context.redis)
    await product.http.post(f"/v1/runs/{run_id}/cancel", json={})
    prompt = (await used(product, run_id, status="cancelled"))["prompt_tokens"]
    [total] = await BudgetStore(database).totals(day_of(product.context.clock.now()))
    assert total.used.nano_usd == pytest.approx(prompt * 1_000_000, rel=0.01)
    assert total.reserved.nano_usd == 0


async def test_a_lost_call_was_not_counted_when_the_next_worker_was_only_to_cancel(
    product: Product, processes: Processes, models: ModelServer, database: Database
) -> None:
    models.play(Turn(silent_before_headers=3600.0))
    worker = await processes.worker(**MANY)
    run_id = await asked(product, system=LONG)
    await wait_until(lambda: models.requests, description="the model to be asked")
    await worker.kill()
    await record_cancel(product, run_id)
    await end_leases(product.context.redis)
    await processes.worker(**MANY)
    usage = await used(product, run_id, status="cancelled")
    assert 250 <= usage["prompt_tokens"] < 800
    assert len(models.requests) == 1
    assert await in_account(product, database) == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_calls_that_were_lost_were_not_counted_when_their_run_was_given_up(
    product: Product, processes: Processes, models: ModelServer, database: Database
) -> None:
    models.answer_with(lambda _: Turn(silent_before_headers=3600.0))
    run_id = await asked(product, system=LONG)
    for deaths in (1, 2, 3):
        worker = await processes.worker(**MANY)
        await wait_until(lambda deaths=deaths: len(models.requests) == deaths, description="the model to be asked")
        await worker.kill()
        await end_leases(product.context.redis)
    await processes.worker(**MANY)
    usage = await used(product, run_id, status="failed")
    assert (await product.run(run_id))["metadata"]["error"]["error_type"] == "worker_lost"
    assert 3 * 250 <= usage["prompt_tokens"] < 3 * 800, "three calls had the instructions in their prompts"
    assert len(models.requests) == 3
    assert await in_account(product, database) == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_a_worker_that_died_in_a_tool_has_lost_no_call_when_the_run_is_cancelled(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path
) -> None:
    models.call("wait", folder=str(tmp_path))
    tool = await product.tool(SAYS_AND_WAITS)
    worker = await processes.worker(**MANY)
    run_id = await asked(product, tools=[tool])
    await wait_until((tmp_path / "started").exists, description="the tool to start")
    await worker.kill()
    await end_leases(product.context.redis)
    await product.http.post(f"/v1/runs/{run_id}/cancel", json={})
    assert (await used(product, run_id, status="cancelled"))["prompt_tokens"] == 11


async def test_a_summary_that_was_lost_with_its_worker_was_not_counted(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.say("A long answer. " * 100)
    first = await processes.worker(**MANY)
    run_id = await asked(product)
    await product.ended(run_id)
    agent_id = (await product.run(run_id))["agent_id"]
    models.play(Turn(silent_before_headers=3600.0))
    models.answer_with(lambda _: Turn(text="Summary.", prompt_tokens=COUNTED))

    async def summarize() -> None:
        await product.http.post(f"/v1/agents/{agent_id}/summarize", json={"compaction_settings": {"mode": "all"}})

    async with background(summarize(), name="summarize"):
        await wait_until(lambda: len(models.requests) == 2, description="the model to be asked for a summary")
        await first.kill()
        await end_leases(product.context.redis)
        await processes.worker(**MANY)
        runs = (await product.http.get("/v1/runs/", params={"agent_id": agent_id})).json()
        [compaction] = [run["id"] for run in runs if run["id"] != run_id]
        assert (await used(product, compaction))["prompt_tokens"] >= COUNTED + 300


@pytest.mark.parametrize("by", ["the next worker", "the API"])
async def test_a_call_that_nobody_made_was_counted_when_a_run_was_cancelled_after_its_worker_had_died(
    product: Product, processes: Processes, models: ModelServer, database: Database, by: str
) -> None:
    """The worker died between its claim and the model: the run had shown tokens that its account had not."""
    models.answer_with(lambda _: Turn(text="All of it.", prompt_tokens=COUNTED))
    first = await processes.worker(**MANY)
    run_id = await asked(product, system=LONG)
    await used(product, run_id)
    agent_id = (await product.run(run_id))["agent_id"]
    counted = await in_account(product, database)
    await first.terminate()
    doomed = await processes.worker(crash_at="claim:after", **MANY)
    path = f"/v1/agents/{agent_id}/messages/async"
    lost = str((await ask_until_answered(product.http, path, {"input": "Hello"}))["id"])
    assert await doomed.ended() == -9
    if by == "the next worker":
        await record_cancel(product, lost)
        await end_leases(product.context.redis)
        await processes.worker(**MANY)
    else:
        await end_leases(product.context.redis)
        await product.http.post(f"/v1/runs/{lost}/cancel", json={})
    usage = await used(product, lost, status="cancelled")
    assert len(models.requests) == 1
    assert usage["prompt_tokens"] + usage["completion_tokens"] == 0
    assert await in_account(product, database) == counted
