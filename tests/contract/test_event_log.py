"""The log of a run: numbered without gaps, written by its newest owner alone, and honest about what Redis lost."""

from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from shared.domain.errors import LeaseLost, Unavailable
from shared.domain.ids import Fence, RunId, Seq
from shared.redis import keys
from shared.redis.connection import dedicated_connection
from shared.redis.event_log import EventLog, LogBehind
from tests.kit.services.redis_servers import PrivateRedis, RedisService

FIRST, SECOND = Fence(1), Fence(2)
TTL_S = 3600


@pytest.fixture
def log(redis: ArqRedis) -> EventLog:
    return EventLog(redis, ttl_s=TTL_S)


def entries(first: int, last: int) -> list[bytes]:
    return [b'{"seq":%d}' % number for number in range(first, last + 1)]


def numbered(first: int, last: int) -> list[tuple[Seq, bytes]]:
    return [(Seq(number), entry) for number, entry in enumerate(entries(first, last), first)]


async def test_a_reader_gets_what_follows_its_cursor(log: EventLog, run_id: RunId) -> None:
    mine = await log.open(run_id, FIRST)
    assert mine.last == 0
    await mine.append(Seq(1), entries(1, 3))
    await mine.append(Seq(4), entries(4, 12))
    assert await log.read(run_id, Seq(0)) == numbered(1, 12)
    assert await log.read(run_id, Seq(9)) == numbered(10, 12)
    assert await log.read(run_id, Seq(2), limit=2) == numbered(3, 4)
    assert await log.read(run_id, Seq(12)) == []


async def test_the_next_owner_learns_where_the_log_ends(log: EventLog, run_id: RunId) -> None:
    mine = await log.open(run_id, FIRST)
    await mine.append(Seq(1), entries(1, 10))
    assert (await log.open(run_id, SECOND)).last == 10


async def test_an_old_owner_can_neither_open_nor_append(log: EventLog, run_id: RunId) -> None:
    old = await log.open(run_id, FIRST)
    await log.open(run_id, SECOND)
    with pytest.raises(LeaseLost):
        await old.append(Seq(1), entries(1, 1))
    with pytest.raises(LeaseLost):
        await old.append(Seq(1), entries(1, 1), restoring=True)
    with pytest.raises(LeaseLost):
        await log.open(run_id, FIRST)
    assert await log.read(run_id, Seq(0)) == []


async def test_fences_are_compared_as_numbers(log: EventLog, run_id: RunId) -> None:
    old = await log.open(run_id, Fence(9))
    await log.open(run_id, Fence(10))
    with pytest.raises(LeaseLost):
        await old.append(Seq(1), entries(1, 1))


async def test_the_same_fence_in_other_hands_is_refused(redis_service: RedisService, run_id: RunId) -> None:
    """A database that was set back can give out a fence twice."""
    mine = EventLog(redis_service.client(), ttl_s=TTL_S)
    theirs = EventLog(redis_service.client(), ttl_s=TTL_S)
    forgotten = await theirs.open(run_id, FIRST)
    await cast("Any", redis_service.client()).delete(keys.fence(run_id))
    await mine.open(run_id, FIRST)
    await mine.open(run_id, FIRST)
    with pytest.raises(LeaseLost):
        await theirs.open(run_id, FIRST)
    with pytest.raises(LeaseLost):
        await forgotten.append(Seq(1), entries(1, 1))


async def test_a_repeated_append_is_a_success(log: EventLog, run_id: RunId) -> None:
    """The reply to the first one may have been lost."""
    mine = await log.open(run_id, FIRST)
    await mine.append(Seq(1), entries(1, 3))
    await mine.append(Seq(1), entries(1, 3))
    await mine.append(Seq(2), entries(2, 5))
    assert await log.read(run_id, Seq(0)) == numbered(1, 5)


async def test_an_empty_log_begins_anywhere(log: EventLog, run_id: RunId) -> None:
    """Its beginning may be in SQL alone."""
    mine = await log.open(run_id, SECOND)
    await mine.append(Seq(58), entries(58, 59))
    assert await log.read(run_id, Seq(0)) == numbered(58, 59)


async def test_a_hole_is_refused_with_the_end_of_the_log(log: EventLog, run_id: RunId) -> None:
    mine = await log.open(run_id, FIRST)
    await mine.append(Seq(1), entries(1, 3))
    with pytest.raises(LogBehind) as behind:
        await mine.append(Seq(5), entries(5, 5))
    assert behind.value.last == 3
    assert await log.read(run_id, Seq(0)) == numbered(1, 3)


async def test_a_log_that_redis_lost_is_restored_from_the_tail(log: EventLog, run_id: RunId, redis: ArqRedis) -> None:
    mine = await log.open(run_id, FIRST)
    await mine.append(Seq(1), entries(1, 6))
    await redis.delete(keys.events(run_id), keys.fence(run_id))
    with pytest.raises(LogBehind) as behind:
        await mine.append(Seq(7), entries(7, 7))
    assert behind.value.last == 0
    await mine.append(Seq(5), entries(5, 7), restoring=True)
    await mine.append(Seq(8), entries(8, 8))
    assert await log.read(run_id, Seq(0)) == numbered(5, 8)


async def test_a_log_that_lost_its_end_is_restored_with_a_hole_that_readers_see(log: EventLog, run_id: RunId) -> None:
    """As after a failover to a replica that lagged: SQL has what is missing."""
    mine = await log.open(run_id, FIRST)
    await mine.append(Seq(1), entries(1, 2))
    await mine.append(Seq(5), entries(5, 6), restoring=True)
    assert await log.read(run_id, Seq(0)) == [*numbered(1, 2), *numbered(5, 6)]


