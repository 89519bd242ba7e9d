"""The publisher against its stores: what it stores on the way never meets what a checkpoint or a settle stores."""

from collections.abc import AsyncGenerator
from datetime import datetime

import pytest
import sqlalchemy as sa
from arq.connections import ArqRedis

from shared.clock import SystemClock
from shared.domain.errors import LeaseLost, Unavailable
from shared.domain.events import Gap, StatusChanged, decode, encode
from shared.domain.ids import Seq
from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import Run
from shared.redis.event_log import EventLog
from shared.sql.engine import Database
from shared.sql.run_tables import event_blocks
from shared.sql.runs.checkpoints import CheckpointStore
from shared.sql.runs.events import LogTail
from tests.kit.runs.stored_runs import NOW, Stores, stored_runs
from tests.kit.services.redis_servers import RedisService
from tests.kit.wait_until import wait_until
from worker.run.interruption import Interruption
from worker.run.publisher import SPILL_AT, Publisher


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
    checkpoints: CheckpointStore | None = None,
    stores_first: bool = False,
) -> Publisher:
    return Publisher(
        run,
        event_log=EventLog(redis, ttl_s=60),
        events=stores.events,
        checkpoints=checkpoints or stores.checkpoints,
        clock=SystemClock(),
        interruption=interruption or Interruption(),
        stores_first=stores_first,
    )


async def blocks_of(stores: Stores, run: Run) -> int:
    async with stores.database.read() as connection:
        found = await connection.execute(
            sa.select(sa.func.count()).select_from(event_blocks).where(event_blocks.c.run_id == run.id)
        )
        return found.scalar_one()


def numbered(count: int) -> list[StatusChanged]:
    return [StatusChanged(number, "running") for number in range(count)]


async def stored(stores: Stores, run: Run) -> list[tuple[Seq, bytes]]:
    return await stores.events.read(run.id, Seq(1), limit=100_000)


async def test_a_long_answer_that_ends_before_it_was_spilled_is_stored_once(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis)
    async with publisher.publishing():
        publisher.emit(*numbered(3 * SPILL_AT))
        async with publisher.saving() as tail:
            settled = await stores.settle(run, RunTrigger.COMPLETE, tail=tail)
        publisher.send_stored(settled.tail)
        assert await publisher.flushed(10)

    entries = await stored(stores, run)
    assert [seq for seq, _ in entries] == list(range(2, settled.run.last_seq + 1))
    assert await EventLog(redis, ttl_s=60).read(run.id, Seq(1), limit=100_000) == entries


async def test_a_long_answer_is_stored_before_it_ends(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis)
    async with publisher.publishing():
        publisher.emit(*numbered(SPILL_AT))

        async def is_stored() -> bool:
            return len(await stored(stores, run)) == SPILL_AT

        await wait_until(is_stored, description="the events to be in SQL")


async def test_many_small_blocks_are_put_together_when_their_run_ends(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    publisher = publisher_of(run, stores, redis, stores_first=True)
    async with publisher.publishing():
        for event in numbered(20):
            publisher.emit(event)
            assert await publisher.flushed(10)
        assert [decode(entry) for _, entry in await stored(stores, run)] == numbered(20)
        assert await blocks_of(stores, run) == 20
        async with publisher.saving() as tail:
            settled = await stores.settle(run, RunTrigger.COMPLETE, tail=tail)
        publisher.send_stored(settled.tail)
        assert await publisher.flushed(10), "the end of the log was not shown"

    entries = await stored(stores, run)
    assert [seq for seq, _ in entries] == list(range(2, settled.run.last_seq + 1))
    assert await EventLog(redis, ttl_s=60).read(run.id, Seq(1)) == entries
    assert await blocks_of(stores, run) == 1


async def test_what_readers_have_seen_is_left_behind_for_the_next_owner(
    stores: Stores, redis_service: RedisService, redis: ArqRedis
) -> None:
    run = await stores.claimed()
    first = publisher_of(run, stores, redis)
    async with first.publishing():
        first.emit(*numbered(5))
        assert await first.flushed(10)
        await first.hand_over()
    await redis_service.empty()

    claimed = await stores.claim(run)
    second = publisher_of(claimed, stores, redis)
    async with second.publishing():
        assert second.since_checkpoint == numbered(5)
        second.emit(StatusChanged(9, "running"))
        assert await second.flushed(10)

    assert await EventLog(redis, ttl_s=60).read(run.id, Seq(1)) == [(Seq(7), encode(StatusChanged(9, "running")))]
    assert [decode(entry) for _, entry in await stored(stores, run)] == numbered(5)


async def test_what_is_said_before_the_log_was_taken_over_follows_it(stores: Stores, redis: ArqRedis) -> None:
    """A cancel that came during the take-over gave its event a number that the log had given before."""
    run = await stores.claimed()
    first = publisher_of(run, stores, redis)
    async with first.publishing():
        first.emit(*numbered(3))
        assert await first.flushed(10)

    second = publisher_of(await stores.claim(run), stores, redis)
    second.emit(StatusChanged(9, "cancelling"))
    async with second.publishing():
        assert await second.flushed(10)

    log = await EventLog(redis, ttl_s=60).read(run.id, Seq(1))
    assert [seq for seq, _ in log] == [2, 3, 4, 5]
    assert [decode(entry) for _, entry in log] == [*numbered(3), StatusChanged(9, "cancelling")]


async def test_an_owner_that_was_replaced_leaves_nothing_behind(stores: Stores, redis: ArqRedis) -> None:
    run = await stores.claimed()
    interruption = Interruption()
    publisher = publisher_of(run, stores, redis, interruption)
    async with publisher.publishing():
        publisher.emit(*numbered(5))
        await stores.runs.take_over(run, NOW)
        await publisher.hand_over()

    assert await stored(stores, run) == []
    assert isinstance(interruption.error, LeaseLost)


class OrderedStore(CheckpointStore):
    """Notes what a publisher writes."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.written: list[str] = []

    async def record_log(self, run: Run, tail: LogTail, now: datetime) -> None:
        if not self.written:
            self.written.append("refused")
            raise Unavailable("SQL does not answer")
        await super().record_log(run, tail, now)
        self.written.append("log")

    async def reserve(self, run: Run, up_to: Seq, log: str, now: datetime) -> None:
        await super().reserve(run, up_to, log, now)
        self.written.append("reservation")


async def test_a_gap_is_stored_before_anything_is_reserved_behind_it(stores: Stores, redis: ArqRedis) -> None:
    """The reservation that had shown the gap was overwritten: a second crash, and its numbers were given again."""
    run = await stores.claimed()
    await stores.checkpoints.reserve(run, Seq(50), "a log that Redis lost", NOW)
    run = await stores.claim(run)
    checkpoints = OrderedStore(stores.database)
    publisher = publisher_of(run, stores, redis, checkpoints=checkpoints)
    async with publisher.publishing():
        publisher.emit(*numbered(2))
        assert await publisher.flushed(10)
        publisher.emit(*numbered(1))
        assert await publisher.flushed(10)
    assert checkpoints.written == ["refused", "log", "reservation"]
    entries = await EventLog(redis, ttl_s=60).read(run.id, Seq(1))
    assert [seq for seq, _ in entries] == [51, 52, 53, 54]
    assert isinstance(decode(entries[0][1]), Gap)
