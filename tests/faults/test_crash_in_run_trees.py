"""A crash before and after what is written of a call of another agent: the other agent is asked once, and its answer
arrives. Where the answer to a write is lost, its author goes on, or the sweeper does."""

import json
from typing import Any

import pytest

from shared.crash_points import CrashPoint
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.processes import Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS

SETTINGS = {**PLAIN_TOOLS, "builtin_models": True}
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
