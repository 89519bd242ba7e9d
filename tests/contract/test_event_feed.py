"""Readers of the feed get every event once and in order, whatever happens to the connection or to their own pace."""

import asyncio
import random
from collections.abc import AsyncGenerator

import pytest
import uvloop

from shared.domain.errors import Unavailable
from shared.domain.ids import Fence, RunId, Seq
from shared.domain.log_writer import LogTail
from shared.redis.connection import connect
from shared.redis.embedded import connect_embedded
from shared.redis.event_log import EventFeed, EventLog, Subscription
from shared.redis.log_servers import OneLogServer
from tests.kit.services.redis_fixtures import LogService
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import HANGS_S, after, wait_until

FENCE = Fence(1)


class Writer:
    """Writes numbered events into one run's log."""

    def __init__(self, log: EventLog, run_id: RunId) -> None:
        self._log = log
        self._run_id = run_id
        self.last = 0

    async def write(self, count: int = 1) -> None:
        entries = [b'{"seq":%d}' % (self.last + number) for number in range(1, count + 1)]
        if self.last == 0:
            await self._log.open(self._run_id, FENCE)
        await self._log.append(self._run_id, FENCE, LogTail(Seq(self.last + 1), entries), needs=Seq(self.last))
        self.last += count


async def read_up_to(subscription: Subscription, log: EventLog, last: int, *, after_seq: int = 0) -> list[int]:
    """What a reader gets until it has seen `last`. The bytes are checked against the numbers."""
    seen: list[int] = []
    cursor = Seq(after_seq)
    while cursor < last:
        entries = await subscription.read(log, cursor)
        for seq, entry in entries:
            assert entry == b'{"seq":%d}' % seq
            seen.append(seq)
            cursor = seq
        if not entries:
            assert await subscription.wait(HANGS_S), f"nothing came after {cursor}"
    return seen


@pytest.fixture
def log(log_service: LogService) -> EventLog:
    return EventLog(log_service.redis, ttl_s=3600, servers=log_service.servers)


@pytest.fixture
async def log_that_is_away() -> AsyncGenerator[EventLog]:
    """Whoever looks into it is told so."""
    redis = connect("redis://127.0.0.1:1/0")
    yield EventLog(redis, ttl_s=3600)
    await redis.aclose(close_connection_pool=True)


@pytest.fixture
async def writer(log: EventLog, run_id: RunId) -> Writer:
    return Writer(log, run_id)


async def until_live(subscription: Subscription, log: EventLog, after_seq: int = 0) -> None:
    """Until the subscription was acknowledged and the reader has caught up."""

    async def reads_nothing_new() -> bool:
        await subscription.read(log, Seq(after_seq))
        return not subscription.behind and not await subscription.wait(0.02)

    await wait_until(reads_nothing_new, description="the subscription to be live")


async def test_live_events_arrive_without_a_look_into_the_log(
    log_service: LogService, log: EventLog, log_that_is_away: EventLog, run_id: RunId, writer: Writer
) -> None:
    feed = EventFeed(log_service.servers)
    async with feed.running(), feed.subscribe(run_id) as subscription:
        await until_live(subscription, log)
        await writer.write(3)
        assert await subscription.wait(HANGS_S)
        assert not subscription.behind
        assert await subscription.read(log_that_is_away, Seq(1)) == [(Seq(2), b'{"seq":2}'), (Seq(3), b'{"seq":3}')]


async def leave_at_once_and_wait_again() -> None:
    """A reader leaves before its wait could end, and the next one waits."""
    redis = connect_embedded()
    subscription = EventFeed(OneLogServer(redis)).subscribe(RunId("run-1"))
    await subscription.read(EventLog(redis, ttl_s=3600), Seq(0))
    left = subscription.wait(0.0003)
    left.send(None)
    left.close()
    assert not await subscription.wait(0.02)
    await redis.aclose(close_connection_pool=True)


def test_uvloop_was_asked_when_a_timer_ends_that_it_had_not_made() -> None:
    uvloop.run(leave_at_once_and_wait_again())


async def test_a_short_wait_was_as_long_as_the_one_before_it(
    log_service: LogService, log: EventLog, run_id: RunId, writer: Writer
) -> None:
    feed = EventFeed(log_service.servers)
    async with feed.running(), feed.subscribe(run_id) as subscription:
        await until_live(subscription, log)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(subscription.wait(3600), name="wait")
            await writer.write()
        assert waiting.result()
        assert await read_up_to(subscription, log, 1) == [1]
        assert not await subscription.wait(0.02)


async def test_the_timer_of_an_earlier_wait_ended_a_later_one(
    log_service: LogService, log: EventLog, run_id: RunId, writer: Writer
) -> None:
    feed = EventFeed(log_service.servers)
    async with feed.running(), feed.subscribe(run_id) as subscription:
        await until_live(subscription, log)
        async with asyncio.TaskGroup() as group:
            group.create_task(subscription.wait(0.3), name="wait")
            await writer.write()
        assert await read_up_to(subscription, log, 1) == [1]
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(subscription.wait(3600), name="wait for longer")
            await after(0.4)
            assert not waiting.done()
            await writer.write()
        assert waiting.result()


async def test_a_late_reader_gets_the_past_and_then_the_present(
    log_service: LogService, log: EventLog, run_id: RunId, writer: Writer
) -> None:
    await writer.write(2500)
    feed = EventFeed(log_service.servers)
    async with feed.running(), feed.subscribe(run_id) as subscription:
        assert await read_up_to(subscription, log, 2500, after_seq=10) == list(range(11, 2501))
        await writer.write(2)
        assert await read_up_to(subscription, log, 2502, after_seq=2500) == [2501, 2502]


