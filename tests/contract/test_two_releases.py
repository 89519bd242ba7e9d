"""An old and a new release run side by side during an upgrade: what one of them does not know ends nothing in it.

The newer release is played by its words: what it would publish, and what it would write into a log.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from api.runs.reader import LogEnds, RunReader
from shared.concurrency import SystemClock
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.errors import CancelMode
from shared.domain.events import Ended, LogContinued, StatusChanged, Unknown, decode, encode, is_end
from shared.domain.ids import Fence, RunId, Seq
from shared.domain.lifecycle import RunStatus
from shared.domain.log_writer import Entries, LogTail, first_seq_of
from shared.domain.runs import Dispatch, Run
from shared.redis import keys
from shared.redis.connection import Announcements, CancelSignal, ChannelListener
from shared.redis.event_log import EventFeed, EventLog, adopt_log
from shared.redis.log_servers import OneLogServer
from shared.redis.queue import JobLeases, RunQueue
from shared.runs.orphans import OrphanedRuns
from tests.kit.runs.stored_runs import IDS, NOW, Stores, stored_runs
from tests.kit.runs.unobserved import unobserved
from tests.kit.runs.waiting_runs import WaitingRuns, make_worker, serving
from tests.kit.wait_until import wait_until
from worker.run.interruption import Interruption
from worker.run.publisher import Publisher

NOT_UNDERSTOOD = (
    b"",
    b" ",
    b"pause",
    b"run-x pause",
    b"run-x pause 30",
    b'{"run":"run-x","mode":"pause"}',
    b"\xff\xfe run-x",
    b"run-x \xff",
    b"-1 {}",
    b"1e3 {}",
    b"v2:17 {}",
)
"""What no channel of this release carries."""

KNOWN = encode(StatusChanged(1, "running"))
OF_A_NEWER_RELEASE = (
    b'{"type":"thought_of","at":3,"step_id":"step-1"}',
    b'{"type":"thought_of","at":"a minute ago"}',
    b'{"type":"text","at":3,"step_id":"step-1","message_id":"message-1","text":{"parts":["a list","now"]}}',
    b'{"type":"text","at":3,"step_id":"step-1","message_id":"message-1","text":"known","tone":"friendly"}',
    b'["an entry", "of another kind"]',
    b"no JSON at all",
    b'{"type":"text","at":3,"step_id":"step-1","message_id":"message-1","text":"\xff"}',
)
"""A type, a meaning, a field and forms that this release does not know."""
WRITTEN = [KNOWN, *OF_A_NEWER_RELEASE, KNOWN]


@pytest.fixture
async def stores(sqlite_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(sqlite_url) as stores:
        yield stores


@pytest.fixture
def event_log(redis: ArqRedis) -> EventLog:
    return EventLog(redis, ttl_s=3600)


async def publish(redis: ArqRedis, channel: str, *payloads: bytes) -> None:
    for payload in payloads:
        await cast("Any", redis).publish(channel, payload)


async def next_of(announcements: Announcements, run_id: RunId) -> tuple[CancelMode, int]:
    """The next announcement for this run, and how many times before the flags were to be looked at."""
    looks = 0
    async for announced in announcements:
        if announced is None:
            looks += 1
        elif announced[0] == run_id:
            return announced[1], looks
    raise AssertionError("announcements never end")


async def test_an_unknown_cancel_mode_ended_every_worker(redis: ArqRedis, run_id: RunId) -> None:
    """Its listener broke, and the worker with it. Now each means: look at the flags."""
    signal = CancelSignal(redis)
    async with signal.listen() as announcements:
        assert await anext(announcements) is None
        await publish(redis, keys.CANCELS_CHANNEL, *NOT_UNDERSTOOD)
        await signal.announce(run_id, CancelMode.ROLLBACK)
        assert await next_of(announcements, run_id) == (CancelMode.ROLLBACK, len(NOT_UNDERSTOOD))


async def test_a_cancel_whose_mode_is_unknown_is_a_cancel(redis: ArqRedis, run_id: RunId) -> None:
    await redis.set(keys.cancel_flag(run_id), b"pause")
    assert await CancelSignal(redis).raised([run_id]) == {run_id: CancelMode.INTERRUPT}


async def test_what_is_not_understood_on_the_wake_channel_ends_no_worker(redis: ArqRedis, run_id: RunId) -> None:
    runs = WaitingRuns()
    async with serving(make_worker(redis, runs)):
        await publish(redis, keys.WAKE_CHANNEL, *NOT_UNDERSTOOD)
        await RunQueue(redis).dispatch(Dispatch(run_id, 1))
        await wait_until(lambda: runs.started == [(run_id, 1)], description="the run to start")


async def test_a_job_that_nobody_understands_ends_no_worker(redis: ArqRedis, run_id: RunId) -> None:
    """A newer release may queue work of another kind."""
    jobs = {"job-without-a-number": 1, "compact:thread-1:x": 2, b"\xff\xfe:1": 3}
    await cast("Any", redis).zadd(keys.QUEUE, jobs)
    await redis.set(keys.job("compact:thread-1:x"), b'{"v":2,"do":"compact"}')
    runs = WaitingRuns()
    async with serving(make_worker(redis, runs)):
        await RunQueue(redis).dispatch(Dispatch(run_id, 1))
        await wait_until(lambda: runs.started == [(run_id, 1)], description="the run to start")


async def test_a_job_whose_id_is_no_text_was_taken_for_another_job(redis: ArqRedis, run_id: RunId) -> None:
    """Its id was decoded with replacements. Nobody had a lease on that job, so the worker took it again and ran it."""
    await cast("Any", redis).zadd(keys.QUEUE, {b"\xff\xfe:1": 1})
    await RunQueue(redis).dispatch(Dispatch(run_id, 1))
    claimed = await JobLeases(redis, worker="worker-1", lease_s=600).claim(10)
    assert claimed.job_ids == [keys.job_id(run_id, 1)]
    assert claimed.next_in_s is not None, "it is there for whoever understands it"


async def test_what_is_not_understood_on_the_feed_sends_readers_to_the_log(
    redis: ArqRedis, event_log: EventLog, run_id: RunId
) -> None:
    """Its listener broke, and every stream of the API process with it."""
    feed = EventFeed(OneLogServer(redis))
    await event_log.open(run_id, Fence(1))
    async with feed.running(), feed.subscribe(run_id) as subscription:
        for payload in NOT_UNDERSTOOD:

            async def is_live() -> bool:
                await subscription.read(event_log, Seq(1))
                return not await subscription.wait(0.02)

            await wait_until(is_live, description="the subscription to be live")
            assert not subscription.behind
            await publish(redis, keys.feed(run_id), payload)
            await wait_until(lambda: subscription.behind, description=f"a look into the log after {payload!r}")
        await event_log.append(run_id, Fence(1), LogTail(Seq(2), [KNOWN]), needs=Seq(0))
        assert await subscription.read(event_log, Seq(1)) == [(Seq(2), KNOWN)]


async def test_a_callback_that_stumbles_over_a_message_does_not_end_its_listener(
    redis: ArqRedis, run_id: RunId
) -> None:
    heard: list[bytes] = []
    subscribed: list[bytes] = []

    def on_message(_channel: bytes, payload: bytes) -> None:
        heard.append(payload)
        raise KeyError(payload)

    def on_subscribed(channel: bytes) -> None:
        subscribed.append(channel)
        raise KeyError(channel)

    listener = ChannelListener(redis, name="test", on_message=on_message, on_subscribed=on_subscribed)
    channel = f"channel-of-{run_id}"
    listener.add(channel)
    async with listener.running():
        await wait_until(lambda: subscribed, description="the subscription")
        await publish(redis, channel, b"one", b"two")
        await wait_until(lambda: heard == [b"one", b"two"], description="both messages")
    assert subscribed == [channel.encode()], "the connection was kept"


async def claimed_and_shown(stores: Stores, event_log: EventLog) -> Run:
    """A run whose worker, of the newer release, has shown events that SQL does not have, and is gone."""
    run = await stores.claimed()
    await event_log.open(run.id, run.fence)
    await event_log.append(run.id, run.fence, LogTail(Seq(2), WRITTEN), needs=Seq(0))
    return run


def publisher_of(run: Run, stores: Stores, event_log: EventLog) -> Publisher:
    return Publisher(
        run,
        event_log=event_log,
        events=stores.events,
        checkpoints=stores.checkpoints,
        clock=SystemClock(),
        interruption=Interruption(),
        observation=unobserved(run),
    )


def reader_of(redis: ArqRedis, stores: Stores, event_log: EventLog, feed: EventFeed) -> RunReader:
    return RunReader(
        runs=stores.runs, events=stores.events, event_log=event_log, feed=feed, log_ends=LogEnds(stores.runs)
    )


@pytest.mark.parametrize("entry", OF_A_NEWER_RELEASE)
def test_an_entry_that_is_not_understood_is_no_error(entry: bytes) -> None:
    event = decode(entry)
    assert isinstance(event, Unknown) is (b"tone" not in entry)
    assert not is_end(entry)


async def test_an_event_of_a_newer_release_broke_an_adoption(
    stores: Stores, redis: ArqRedis, event_log: EventLog
) -> None:
    """The old worker could not begin the run, whoever of its kind tried it. Now it stores what it does not understand
    as it is, and goes on behind it."""
    run = await claimed_and_shown(stores, event_log)
    run = await stores.claim(run)
    async with publisher_of(run, stores, event_log).publishing() as publisher:
        assert publisher.follows == 1 + len(WRITTEN)
        publisher.emit(StatusChanged(5, "running"))
        assert await publisher.wait_sent(10)
    stored = await stores.events.read(run.id, Seq(1))
    assert [entry for _, entry in stored] == WRITTEN


async def test_an_event_of_a_newer_release_does_not_keep_a_run_from_being_cancelled(
    stores: Stores, redis: ArqRedis, event_log: EventLog
) -> None:
    run = await claimed_and_shown(stores, event_log)
    orphans = OrphanedRuns(
        runs=stores.runs,
        agents=stores.agents,
        messages=stores.messages,
        checkpoints=stores.checkpoints,
        settlements=stores.settlements,
        events=stores.events,
        event_log=event_log,
        queue=RunQueue(redis),
        clock=SystemClock(),
        ids=IDS,
    )
    ended = await orphans.cancel(run, cause="user", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_CANCEL)
    assert ended.status is RunStatus.CANCELLED
    stored = await stores.events.read(run.id, Seq(1))
    assert [entry for _, entry in stored[: len(WRITTEN)]] == WRITTEN
    assert is_end(stored[-1][1])


async def test_an_event_of_a_newer_release_does_not_end_a_stream(
    stores: Stores, redis: ArqRedis, event_log: EventLog
) -> None:
    """Neither of one who reads live, nor of one who reads what SQL has."""
    run = await claimed_and_shown(stores, event_log)
    feed = EventFeed(OneLogServer(redis))
    reader = reader_of(redis, stores, event_log, feed)
    seen: Entries = []
    async with feed.running(), aclosing(reader.follow(run, Seq(1), quiet_s=60)) as batches:
        async for batch in batches:
            seen += batch
            if len(seen) == len(WRITTEN):
                await event_log.append(
                    run.id, run.fence, LogTail(Seq(len(WRITTEN) + 2), [*WRITTEN, encode(Ended(9))]), needs=Seq(0)
                )
    assert [entry for _, entry in seen] == [*WRITTEN, *WRITTEN, encode(Ended(9))]

    await adopt_log(run, event_log, stores.checkpoints.adopt, NOW)
    settled = (await stores.settle(await stores.runs.look_up(run.id))).run
    again = [entry async for batch in reader.follow(settled, Seq(1), quiet_s=1) for entry in batch]
    assert again[: len(seen)] == seen
    assert is_end(again[-1][1])


@pytest.mark.parametrize("is_announced", [True, False], ids=["an announced jump", "a jump that is not understood"])
async def test_an_owner_of_a_newer_release_goes_on_and_readers_follow(
    stores: Stores, redis: ArqRedis, event_log: EventLog, is_announced: bool
) -> None:
    """The first event of an owner says what it follows, also with a field that is new; one that says it in a way that
    this release does not know is a gap."""
    run = await claimed_and_shown(stores, event_log)
    await adopt_log(run, event_log, stores.checkpoints.adopt, NOW)
    run = await stores.claim(run)
    last, first = Seq(1 + len(WRITTEN)), first_seq_of(run.fence)
    opening = encode(LogContinued(3, last))[:-1] + b',"why":"moved"}' if is_announced else OF_A_NEWER_RELEASE[0]
    await event_log.open(run.id, run.fence)
    written = [opening, KNOWN, encode(Ended(9))]
    await event_log.append(run.id, run.fence, LogTail(first, written), needs=Seq(0))
    feed = EventFeed(OneLogServer(redis))
    reader = reader_of(redis, stores, event_log, feed)
    async with feed.running():
        seen = [entry async for batch in reader.follow(run, last, quiet_s=60) for entry in batch]
    assert [entry for _, entry in seen][-3:] == written
    assert len(seen) == (3 if is_announced else 4)

    taker = await stores.claim(run)
    follows = (await adopt_log(taker, event_log, stores.checkpoints.adopt, NOW)).follows
    assert follows == (first + 2 if is_announced else last), "what cannot be placed is void, not misplaced"
