"""A crash before and after what is written of a call of another agent: the other agent is asked once, and its answer
arrives. Where the answer to a write is lost, its author goes on, or the sweeper does."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from shared.crash_points import CrashPoint
from shared.domain.errors import CancelMode
from shared.domain.ids import RunId
from shared.domain.runs import CancelRequest
from shared.sql.runs.run_store import RunStore
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.processes import Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

SETTINGS = {**PLAIN_TOOLS, "builtin_models": True}
ASKS = "send_message_to_agent_and_wait_for_reply"
WRITES = (CrashPoint.SUBMIT, CrashPoint.LET_WAIT, CrashPoint.WAKE)


async def asked(product: Product) -> str:
    """An agent that gives two tasks to another one; the id of its run."""
    ids = list[str]()
    for name, tools in (("top", ["run_agent"]), ("leaf", [])):
        body = {"name": name, "model": "builtin/scripted", "include_base_tools": False, "tools": tools}
        ids.append((await product.http.post("/v1/agents", json=body)).json()["id"])
    tasks = [json.dumps({"turns": [{"text": f"Answer {number}."}]}) for number in (1, 2)]
    calls = [{"name": "run_agent", "arguments": {"agent": "leaf", "task": task}} for task in tasks]
    script = json.dumps({"turns": [{"calls": calls}, {"text": "Both have answered."}]})
    sent = {"messages": [{"role": "user", "content": script}]}
    answer = await product.http.post(f"/v1/agents/{ids[0]}/messages/async", json=sent)
    return answer.json()["id"]


async def assert_asked_once(product: Product, run_id: str) -> None:
    run = await product.ended(run_id)
    assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
    children: list[dict[str, Any]] = (await product.http.get("/v1/runs", params={"parent_run_id": run_id})).json()
    assert [child["status"] for child in children] == ["completed"] * 2
    history = await product.history(run["agent_id"])
    [returned] = [one for one in history if one["message_type"] == "tool_return_message"]
    assert [one["tool_return"] for one in returned["tool_returns"]] == ["Answer 1.", "Answer 2."]
    assert history[-1]["content"] == "Both have answered."
    whole = await read_whole(product.http, run_id)
    whole.assert_complete()
    started = [frame for frame in whole.of_type("event_message") if frame["event_type"] == "child_run_started"]
    assert len({frame["event_data"]["run_id"] for frame in started}) == 2


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("write", WRITES)
async def test_an_agent_was_asked_twice_when_the_worker_of_its_caller_died(
    product: Product, processes: Processes, write: CrashPoint, side: str
) -> None:
    run_id = await asked(product)
    dying = await processes.worker(crash_at=f"{write}:{side}", **SETTINGS)
    assert await dying.ended(within_s=180.0) == -9
    await end_leases(product.context.redis)
    await processes.worker(**SETTINGS)
    await assert_asked_once(product, run_id)


@pytest.mark.parametrize("write", WRITES)
async def test_a_lost_answer_to_what_is_written_of_a_call_of_an_agent(
    product: Product, processes: Processes, write: CrashPoint
) -> None:
    run_id = await asked(product)
    await processes.worker(crash_at=f"{write}:lost", **SETTINGS)
    await assert_asked_once(product, run_id)


@pytest.mark.parametrize("end", ["after", "lost"])
async def test_a_run_that_was_stored_for_a_call_and_not_dispatched_waited_for_the_sweeper(
    product: Product, processes: Processes, end: str
) -> None:
    """Its caller found it when it repeated the call, and then waited for a run that no worker knew of: for as long as a
    lease lasts."""
    never = {**SETTINGS, "sweep_s": 3600.0}
    run_id = await asked(product)
    dying = await processes.worker(crash_at=f"submit:{end}", **never)
    if end == "after":
        assert await dying.ended(within_s=180.0) == -9
        await end_leases(product.context.redis)
        # This worker sweeps when it starts, and finds the caller.
        await processes.worker(**never)
    await assert_asked_once(product, run_id)


async def test_a_caller_whose_wakings_answer_was_lost_waited_for_the_sweeper(
    product: Product, processes: Processes
) -> None:
    """It had been woken, and nobody dispatched it: the store found no wait of it any more."""
    run_id = await asked(product)
    await processes.worker(crash_at="wake:lost:1:2", **SETTINGS, sweep_s=3600.0)
    await assert_asked_once(product, run_id)


async def test_what_an_api_left_of_a_cancel_stopped_children_without_rolling_them_back(
    working_product: Product, models: ModelServer
) -> None:
    product, ids = working_product, dict[str, str]()
    for name, tools in (("top", [ASKS]), ("leaf", [])):
        body = {"name": name, "model": "openai/gpt-4o-mini", "include_base_tools": False, "tools": tools}
        made = await product.http.post("/v1/agents", json={**body, "system": f"You are {name}."})
        ids[name] = made.json()["id"]
    asks = Turn(calls=[Call(ASKS, {"message": "What is new?", "other_agent_id": ids["leaf"]})])
    silent = Turn(text="one two three", silent_after=2)
    models.answer_with(lambda request: asks if "You are top." in json.dumps(request.body) else silent)
    sent = await product.http.post(f"/v1/agents/{ids['top']}/messages/async", json={"input": "Ask it."})
    run_id = sent.json()["id"]

    async def child_at_work() -> dict[str, Any] | None:
        children = (await product.http.get("/v1/runs", params={"parent_run_id": run_id})).json()
        parent = await product.run(run_id)
        is_waited_for = parent["metadata"].get("waiting", {}).get("for") == "runs"
        return children[0] if is_waited_for and children[0]["status"] == "running" else None

    child = await wait_until(child_at_work, description="the child at work, and the wait for it")
    store = RunStore(product.context.database)
    request = CancelRequest(requested_at=datetime.now(UTC), actor="api", mode=CancelMode.ROLLBACK)
    await store.request_cancel(await store.look_up(RunId(run_id)), request)
    assert (await product.ended(child["id"]))["status"] == "cancelled"
    assert (await product.ended(run_id))["status"] == "cancelled"
    assert "What is new?" not in json.dumps(await product.history(ids["leaf"]))