async def test_a_slow_reader_is_served_from_the_log_with_bounded_memory(
    log_service: LogService, log: EventLog, log_that_is_away: EventLog, run_id: RunId, writer: Writer
) -> None:
    feed = EventFeed(log_service.servers, max_entries=10)
    async with feed.running(), feed.subscribe(run_id) as subscription:
        await until_live(subscription, log)
        for _ in range(11):
            await writer.write()
        await wait_until(lambda: subscription.behind, description="the slow reader to fall behind")
        with pytest.raises(Unavailable):
            await subscription.read(log_that_is_away, Seq(0))
        assert await read_up_to(subscription, log, 11) == list(range(1, 12))


async def test_large_events_count_by_their_bytes(
    log_service: LogService, log: EventLog, run_id: RunId, writer: Writer
) -> None:
    feed = EventFeed(log_service.servers, max_bytes=18)
    async with feed.running(), feed.subscribe(run_id) as subscription:
        await until_live(subscription, log)
        await writer.write(2)
        await wait_until(lambda: subscription.behind, description="the reader to fall behind")
        assert await read_up_to(subscription, log, 2) == [1, 2]


async def test_a_hole_in_the_live_events_is_filled_from_the_log(
    log_service: LogService, log: EventLog, run_id: RunId, writer: Writer
) -> None:
    await writer.write(3)
    feed = EventFeed(log_service.servers)
    async with feed.running(), feed.subscribe(run_id) as subscription:
        await until_live(subscription, log, after_seq=3)
        await writer.write(2)
        assert await subscription.wait(HANGS_S)
        assert await read_up_to(subscription, log, 5, after_seq=1) == [2, 3, 4, 5]


async def test_readers_of_one_run_do_not_disturb_each_other(
    log_service: LogService, log: EventLog, run_id: RunId, writer: Writer
) -> None:
    feed = EventFeed(log_service.servers)
    async with feed.running(), feed.subscribe(run_id) as staying:
        async with feed.subscribe(run_id) as leaving:
            await writer.write(2)
            assert await read_up_to(leaving, log, 2) == [1, 2]
        await writer.write(2)
        assert await read_up_to(staying, log, 4) == [1, 2, 3, 4]
        async with feed.subscribe(run_id) as coming_back:
            await writer.write(2)
            assert await read_up_to(coming_back, log, 6, after_seq=4) == [5, 6]


async def test_events_of_other_runs_are_not_heard(log_service: LogService, log: EventLog, run_id: RunId) -> None:
    other = RunId(f"{run_id}-other")
    feed = EventFeed(log_service.servers)
    async with feed.running(), feed.subscribe(run_id) as subscription:
        async with feed.subscribe(other) as elsewhere:
            await until_live(elsewhere, log)
        await until_live(subscription, log)
        await Writer(log, other).write()
        assert not await subscription.wait(0.05)
        assert not subscription.behind


async def test_a_reader_who_cannot_read_the_log_stays_behind(private_redis: PrivateRedis, run_id: RunId) -> None:
    log = EventLog(private_redis.client(), ttl_s=3600)
    writer = Writer(log, run_id)
    await writer.write(3)
    feed = EventFeed(OneLogServer(private_redis.client()))
    async with feed.running(), feed.subscribe(run_id) as subscription:
        await until_live(subscription, log, after_seq=3)
        await private_redis.kill()
        subscription.fall_behind()
        with pytest.raises(Unavailable):
            await subscription.read(log, Seq(3))
        assert subscription.behind


async def test_readers_go_on_after_the_server_was_away(private_redis: PrivateRedis, run_id: RunId) -> None:
    log = EventLog(private_redis.client(), ttl_s=3600)
    feed = EventFeed(OneLogServer(private_redis.client()))
    async with feed.running(), feed.subscribe(run_id) as subscription:
        await until_live(subscription, log)
        await private_redis.kill()
        await private_redis.start()
        await Writer(log, run_id).write(2)
        assert await read_up_to(subscription, log, 2) == [1, 2]


async def test_connections_that_break_all_the_time_cost_no_event(private_redis: PrivateRedis) -> None:
    """Twenty runs, readers from the start and late ones, and the feed's connection cut every few milliseconds."""
    log = EventLog(private_redis.client(), ttl_s=3600)
    feed = EventFeed(OneLogServer(private_redis.client()))
    randomness = random.Random(4)
    run_ids = [RunId(f"run-{number}") for number in range(20)]
    total = 60

    async def write(run_id: RunId) -> None:
        writer = Writer(log, run_id)
        while writer.last < total:
            await writer.write(min(randomness.choice([1, 1, 1, 3]), total - writer.last))
            await after(randomness.uniform(0.001, 0.02))

    async def read(run_id: RunId, delay: float, start: int) -> None:
        await after(delay)
        async with feed.subscribe(run_id) as subscription:
            seen = await read_up_to(subscription, log, total, after_seq=start)
        assert seen == list(range(start + 1, total + 1))

    async def cut() -> None:
        while True:
            await after(0.02)
            await private_redis.cut_subscribers()

    async with feed.running():
        cutting = asyncio.ensure_future(cut())
        async with asyncio.TaskGroup() as group:
            for run_id in run_ids:
                group.create_task(write(run_id))
                group.create_task(read(run_id, 0, 0))
                group.create_task(read(run_id, randomness.uniform(0, 0.5), randomness.randrange(20)))
        cutting.cancel()
        await asyncio.wait([cutting])
