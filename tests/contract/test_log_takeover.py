"""Whoever takes a log over knows what is gone, also when those who could have said so died before they did."""

from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec
import pytest
from arq.connections import ArqRedis
from shared.runs.log_takeover import take_over_log

from shared.domain.events import Gap, StatusChanged, decode, encode
from shared.domain.ids import Fence, Seq
from shared.domain.runs import Run
from shared.redis import keys
from shared.redis.event_log import EventLog
from shared.sql.runs.events import LogTail
from tests.kit.runs.stored_runs import NOW, Stores, stored_runs

ENTRIES = [encode(StatusChanged(number, "running")) for number in range(20)]
RESERVED = Seq(50)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.fixture
def log(redis: ArqRedis) -> EventLog:
    return EventLog(redis, ttl_s=60)


async def shown(stores: Stores, log: EventLog, count: int) -> Run:
    """A run whose owner has shown so many events that SQL does not have, and is gone; it was claimed anew."""
    run = await stores.claimed()
    owned = await log.open(run.id, run.fence)
    await stores.checkpoints.reserve(run, RESERVED, owned.reserved_as, NOW)
    await owned.append(Seq(2), ENTRIES[:count])
    return await stores.claim(run)


async def lose_log(redis: ArqRedis, run: Run) -> None:
    await cast("Any", redis).delete(keys.events(run.id), keys.fence(run.id))


def gap_of(tail: LogTail) -> tuple[Seq, Seq]:
    (entry,) = tail.entries
    gap = decode(entry)
    assert isinstance(gap, Gap)
    return gap.first_missing, tail.first


async def test_what_redis_has_and_sql_lacks_is_taken_on(stores: Stores, log: EventLog) -> None:
    run = await shown(stores, log, 3)
    taken = await take_over_log(run, log, at=0)
    assert (taken.tail, taken.found_gap) == (LogTail(Seq(2), ENTRIES[:3]), False)


async def test_nothing_is_gone_where_nothing_was_shown(stores: Stores, log: EventLog) -> None:
    run = await shown(stores, log, 0)
    taken = await take_over_log(run, log, at=0)
    assert (taken.tail, taken.found_gap) == (LogTail(Seq(2), ()), False)


async def test_a_gap_has_a_number_that_nobody_was_shown(stores: Stores, log: EventLog, redis: ArqRedis) -> None:
    """It took the last of the reserved numbers, which may have been shown, and with one such number it was lost."""
    run = await shown(stores, log, 3)
    await lose_log(redis, run)
    taken = await take_over_log(run, log, at=0)
    assert taken.found_gap
    assert gap_of(taken.tail) == (2, RESERVED + 1)

    one_reserved = msgspec.structs.replace(run, reserved_seq=Seq(run.last_seq + 1))
    taken = await take_over_log(one_reserved, log, at=0)
    assert taken.found_gap
    assert gap_of(taken.tail) == (2, 3)


async def test_a_gap_is_found_again_when_its_finder_died_before_storing_it(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    """The finder's opening made Redis remember an owner, and the next one gave the lost numbers to other events."""
    run = await shown(stores, log, 3)
    await lose_log(redis, run)
    first = await take_over_log(run, log, at=0)
    run = await stores.claim(run)
    second = await take_over_log(run, log, at=0)
    assert second.found_gap
    assert second.tail == first.tail


async def test_a_late_request_of_an_old_owner_does_not_hide_a_gap(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    run = await shown(stores, log, 3)
    await lose_log(redis, run)
    late = await log.open(run.id, Fence(run.fence - 1))
    await late.append(Seq(2), [b'"zombie"'])
    taken = await take_over_log(run, log, at=0)
    assert taken.found_gap
    assert gap_of(taken.tail) == (2, RESERVED + 1)


async def test_a_stream_that_was_evicted_with_its_owner_leaves_a_gap(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    """Redis still knew who had the log, so what was in it was taken for never shown."""
    run = await shown(stores, log, 3)
    await cast("Any", redis).delete(keys.events(run.id))
    taken = await take_over_log(run, log, at=0)
    assert taken.found_gap
    assert gap_of(taken.tail) == (2, RESERVED + 1)


async def test_a_log_that_an_older_owner_restored_lacks_what_came_after_it(
    stores: Stores, log: EventLog, redis: ArqRedis
) -> None:
    """A worker stood still, its successor died together with Redis, and the first one woke up and gave Redis what it
    knew: the numbers of the successor's events were given again. Found by chaos."""
    run = await stores.claimed()
    first = await log.open(run.id, run.fence)
    await stores.checkpoints.reserve(run, RESERVED, first.reserved_as, NOW)
    await first.append(Seq(2), ENTRIES[:2])
    run = await stores.claim(run)
    second = await log.open(run.id, run.fence)
    await stores.checkpoints.reserve(run, RESERVED, second.reserved_as, NOW)
    await second.append(Seq(4), ENTRIES[2:5])
    await lose_log(redis, run)
    await first.append(Seq(2), ENTRIES[:2], restoring=True)

    run = await stores.claim(run)
    taken = await take_over_log(run, log, at=0)
    assert taken.found_gap
    assert gap_of(taken.tail) == (2, RESERVED + 1)


async def test_a_log_that_its_last_owner_restored_is_whole(stores: Stores, log: EventLog, redis: ArqRedis) -> None:
    run = await stores.claimed()
    owned = await log.open(run.id, run.fence)
    await stores.checkpoints.reserve(run, RESERVED, owned.reserved_as, NOW)
    await owned.append(Seq(2), ENTRIES[:2])
    await lose_log(redis, run)
    await owned.append(Seq(2), ENTRIES[:3], restoring=True)
    await owned.append(Seq(5), ENTRIES[3:4], before_is_stored=False)

    taken = await take_over_log(await stores.claim(run), log, at=0)
    assert (taken.tail, taken.found_gap) == (LogTail(Seq(2), ENTRIES[:4]), False)
