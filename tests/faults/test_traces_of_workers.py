"""One trace for a run that several workers had: one of them was told to end, another one was killed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.sql.engine import Database
from tests.faults.conftest import LEASE_S, SWEEP_S
from tests.kit.model_server import ModelServer
from tests.kit.model_server.turn import Call, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.processes import Processes, processes_in
from tests.kit.services.redis_losses import end_leases
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.tools import ROLL_DICE
from tests.kit.trace_receiver import TraceReceiver
from tests.kit.wait_until import wait_until


@pytest.fixture
async def receiver() -> AsyncIterator[TraceReceiver]:
    async with TraceReceiver() as receiving:
        yield receiving


@pytest.fixture
async def product(
    database: Database, private_redis: PrivateRedis, models: ModelServer, receiver: TraceReceiver
) -> AsyncIterator[Product]:
    """The API, in this process, with traces."""
    settings = {"lease_s": LEASE_S, "otlp_endpoint": receiver.url}
    async with running_product(
        database, private_redis.client(), models, settings=settings, with_worker=False
    ) as running:
        yield running


@pytest.fixture
async def processes(
    product: Product,
    postgres_url: str,
    private_redis: PrivateRedis,
    models: ModelServer,
    receiver: TraceReceiver,
    tmp_path: Path,
) -> AsyncIterator[Processes]:
    """Workers with traces, of which hardly anything waits to be sent. Their leases end for no busy machine."""
    environment = {
        **models.base_urls(),
        "HOLDFAST_DATABASE_URL": postgres_url,
        "HOLDFAST_REDIS_URL": private_redis.url,
        "HOLDFAST_SWEEP_S": str(SWEEP_S),
        "HOLDFAST_MODEL_RETRIES": "0",
        "HOLDFAST_DRAIN_S": "0",
        "HOLDFAST_OTLP_ENDPOINT": receiver.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    async with processes_in(tmp_path, environment) as running:
        yield running


async def test_a_run_is_one_trace_over_all_its_workers(
    product: Product,
    processes: Processes,
    private_redis: PrivateRedis,
    models: ModelServer,
    receiver: TraceReceiver,
) -> None:
    """The first worker is killed in the second step, the second one hands the run over, the third one ends it."""
    models.play(
        Turn(calls=[Call("roll_dice", {"num_sides": 6})]),
        Turn(text="one two three", silent_after=1),
        Turn(text="one two three", silent_after=1),
        Turn(text="All of it."),
    )
    first = await processes.worker()
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    answer = await product.http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": "Hello"})
    await asked(models, 2)
    await receiver.came("step")
    await first.kill()
    await end_leases(private_redis.client())
    second = await processes.worker()
    await asked(models, 3)
    third = await processes.worker()
    await second.terminate()
    run = await product.ended(answer.json()["id"])
    await third.terminate()
    submit = await receiver.came("submit")

    assert {span.trace_id for span in receiver.spans} == {submit.trace_id} == {run["metadata"]["trace_id"]}
    handed_over, completed = receiver.named(f"invoke_agent {agent.name}")
    assert {handed_over.parent_id, completed.parent_id} == {submit.span_id}
    outcomes = [
        (span.attributes["holdfast.attempt"], span.attributes["holdfast.outcome"]) for span in (handed_over, completed)
    ]
    assert outcomes == [(2, "handed_over"), (3, "completed")], "what the killed worker had in hand is lost"
    assert not handed_over.has_failed
    workers = [span.resource["service.instance.id"] for span in receiver.named("chat gpt-4o-mini")]
    assert len(workers) == len(set(workers)) == 3, (
        "the answers of all workers, but for the one that was cut off by a kill"
    )
    assert len(receiver.named("wait")) == 1
    killed = receiver.one("execute_tool roll_dice")
    assert killed.trace_id == submit.trace_id
    assert killed.resource["service.instance.id"] == workers[0]


async def asked(models: ModelServer, times: int) -> None:
    await wait_until(lambda: len(models.requests) >= times, description=f"model call number {times}")
