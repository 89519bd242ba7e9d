"""A run that is `running` and shows nothing is measured: its worker lives and renews, so no sweep finds it."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

import pytest

from api.operations import KEPT_S, QUIETEST_LOOKED_AT, DeploymentStats
from shared.concurrency import unix_ms
from shared.domain.events import TextChunk, encode
from shared.domain.ids import MessageId, Seq, StepId, ThreadId
from shared.domain.log_writer import LogTail
from shared.domain.runs import Run
from shared.redis.connection import Redis
from shared.redis.embedded import connect_embedded
from shared.redis.event_log import EventLog
from shared.redis.log_servers import OneLogServer
from shared.redis.process_presence import RedisServers
from shared.redis.queue import RunQueue
from shared.sql.runs.listing import RunStatStore
from shared.telemetry.metrics import Metrics
from tests.kit.clocks import FrozenClock
from tests.kit.exposition import Figures
from tests.kit.runs.definitions import NOW
from tests.kit.runs.stored_runs import Stores, call, stored_runs

SILENCE = "running_silence_seconds"


@dataclass
class Deployment:
    """A deployment whose clock stands still between the moves of a test."""

    stores: Stores
    redis: Redis
    clock: FrozenClock
    figures: DeploymentStats
    log: EventLog
    _numbers: Iterator[int] = field(default_factory=count)

    async def silence_s(self) -> float:
        said = Figures((await self.figures.exposition()).decode())
        assert said.has(SILENCE)
        return said.of(SILENCE)

    def pass_s(self, seconds: float) -> None:
        assert seconds >= KEPT_S, "a scrape would tell what the last one has found"
        self.clock.advance(round(seconds * 1000))

    def thread(self) -> ThreadId:
        """One that no run is in."""
        return ThreadId(f"conv-of-{next(self._numbers)}")

    async def running(self) -> Run:
        """A run that a worker has just claimed."""
        run = await self.stores.claimed(thread_id=self.thread())
        await self.stores.checkpoints.hand_over(run, LogTail(Seq(2), ()), self.clock.now())
        await self.log.open(run.id, run.fence)
        return run

    async def show(self, run: Run, number: int) -> None:
        """The run's worker shows a piece of an answer; SQL hears of it with the end of the step."""
        event = TextChunk(unix_ms(self.clock.now()), StepId("step-1"), MessageId("message-1"), "word ")
        await self.log.append(run.id, run.fence, LogTail(Seq(number), [encode(event)]), needs=Seq(0))


@pytest.fixture
async def deployment(database_url: str) -> AsyncGenerator[Deployment]:
    clock, redis = FrozenClock(), connect_embedded()
    clock.ms = unix_ms(NOW)
    log = EventLog(redis, ttl_s=3600)
    async with stored_runs(database_url) as stores:
        figures = DeploymentStats(
            metrics=Metrics(),
            stats=RunStatStore(stores.database),
            queue=RunQueue(redis),
            redis=RedisServers(shared=redis, logs=OneLogServer(redis), is_embedded=True),
            event_log=log,
            clock=clock,
        )
        yield Deployment(stores, redis, clock, figures, log)
    await redis.aclose(close_connection_pool=True)


async def test_a_run_that_shows_nothing_grows_silent(deployment: Deployment) -> None:
    assert await deployment.silence_s() == 0
    deployment.pass_s(5)
    await deployment.running()
    deployment.pass_s(900)
    assert await deployment.silence_s() == 900


async def test_a_long_answer_that_is_shown_is_no_silence(deployment: Deployment) -> None:
    """SQL hears nothing of it before the step ends."""
    run = await deployment.running()
    for number in range(2, 6):
        deployment.pass_s(300)
        await deployment.show(run, number)
    deployment.pass_s(7)
    assert await deployment.silence_s() == 7


async def test_the_most_silent_run_is_found_behind_those_that_speak(deployment: Deployment) -> None:
    speaking = [await deployment.running() for _ in range(QUIETEST_LOOKED_AT // 2)]
    deployment.pass_s(10)
    await deployment.running()
    deployment.pass_s(600)
    for run in speaking:
        await deployment.show(run, 2)
    deployment.pass_s(5)
    assert await deployment.silence_s() == 605


async def test_what_waits_is_not_silent(deployment: Deployment) -> None:
    """For a person, for a worker, or for room in a budget."""
    await deployment.stores.parked(call("a", needs_approval=True), thread_id=deployment.thread())
    await deployment.stores.submitted(thread_id=deployment.thread())
    waiting = await deployment.stores.claimed(thread_id=deployment.thread())
    until = deployment.clock.now() + timedelta(days=1)
    await deployment.stores.checkpoints.hand_over(
        waiting, LogTail(Seq(2), ()), deployment.clock.now(), waits_until=until
    )
    deployment.pass_s(900)
    assert await deployment.silence_s() == 0
