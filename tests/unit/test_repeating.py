"""Background rounds at the end of their block."""

import asyncio

from structlog.testing import capture_logs

from shared.concurrency import repeating


async def test_a_process_did_not_end_while_a_round_waited_for_a_database_that_did_not_answer() -> None:
    began, ended_by = asyncio.Event(), asyncio.Event()

    async def waits_for_ever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended_by.set()
            raise

    with capture_logs() as lines:
        async with repeating(waits_for_ever, every_s=60, name="sweep", end_s=0.01):
            await began.wait()

    assert ended_by.is_set()
    assert lines == [{"event": "background_round_cut_off", "log_level": "warning", "loop": "sweep"}]


async def test_a_round_that_ends_soon_is_not_cut_off() -> None:
    began, go_on, rounds = asyncio.Event(), asyncio.Event(), list[str]()

    async def ends_later() -> None:
        began.set()
        await go_on.wait()
        rounds.append("whole")

    with capture_logs() as lines:
        async with repeating(ends_later, every_s=60, name="sweep"):
            await began.wait()
            asyncio.get_running_loop().call_soon(go_on.set)

    assert (rounds, lines) == (["whole"], [])
