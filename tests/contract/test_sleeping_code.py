"""Code that sleeps for long: no process and no worker stays for it, and nothing is lost meanwhile."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from arq.connections import ArqRedis

from shared.concurrency import SystemClock
from shared.domain.errors import CancelMode, ShutdownRequested
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.redis.event_log import EventLog
from shared.redis.queue import RunQueue
from shared.runs.orphans import OrphanedRuns
from tests.kit.code_agents.stage import FileStage
from tests.kit.code_agents.world import World
from tests.kit.runs.stored_runs import CANCEL, IDS, said, stored_runs
from worker.maintenance import Sweeper

HOUR = timedelta(hours=1)


class _Later(SystemClock):
    """The system's clock, an hour and a minute later."""

    def now(self) -> datetime:
        return super().now() + HOUR + timedelta(minutes=1)


@pytest.fixture
async def world(database_url: str, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[World]:
    stage = FileStage(tmp_path)
    async with stored_runs(database_url) as stores, stage.agents("tests.kit.code_agents.attached_program") as agents:
        yield World(stores, stage, redis, agents)


def _lives(world: World) -> bool:
    pid = int([one for one in world.stage.reached if one.startswith("pid ")][-1].split()[1])
    return Path(f"/proc/{pid}").exists()


def _left(run: Run) -> timedelta:
    """How long it still sleeps."""
    assert (run.status, run.waits_for, run.owner) == (RunStatus.RUNNING, "time", None), run.error
    assert run.waits_until is not None
    return run.waits_until - SystemClock().now()


async def _asleep(world: World, text: str = "3600") -> Run:
    run = await world.done(await world.submitted("sleeps", text))
    assert HOUR - timedelta(minutes=2) < _left(run) < HOUR
    assert not _lives(world)
    return run


async def test_a_run_that_sleeps_leaves_its_worker_and_goes_on_at_its_time(world: World) -> None:
    run = await _asleep(world)
    assert "slept" not in world.stage.reached
    run = await replace(world, clock=_Later()).done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.shown_text(run)).replace("|", "") == "Good night. "
    assert await world.texts() == ["3600", "Good night. "]


async def test_a_run_that_is_claimed_too_early_sleeps_on(world: World) -> None:
    run = await _asleep(world)
    again = await world.done(run)
    assert (again.fence, again.waits_until) == (run.fence + 1, run.waits_until)
    assert not _lives(world)


async def test_nobody_stays_up_for_a_sleeping_run(world: World) -> None:
    """The sweeper dispatches it at its time, and waits for no worker that may hold it."""
    run = await _asleep(world)
    queue, clock = RunQueue(world.redis), SystemClock()
    sweeper = Sweeper(
        listing=world.stores.listing,
        runs=world.stores.runs,
        queue=queue,
        orphans=_orphans(world),
        clock=clock,
        quiet_s=0,
        patience_s=600,
    )
    assert await sweeper.sweep() == {}
    assert await replace(sweeper, clock=_Later()).sweep() == {"waited": 1}
    assert await queue.queued_among([(run.id, run.dispatch + 1)])


async def test_a_cancel_ends_a_sleeping_run_at_once(world: World) -> None:
    run = await _asleep(world)
    await world.stores.runs.request_cancel(run, CANCEL)
    await _orphans(world).cancel(run, cause="user", mode=CancelMode.INTERRUPT, denial_reason="")
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED
    assert await world.is_valid()


async def test_a_cancel_that_comes_while_the_run_leaves_is_not_lost(world: World) -> None:
    run = await _asleep(world)
    await world.stores.runs.request_cancel(run, CANCEL)
    assert (await world.done(run)).status is RunStatus.CANCELLED


async def test_a_message_that_is_injected_into_a_sleeping_run_is_there_when_it_wakes(world: World) -> None:
    run = await _asleep(world)
    await world.stores.inbox.inject(run, [said("hurry")], "refuse")
    run = await replace(world, clock=_Later()).done(run)
    assert run.status is RunStatus.COMPLETED
    assert (await world.texts()).count("hurry") == 1


async def test_a_call_beside_a_sleep_comes_to_its_end_first(world: World) -> None:
    run = await world.submitted("sleeps", "3600 work")
    worker = await world.begun(run, "work")
    assert _lives(world)
    world.stage.go_on()
    assert await worker.ended() is None
    assert _left(await world.stores.runs.look_up(run.id)) < HOUR
    assert world.stage.reached.count("work") == 1
    assert (await replace(world, clock=_Later()).done(run)).status is RunStatus.COMPLETED
    assert world.stage.reached.count("work") == 1, "it is in the journal"


async def test_a_person_is_asked_beside_a_sleep(world: World) -> None:
    """The sleep counts from its beginning, in the run that goes on behind the decision as well."""
    run = await world.done(await world.submitted("sleeps", "3600 ask"))
    assert run.status is RunStatus.AWAITING_APPROVAL
    run = await world.done(await world.approved(run))
    assert HOUR - timedelta(minutes=2) < _left(run) < HOUR
    assert (await replace(world, clock=_Later()).done(run)).status is RunStatus.COMPLETED


async def test_a_worker_that_drains_does_not_wait_for_a_sleep(world: World) -> None:
    run = await world.submitted("sleeps", "3600 work")
    worker = await world.begun(run, "work")
    worker.active.end_after_steps()
    world.stage.go_on()
    assert isinstance(await worker.ended(), ShutdownRequested)
    assert _left(await world.done(run)) < HOUR


@pytest.mark.parametrize("seconds", ["-1", "1e9", "nan"])
async def test_a_sleep_that_nobody_can_wait_for_is_refused(world: World, seconds: str) -> None:
    run = await world.done(await world.submitted("sleeps", seconds))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert f"ValueError: a sleep of {float(seconds)} s: it may have from 0 to 31622400 s" in (run.error.detail or "")


def _orphans(world: World) -> OrphanedRuns:
    stores = world.stores
    return OrphanedRuns(
        runs=stores.runs,
        agents=stores.agents,
        messages=stores.messages,
        checkpoints=stores.checkpoints,
        settlements=stores.settlements,
        events=stores.events,
        event_log=EventLog(world.redis, ttl_s=3600),
        queue=RunQueue(world.redis),
        clock=SystemClock(),
        ids=IDS,
    )
