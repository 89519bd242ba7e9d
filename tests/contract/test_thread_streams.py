"""The streams of threads: whatever the runs of a thread have done, all readers get the same from every cursor."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from arq.connections import ArqRedis

from api.admission import CallerQuotas
from api.event_stream import ServerEnd
from api.letta.conversation_events import ConversationFrames
from api.runs.reader import LogEnds, RunReader
from api.runs.streaming import StreamService
from api.runs.thread_projection import Thread, ThreadCursor
from api.runs.thread_streams import ThreadStreams
from api.runs.thread_watches import ThreadWatches
from shared.concurrency import SystemClock, background
from shared.domain.events import StatusChanged, StepRestarted, TextChunk, encode
from shared.domain.ids import MessageId, Seq, StepId, ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.limits import Limits, ProjectLimits
from shared.domain.log_writer import LogTail, first_seq_of
from shared.domain.runs import Run
from shared.redis.event_log import EventFeed, EventLog
from shared.redis.log_servers import OneLogServer
from shared.redis.queue import Quotas
from shared.sql.runs.turns import TurnStore
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import AGENT, IDS, Stores, approve, call, said, stored_runs
from tests.kit.services.sent_statements import sent_statements
from tests.kit.wait_until import wait_until

NONE = Seq(0)
OWN = ThreadId(AGENT.id)
THREAD = Thread(PROJECT, AGENT.id, OWN)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@dataclass
class Process:
    """An API process, as far as streams of threads go, and the readers that follow in it."""

    streams: ThreadStreams
    log: EventLog
    seen: list[bytes] = field(default_factory=list[bytes])

    async def follow(self) -> None:
        async for body in self.streams.batches(THREAD, ThreadCursor(), ConversationFrames(), follow=True):
            self.seen.append(body)

    async def follow_run(self, run: Run) -> None:
        async for body in self.streams.leg_batches(THREAD, run, ConversationFrames()):
            self.seen.append(body)

    async def read(self, after: ThreadCursor | None = None) -> list[bytes]:
        """The frames with a cursor, up to the present."""
        bodies = [
            body
            async for body in self.streams.batches(THREAD, after or ThreadCursor(), ConversationFrames(), follow=False)
        ]
        assert bodies[-1] == b"data: [DONE]\n\n"
        return placed(b"".join(bodies))


async def _empty(redis: Any) -> None:
    await redis.flushdb()


def placed(body: bytes) -> list[bytes]:
    return [frame for frame in body.split(b"\n\n") if frame.startswith(b"id: ")]


def cursor_of(frame: bytes) -> ThreadCursor:
    return ThreadCursor(*map(int, frame.split(b"\n", 1)[0].removeprefix(b"id: ").split(b".")))


@asynccontextmanager
async def process(stores: Stores, redis: ArqRedis, *, look_s: float = 0.3) -> AsyncGenerator[Process]:
    log, feed, clock = EventLog(redis, ttl_s=3600), EventFeed(OneLogServer(redis)), SystemClock()
    ends = LogEnds(stores.runs, doubt_s=1)
    streaming = StreamService(
        reader=RunReader(runs=stores.runs, events=stores.events, event_log=log, feed=feed, log_ends=ends),
        clock=clock,
        keepalive_s=60,
        quotas=CallerQuotas(Quotas(redis), ProjectLimits(Limits(), {}), clock, IDS),
        ending=ServerEnd(),
    )
    turns = TurnStore(stores.database)
    watches = ThreadWatches(turns, feed, look_s=look_s)
    streams = ThreadStreams(
        streaming=streaming,
        turns=turns,
        listing=stores.listing,
        approvals=stores.approvals,
        messages=stores.messages,
        watches=watches,
    )
    async with feed.running(), ends.watching(), watches.watching():
        yield Process(streams, log)


@dataclass
class Story:
    """Writes runs into the thread as workers and API processes do."""

    stores: Stores
    log: EventLog
    chance: Random = field(default_factory=lambda: Random(1))

    async def begun(self) -> Run:
        return await self.claimed(await self.queued())

    async def queued(self) -> Run:
        return await self.stores.submitted(said("hi"), thread_id=OWN)

    async def claimed(self, run: Run) -> Run:
        run = await self.stores.claim(run)
        await self.log.open(run.id, run.fence)
        await self.log.announce(run)
        return run

    async def says(self, run: Run, first: int, words: int) -> LogTail:
        """Shows words that SQL does not have yet."""
        pieces = [encode(_chunk(run, number)) for number in range(words)]
        tail = LogTail(Seq(first), pieces)
        await self.log.append(run.id, run.fence, tail, needs=NONE)
        return tail

    async def ends(self, run: Run, tail: LogTail, trigger: RunTrigger = RunTrigger.COMPLETE) -> Run:
        settled = await self.stores.settle(run, trigger, tail=tail)
        if self.chance.random() < 0.7:  # a worker that dies here leaves the end in SQL alone
            await self.log.append(run.id, run.fence, settled.tail, needs=NONE)
        return settled.run

    async def answers(self) -> None:
        run = await self.begun()
        await self.ends(run, await self.says(run, 2, self.chance.randrange(5)))

    async def fails(self) -> None:
        run = await self.begun()
        await self.ends(run, await self.says(run, 2, 1), RunTrigger.FAIL)

    async def is_cancelled_in_the_queue(self) -> None:
        run = await self.queued()
        await self.stores.settle(run, RunTrigger.CANCEL)
        await self.log.announce(run)

    async def is_handed_over(self) -> None:
        run = await self.begun()
        tail = await self.says(run, 2, 3)
        await self.stores.checkpoints.hand_over(run, tail, NOW)
        run = await self.claimed(run)
        first = first_seq_of(run.fence)
        mine = [encode(StepRestarted(at=0, attempt=2, follows=tail.last)), encode(_chunk(run, 9))]
        await self.log.append(run.id, run.fence, LogTail(first, mine), needs=NONE)
        await self.ends(run, LogTail(first, mine))

    async def parks(self, run: Run | None = None) -> Run:
        run = await self.stores.park(run or await self.begun(), call("c", needs_approval=True))
        entries = [entry for _, entry in await self.stores.events.read(run.id, Seq(1))]
        await self.log.append(run.id, run.fence, LogTail(Seq(2), entries), needs=NONE)
        return run

    async def is_decided(self) -> None:
        await self.parks()
        continuation = await self.stores.decide(approve("c"), thread_id=OWN)
        await self.log.announce(continuation)
        run = await self.claimed(continuation)
        await self.ends(run, await self.says(run, 2, 2))

    async def is_decided_twice(self) -> None:
        await self.parks()
        run = await self.claimed(await self.stores.decide(approve("c"), thread_id=OWN))
        await self.stores.park(run, call("d", needs_approval=True))
        run = await self.claimed(await self.stores.decide(approve("d"), thread_id=OWN))
        await self.ends(run, await self.says(run, 2, 1))

    async def is_cancelled_while_it_waits(self) -> None:
        run = await self.parks()
        await self.stores.settle(run, RunTrigger.CANCEL)
        await self.log.announce(run)

    @property
    def turns(self) -> list[Callable[[], Awaitable[Any]]]:
        return [
            *(self.answers, self.fails, self.is_cancelled_in_the_queue, self.is_handed_over, self.is_decided),
            *(self.is_decided_twice, self.is_cancelled_while_it_waits),
        ]


def _chunk(run: Run, number: int) -> TextChunk:
    return TextChunk(at=number, step_id=StepId("step-1"), message_id=_message_of(run), text=f"word {number} ")


def _message_of(run: Run) -> MessageId:
    return MessageId("message-" + run.id.removeprefix("run-"))


@pytest.mark.parametrize("seed", range(8))
async def test_head_and_tail_are_the_whole_at_any_cut_of_any_story(stores: Stores, redis: ArqRedis, seed: int) -> None:
    """Live, later, from every cursor, after Redis was emptied, and in another process."""
    async with process(stores, redis) as here:
        story = Story(stores, here.log, Random(seed))
        async with background(here.follow(), name="follow"):
            for _ in range(6):
                await story.chance.choice(story.turns)()
            whole = await here.read()
            await wait_until(
                lambda: len(placed(b"".join(here.seen))) >= len(whole), description="the live reader to have it all"
            )
    assert placed(b"".join(here.seen)) == whole
    cursors = [cursor_of(frame) for frame in whole]
    assert cursors == sorted(set(cursors))
    await _empty(redis)
    async with process(stores, redis) as elsewhere:
        for number, cursor in enumerate([ThreadCursor(), *cursors]):
            assert await elsewhere.read(cursor) == whole[number:], cursor


async def test_a_change_that_nobody_heard_of_is_found_by_one_look(stores: Stores, redis: ArqRedis) -> None:
    async with process(stores, redis) as here, background(here.follow(), name="follow"):
        await wait_until(lambda: here.seen, description="the reader to have caught up")
        await stores.ended(thread_id=OWN)
        await wait_until(lambda: b"run_ended" in b"".join(here.seen), description="the run to be found")


@pytest.mark.parametrize("tells_turn", [True, False], ids=["this release", "the release before"])
async def test_the_sender_of_a_run_sees_it_at_its_place(stores: Stores, redis: ArqRedis, tells_turn: bool) -> None:
    """The log says which turn the run has; the worker of an older release leaves that to a query."""
    async with process(stores, redis) as here:
        story = Story(stores, here.log)
        await story.answers()
        run = await story.queued()
        async with background(here.follow_run(run), name="follow the run"):
            claimed = await story.claimed(run)
            status = encode(StatusChanged(0, "running", turn=claimed.turn if tells_turn else None))
            with sent_statements() as statements:
                await here.log.append(run.id, claimed.fence, LogTail(Seq(2), [status]), needs=NONE)
                tail = await story.says(claimed, 3, 2)
                await wait_until(lambda: b"word 1" in b"".join(here.seen), description="the run to be shown")
            await story.ends(claimed, LogTail(Seq(2), [status, *tail.entries]))
    assert cursor_of(placed(b"".join(here.seen))[0]) == ThreadCursor(2, 0, 1)
    looked_up = [one.text for one in statements if "runs.options" in one.text]
    assert bool(looked_up) is not tells_turn


async def test_a_leg_keeps_its_number_when_the_one_before_is_deleted(stores: Stores, redis: ArqRedis) -> None:
    async with process(stores, redis) as here:
        await Story(stores, here.log).is_decided()
        whole = await here.read()
        [first, second] = {cursor_of(frame)[:2] for frame in whole}
        [parked] = [leg.run for leg in await TurnStore(stores.database).first_from(PROJECT, OWN, 1) if leg.number == 0]
        await stores.listing.delete(PROJECT, parked.id)

        left = await here.read()

    legs = [cursor_of(frame).leg for frame in left]
    assert set(legs) == {1}
    assert {first[1], second[1]} == {0, 1}
    assert [frame for frame in left if b"run_started" not in frame] == [
        frame for frame in whole if cursor_of(frame).leg == 1 and b"run_started" not in frame
    ]


async def test_what_retention_took_is_a_gap_between_a_beginning_and_an_end(stores: Stores, redis: ArqRedis) -> None:
    async with process(stores, redis) as here:
        await Story(stores, here.log).answers()
        before = await here.read()
        await _empty(redis)
        await stores.retention.prune(NOW + timedelta(days=90), NOW)

        after = await here.read()

    assert b'"run_started"' in after[0]
    assert b'"gap"' in after[1]
    assert after[0] == before[0], "the history has what the submission had"
    assert cursor_of(after[-1]) == cursor_of(before[-1])
    assert b'"run_ended"' in after[-1]


async def test_later_turns_wait_until_a_parked_one_is_decided(stores: Stores, redis: ArqRedis) -> None:
    """A run that was cancelled in the queue has its turn before the continuation of the parked run begins, and comes
    after it in the order: a reader that had shown it would have had to go back."""
    async with process(stores, redis) as here:
        story = Story(stores, here.log)
        first, second = await story.begun(), await story.queued()
        await story.parks(first)
        await stores.settle(second, RunTrigger.CANCEL)
        parked = await here.read()
        assert b'"run_ended"' in parked[-1]
        run = await story.claimed(await stores.decide(approve("c"), thread_id=OWN))
        await story.ends(run, await story.says(run, 2, 1))

        whole = await here.read()

    assert whole[: len(parked)] == parked
    assert [cursor_of(frame)[:2] for frame in whole if b"run_started" in frame] == [(1, 0), (1, 1), (2, 0)]


async def test_a_cursor_ahead_of_everything_waits(stores: Stores, redis: ArqRedis) -> None:
    async with process(stores, redis) as here:
        story = Story(stores, here.log)
        await story.answers()
        assert await here.read(ThreadCursor(7, 0, 1)) == []
        assert await here.read(ThreadCursor(1, 9, 1)) == []
        await story.answers()
        assert {cursor_of(frame).turn for frame in await here.read(ThreadCursor(1, 9, 1))} == {2}


async def test_readers_that_leave_leave_nothing_behind(stores: Stores, redis: ArqRedis) -> None:
    async with process(stores, redis) as here:
        async with background(here.follow(), name="follow"), background(here.follow(), name="follow too"):
            await wait_until(lambda: len(here.seen) == 2, description="both to have caught up")
        left: list[Any] = [value for value in vars(here.streams.watches).values() if isinstance(value, dict)]
    assert len(left) >= 3
    assert not any(left)
