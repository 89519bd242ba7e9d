"""A run that nobody holds is cancelled while Redis is as bad as it can be: no jump that readers are not told of, and no
number that was given twice."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, cast

import pytest

from api.runs.cancel import RunCanceller
from api.runs.reader import LogEnds, RunReader
from shared.concurrency import SystemClock, background
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.errors import CancelMode, LeaseLost, StaleFence
from shared.domain.events import LogContinued, TextChunk, decode, encode, is_end
from shared.domain.ids import Fence, IdMaker, MessageId, RunId, Seq, StepId
from shared.domain.lifecycle import RunStatus
from shared.domain.log_writer import Entries, LogTail, continues, first_seq_of
from shared.domain.runs import Dispatch, Run
from shared.redis import keys
from shared.redis.connection import CancelSignal
from shared.redis.event_log import EventFeed, EventLog, RedisLostData
from shared.redis.log_servers import OneLogServer
from shared.redis.queue import JobLeases, RunQueue
from shared.runs.orphans import OrphanedRuns
from shared.sql.runs.listing import QuietRun
from tests.kit.clocks import FrozenClock
from tests.kit.runs.stored_runs import NOW, Stores, stored_runs
from tests.kit.services.redis_losses import lose_end_of_stream
from tests.kit.services.redis_servers import PrivateRedis, read_only
from tests.kit.wait_until import wait_until

IN_SQL, SHOWN = 2, 7
"""Of the entries that readers have seen, SQL has so many."""
WORDS = [encode(TextChunk(0, StepId("step-1"), MessageId("message-1"), f"word {number} ")) for number in range(SHOWN)]
LATE = encode(TextChunk(0, StepId("step-1"), MessageId("message-1"), "from the dead"))

Trouble = Callable[[PrivateRedis, Run], AbstractAsyncContextManager[object]]


@pytest.fixture
async def stores(sqlite_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(sqlite_url) as stores:
        yield stores


@asynccontextmanager
async def none(_redis: PrivateRedis, _run: Run) -> AsyncGenerator[None]:
    yield


def takes_no_writes(redis: PrivateRedis, _run: Run) -> AbstractAsyncContextManager[object]:
    return read_only(redis)


@asynccontextmanager
async def is_gone(redis: PrivateRedis, _run: Run) -> AsyncGenerator[None]:
    await redis.kill()
    yield
    await redis.start()


@asynccontextmanager
async def lost_everything(redis: PrivateRedis, _run: Run) -> AsyncGenerator[None]:
    await redis.empty()
    yield


@asynccontextmanager
async def lost_the_end(redis: PrivateRedis, run: Run) -> AsyncGenerator[None]:
    """As after a failover to a replica that lagged."""
    assert await lose_end_of_stream(redis.client(), keys.events(run.id), 3) == 3
    yield


@asynccontextmanager
async def lost_the_beginning(redis: PrivateRedis, run: Run) -> AsyncGenerator[None]:
    """What SQL has, and more."""
    await cast("Any", redis.client()).xtrim(keys.events(run.id), minid=f"{IN_SQL + 3}-0", approximate=False)
    yield


async def shown_by_a_worker_that_died(stores: Stores, event_log: EventLog) -> Run:
    run = await stores.claimed()
    await event_log.open(run.id, run.fence)
    await event_log.append(run.id, run.fence, LogTail(Seq(2), WORDS), needs=Seq(0))
    await stores.checkpoints.record_events(run, LogTail(Seq(2), WORDS[:IN_SQL]), NOW)
    return await stores.runs.look_up(run.id)


def orphaned_of(stores: Stores, redis: PrivateRedis) -> OrphanedRuns:
    return OrphanedRuns(
        runs=stores.runs,
        agents=stores.agents,
        messages=stores.messages,
        checkpoints=stores.checkpoints,
        settlements=stores.settlements,
        events=stores.events,
        event_log=EventLog(redis.client(), ttl_s=3600),
        queue=RunQueue(redis.client()),
        clock=SystemClock(),
        ids=IdMaker(),
    )


def canceller_of(stores: Stores, redis: PrivateRedis, queue: RunQueue, clock: FrozenClock) -> RunCanceller:
    servers = OneLogServer(redis.client())
    return RunCanceller(
        runs=stores.runs,
        orphans=orphaned_of(stores, redis),
        children=stores.children,
        cancel_signal=CancelSignal(redis.client()),
        queue=queue,
        feed=EventFeed(servers),
        event_log=EventLog(redis.client(), ttl_s=3600),
        clock=clock,
        wait_s=3600,
        lease_s=LEASE_S,
    )


def assert_every_jump_is_announced(after: int, seen: Entries) -> None:
    last = Seq(after)
    for seq, entry in seen:
        assert continues(last, seq, entry), f"{seq} does not say that it comes after {last}"
        last = seq
    assert is_end(seen[-1][1])


@pytest.mark.parametrize(
    ("trouble", "follows"),
    [
        (none, 1 + SHOWN),
        (takes_no_writes, 1 + IN_SQL),
        (is_gone, 1 + IN_SQL),
        (lost_everything, 1 + IN_SQL),
        (lost_the_end, 1 + SHOWN - 3),
        (lost_the_beginning, 1 + IN_SQL),
    ],
)
async def test_a_cancel_of_a_run_that_nobody_held_left_an_unannounced_jump(
    stores: Stores, private_redis: PrivateRedis, trouble: Trouble, follows: int
) -> None:
    """Redis was a replica that took no writes. The frames were 1, 2, 10003, 10004, without a gap, and nothing was lost.
    Found by chaos, with the seed 20261121."""
    event_log = EventLog(private_redis.client(), ttl_s=3600)
    run = await shown_by_a_worker_that_died(stores, event_log)
    feed = EventFeed(OneLogServer(private_redis.client()))
    reader = RunReader(
        runs=stores.runs,
        events=stores.events,
        event_log=event_log,
        feed=feed,
        log_ends=LogEnds(stores.runs, doubt_s=0.5),
    )
    live: Entries = []

    async def read_live() -> None:
        async for batch in reader.follow(run, Seq(1), quiet_s=60):
            live.extend(batch)

    async with feed.running(), reader.log_ends.watching(), background(read_live(), name="live reader"):
        await wait_until(lambda: len(live) == SHOWN, description="the reader to see what was shown")
        async with trouble(private_redis, run):
            cancelled = await orphaned_of(stores, private_redis).cancel(
                run, cause="user", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_CANCEL
            )
        assert cancelled.status is RunStatus.CANCELLED
        with suppress(LeaseLost, RedisLostData):
            await event_log.append(run.id, run.fence, LogTail(Seq(2 + SHOWN), [LATE]), needs=Seq(1 + SHOWN))
        with pytest.raises(StaleFence):
            await stores.checkpoints.record_events(run, LogTail(Seq(2 + SHOWN), [LATE]), NOW)
        await wait_until(lambda: is_end(live[-1][1]), description="the stream to end")

    assert_every_jump_is_announced(1, live)
    shown: dict[Seq, bytes] = {}
    for after in (*range(1, 2 + SHOWN), first_seq_of(Fence(2))):
        seen = [entry async for batch in reader.follow(cancelled, Seq(after), quiet_s=1) for entry in batch]
        assert_every_jump_is_announced(after, seen)
        for seq, entry in [*live, *seen]:
            assert shown.setdefault(seq, entry) == entry, f"{seq} was given twice"
    opening = decode(shown[first_seq_of(Fence(2))])
    assert isinstance(opening, LogContinued)
    assert opening.follows == follows
    # What a replica lacks that lagged is not missed.
    assert opening.lost_events is (trouble not in (none, lost_the_end))


@pytest.mark.parametrize("trouble", [none, takes_no_writes])
async def test_a_run_that_never_began_ends_with_the_numbers_of_a_first_owner(
    stores: Stores, private_redis: PrivateRedis, trouble: Trouble
) -> None:
    run = await stores.submitted()
    async with trouble(private_redis, run):
        cancelled = await orphaned_of(stores, private_redis).cancel(
            run, cause="user", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_CANCEL
        )
    stored = await stores.events.read(run.id, Seq(1))
    assert [seq for seq, _ in stored] == list(range(2, cancelled.last_seq + 1))
    assert is_end(stored[-1][1])


async def test_two_who_cancel_a_run_that_nobody_holds_end_it_once(stores: Stores, private_redis: PrivateRedis) -> None:
    event_log = EventLog(private_redis.client(), ttl_s=3600)
    run = await shown_by_a_worker_that_died(stores, event_log)
    orphans = orphaned_of(stores, private_redis)
    cancelled = await orphans.cancel(run, cause="user", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_CANCEL)
    with pytest.raises(StaleFence):
        await orphans.cancel(run, cause="user", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_CANCEL)
    assert await stores.runs.look_up(run.id) == cancelled
    stored = await stores.events.read(run.id, Seq(1))
    assert [is_end(entry) for _, entry in stored].count(True) == 1


async def test_a_run_waited_for_the_sweeper_because_two_had_cancelled_the_one_before(
    stores: Stores, private_redis: PrivateRedis
) -> None:
    """The second of them came when the run had ended and another one was submitted, gave that one a new dispatch, found
    that the end was sent already, and told nobody of the dispatch. Found by the interleavings of a conversation."""
    run = await stores.submitted()
    first, second = orphaned_of(stores, private_redis), orphaned_of(stores, private_redis)
    await first.cancel(run, cause="user", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_CANCEL)
    submitted = await stores.submitted()
    await first.queue.dispatch(Dispatch(submitted.id, submitted.dispatch))

    await second.cancel(run, cause="user", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_CANCEL)

    waiting = await stores.runs.look_up(submitted.id)
    assert waiting.status is RunStatus.CREATED
    assert await second.queue.queued_among([(waiting.id, waiting.dispatch)])


class CountingQueue(RunQueue):
    """Counts how often it was asked for a lease."""

    looks = 0

    async def is_leased(self, run_id: RunId, number: int) -> bool:
        found = await super().is_leased(run_id, number)
        self.looks += 1
        return found

    async def looked_again(self) -> None:
        """Returns when a look has begun and ended after now."""
        enough = self.looks + 2
        await wait_until(lambda: self.looks >= enough, description="the cancel to look for the lease")


LEASE_S = 6.0


async def test_a_cancel_took_a_run_from_its_worker_because_redis_lost_the_lease_late(
    stores: Stores, private_redis: PrivateRedis
) -> None:
    """The time in which a worker may notice the loss was counted from the cancel's beginning. So a run that finished
    its step was settled while its tool still worked."""
    redis, clock = private_redis.client(), FrozenClock()
    run, queue = await stores.claimed(), CountingQueue(redis)
    canceller = canceller_of(stores, private_redis, queue, clock)
    await queue.dispatch(Dispatch(run.id, run.dispatch))
    leases = JobLeases(redis, worker="worker-1", lease_s=600)
    [job_id] = (await leases.claim(1)).job_ids

    async def status() -> RunStatus:
        await queue.looked_again()
        return (await stores.runs.look_up(run.id)).status

    async with asyncio.TaskGroup() as group, canceller.feed.running():
        cancel = group.create_task(canceller.cancel(run, actor="ada", mode=CancelMode.AFTER_STEP))
        assert await status() is RunStatus.RUNNING
        for _ in range(2):
            clock.advance(round(LEASE_S * 1000))
            await private_redis.empty()
            assert await status() is RunStatus.RUNNING
            clock.advance(round(LEASE_S / 2 * 1000) - 1)
            assert await status() is RunStatus.RUNNING
            assert await leases.retake(job_id)
            assert await status() is RunStatus.RUNNING

        await private_redis.empty()
        assert await status() is RunStatus.RUNNING
        clock.advance(round(LEASE_S / 2 * 1000))
        assert (await cancel).status is RunStatus.CANCELLED


async def test_a_cancel_took_a_run_from_its_worker_that_had_taken_its_lease_again_beside_the_sweeper(
    stores: Stores, private_redis: PrivateRedis
) -> None:
    """The worker has the run by the dispatch before the newest, and Redis does not have the newest."""
    run, queue, clock = await stores.claimed(), CountingQueue(private_redis.client()), FrozenClock()
    canceller = canceller_of(stores, private_redis, queue, clock)
    leases = JobLeases(private_redis.client(), worker="worker-1", lease_s=600)
    job_id = keys.job_id(run.id, run.dispatch)
    assert await leases.retake(job_id)
    await stores.runs.dispatch_again([QuietRun(run.id, RunStatus.RUNNING, run.dispatch, run.fence, NOW)])

    async with asyncio.TaskGroup() as group, canceller.feed.running():
        cancel = group.create_task(canceller.cancel(run, actor="ada", mode=CancelMode.AFTER_STEP))
        for _ in range(2):
            await queue.looked_again()
            clock.advance(round(LEASE_S * 1000))
        assert not cancel.done()
        assert await leases.finish(job_id)
        await queue.looked_again()
        clock.advance(round(LEASE_S / 2 * 1000))
        assert (await cancel).status is RunStatus.CANCELLED
