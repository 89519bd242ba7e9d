"""The publisher against its stores: what it stores on the way never meets what a checkpoint or a settle stores."""

from collections.abc import AsyncGenerator
from typing import cast

import pytest
import sqlalchemy as sa
from arq.connections import ArqRedis

from shared import crash_points
from shared.concurrency import SystemClock
from shared.crash_points import CrashPoint
from shared.domain.errors import LeaseLost, LogClosed
from shared.domain.events import Ended, StatusChanged, StepRestarted, TextChunk, decode, encode, follows_of
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.lifecycle import RunTrigger
from shared.domain.log_writer import KEPT_FREE, NUMBERS_PER_FENCE, consecutive, unbroken
from shared.domain.runs import Run
from shared.redis import keys
from shared.redis.embedded import BURST, connect_embedded
from shared.redis.event_log import EventLog
from shared.sql.run_tables import event_blocks
from tests.kit.runs.stored_runs import IDS, NOW, Stores, checkpoint, stored_runs
from tests.kit.runs.unobserved import unobserved
from tests.kit.services.redis_servers import RedisService
from tests.kit.wait_until import wait_until
from worker.run.interruption import Interruption
from worker.run.publisher import SPILL_AT, SPILL_BYTES, Publisher

SECOND = NUMBERS_PER_FENCE + 1
"""The first number of a run's second owner."""

STEP, SPOKEN = StepId("step-1"), MessageId("message-1")


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def publisher_of(
    run: Run,
    stores: Stores,
    redis: ArqRedis,
    interruption: Interruption | None = None,
    *,
    stores_first: bool = False,
    kept_free: int = KEPT_FREE,
) -> Publisher:
    return Publisher(
        run,
        event_log=EventLog(redis, ttl_s=3600),
        events=stores.events,
        checkpoints=stores.checkpoints,
        clock=SystemClock(),
        interruption=interruption or Interruption(),
        observation=unobserved(run),
        stores_first=stores_first,
        kept_free=kept_free,
    )


async def blocks_of(stores: Stores, run: Run) -> int:
    async with stores.database.read() as connection:
        found = await connection.execute(
            sa.select(sa.func.count()).select_from(event_blocks).where(event_blocks.c.run_id == run.id)
        )
        return found.scalar_one()


def text(number: int) -> TextChunk:
    return TextChunk(number, STEP, SPOKEN, f"word {number} ")


def numbered(count: int) -> list[StatusChanged]:
    return [StatusChanged(number, "running") for number in range(count)]


async def stored(stores: Stores, run: Run) -> list[tuple[Seq, bytes]]:
    return await stores.events.read(run.id, Seq(1), limit=100_000)


async def test_a_long_answer_that_ends_before_it_was_spilled_is_stored_once(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis)
    async with publisher.publishing():
        publisher.emit(*numbered(3 * SPILL_AT))
        async with publisher.ending() as tail:
            settled = await stores.settle(run, RunTrigger.COMPLETE, tail=tail)
        publisher.send_end(settled.tail)
        assert await publisher.wait_sent(10)

    entries = await stored(stores, run)
    assert [seq for seq, _ in entries] == list(range(2, settled.run.last_seq + 1))
    assert await EventLog(redis, ttl_s=3600).read(run.id, Seq(1), limit=100_000) == entries


async def test_a_long_answer_is_stored_before_it_ends(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis)
    async with publisher.publishing():
        publisher.emit(*numbered(SPILL_AT))

        async def is_stored() -> bool:
            return len(await stored(stores, run)) == SPILL_AT

        await wait_until(is_stored, description="the events to be in SQL")


