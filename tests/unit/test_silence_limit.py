"""The limit on a model's silence moves with every token, and its timer does not: nobody waits for too short or too long
because of that."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.wait_until import after
from worker.models.provider import SilenceLimit

FOR_EVER = 3600.0
SOON = 0.02
AT_ONCE = 0.0003
"""Seconds for which uvloop makes no timer: its clock counts milliseconds."""


Wait = Callable[[SilenceLimit, "asyncio.Future[None]"], Coroutine[Any, Any, None]]

both_waits = pytest.mark.parametrize("wait", [SilenceLimit.wait, SilenceLimit.wait_for])


def nothing() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


@both_waits
async def test_the_silence_in_an_answer_was_as_long_as_that_before_it(wait: Wait) -> None:
    limit = SilenceLimit(first_event=FOR_EVER, idle=SOON)
    await wait(limit, after())
    limit.event_seen()
    with pytest.raises(ModelError, match="went silent") as raised:
        await wait(limit, nothing())
    assert raised.value.error_type is ModelErrorType.TIMEOUT


@both_waits
async def test_a_model_that_sends_nothing_was_waited_for_without_end(wait: Wait) -> None:
    limit = SilenceLimit(first_event=SOON, idle=FOR_EVER)
    with pytest.raises(ModelError, match="sent no event"):
        await wait(limit, nothing())


@both_waits
async def test_the_timer_of_an_earlier_wait_ended_a_later_one(wait: Wait) -> None:
    limit = SilenceLimit(first_event=0.2, idle=FOR_EVER)
    await wait(limit, after())
    limit.event_seen()
    await wait(limit, after(0.4))


@both_waits
async def test_a_cancel_of_who_waits_is_no_silence(wait: Wait) -> None:
    limit = SilenceLimit(first_event=FOR_EVER, idle=FOR_EVER)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait(limit, nothing()), name="wait")
        await after()
        waiting.cancel()
    assert waiting.cancelled()


@both_waits
async def test_two_waits_in_turn_are_under_one_limit(wait: Wait) -> None:
    limit = SilenceLimit(first_event=SOON, idle=FOR_EVER)
    await SilenceLimit.wait(limit, after())
    await SilenceLimit.wait_for(limit, after())
    with pytest.raises(ModelError, match="sent no event"):
        await wait(limit, nothing())


async def wait_twice_at_once(wait: Wait) -> None:
    limit = SilenceLimit(first_event=AT_ONCE, idle=FOR_EVER)
    first = wait(limit, nothing())
    first.send(None)
    first.close()
    limit.event_seen()
    await wait(limit, after())


@both_waits
def test_uvloop_was_asked_when_a_timer_ends_that_it_had_not_made(wait: Wait) -> None:
    uvloop.run(wait_twice_at_once(wait))
