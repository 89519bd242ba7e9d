"""The database cannot be reached, does not answer, or has no connection left: nothing hangs and nothing is half done.

The API says so at once. A worker waits for as long as the run is safely its own, so that a step is not paid for twice;
after that it leaves the run, which is found when the database is back.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.sql.engine import Database
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.behind_proxies import Outage, ProxiedProcesses, behind_proxies, unavailable
from tests.kit.product.frame_reader import FrameReader, read_whole, reading
from tests.kit.runs.whole_runs import assert_nothing_is_half_written
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import LONG_LEASE_S, wait_until

SHORT_S = 1.5
ANSWERED_S = 150.0
"""No request waits longer, whatever is the matter with the database."""
OUTAGES = ("refused", "stalled")
LOOK = 'def look() -> str:\n    """Looks."""\n    return "seen"\n'
WAITS = "retried_while_unavailable"
LEAVES = "run_released"

CALLS = Turn(text="word " * 100, pace=0.01, calls=[Call("look")])
ANSWERS = Turn(text="word " * 100, pace=0.01)

Start = Callable[..., AbstractAsyncContextManager[ProxiedProcesses]]


@pytest.fixture
def start(product: Product, private_redis: PrivateRedis, postgres_url: str, tmp_path: Path) -> Start:
    """Starts the processes; settings may be given."""
    return partial(behind_proxies, product, tmp_path, redis_url=private_redis.url, database_url=postgres_url)


async def assert_refused(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> None:
    """The answer is there in time, and says when to come again."""
    async with asyncio.timeout(ANSWERED_S):
        answer = await http.request(method, path, json=body)
    assert answer.status_code == 503, f"{method} {path}: {answer.text}"
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["detail"].startswith("SERVICE_UNAVAILABLE")


async def assert_all_refused(http: httpx.AsyncClient, agent_id: str, run_id: str) -> None:
    """All at once: who waits behind others waits no longer."""
    said = {"input": "Hello"}
    await asyncio.gather(
        assert_refused(http, "GET", "/v1/agents/"),
        assert_refused(http, "GET", f"/v1/runs/{run_id}"),
        assert_refused(http, "GET", f"/v1/agents/{agent_id}/messages"),
        assert_refused(http, "POST", f"/v1/agents/{agent_id}/messages/async", said),
        assert_refused(http, "POST", f"/v1/agents/{agent_id}/messages", said),
        assert_refused(http, "POST", f"/v1/runs/{run_id}/cancel"),
        assert_refused(http, "POST", f"/v1/runs/{run_id}/stream", {}),
        assert_refused(http, "GET", "/v1/approvals"),
    )


async def asked(models: ModelServer, times: int) -> None:
    await wait_until(lambda: len(models.requests) >= times, description=f"the model to be asked {times} times")


async def out_of_patience(running: ProxiedProcesses, models: ModelServer) -> None:
    """Returns when the worker has waited for as long as it may, and says that it leaves the run."""
    await wait_until(lambda: models.requests[0].finished, description="the model to have said it")
    await running.worker_logs(LEAVES)


async def assert_one_end(product: Product, reader: FrameReader) -> None:
    """The run ended once, its history has one answer, and SQL has all of it together."""
    reader.assert_complete()
    run = await product.ended(reader.run_id)
    assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
    assert len(reader.of_type("stop_reason")) == 1
    assert (await read_whole(product.http, reader.run_id)).raw == reader.raw
    said = [m["content"] for m in await product.history(run["agent_id"]) if m["message_type"] == "assistant_message"]
    assert said[-1] == "Done."
    await assert_nothing_is_half_written(product.context.database, reader.run_id)


@pytest.mark.parametrize("outage", OUTAGES)
async def test_requests_are_refused_in_time_while_the_database_is_away(start: Start, outage: Outage) -> None:
    async with start(lease_s=LONG_LEASE_S) as running:
        agent = await running.product.agent()
        run_id = await running.submit_to(agent.id)
        assert (await running.product.ended(run_id))["status"] == "completed"
        async with unavailable(running.database_proxy, outage):
            await assert_all_refused(running.http, agent.id, run_id)

        async def answers() -> bool:
            return (await running.http.get(f"/v1/runs/{run_id}")).status_code == 200

        await wait_until(answers, description="the API to have a connection again")
        whole = await read_whole(running.http, await running.submit_to(agent.id))
        whole.assert_complete()
        assert len(await running.product.history(agent.id)) == 1 + 2 * 2, "what was refused has left nothing"
        await running.end_worker()


async def test_requests_are_refused_in_time_when_no_connection_is_free(
    product: Product, postgres_url: str, private_redis: PrivateRedis, models: ModelServer
) -> None:
    agent = await product.agent()
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Hello")
    database = Database(postgres_url, connections=2)
    try:
        async with running_product(database, private_redis.client(), models, with_worker=False) as small:
            async with database.read(), database.read():
                await assert_all_refused(small.http, agent.id, run.id)
            assert (await small.http.get("/v1/agents/")).status_code == 200
    finally:
        await database.aclose()


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("turns", [(CALLS, Turn(text="Done.")), (Turn(text="Done.", pace=1.0),)], ids=["step", "end"])
async def test_a_worker_retries_the_writes_of_a_step_until_the_database_is_back(
    start: Start, models: ModelServer, turns: tuple[Turn, ...], outage: Outage
) -> None:
    models.play(*turns)
    async with start(lease_s=LONG_LEASE_S) as running:
        run_id = await running.submit(tools=[await running.product.tool(LOOK)])
        async with reading(running.product.http, run_id) as reader:
            await asked(models, 1)
            async with unavailable(running.database_proxy, outage):
                await wait_until(lambda: models.requests[0].finished, description="the model to have said it")
                if outage == "refused":
                    await running.worker_logs(WAITS)
            await reader.end()

        await assert_one_end(running.product, reader)
        assert not reader.notes("step_restarted")
        assert len(models.requests) == len(turns)
        await running.end_worker()


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("at", ["step", "end"])
async def test_a_run_ends_once_when_the_database_was_away_for_longer_than_its_worker_waits(
    start: Start, models: ModelServer, at: str, outage: Outage
) -> None:
    lost = CALLS if at == "step" else ANSWERS
    models.play(lost, *([CALLS] if at == "step" else []), Turn(text="Done."))
    async with start(lease_s=LONG_LEASE_S, database_patience=SHORT_S) as running, AsyncExitStack() as readers:
        run_id = await running.submit(tools=[await running.product.tool(LOOK)])
        reader = await readers.enter_async_context(reading(running.product.http, run_id))
        await reader.reach(10)
        async with unavailable(running.database_proxy, outage):
            await out_of_patience(running, models)
            await assert_nothing_is_half_written(running.product.context.database, run_id)
        await reader.end()

        assert len(reader.notes("step_restarted")) == 1
        await assert_one_end(running.product, reader)
        assert len(models.requests) == (3 if at == "step" else 2)
        await running.end_worker()


async def test_connections_that_are_cut_again_and_again_leave_nothing_half_written(
    start: Start, models: ModelServer
) -> None:
    steps = [Turn(text="word " * 5, pace=0.005, calls=[Call("look")]) for _ in range(10)]
    models.play(*steps, Turn(text="Done."))
    async with start(lease_s=LONG_LEASE_S) as running:
        run_id = await running.submit(tools=[await running.product.tool(LOOK)])
        async with reading(running.product.http, run_id) as reader:
            for number in range(len(steps)):
                await asked(models, number + 1)
                running.database_proxy.cut()
                await assert_nothing_is_half_written(running.product.context.database, run_id)
            await reader.end()

        await assert_one_end(running.product, reader)
        await running.end_worker()