async def test_what_a_zombie_wrote_into_an_empty_redis_is_dropped(
    log: EventLog, run_id: RunId, redis: ArqRedis
) -> None:
    """Redis lost everything, and an old owner restored its tail before the true one wrote again."""
    zombie = await EventLog(redis, ttl_s=TTL_S).open(run_id, FIRST)
    mine = await log.open(run_id, SECOND)
    await mine.append(Seq(1), entries(1, 4))
    await redis.delete(keys.events(run_id), keys.fence(run_id))
    await zombie.append(Seq(3), [b"zombie"] * 3, restoring=True)
    with pytest.raises(LogBehind):
        await mine.append(Seq(5), entries(5, 5))
    await mine.append(Seq(3), entries(3, 5), restoring=True)
    assert await log.read(run_id, Seq(0)) == numbered(3, 5)
    with pytest.raises(LeaseLost):
        await zombie.append(Seq(6), [b"zombie"])


async def test_entries_are_published_with_their_first_number_and_only_once(
    log: EventLog, run_id: RunId, redis: ArqRedis
) -> None:
    connection = dedicated_connection(redis)
    await connection.connect()
    await connection.send_command("SUBSCRIBE", keys.feed(run_id))
    await connection.read_response()
    mine = await log.open(run_id, FIRST)
    await mine.append(Seq(1), entries(1, 2))
    await mine.append(Seq(1), entries(1, 2))
    await mine.append(Seq(2), entries(2, 3))
    payloads = [(await connection.read_response(disable_decoding=True))[2] for _ in range(2)]
    await connection.disconnect()
    assert payloads == [b'1 {"seq":1}\n{"seq":2}', b'3 {"seq":3}']


async def test_every_append_renews_the_lifetime_and_the_end_shortens_it(
    log: EventLog, run_id: RunId, redis: ArqRedis
) -> None:
    async def lifetimes() -> list[int]:
        return [cast("int", await redis.ttl(key)) for key in (keys.events(run_id), keys.fence(run_id))]

    mine = await log.open(run_id, FIRST)
    await mine.append(Seq(1), entries(1, 1))
    await cast("Any", redis).expire(keys.events(run_id), 60)
    await mine.append(Seq(2), entries(2, 2))
    assert all(keys.LIVE_LOG_TTL_S - 5 < ttl <= keys.LIVE_LOG_TTL_S for ttl in await lifetimes())
    await log.expire(run_id)
    assert all(TTL_S - 5 < ttl <= TTL_S for ttl in await lifetimes())


async def test_logs_of_different_runs_do_not_touch(log: EventLog) -> None:
    one, other = RunId("run-one"), RunId("run-other")
    mine = await log.open(one, SECOND)
    await mine.append(Seq(1), entries(1, 2))
    assert (await log.open(other, FIRST)).last == 0
    assert await log.read(other, Seq(0)) == []


async def test_a_redis_that_is_gone_is_unavailable(private_redis: PrivateRedis, run_id: RunId) -> None:
    log = EventLog(private_redis.client(), ttl_s=TTL_S)
    mine = await log.open(run_id, FIRST)
    await private_redis.kill()
    with pytest.raises(Unavailable):
        await mine.append(Seq(1), entries(1, 1))
    with pytest.raises(Unavailable):
        await log.read(run_id, Seq(0))


async def test_a_log_goes_on_in_a_redis_that_was_started_anew(private_redis: PrivateRedis, run_id: RunId) -> None:
    """The new server knows neither the data nor the scripts."""
    log = EventLog(private_redis.client(), ttl_s=TTL_S)
    mine = await log.open(run_id, FIRST)
    await mine.append(Seq(1), entries(1, 5))
    await private_redis.kill()
    await private_redis.start()
    with pytest.raises(LogBehind):
        await mine.append(Seq(6), entries(6, 6))
    await mine.append(Seq(4), entries(4, 6), restoring=True)
    assert await log.read(run_id, Seq(0)) == numbered(4, 6)


async def test_a_log_keeps_its_id_until_redis_loses_it(log: EventLog, run_id: RunId, redis: ArqRedis) -> None:
    first = await log.open(run_id, FIRST)
    await first.append(Seq(2), entries(2, 3))
    second = await log.open(run_id, SECOND)
    assert second.log_id == first.log_id
    await redis.delete(keys.events(run_id))
    assert (await log.open(run_id, SECOND)).log_id != first.log_id


async def test_a_stream_that_was_evicted_is_missed_although_its_fence_is_there(
    log: EventLog, run_id: RunId, redis: ArqRedis
) -> None:
    """The next event was taken for the first of its log, and readers who came then had a hole before it."""
    mine = await log.open(run_id, FIRST)
    await mine.append(Seq(2), entries(2, 6))
    await redis.delete(keys.events(run_id))
    with pytest.raises(LogBehind):
        await mine.append(Seq(7), entries(7, 7))
    await mine.append(Seq(2), entries(2, 7), restoring=True)
    assert await log.read(run_id, Seq(0)) == numbered(2, 7)


async def test_only_a_log_whose_past_is_stored_begins_in_the_middle(log: EventLog, run_id: RunId) -> None:
    """A replica may have the log's beginning and none of its events."""
    mine = await log.open(run_id, FIRST)
    with pytest.raises(LogBehind):
        await mine.append(Seq(7), entries(7, 7), before_is_stored=False)
    await mine.append(Seq(7), entries(7, 7))
    assert await log.read(run_id, Seq(0)) == numbered(7, 7)
