"""A block is ended from outside with a typed error; whatever the timing, no cancellation is lost or left behind."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.concurrency import background
from shared.domain.errors import (
    CancelMode,
    CancelRequested,
    LeaseLost,
    RunInterrupted,
    RunTimeout,
    ShutdownRequested,
)
from tests.kit.wait_until import after
from worker.run.interruption import Interruption

FOREVER = 3600.0


def assert_nothing_left_behind() -> None:
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def interrupt_after(delay: float, interruption: Interruption, error: RunInterrupted) -> None:
    await after(delay)
    interruption.interrupt(error)


@asynccontextmanager
async def watched(watch: Callable[[Interruption], Coroutine[Any, Any, None]]) -> AsyncGenerator[None]:
    """A block that may be interrupted, and beside it somebody who may do so, as a worker runs the two."""
    interruption = Interruption()
    async with background(watch(interruption), name="watch"), interruption.interrupting("run"):
        yield


def interrupts(delay: float, error: RunInterrupted) -> Callable[[Interruption], Coroutine[Any, Any, None]]:
    return lambda interruption: interrupt_after(delay, interruption, error)


async def test_the_error_comes_out_of_the_block() -> None:
    interruption = Interruption()
    unwound: list[str] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(interrupt_after(0, interruption, LeaseLost()))
        with pytest.raises(LeaseLost):
            async with interruption.interrupting("run"):
                try:
                    await after(FOREVER)
                finally:
                    unwound.append("body")
    assert unwound == ["body"]
    assert_nothing_left_behind()


async def test_the_first_interrupt_wins() -> None:
    interruption = Interruption()
    with pytest.raises(CancelRequested):
        async with interruption.interrupting("run"):
            interruption.interrupt(CancelRequested())
            interruption.interrupt(ShutdownRequested())
            await after(FOREVER)
    assert_nothing_left_behind()


async def test_an_interrupt_before_the_block_ends_it_at_once() -> None:
    interruption = Interruption()
    interruption.interrupt(ShutdownRequested())
    with pytest.raises(ShutdownRequested):
        async with interruption.interrupting("run"):
            pytest.fail("the block began")
    assert_nothing_left_behind()


async def test_an_interrupt_after_the_block_is_ignored() -> None:
    interruption = Interruption()
    async with interruption.interrupting("run"):
        await after()
    interruption.interrupt(LeaseLost())
    await after()
    assert_nothing_left_behind()


async def test_a_result_stands_when_the_interrupt_did_not_reach_the_block_in_time() -> None:
    interruption = Interruption()
    async with interruption.interrupting("run"):
        await after()
        interruption.interrupt(LeaseLost())
    await after()
    assert_nothing_left_behind()


async def test_the_interrupt_wins_over_an_error_of_the_same_moment() -> None:
    interruption = Interruption()
    with pytest.raises(LeaseLost) as caught:
        async with interruption.interrupting("run"):
            interruption.interrupt(LeaseLost())
            raise ValueError("own")
    assert isinstance(caught.value.__cause__, ValueError)
    await after()
    assert_nothing_left_behind()


async def test_the_interrupt_is_raised_when_the_block_fails_while_it_unwinds() -> None:
    interruption = Interruption()
    with pytest.raises(CancelRequested) as caught:
        async with interruption.interrupting("run"):
            interruption.interrupt(CancelRequested())
            try:
                await after(FOREVER)
            except asyncio.CancelledError:
                raise ConnectionError("the stream broke off") from None
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert_nothing_left_behind()


async def test_a_group_of_tasks_in_the_block_ends_with_it() -> None:
    interruption = Interruption()

    async def tool() -> None:
        try:
            await after(FOREVER)
        except asyncio.CancelledError:
            raise ConnectionError("killed") from None

    with pytest.raises(CancelRequested):
        async with interruption.interrupting("run"), asyncio.TaskGroup() as tools:
            tools.create_task(tool())
            tools.create_task(interrupt_after(0, interruption, CancelRequested()))
    assert_nothing_left_behind()


async def test_the_block_takes_no_longer_than_its_timeout() -> None:
    with pytest.raises(RunTimeout):
        async with Interruption().interrupting("run", timeout_s=0.001):
            await after(FOREVER)
    assert_nothing_left_behind()


async def test_a_timeout_does_not_reach_beyond_the_block() -> None:
    async with Interruption().interrupting("run", timeout_s=0.001):
        pass
    await after(0.005)
    assert_nothing_left_behind()


async def test_a_foreign_cancellation_passes_through() -> None:
    interruption = Interruption()

    async def run() -> None:
        async with interruption.interrupting("run"):
            await after(FOREVER)

    task = asyncio.ensure_future(run())
    await after()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_foreign_cancellation_wins_over_an_interrupt() -> None:
    interruption = Interruption()

    async def run() -> None:
        async with interruption.interrupting("run"):
            await after(FOREVER)

    task = asyncio.ensure_future(run())
    await after()
    interruption.interrupt(LeaseLost())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_interrupt_does_not_disturb_a_block_that_was_cancelled_by_somebody_else() -> None:
    interruption = Interruption()
    cleaned_up: list[str] = []

    async def run() -> None:
        async with interruption.interrupting("run"):
            try:
                await after(FOREVER)
            finally:
                interruption.interrupt(LeaseLost())
                await after()
                cleaned_up.append("done")

    task = asyncio.ensure_future(run())
    await after()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned_up == ["done"]


async def test_held_back_interrupts_are_delivered_afterwards() -> None:
    interruption = Interruption()
    written: list[str] = []
    with pytest.raises(CancelRequested):
        async with interruption.interrupting("run"):
            with interruption.shielded(), interruption.shielded():
                interruption.interrupt(CancelRequested())
                await after()
                written.append("whole")
            await after(FOREVER)
    assert written == ["whole"]
    assert_nothing_left_behind()


async def test_a_result_stands_when_the_interrupt_was_held_back_to_the_end() -> None:
    interruption = Interruption()
    async with interruption.interrupting("run"):
        with interruption.shielded():
            interruption.interrupt(CancelRequested())
            await after()
    await after()
    assert_nothing_left_behind()


async def test_a_cancel_after_the_step_waits_until_the_block_asks() -> None:
    interruption = Interruption()
    async with interruption.interrupting("run"):
        assert interruption.request_cancel(CancelMode.AFTER_STEP)
        assert not interruption.request_cancel(CancelMode.AFTER_STEP)
        await after()
        assert interruption.after_step


async def test_a_cancel_can_become_more_urgent_but_is_new_only_once() -> None:
    interruption = Interruption()
    with pytest.raises(CancelRequested) as caught:
        async with interruption.interrupting("run"):
            assert interruption.request_cancel(CancelMode.AFTER_STEP)
            assert interruption.request_cancel(CancelMode.ROLLBACK)
            assert not interruption.request_cancel(CancelMode.INTERRUPT)
            assert not interruption.request_cancel(CancelMode.AFTER_STEP)
            await after(FOREVER)
    assert caught.value.mode is CancelMode.ROLLBACK


async def test_one_interruption_serves_one_block() -> None:
    interruption = Interruption()
    async with interruption.interrupting("run"):
        pass
    with pytest.raises(RuntimeError, match="one block"):
        async with interruption.interrupting("run"):
            pass


async def test_a_watcher_interrupts_the_body_with_its_own_error() -> None:
    with pytest.raises(LeaseLost):
        async with watched(interrupts(0, LeaseLost())):
            await after(FOREVER)
    assert_nothing_left_behind()


async def test_a_watcher_that_breaks_ends_the_body_too() -> None:
    async def watch(_: Interruption) -> None:
        await after()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with watched(watch):
            await after(FOREVER)
    assert_nothing_left_behind()


async def test_a_watcher_ends_with_the_body() -> None:
    ended: list[str] = []

    async def watch(_: Interruption) -> None:
        try:
            await after(FOREVER)
        finally:
            ended.append("watcher")

    async with watched(watch):
        await after()
    assert ended == ["watcher"]


async def test_the_body_keeps_its_own_error() -> None:
    with pytest.raises(KeyError):
        async with watched(interrupts(FOREVER, LeaseLost())):
            raise KeyError("body")


async def race(turns: Callable[[], Awaitable[None]], lease: float, cancel: float) -> str:
    """One run with two watchers: how it ended. Fails when a cancellation is left behind."""
    unwound: list[str] = []
    try:
        async with (
            watched(interrupts(lease, LeaseLost())),
            watched(interrupts(cancel, CancelRequested())),
        ):
            try:
                await turns()
            finally:
                unwound.append("body")
        outcome = "completed"
    except LeaseLost:
        outcome = "lease lost"
    except CancelRequested:
        outcome = "cancelled"
    assert unwound == ["body"]
    await after()  # a cancellation that was left behind would be raised here
    assert_nothing_left_behind()
    return outcome


async def test_two_thousand_races_leave_nothing_behind() -> None:
    random_delays = random.Random(20261120)
    outcomes: Counter[str] = Counter()
    for _ in range(2000):
        lease, cancel, work = (random_delays.choice([0, 0, 0.0002, 0.0004, 0.0006]) for _ in range(3))
        outcomes[await race(lambda delay=work: after(delay), lease, cancel)] += 1
    assert set(outcomes) == {"completed", "lease lost", "cancelled"}
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_two_thousand_races_with_a_foreign_cancellation_never_hide_it() -> None:
    randomness = random.Random(20261121)
    for _ in range(2000):
        lease, cancel, turns = (randomness.randrange(5) for _ in range(3))

        async def work(count: int = turns) -> None:
            for _ in range(count):
                await after()

        task = asyncio.ensure_future(race(work, lease * 0.0001, cancel * 0.0001))
        for _ in range(randomness.randrange(6)):
            await after()
        was_over = task.done()
        task.cancel()
        await asyncio.wait([task])
        assert was_over or task.cancelled(), "somebody's cancellation was swallowed"
