"""One timer follows a moment that moves, also on uvloop, which makes no timer for less than half a millisecond."""

import asyncio

import pytest
import uvloop

from shared.concurrency import MovingTimer
from tests.kit.wait_until import after, wait_until

FOR_EVER = 3600.0


def in_s(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_a_moment_that_moves_to_later_leaves_the_timer_where_it_is() -> None:
    timer, looks = MovingTimer(), list[float]()
    first = in_s(0.02)
    timer.look_at(first, lambda: looks.append(in_s(0)))
    timer.look_at(in_s(FOR_EVER), lambda: looks.append(in_s(0)))
    await wait_until(lambda: looks, description="the first look")
    assert len(looks) == 1


async def test_a_moment_that_moves_to_earlier_was_looked_at_too_late() -> None:
    timer, looks = MovingTimer(), list[str]()
    timer.look_at(in_s(FOR_EVER), lambda: looks.append("late"))
    timer.look_at(in_s(0), lambda: looks.append("early"))
    await wait_until(lambda: looks, description="the look")
    assert looks == ["early"]


async def test_a_look_can_ask_for_the_next_one() -> None:
    timer, looks = MovingTimer(), list[str]()

    def look() -> None:
        looks.append("first")
        timer.look_at(in_s(0), lambda: looks.append("second"))

    timer.look_at(in_s(0), look)
    await wait_until(lambda: len(looks) == 2, description="both looks")
    assert looks == ["first", "second"]


async def test_a_stopped_timer_does_not_look() -> None:
    timer, looks = MovingTimer(), list[str]()
    timer.look_at(in_s(0), lambda: looks.append("stopped"))
    timer.stop()
    await after(0.01)
    assert looks == []


@pytest.mark.parametrize("delay", [0.0, 0.0003, 0.01])
def test_on_uvloop_a_timer_of_no_length_looks_too(delay: float) -> None:
    async def looked() -> None:
        timer, has_looked = MovingTimer(), asyncio.Event()
        timer.look_at(in_s(FOR_EVER), has_looked.set)
        timer.look_at(in_s(delay), has_looked.set)
        await has_looked.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(looked(), 60))
