"""Approvals that nobody decides in time: denied, cancelled or kept, as the tool or its agent says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from arq.connections import ArqRedis

from shared.domain.approvals import DENIED_BY_EXPIRY
from shared.sql.engine import Database
from tests.kit.clocks import SettableClock
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.waiting_calls import WaitingCalls, waiting, waiting_calls
from tests.kit.wait_until import wait_until
from worker.main import working

DENIED = f"Error: request to call tool denied. User reason: {DENIED_BY_EXPIRY}"


@pytest.fixture
def clock() -> SettableClock:
    """The product's clock."""
    return SettableClock()


@pytest.fixture
async def product(
    database: Database, redis: ArqRedis, models: ModelServer, clock: SettableClock
) -> AsyncIterator[Product]:
    """The product, with a clock that the test puts forward and looks at what has expired every 50 ms."""
    async with running_product(database, redis, models, clock=clock, settings={"sweep_s": 0.05}) as running:
        yield running


async def continuation_ended(asked: WaitingCalls) -> str:
    """Waits for the end of the parked run's continuation; its id."""
    runs = await wait_until(asked.continuations, description="the continuation")
    await asked.product.ended(runs[0]["id"])
    assert [run["id"] for run in await asked.continuations()] == [runs[0]["id"]]
    return runs[0]["id"]


async def test_a_call_is_denied_when_its_time_is_over_and_the_model_goes_on(
    product: Product, clock: SettableClock
) -> None:
    asked = await waiting_calls(product, "moon", approval_expires_s=3600, on_approval_expiry="deny")
    clock.advance(minutes=59)
    assert await waiting(product) == asked.approvals
    product.models.say("Then not.")

    clock.advance(minutes=1)

    await continuation_ended(asked)
    assert await asked.results() == [DENIED]
    decided = (await product.http.get(f"/v1/approvals/{asked.ids[0]}")).json()
    assert (decided["status"], decided["decided_by"]) == ("denied", "expiry")
    assert (await product.history(asked.agent_id))[-1]["content"] == "Then not."


@pytest.mark.parametrize("on_expiry", ["deny", "cancel"])
async def test_what_expired_was_not_in_the_audit_log(product: Product, clock: SettableClock, on_expiry: str) -> None:
    asked = await waiting_calls(product, "moon", approval_expires_s=3600, on_approval_expiry=on_expiry)
    product.models.say("Then not.")
    clock.advance(hours=1)

    async def events() -> list[dict[str, Any]]:
        return (await product.http.get("/v1/admin/audit", params={"object_id": asked.ids[0]})).json()

    [event] = await wait_until(events, description="the event")
    assert (event["action"], event["key_id"], event["outcome"]) == ("approval.expired", "expiry", "done")


async def test_a_run_is_cancelled_when_the_time_of_its_call_is_over(product: Product, clock: SettableClock) -> None:
    asked = await waiting_calls(product, "moon", approval_expires_s=3600, on_approval_expiry="cancel")

    clock.advance(hours=1)

    async def cancelled() -> bool:
        return (await product.run(asked.run_id))["status"] == "cancelled"

    await wait_until(cancelled, description="the run to be cancelled")
    run = await product.run(asked.run_id)
    assert (run["stop_reason"], run["metadata"]["cause"]) == ("cancelled", "approval_expired")
    assert await asked.results() == [DENIED]
    assert (await asked.continuations(), await waiting(product)) == ([], [])
    answer = await product.client.agents.messages.create(agent_id=asked.agent_id, input="Still there?")
    assert answer.stop_reason.stop_reason == "end_turn"


async def test_a_call_that_is_kept_waits_for_ever(product: Product, clock: SettableClock) -> None:
    kept = await waiting_calls(product, "moon", approval_expires_s=60, on_approval_expiry="keep")
    clock.advance(days=30)
    # A call that expires later and is seen to be denied: what was to happen to the first one has happened.
    denied = await waiting_calls(product, "mars", approval_expires_s=60, on_approval_expiry="deny")
    clock.advance(minutes=1)
    await continuation_ended(denied)

    assert await waiting(product) == kept.approvals
    status, answer = await kept.decide()
    assert (status, answer["status"]) == (200, "approved")


async def test_the_agent_says_it_for_tools_that_do_not(product: Product, clock: SettableClock) -> None:
    agent = await product.agent()
    await product.http.patch(f"/v1/agents/{agent.id}", json={"approval_expires_s": 60, "on_approval_expiry": "deny"})
    product.models.call("read_sensor")
    tools: list[dict[str, Any]] = [{"name": "read_sensor", "parameters": {"type": "object", "properties": {}}}]
    await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Warm?", "client_tools": tools})
    assert [approval["on_expiry"] for approval in await waiting(product)] == ["deny"]

    clock.advance(minutes=1)

    async def denied() -> bool:
        return DENIED in str(await product.history(agent.id))

    await wait_until(denied, description="the call to be denied")


async def test_one_expired_call_leaves_the_others_to_their_people(product: Product, clock: SettableClock) -> None:
    asked = await waiting_calls(product, "moon", "mars", approval_expires_s=60, on_approval_expiry="deny")
    assert (await asked.decide(0))[1]["run"] is None

    clock.advance(minutes=1)

    await continuation_ended(asked)
    assert sorted(await asked.results()) == [DENIED, "moon"]


async def test_a_decision_and_the_clock_at_once_have_one_winner(product: Product, clock: SettableClock) -> None:
    for target in ("moon", "mars", "venus"):
        asked = await waiting_calls(product, target, approval_expires_s=60, on_approval_expiry="deny")

        async def pass_time() -> None:
            clock.advance(minutes=1)

        (status, _), _ = await asyncio.gather(asked.decide(), pass_time())

        await continuation_ended(asked)
        assert await asked.results() == [target if status == 200 else DENIED]


async def test_two_workers_expire_a_call_once(product: Product, clock: SettableClock) -> None:
    async with working(product.context):
        asked = await waiting_calls(product, "moon", "mars", approval_expires_s=60, on_approval_expiry="deny")

        clock.advance(minutes=1)

        await continuation_ended(asked)
        assert await asked.results() == [DENIED, DENIED]
