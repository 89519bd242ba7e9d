"""The outbox of callbacks: written with the end of a run, delivered by one."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta

import pytest

from shared.domain.errors import StaleFence
from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import Run
from shared.sql.runs.callbacks import Callback
from tests.kit.runs.definitions import NOW
from tests.kit.runs.stored_runs import Stores, approve, call, callback_of, stored_runs

URL = "http://127.0.0.1/called"
WAITS = call("a", needs_approval=True)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.mark.parametrize("trigger", [RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL])
async def test_the_end_of_a_run_writes_its_callback(stores: Stores, trigger: RunTrigger) -> None:
    run = await stores.claimed(callback_url=URL)
    assert await stores.callbacks.claim_due(NOW) == []
    await stores.settle(run, trigger)
    assert await stores.callbacks.claim_due(NOW) == [Callback(run.id, URL, 1, run.project_id)]


async def test_a_run_that_asked_for_none_has_none(stores: Stores) -> None:
    await stores.ended()
    assert await stores.callbacks.claim_due(NOW) == []


async def test_a_parked_run_calls_back_once_whatever_becomes_of_it(stores: Stores) -> None:
    cancelled = await stores.parked(WAITS, callback_url=URL)
    assert await stores.callbacks.claim_due(NOW) == [Callback(cancelled.id, URL, 1, cancelled.project_id)]
    await stores.settle(cancelled, RunTrigger.CANCEL)
    decided = await stores.parked(WAITS, callback_url=URL, thread_id=ThreadId("conv-2"))
    assert await stores.callbacks.claim_due(NOW) == [Callback(decided.id, URL, 1, decided.project_id)]
    await stores.decide(approve("a"), thread_id=ThreadId("conv-2"))
    assert await stores.callbacks.claim_due(NOW) == []


End = Callable[[Stores, Run], Awaitable[object]]
ENDS: dict[str, End] = {
    "settle": lambda stores, run: stores.settle(run),
    "park": lambda stores, run: stores.park(run, WAITS),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_an_old_owners_end_leaves_no_callback(stores: Stores, end: End) -> None:
    old = await stores.claimed(callback_url=URL)
    new = await stores.claim(old)
    with pytest.raises(StaleFence):
        await end(stores, old)
    assert await stores.callbacks.claim_due(NOW) == []
    await stores.settle(new)
    assert await stores.callbacks.claim_due(NOW) == [Callback(old.id, URL, 1, old.project_id)]


async def test_a_run_whose_callback_failed_was_shown_with_a_sent_callback(stores: Stores) -> None:
    run = await stores.ended(callback_url=URL)
    await stores.callbacks.claim_due(NOW)
    later = NOW + timedelta(seconds=5)
    await stores.callbacks.record_attempt(callback_of(run), now=NOW, status_code=503, error="busy", next_at=later)
    shown = await stores.runs.look_up(run.id)
    assert (shown.callback_sent_at, shown.callback_status_code, shown.callback_error) == (None, 503, "busy")
    await stores.callbacks.record_attempt(callback_of(run), now=later, status_code=204, error=None, next_at=None)
    assert (await stores.runs.look_up(run.id)).callback_sent_at == later
