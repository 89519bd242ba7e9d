"""The log of a run in Redis: numbered, written by its newest owner alone, and honest about what Redis lost."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from shared.domain.errors import CancelMode, LeaseLost, Unavailable
from shared.domain.ids import Fence, RunId, Seq
from shared.domain.log_writer import LogTail, first_seq_of
from shared.redis import keys
from shared.redis.connection import CancelSignal, dedicated_connection
from shared.redis.event_log import EventLog, RedisLostData
from shared.redis.log_servers import LogServers, OneLogServer
from tests.kit.services.redis_fixtures import LogService
from tests.kit.services.redis_losses import fail_over, replicate
from tests.kit.services.redis_servers import PrivateRedis

FIRST, SECOND = Fence(1), Fence(2)
TTL_S = 3600
SQL_HAS_THE_PAST = Seq(0)


@pytest.fixture(params=["by itself", "with others"])
async def log(request: pytest.FixtureRequest, redis: ArqRedis, log_service: LogService) -> AsyncGenerator[EventLog]:
    """A log whose appends go out by themselves, as the API's, or with those of other runs, as a worker's."""
    if request.param == "by itself":
        yield EventLog(redis, ttl_s=TTL_S, servers=log_service.servers)
        return
    async with log_of_worker(redis, log_service.servers) as log:
        yield log


@pytest.fixture
def redis(log_service: LogService) -> ArqRedis:
    """A client of the server that has the log of the test's run."""
    return log_service.redis


@asynccontextmanager
async def log_of_worker(redis: ArqRedis, servers: LogServers | None = None) -> AsyncGenerator[EventLog]:
    servers = servers or OneLogServer(redis)
    async with servers.appending() as appends:
        yield EventLog(redis, ttl_s=TTL_S, appends=appends, servers=servers)


def entries(first: int, last: int) -> list[bytes]:
    return [b'{"seq":%d}' % number for number in range(first, last + 1)]


def tail(first: int, last: int) -> LogTail:
    return LogTail(Seq(first), entries(first, last))


def numbered(first: int, last: int) -> list[tuple[Seq, bytes]]:
    return [(Seq(number), entry) for number, entry in enumerate(entries(first, last), first)]


async def append(
    log: EventLog, run_id: RunId, first: int, last: int, *, fence: Fence = FIRST, needs: int | None = None
) -> None:
    """Appends numbers `first` to `last`; Redis must have what is before them unless `needs` says otherwise. The first
    number that anybody appends is 2."""
    needs = needs if needs is not None else first - 1 if first > 2 else 0
    await log.append(run_id, fence, tail(first, last), needs=Seq(needs))


async def test_a_reader_gets_what_follows_its_cursor(log: EventLog, run_id: RunId) -> None:
    assert await log.open(run_id, FIRST) == 0
    await append(log, run_id, 1, 3)
    await append(log, run_id, 4, 12)
    assert await log.read(run_id, Seq(0)) == numbered(1, 12)
    assert await log.read(run_id, Seq(9)) == numbered(10, 12)
    assert await log.read(run_id, Seq(2), limit=2) == numbered(3, 4)
    assert await log.read(run_id, Seq(2), limit=None) == numbered(3, 12)
    assert await log.read(run_id, Seq(12)) == []


async def test_the_next_owner_learns_where_the_log_ends(log: EventLog, run_id: RunId) -> None:
    await log.open(run_id, FIRST)
    await append(log, run_id, 1, 10)
    assert await log.open(run_id, SECOND) == 10


async def test_the_log_goes_on_with_the_numbers_of_the_next_fence(log: EventLog, run_id: RunId) -> None:
    """They are far from those before, and exact for as many claims as a run may have."""
    await log.open(run_id, FIRST)
    await append(log, run_id, 2, 3)
    last = 3
    for fence in (SECOND, Fence(9_000_000_000)):
        assert await log.open(run_id, fence) == last
        first = first_seq_of(fence)
        await append(log, run_id, first, first + 1, fence=fence, needs=SQL_HAS_THE_PAST)
        assert await log.read(run_id, Seq(last)) == numbered(first, first + 1)
        last = first + 1
        await append(log, run_id, last + 1, last + 1, fence=fence)
        last += 1


