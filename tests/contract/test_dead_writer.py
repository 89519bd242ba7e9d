"""A worker that was taken for dead writes again, after a failover to a replica that lacks its last entries: whatever
Redis has forgotten, no number is given to two events."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from arq.connections import ArqRedis

from shared.concurrency import SystemClock
from shared.domain.errors import LeaseLost
from shared.domain.events import StatusChanged, StepRestarted, decode
from shared.domain.ids import Seq
from shared.domain.log_writer import Entries, continues, first_seq_of
from shared.domain.runs import Run
from shared.redis import keys
from shared.redis.connection import ChannelListener
from shared.redis.event_log import EventLog
from tests.kit.runs.stored_runs import Stores, stored_runs
from tests.kit.runs.unobserved import unobserved
from tests.kit.services.redis_losses import fail_over, replicate
from tests.kit.wait_until import wait_until
from worker.run.interruption import Interruption
from worker.run.publisher import Publisher


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


class Worker:
    """A run's owner: its publisher, and what would stop it."""

    def __init__(self, run: Run, stores: Stores, redis: ArqRedis) -> None:
        self.interruption = Interruption()
        self.publisher = Publisher(
            run,
            event_log=EventLog(redis, ttl_s=3600),
            events=stores.events,
            checkpoints=stores.checkpoints,
            clock=SystemClock(),
            interruption=self.interruption,
            observation=unobserved(run),
        )

    async def show(self, *texts: str) -> bool:
        """Emits events; whether they came out."""
        self.publisher.emit(*(StatusChanged(1, text) for text in texts))
        return await self.publisher.wait_sent(10)

    @property
    def was_stopped(self) -> bool:
        return isinstance(self.interruption.error, LeaseLost)


@asynccontextmanager
async def everything_published(redis: ArqRedis, run: Run) -> AsyncGenerator[Entries]:
    """What live readers of the run have heard, in the order in which it came."""
    heard: Entries = []
    subscribed: list[bytes] = []

    def on_message(_channel: bytes, payload: bytes) -> None:
        first, _, body = payload.partition(b" ")
        heard.extend((Seq(seq), entry) for seq, entry in enumerate(body.split(b"\n"), start=int(first)))

    listener = ChannelListener(redis, name="witness", on_message=on_message, on_subscribed=subscribed.append)
    listener.add(keys.feed(run.id))
    async with listener.running():
        await wait_until(lambda: subscribed, description="the subscription")
        yield heard


@pytest.mark.parametrize("is_stored", [False, True], ids=["SQL has nothing", "SQL has what was shown"])
@pytest.mark.parametrize("writes", ["before the next owner", "after the next owner"])
async def test_a_dead_writer_and_a_replica_that_lagged_gave_numbers_twice(
    stores: Stores, redis: ArqRedis, writes: str, is_stored: bool
) -> None:
    run = await stores.claimed()
    async with everything_published(redis, run) as heard:
        dead = Worker(run, stores, redis)
        async with dead.publisher.publishing():
            assert await dead.show("one", "two", "three")
            replica = await replicate(redis)
            assert await dead.show("four", "five")
            if is_stored:
                assert await dead.publisher.hand_over()
            next_run = await stores.claim(run)
            await fail_over(redis, replica, now_ms=round(time.time() * 1000))

            if writes == "before the next owner":
                came_out = await dead.show("from the dead")
                # Redis is asked for a hole that only it could fill, and SQL then says whose the run is.
                assert came_out is is_stored
                assert dead.was_stopped is not is_stored
            living = Worker(next_run, stores, redis)
            async with living.publisher.publishing():
                assert await living.show("from the living")
                assert not await dead.show("from the dead once more")
                assert dead.was_stopped
                assert not living.was_stopped
                assert await living.publisher.hand_over()
        stored = await stores.events.read(run.id, Seq(1))
        await wait_until(lambda: heard and heard[-1] == stored[-1], description="the last event to be heard")

    given: dict[Seq, bytes] = {}
    for seq, entry in [*heard, *stored, *await EventLog(redis, ttl_s=3600).read(run.id, Seq(0), None)]:
        assert given.setdefault(seq, entry) == entry, f"{seq} was given to two events"
    last = Seq(1)
    for seq, entry in stored:
        assert continues(last, seq, entry)
        last = seq
    opening = decode(given[first_seq_of(next_run.fence)])
    assert isinstance(opening, StepRestarted)
    assert opening.follows == (4 if not is_stored else 7 if writes == "before the next owner" else 6)
