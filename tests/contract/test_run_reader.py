"""Readers get every number once, wherever it is kept."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from arq.connections import ArqRedis

from api.runs.reader import RunReader
from shared.domain.events import StatusChanged, encode
from shared.domain.ids import Seq
from shared.domain.lifecycle import RunTrigger
from shared.redis.event_feed import EventFeed
from shared.redis.event_log import EventLog
from shared.sql.runs.events import LogTail
from tests.kit.runs.stored_runs import NOW, Stores, stored_runs

ENTRIES = [encode(StatusChanged(number, "running")) for number in range(20)]


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 6, 7])
async def test_a_hole_in_the_middle_of_a_page_is_filled_from_sql(stores: Stores, redis: ArqRedis, after: int) -> None:
    """A worker stored its last events while Redis took no writes; readers were sent on without them."""
    log = EventLog(redis, ttl_s=60)
    run = await stores.claimed()
    await (await log.open(run.id, run.fence)).append(Seq(2), ENTRIES[:2])
    await stores.checkpoints.leave(run, LogTail(Seq(2), ENTRIES[:5]), Seq(6), NOW)
    run = await stores.claim(run)
    await (await log.open(run.id, run.fence)).append(Seq(7), ENTRIES[5:8], restoring=True)
    settled = await stores.settle(run, RunTrigger.COMPLETE, tail=LogTail(Seq(7), ENTRIES[5:8]))

    reader = RunReader(runs=stores.runs, events=stores.events, event_log=log, feed=EventFeed(redis))
    seen = [entry async for batch in reader.follow(settled.run, Seq(after), quiet_s=1) for entry in batch]

    assert [seq for seq, _ in seen] == list(range(after + 1, settled.run.last_seq + 1))
    assert dict(seen) | dict(await stores.events.read(run.id, Seq(max(1, after)))) == dict(seen)


async def test_a_reader_is_not_stuck_behind_a_hole_that_sql_has_filled(stores: Stores, redis: ArqRedis) -> None:
    """What Redis had behind the hole was thrown away and never asked for again, until the next event came."""
    log = EventLog(redis, ttl_s=60)
    run = await stores.claimed()
    await (await log.open(run.id, run.fence)).append(Seq(2), ENTRIES[:2])
    await stores.checkpoints.leave(run, LogTail(Seq(2), ENTRIES[:4]), Seq(5), NOW)
    run = await stores.claim(run)
    await (await log.open(run.id, run.fence)).append(Seq(6), ENTRIES[4:6], restoring=True)

    reader = RunReader(runs=stores.runs, events=stores.events, event_log=log, feed=EventFeed(redis))
    seen: list[Seq] = []
    async with aclosing(reader.follow(run, Seq(1), quiet_s=5)) as batches:
        async for batch in batches:
            assert batch, "the reader hears nothing more"
            seen += [seq for seq, _ in batch]
            if seen[-1] == 7:
                break
    assert seen == [2, 3, 4, 5, 6, 7]