async def test_few_long_events_waited_for_their_checkpoint(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis)
    long = [TextChunk(number, STEP, SPOKEN, "a" * (SPILL_BYTES // 2)) for number in range(3)]
    async with publisher.publishing():
        for event in long:
            publisher.emit(event)
            assert await publisher.wait_sent(10)

        async def is_stored() -> bool:
            return len(await stores.events.read(run.id, Seq(1), None)) >= 2

        await wait_until(is_stored, description="the events to be in SQL")
        publisher.emit(text(1))
        assert await publisher.wait_sent(10)
        assert len(await stores.events.read(run.id, Seq(1), None)) < 4, "a short event was stored by itself"


async def test_many_small_blocks_are_put_together_when_their_run_ends(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis, stores_first=True)
    async with publisher.publishing():
        for event in numbered(20):
            publisher.emit(event)
            assert await publisher.wait_sent(10)
        assert [decode(entry) for _, entry in await stored(stores, run)] == numbered(20)
        assert await blocks_of(stores, run) == 20
        async with publisher.ending() as tail:
            settled = await stores.settle(run, RunTrigger.COMPLETE, tail=tail)
        publisher.send_end(settled.tail)
        assert await publisher.wait_sent(10), "the end of the log was not shown"

    entries = await stored(stores, run)
    assert [seq for seq, _ in entries] == list(range(2, settled.run.last_seq + 1))
    assert await EventLog(redis, ttl_s=3600).read(run.id, Seq(1)) == entries
    assert await blocks_of(stores, run) == 1


@pytest.mark.parametrize(("events", "kept"), [(BURST - 1, BURST - 1), (BURST, 1)])
async def test_of_a_burst_that_sql_has_the_log_keeps_the_last_event(stores: Stores, events: int, kept: int) -> None:
    run, redis = await stores.claimed(), connect_embedded(stores_first=True)
    publisher = publisher_of(run, stores, redis, stores_first=True)
    async with publisher.publishing():
        publisher.emit(*numbered(events))
        assert await publisher.wait_sent(10)
    entries = await stored(stores, run)
    assert [decode(entry) for _, entry in entries] == numbered(events)
    assert await EventLog(redis, ttl_s=3600).read(run.id, Seq(1)) == entries[-kept:]
    await redis.aclose(close_connection_pool=True)


@pytest.mark.parametrize("owners", [1, 2])
async def test_a_log_of_events_that_sql_has_lives_a_day_from_its_owners_first_one(stores: Stores, owners: int) -> None:
    redis, run = connect_embedded(stores_first=True), await stores.claimed()
    for _ in range(1, owners):
        run = await stores.claim(run)
    publisher = publisher_of(run, stores, redis, stores_first=True)
    async with publisher.publishing():
        publisher.emit(text(1))
        assert await publisher.wait_sent(10)
    lifetimes = [cast("int", await redis.ttl(key)) for key in (keys.events(run.id), keys.fence(run.id))]
    assert all(keys.LIVE_LOG_TTL_S - 60 < lifetime <= keys.LIVE_LOG_TTL_S for lifetime in lifetimes)
    await redis.aclose(close_connection_pool=True)


async def test_what_readers_have_seen_is_left_behind_for_the_next_owner(
    stores: Stores, redis_service: RedisService, redis: ArqRedis
) -> None:
    run = await stores.claimed()
    first = publisher_of(run, stores, redis)
    said = [text(number) for number in range(5)]
    async with first.publishing():
        first.emit(*said)
        assert await first.wait_sent(10)
        await first.hand_over()
    await redis_service.empty()

    second = publisher_of(await stores.claim(run), stores, redis)
    async with second.publishing():
        assert second.follows == 6
        assert second.shown.text == ""
        assert list(second.shown.message_ids) == [SPOKEN], "what the first owner had said is known, and void"
        second.emit(StatusChanged(9, "running"))
        assert await second.wait_sent(10)

    opening, status = await EventLog(redis, ttl_s=3600).read(run.id, Seq(1))
    assert opening[0] == SECOND
    restarted = decode(opening[1])
    assert isinstance(restarted, StepRestarted)
    assert (restarted.follows, restarted.void_message_ids) == (6, [SPOKEN])
    assert status == (SECOND + 1, encode(StatusChanged(9, "running")))
    assert [decode(entry) for _, entry in await stored(stores, run)] == said


async def test_what_is_said_before_the_log_was_adopted_follows_it(stores: Stores, redis: ArqRedis) -> None:
    """A cancel that came before the log was adopted gave its event a number that the log had given before."""
    run = await stores.claimed()
    first = publisher_of(run, stores, redis)
    async with first.publishing():
        first.emit(*numbered(3))
        assert await first.wait_sent(10)

    second = publisher_of(await stores.claim(run), stores, redis)
    second.emit(StatusChanged(9, "cancelling"))
    async with second.publishing():
        assert await second.wait_sent(10)

    log = await EventLog(redis, ttl_s=3600).read(run.id, Seq(1))
    assert [seq for seq, _ in log] == [2, 3, 4, SECOND, SECOND + 1]
    assert [decode(entry) for _, entry in log[:3]] == numbered(3)
    assert follows_of(decode(log[3][1])) == 4
    assert decode(log[4][1]) == StatusChanged(9, "cancelling")


async def test_an_owner_that_was_replaced_leaves_nothing_behind(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    interruption = Interruption()
    publisher = publisher_of(run, stores, redis, interruption)
    async with publisher.publishing():
        publisher.emit(*numbered(5))
        await stores.runs.take_over(run, IDS.claim(), NOW)
        await publisher.hand_over()

    assert await stored(stores, run) == []
    assert isinstance(interruption.error, LeaseLost)


async def test_an_event_that_comes_while_the_end_is_stored_takes_no_number_of_the_end(
    stores: Stores, redis: ArqRedis
) -> None:
    """A cancel was announced while the settle was under way: its event and the first one of the end had one number,
    and readers were shown one of the two."""
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis)
    async with publisher.publishing():
        publisher.emit(*numbered(3))
        async with publisher.ending() as tail:
            publisher.emit_unless_closed(StatusChanged(9, "cancelling"))
            with pytest.raises(LogClosed):
                publisher.emit(StatusChanged(9, "running"))
            settled = await stores.settle(run, RunTrigger.COMPLETE, tail=tail)
        publisher.send_end(settled.tail)
        assert await publisher.wait_sent(10)

    entries = await stored(stores, run)
    assert await EventLog(redis, ttl_s=3600).read(run.id, Seq(1)) == entries
    assert StatusChanged(9, "cancelling") not in [decode(entry) for _, entry in entries]
    assert isinstance(decode(entries[-1][1]), Ended)


async def test_an_owner_that_nears_the_end_of_its_numbers_takes_a_new_fence(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis, kept_free=NUMBERS_PER_FENCE - 50)
    async with publisher.publishing():
        publisher.emit(*numbered(60))
        assert await publisher.wait_sent(10)
        publisher.emit(StatusChanged(99, "running"))
        assert await publisher.wait_sent(10)
        assert publisher.run.fence == run.fence + 1
        async with publisher.ending() as tail:
            settled = await stores.settle(publisher.run, RunTrigger.COMPLETE, tail=tail)
        publisher.send_end(settled.tail)
        assert await publisher.wait_sent(10)

    entries = await stored(stores, run)
    assert unbroken(Seq(1), entries) == entries
    first, second = consecutive(entries)
    assert (first.first, first.last, second.first) == (2, 61, SECOND)
    assert decode(second.entries[1]) == StatusChanged(99, "running")
    assert await EventLog(redis, ttl_s=3600).read(run.id, first.last) == entries[60:]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("write", [CrashPoint.SPILL, CrashPoint.NEW_FENCE])
async def test_what_was_stored_with_its_answer_lost_is_not_stored_again(
    stores: Stores, redis: ArqRedis, write: CrashPoint, times: int
) -> None:
    run = await stores.claimed()
    kept_free = NUMBERS_PER_FENCE - 50 if write is CrashPoint.NEW_FENCE else KEPT_FREE
    publisher = publisher_of(run, stores, redis, kept_free=kept_free)
    crash_points.arm(f"{write}:lost:1:{times}")
    try:
        async with publisher.publishing():
            publisher.emit(*numbered(SPILL_AT))
            for number in range(times + 1):
                assert await publisher.wait_sent(10)
                publisher.emit(StatusChanged(number, "running"))
            assert await publisher.wait_sent(10)
            async with publisher.ending() as tail:
                settled = await stores.settle(publisher.run, RunTrigger.COMPLETE, tail=tail)
            publisher.send_end(settled.tail)
            assert await publisher.wait_sent(10)
    finally:
        crash_points.arm("")

    entries = await stored(stores, run)
    assert unbroken(Seq(1), entries) == entries
    told = [event for _, entry in entries if isinstance(event := decode(entry), StatusChanged)]
    assert told[: SPILL_AT + times + 1] == [*numbered(SPILL_AT), *numbered(times + 1)]
    assert publisher.run.fence == run.fence + (write is CrashPoint.NEW_FENCE)


async def test_redis_keeps_only_what_sql_lacks(stores: Stores, redis: ArqRedis) -> None:
    """The stream of a long run grew with each step although SQL had all of it."""
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis)
    log = EventLog(redis, ttl_s=3600)
    async with publisher.publishing():
        publisher.emit(*numbered(20))
        async with publisher.saving() as tail:
            await stores.checkpoints.record(run, checkpoint(run, entries=tail.entries))

        async def is_trimmed() -> bool:
            return [seq for seq, _ in await log.read(run.id, Seq(1))] == [21]

        await wait_until(is_trimmed, description="the stream to be trimmed")
        publisher.emit(*numbered(2))
        assert await publisher.wait_sent(10)
        assert [seq for seq, _ in await log.read(run.id, Seq(1))] == [21, 22, 23]