async def test_an_old_owner_can_neither_open_nor_append(log: EventLog, run_id: RunId) -> None:
    await log.open(run_id, FIRST)
    await log.open(run_id, SECOND)
    with pytest.raises(LeaseLost):
        await append(log, run_id, 1, 1)
    with pytest.raises(LeaseLost):
        await append(log, run_id, 5, 5, needs=SQL_HAS_THE_PAST)
    with pytest.raises(LeaseLost):
        await log.open(run_id, FIRST)
    assert await log.read(run_id, Seq(0)) == []


async def test_fences_are_compared_as_numbers(log: EventLog, run_id: RunId) -> None:
    await log.open(run_id, Fence(9))
    await log.open(run_id, Fence(10))
    with pytest.raises(LeaseLost):
        await append(log, run_id, 1, 1, fence=Fence(9))


async def test_the_same_fence_of_another_owner_is_refused(redis: ArqRedis, run_id: RunId) -> None:
    """A database that was set back can give out a fence twice."""
    mine = EventLog(redis, ttl_s=TTL_S)
    theirs = EventLog(redis, ttl_s=TTL_S)
    await theirs.open(run_id, FIRST)
    await cast("Any", redis).delete(keys.fence(run_id))
    await mine.open(run_id, FIRST)
    await mine.open(run_id, FIRST)
    with pytest.raises(LeaseLost):
        await theirs.open(run_id, FIRST)
    with pytest.raises(LeaseLost):
        await append(theirs, run_id, 1, 1)


async def test_a_repeated_append_is_a_success(log: EventLog, run_id: RunId) -> None:
    """The reply to the first one may have been lost."""
    await log.open(run_id, FIRST)
    await append(log, run_id, 1, 3)
    await append(log, run_id, 1, 3)
    await append(log, run_id, 2, 5)
    assert await log.read(run_id, Seq(0)) == numbered(1, 5)


async def test_an_empty_log_begins_anywhere_when_sql_has_its_beginning(log: EventLog, run_id: RunId) -> None:
    await log.open(run_id, FIRST)
    await append(log, run_id, 58, 59, needs=SQL_HAS_THE_PAST)
    assert await log.read(run_id, Seq(0)) == numbered(58, 59)


async def test_a_hole_that_nobody_could_fill_is_refused(log: EventLog, run_id: RunId) -> None:
    await log.open(run_id, FIRST)
    await append(log, run_id, 1, 3)
    with pytest.raises(RedisLostData) as lost:
        await append(log, run_id, 5, 5)
    assert lost.value.last == 3
    assert await log.read(run_id, Seq(0)) == numbered(1, 3)


async def test_a_hole_that_sql_fills_is_seen_by_readers(log: EventLog, run_id: RunId) -> None:
    """As after a failover to a replica that lagged."""
    await log.open(run_id, FIRST)
    await append(log, run_id, 1, 2)
    await append(log, run_id, 5, 6, needs=SQL_HAS_THE_PAST)
    assert await log.read(run_id, Seq(0)) == [*numbered(1, 2), *numbered(5, 6)]


@pytest.mark.parametrize("needs", [0, 6])
async def test_a_redis_that_lost_its_owner_takes_nothing_until_it_is_opened_again(
    log: EventLog, run_id: RunId, redis: ArqRedis, needs: int
) -> None:
    """It may have forgotten a newer owner as well. Who opens it asks SQL before."""
    await log.open(run_id, FIRST)
    await append(log, run_id, 1, 6)
    await redis.delete(keys.events(run_id), keys.fence(run_id))
    with pytest.raises(RedisLostData) as lost:
        await append(log, run_id, 7, 7, needs=needs)
    assert lost.value.last == 0
    assert await log.open(run_id, FIRST) == 0
    await append(log, run_id, 5, 7, needs=SQL_HAS_THE_PAST)
    await append(log, run_id, 8, 8)
    assert await log.read(run_id, Seq(0)) == numbered(5, 8)


async def test_a_stream_that_was_evicted_is_missed_although_its_fence_is_there(
    log: EventLog, run_id: RunId, redis: ArqRedis
) -> None:
    """The next event was taken for the first of its log, and readers who came then had a hole before it."""
    await log.open(run_id, FIRST)
    await append(log, run_id, 2, 6)
    await redis.delete(keys.events(run_id))
    with pytest.raises(RedisLostData):
        await append(log, run_id, 7, 7)
    await append(log, run_id, 2, 7, needs=SQL_HAS_THE_PAST)
    assert await log.read(run_id, Seq(0)) == numbered(2, 7)


