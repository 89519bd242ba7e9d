"""Redis is there but refuses, hangs, cannot be reached, or is another one: runs are kept, and streams go on.

Nobody restarts anything: the worker and the API that met the trouble are those that end the story.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from shared.concurrency import background
from shared.domain.ids import RunId, Seq
from shared.redis.event_log import EventLog
from shared.sql.engine import Database
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.behind_proxies import Outage, ProxiedProcesses, behind_proxies, failed_over, unavailable
from tests.kit.product.frame_reader import FrameReader, read_whole, reading
from tests.kit.runs.quiet_runs import grow_quiet
from tests.kit.services.redis_servers import PrivateRedis, promote, read_only, replicate
from tests.kit.wait_until import LONG_LEASE_S, wait_until

WORDS = 400
LONG = Turn(text="word " * WORDS, pace=0.01)
NEVER_ENDING = Turn(text="word " * 20_000, pace=0.01)
AT_LAST = Turn(text="At last.")
SHORT_S = 4.0
"""A lease that is over before the worker can renew it."""
ANSWERED_S = 150.0
OUTAGES = ("refused", "stalled")

Start = Callable[..., AbstractAsyncContextManager[ProxiedProcesses]]


@pytest.fixture
def start(product: Product, private_redis: PrivateRedis, postgres_url: str, tmp_path: Path) -> Start:
    """Starts the processes; settings may be given."""
    return partial(behind_proxies, product, tmp_path, redis_url=private_redis.url, database_url=postgres_url)


@pytest.fixture
async def second_redis(tmp_path: Path) -> AsyncGenerator[PrivateRedis]:
    """Another server, empty."""
    directory = tmp_path / "second"
    directory.mkdir()
    server = PrivateRedis(directory)
    await server.start()
    yield server
    await server.close()
    await server.kill()


async def submit(product: Product) -> str:
    agent = await product.agent()
    answer = await product.http.post(
        f"/v1/agents/{agent.id}/messages/async", json={"input": "Hello", "stream_tokens": True}
    )
    assert answer.status_code == 200
    return answer.json()["id"]


async def more_pieces(models: ModelServer, count: int = 50) -> None:
    """The model has gone on for a while: time passes by its pace."""
    until = models.requests[-1].pieces_sent + count
    await wait_until(lambda: models.requests[-1].pieces_sent >= until, description=f"{count} more pieces")


def assert_went_on(reader: FrameReader, models: ModelServer) -> None:
    """One answer, whole, in one stream: nothing was asked twice."""
    reader.assert_complete()
    assert not reader.notes("step_restarted")
    assert len(models.requests) == 1
    assert len(reader.of_type("assistant_message")) == WORDS


async def has_stopped(models: ModelServer) -> None:
    """The worker has left every answer that it was given: its lease is over, and it knows."""
    await wait_until(lambda: all(one.client_left for one in models.requests), description="the worker to stop in time")


def assert_began_again(reader: FrameReader, models: ModelServer) -> None:
    """Readers were told that the model was asked again. How often it was, a lease that ends by itself does not say: it
    ends in a standstill of the machine too."""
    assert 1 <= len(reader.notes("step_restarted")) < len(models.requests)


async def assert_one_answer(product: Product, reader: FrameReader, answer: str) -> None:
    """The run ended once, with this, and everybody who reads later reads the same."""
    reader.assert_complete()
    run = await product.ended(reader.run_id)
    assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
    said = [m["content"] for m in await product.history(run["agent_id"]) if m["message_type"] == "assistant_message"]
    assert said == [answer]
    assert (await read_whole(product.http, reader.run_id)).raw == reader.raw


async def test_a_stream_goes_on_after_redis_took_no_writes_for_a_while(
    database: Database, private_redis: PrivateRedis, models: ModelServer
) -> None:
    models.play(LONG)
    settings = {"lease_s": LONG_LEASE_S, "sweep_s": 0.3}
    async with running_product(database, private_redis.client(), models, settings=settings) as product:
        run_id = await submit(product)
        async with reading(product.http, run_id) as reader:
            await reader.reach(20)
            async with read_only(private_redis):
                await more_pieces(models)
            await reader.end()
        assert_went_on(reader, models)
        await assert_one_answer(product, reader, LONG.text)


async def test_a_stream_goes_on_after_redis_took_no_writes_for_longer_than_a_lease(
    working_product: Product, private_redis: PrivateRedis, models: ModelServer
) -> None:
    may_end = asyncio.Event()
    models.answer_with(lambda _: AT_LAST if may_end.is_set() else NEVER_ENDING)
    run_id = await submit(working_product)
    async with reading(working_product.http, run_id) as reader:
        await reader.reach(20)
        async with read_only(private_redis):
            await has_stopped(models)
            may_end.set()
        await reader.end()

    await assert_one_answer(working_product, reader, AT_LAST.text)
    assert_began_again(reader, models)


async def test_what_is_submitted_while_redis_takes_no_writes_is_executed_later(
    working_product: Product, private_redis: PrivateRedis, models: ModelServer
) -> None:
    models.say("Here I am.")
    async with read_only(private_redis):
        run_id = await submit(working_product)
        assert (await working_product.run(run_id))["status"] == "created"

    await assert_one_answer(working_product, await read_whole(working_product.http, run_id), "Here I am.")
    assert len(models.requests) == 1


@pytest.mark.parametrize("outage", OUTAGES)
async def test_what_is_submitted_while_redis_is_away_is_stored_and_executed_when_it_is_back(
    start: Start, models: ModelServer, outage: Outage
) -> None:
    models.say("Here I am.")
    async with start(lease_s=LONG_LEASE_S) as running, AsyncExitStack() as readers:
        agent = await running.product.agent()
        async with unavailable(running.redis_proxy, outage):
            async with asyncio.timeout(ANSWERED_S):
                run_id = await running.submit_to(agent.id)
            assert (await running.http.get(f"/v1/runs/{run_id}")).json()["status"] == "created"
            reader = await readers.enter_async_context(reading(running.http, run_id))
            await reader.reach(1)
            assert not models.requests
        await grow_quiet(running.product.context.database)
        await reader.end()

        await assert_one_answer(running.product, reader, "Here I am.")
        assert len(models.requests) == 1
        await running.end_worker()


@pytest.mark.parametrize("outage", OUTAGES)
async def test_a_stream_goes_on_after_redis_was_away_for_a_while(
    start: Start, models: ModelServer, outage: Outage
) -> None:
    models.play(LONG)
    async with start(lease_s=LONG_LEASE_S) as running:
        run_id = await running.submit()
        async with reading(running.http, run_id) as reader:
            await reader.reach(20)
            async with unavailable(running.redis_proxy, outage):
                await more_pieces(models)
            await reader.end()

        assert_went_on(reader, models)
        await assert_one_answer(running.product, reader, LONG.text)
        await running.end_worker()


@pytest.mark.parametrize("outage", OUTAGES)
async def test_a_stream_goes_on_after_redis_was_away_for_longer_than_a_lease(
    start: Start, models: ModelServer, outage: Outage
) -> None:
    may_end = asyncio.Event()
    models.answer_with(lambda _: AT_LAST if may_end.is_set() else NEVER_ENDING)
    async with start(lease_s=SHORT_S) as running:
        run_id = await running.submit()
        async with reading(running.http, run_id) as reader:
            await reader.reach(20)
            async with unavailable(running.redis_proxy, outage):
                await has_stopped(models)
                may_end.set()
            await reader.end()

        await assert_one_answer(running.product, reader, AT_LAST.text)
        assert_began_again(reader, models)
        await running.end_worker()


@pytest.mark.parametrize("outage", OUTAGES)
async def test_a_run_that_ends_while_redis_is_away_ends_for_its_readers_too(
    start: Start, models: ModelServer, outage: Outage
) -> None:
    """SQL has the end, and a reader who hears nothing asks there."""
    models.play(LONG)
    async with start(lease_s=LONG_LEASE_S) as running:
        run_id = await running.submit()
        async with reading(running.http, run_id) as reader:
            await wait_until(
                lambda: models.requests and models.requests[0].pieces_sent > WORDS - 50, description="most"
            )
            async with unavailable(running.redis_proxy, outage):
                assert (await running.product.ended(run_id))["status"] == "completed"
                await reader.end()

        assert_went_on(reader, models)
        await assert_one_answer(running.product, reader, LONG.text)
        await running.end_worker()


async def test_connections_that_are_cut_again_and_again_cost_no_frame(start: Start, models: ModelServer) -> None:
    models.play(LONG)
    async with start(lease_s=LONG_LEASE_S) as running:
        run_id = await running.submit()
        async with reading(running.http, run_id) as reader:
            await reader.reach(5)
            for _ in range(20):
                await more_pieces(models, 15)
                running.redis_proxy.cut()
            await reader.end()

        assert_went_on(reader, models)
        await assert_one_answer(running.product, reader, LONG.text)
        await running.end_worker()


async def test_what_is_published_while_nobody_can_hear_it_costs_no_frame(
    start: Start, models: ModelServer, private_redis: PrivateRedis
) -> None:
    models.play(LONG)

    async def cut() -> None:
        await private_redis.cut_subscribers()

    async with start(lease_s=LONG_LEASE_S) as running:
        run_id = await running.submit()
        deaf = background(wait_until(cut, description="nothing", timeout=3600, every=0.05), name="cut subscribers")
        async with reading(running.http, run_id) as reader, deaf:
            await reader.end()

        assert_went_on(reader, models)
        await assert_one_answer(running.product, reader, LONG.text)


@pytest.mark.parametrize("lag", ["empty", "lagging"])
async def test_a_stream_goes_on_at_the_redis_that_took_the_place_of_the_lost_one(
    start: Start, models: ModelServer, private_redis: PrivateRedis, second_redis: PrivateRedis, lag: str
) -> None:
    """The publisher gives the new one what SQL does not have, from the beginning of the step."""
    models.play(LONG)
    async with start(lease_s=LONG_LEASE_S) as running:
        if lag == "lagging":
            await replicate(private_redis, second_redis)
        run_id = await running.submit()
        async with reading(running.http, run_id) as reader:
            await reader.reach(20)
            if lag == "lagging":
                await wait_until(partial(length_of_log, second_redis, run_id), description="a part of the log")
            await promote(second_redis)
            known = await length_of_log(second_redis, run_id)
            await reader.reach(80)
            async with failed_over(running.redis_proxy, second_redis.port):
                await reader.end()
                await assert_one_answer(running.product, reader, LONG.text)
                await running.end_worker()

        assert_went_on(reader, models)
    assert (known > 0) == (lag == "lagging")
    assert known < 80 < await length_of_log(second_redis, run_id) == len(reader.raw) - 1


async def length_of_log(redis: PrivateRedis, run_id: str) -> int:
    """How many of the run's events this server has; the first of all is never stored."""
    return len(await EventLog(redis.client(), ttl_s=3600).read(RunId(run_id), Seq(0), limit=10_000))
