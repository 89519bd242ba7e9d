"""The limit on a model's silence moves with every token, and its timer does not: nobody waits for too short or too long
because of that."""

import asyncio
from typing import NoReturn

import pytest
import uvloop

from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.wait_until import after
from worker.models.provider import SilenceLimit

FOR_EVER = 3600.0
SOON = 0.02
AT_ONCE = 0.0003
"""Seconds for which uvloop makes no timer: its clock counts milliseconds."""


async def nothing() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def test_the_silence_in_an_answer_was_as_long_as_that_before_it() -> None:
    limit = SilenceLimit(first_event=FOR_EVER, idle=SOON)
    await limit.wait(after())
    limit.event_seen()
    with pytest.raises(ModelError, match="went silent") as raised:
        await limit.wait(nothing())
    assert raised.value.error_type is ModelErrorType.TIMEOUT


async def test_a_model_that_sends_nothing_was_waited_for_without_end() -> None:
    limit = SilenceLimit(first_event=SOON, idle=FOR_EVER)
    with pytest.raises(ModelError, match="sent no event"):
        await limit.wait(nothing())


async def test_the_timer_of_an_earlier_wait_ended_a_later_one() -> None:
    limit = SilenceLimit(first_event=0.2, idle=FOR_EVER)
    await limit.wait(after())
    limit.event_seen()
    await limit.wait(after(0.4))


async def test_a_cancel_of_who_waits_is_no_silence() -> None:
    limit = SilenceLimit(first_event=FOR_EVER, idle=FOR_EVER)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(limit.wait(nothing()), name="wait")
        await after()
        waiting.cancel()
    assert waiting.cancelled()


async def wait_twice_at_once() -> None:
    limit = SilenceLimit(first_event=AT_ONCE, idle=FOR_EVER)
    first = limit.wait(nothing())
    first.send(None)
    first.close()
    limit.event_seen()
    await limit.wait(after())


def test_uvloop_was_asked_when_a_timer_ends_that_it_had_not_made() -> None:
    uvloop.run(wait_twice_at_once())
