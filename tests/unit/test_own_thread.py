"""Work on a thread of its own ends before the call that began it, however often that call is cancelled."""

import asyncio
import threading

import pytest

from shared.concurrency import on_own_thread
from tests.kit.wait_until import after, wait_until


async def test_a_worker_that_ended_was_cancelled_twice_and_left_its_leases_thread_behind() -> None:
    begun, cancelled, may_end = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            may_end.wait()

    running = asyncio.create_task(on_own_thread(work, name="work"))
    await wait_until(begun.is_set, description="the work to begin")
    running.cancel()
    await wait_until(cancelled.is_set, description="the work to be cancelled")
    running.cancel()
    await after()
    await after()
    was_done = running.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not was_done