@pytest.mark.parametrize("is_opened", [False, True], ids=["before the new owner writes", "after it opened again"])
async def test_a_replica_that_lacks_the_last_entries_takes_no_number_twice(
    log: EventLog, run_id: RunId, redis: ArqRedis, is_opened: bool
) -> None:
    """A worker had shown numbers that the replica never got, and was taken for dead. The replica was promoted, another
    worker went on, and the first one woke up and wrote again: the new owner gave the lost numbers to other events."""
    zombie = EventLog(redis, ttl_s=TTL_S)
    await zombie.open(run_id, FIRST)
    await append(zombie, run_id, 2, 4)
    replica = await replicate(redis)
    await append(zombie, run_id, 5, 8)
    await log.open(run_id, SECOND)
    await fail_over(redis, replica, now_ms=round(time.time() * 1000))

    # SQL gave the run to the second owner, but Redis has forgotten that: the log ends at 4, and is the zombie's.
    if is_opened:
        assert await log.open(run_id, SECOND) == 4
        with pytest.raises(LeaseLost):
            await append(zombie, run_id, 9, 9)
        with pytest.raises(LeaseLost):
            await append(zombie, run_id, 5, 9)
    else:
        with pytest.raises(RedisLostData):
            await append(zombie, run_id, 9, 9)
        await append(zombie, run_id, 5, 9)
    first = first_seq_of(SECOND)
    if not is_opened:
        with pytest.raises(RedisLostData):
            await append(log, run_id, first, first + 1, fence=SECOND, needs=SQL_HAS_THE_PAST)
        await log.open(run_id, SECOND)
    await append(log, run_id, first, first + 1, fence=SECOND, needs=SQL_HAS_THE_PAST)
    with pytest.raises(LeaseLost):
        await append(zombie, run_id, 10, 10, needs=SQL_HAS_THE_PAST)

    # Whatever a number was given to, it was given to once.
    assert await log.read(run_id, Seq(0)) == [*numbered(2, 4 if is_opened else 9), *numbered(first, first + 1)]


async def test_nothing_of_an_old_owner_comes_behind_a_newer_ones_first_entry(
    log: EventLog, run_id: RunId, redis: ArqRedis
) -> None:
    """Redis has lost who owns the log, not what is in it: an entry's number is its place in the stream."""
    await log.open(run_id, SECOND)
    first = first_seq_of(SECOND)
    await append(log, run_id, first, first, fence=SECOND, needs=SQL_HAS_THE_PAST)
    await redis.delete(keys.fence(run_id))
    zombie = EventLog(redis, ttl_s=TTL_S)
    await zombie.open(run_id, FIRST)
    await append(zombie, run_id, 5, 9, needs=SQL_HAS_THE_PAST)
    assert await log.read(run_id, Seq(0)) == numbered(first, first)


async def test_entries_are_published_with_their_first_number_and_only_once(
    log: EventLog, run_id: RunId, redis: ArqRedis, log_service: LogService
) -> None:
    connection = dedicated_connection(redis)
    await connection.connect()
    command = "SUBSCRIBE" if log_service.servers.publish == "PUBLISH" else "SSUBSCRIBE"
    await connection.send_command(command, keys.feed(run_id))
    await connection.read_response()
    await log.open(run_id, FIRST)
    await append(log, run_id, 1, 2)
    await append(log, run_id, 1, 2)
    await append(log, run_id, 2, 3)
    payloads = [(await connection.read_response(disable_decoding=True))[2] for _ in range(2)]
    await connection.disconnect()
    assert payloads == [b'1 {"seq":1}\n{"seq":2}', b'3 {"seq":3}']


