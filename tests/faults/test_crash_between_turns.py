"""Between the end of a turn and the run of a sleep-time agent: whoever dies, there is one run, and it ends."""

from typing import Any

import pytest

from shared.crash_points import CrashPoint
from shared.domain.groups import INTRODUCTION
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.product import Product
from tests.kit.product.careful_client import ask, ask_until_answered
from tests.kit.product.processes import Processes
from tests.kit.runs.quiet_runs import grow_quiet
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

LONG_S = 180.0

WRITES = (
    CrashPoint.SETTLE,
    CrashPoint.COUNT_TURNS,
    CrashPoint.SUBMIT,
    CrashPoint.DISPATCH,
    CrashPoint.TURNS_DELIVERED,
)
"""What is written from the end of the turn on, in this order."""


def learns(request: ReceivedRequest) -> Turn:
    asked = [message["content"] for message in request.body["messages"]]
    if not any(INTRODUCTION in str(content) for content in asked):
        return Turn(text="Yes.")
    if "Name: Ada." in asked[0]:
        return Turn(calls=[Call("memory_finish_edits", {})])
    return Turn(calls=[Call("memory_insert", {"label": "human", "new_string": "Name: Ada."})])


async def begin(product: Product, models: ModelServer) -> tuple[str, str]:
    """An agent with its sleep-time agent, and a run that nobody waits for; the ids of the agents."""
    models.answer_with(learns)
    made = {"model": "openai/gpt-4o-mini", "memory_blocks": [{"label": "human", "value": ""}], "enable_sleeptime": True}
    agent = (await product.http.post("/v1/agents/", json=made)).json()
    await ask_until_answered(product.http, f"/v1/agents/{agent['id']}/messages/async", {"input": "I am Ada."})
    return agent["id"], agent["managed_group"]["agent_ids"][0]


async def assert_it_thinks_once(product: Product, agent_id: str, sleeper_id: str) -> None:
    async def look() -> bool:
        listed = await ask(product.http, "GET", f"/v1/runs/?agent_id={sleeper_id}")
        found: list[dict[str, Any]] = [] if listed is None else listed.json()
        group = await ask(product.http, "GET", f"/v1/agents/{agent_id}")
        is_told = group is not None and group.json()["managed_group"]["last_processed_message_id"] is not None
        return bool(found) and is_told and all(run["status"] == "completed" for run in found)

    await wait_until(look, description="the sleep-time agent to have thought", timeout=LONG_S)
    runs = (await product.http.get("/v1/runs/", params={"agent_id": sleeper_id})).json()
    assert len(runs) == 1
    block = await product.client.agents.blocks.retrieve("human", agent_id=agent_id)
    assert block.value.strip() == "Name: Ada.", "it has learned once"
    heard = [message for message in await product.history(sleeper_id) if message["message_type"] == "user_message"]
    assert [message["content"] for message in heard] == [INTRODUCTION + "user: I am Ada.\nassistant: Yes."]


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("write", WRITES)
async def test_a_worker_that_dies_there(
    product: Product, processes: Processes, models: ModelServer, write: CrashPoint, side: str
) -> None:
    agent_id, sleeper_id = await begin(product, models)
    dying = await processes.worker(crash_at=f"{write}:{side}", **PLAIN_TOOLS)
    assert await dying.ended(within_s=LONG_S) == -9
    await end_leases(product.context.redis)
    await grow_quiet(product.context.database)
    await processes.worker(**PLAIN_TOOLS)
    await assert_it_thinks_once(product, agent_id, sleeper_id)


@pytest.mark.parametrize("write", WRITES[1:])
async def test_a_worker_that_loses_the_answer(
    product: Product, processes: Processes, models: ModelServer, write: CrashPoint
) -> None:
    agent_id, sleeper_id = await begin(product, models)
    worker = await processes.worker(crash_at=f"{write}:lost", **PLAIN_TOOLS)
    await assert_it_thinks_once(product, agent_id, sleeper_id)
    assert f"point={write}" in worker.log.read_text()


async def test_two_workers_start_one_run(product: Product, processes: Processes, models: ModelServer) -> None:
    agent_id, sleeper_id = await begin(product, models)
    for _ in range(2):
        await processes.worker(**PLAIN_TOOLS)
    await assert_it_thinks_once(product, agent_id, sleeper_id)