async def test_every_append_renews_the_lifetime_and_the_end_shortens_it(
    log: EventLog, run_id: RunId, redis: ArqRedis
) -> None:
    async def lifetimes() -> list[int]:
        return [cast("int", await redis.ttl(key)) for key in (keys.events(run_id), keys.fence(run_id))]

    await log.open(run_id, FIRST)
    await append(log, run_id, 1, 1)
    await cast("Any", redis).expire(keys.events(run_id), 60)
    await append(log, run_id, 2, 2)
    assert all(keys.LIVE_LOG_TTL_S - 5 < ttl <= keys.LIVE_LOG_TTL_S for ttl in await lifetimes())
    await log.expire(run_id)
    assert all(TTL_S - 5 < ttl <= TTL_S for ttl in await lifetimes())


async def test_a_run_that_has_ended_leaves_no_cancel_flag(log: EventLog, run_id: RunId, redis: ArqRedis) -> None:
    signal = CancelSignal(redis)
    await signal.announce(run_id, CancelMode.INTERRUPT)
    await log.expire(run_id)
    assert await signal.raised([run_id]) == {}


async def test_a_log_is_trimmed_to_what_sql_lacks_and_still_says_how_far_it_reaches(
    log: EventLog, run_id: RunId
) -> None:
    await log.open(run_id, FIRST)
    await append(log, run_id, 2, 6)
    await log.trim(run_id, Seq(4))
    assert await log.read(run_id, Seq(0)) == numbered(4, 6)
    await log.trim(run_id, Seq(6))
    assert await log.read(run_id, Seq(0)) == numbered(6, 6)
    await append(log, run_id, 7, 7)
    assert await log.open(run_id, SECOND) == 7


async def test_a_log_that_was_dropped_is_empty_and_keeps_its_owner(log: EventLog, run_id: RunId) -> None:
    await log.open(run_id, FIRST)
    await log.open(run_id, SECOND)
    await log.drop(run_id)
    with pytest.raises(LeaseLost):
        await append(log, run_id, 2, 2)
    await append(log, run_id, 5, 5, fence=SECOND, needs=SQL_HAS_THE_PAST)
    assert await log.read(run_id, Seq(0)) == numbered(5, 5)


async def test_logs_of_different_runs_do_not_touch(log: EventLog) -> None:
    one, other = RunId("run-one"), RunId("run-other")
    await log.open(one, SECOND)
    await append(log, one, 1, 2, fence=SECOND)
    assert await log.open(other, FIRST) == 0
    assert await log.read(other, Seq(0)) == []


async def test_runs_that_append_together_keep_their_own_answers(redis: ArqRedis, log_service: LogService) -> None:
    """One has a newer owner, one has lost its stream, and one is well."""
    well, taken, lost = RunId("run-well"), RunId("run-taken"), RunId("run-lost")
    async with log_of_worker(redis, log_service.servers) as log:
        for run_id in (well, taken, lost):
            await log.open(run_id, FIRST)
        await log.open(taken, SECOND)
        outcomes = await asyncio.gather(
            append(log, taken, 2, 3), append(log, well, 2, 4), append(log, lost, 7, 7), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [LeaseLost, type(None), RedisLostData]
        assert await log.read(well, Seq(0)) == numbered(2, 4)
        assert await log.read(taken, Seq(0)) == await log.read(lost, Seq(0)) == []


async def test_a_redis_that_is_gone_is_unavailable(private_redis: PrivateRedis, run_id: RunId) -> None:
    async with log_of_worker(private_redis.client()) as together:
        log = EventLog(private_redis.client(), ttl_s=TTL_S)
        await log.open(run_id, FIRST)
        await private_redis.kill()
        for any_log in (log, together):
            with pytest.raises(Unavailable):
                await append(any_log, run_id, 1, 1)
        with pytest.raises(Unavailable):
            await log.read(run_id, Seq(0))
        with pytest.raises(Unavailable):
            await log.open(run_id, FIRST)


async def test_a_log_goes_on_in_a_redis_that_was_started_anew(private_redis: PrivateRedis, run_id: RunId) -> None:
    """The new server knows neither the data nor the scripts."""
    async with log_of_worker(private_redis.client()) as log:
        await log.open(run_id, FIRST)
        await append(log, run_id, 1, 5)
        await private_redis.kill()
        await private_redis.start()
        with pytest.raises(RedisLostData):
            await append(log, run_id, 6, 6)
        await log.open(run_id, FIRST)
        await append(log, run_id, 4, 6, needs=SQL_HAS_THE_PAST)
        assert await log.read(run_id, Seq(0)) == numbered(4, 6)
