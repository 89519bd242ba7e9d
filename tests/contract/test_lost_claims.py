"""A claim or a new fence whose answer was lost: asked for again, it is not taken twice."""

from collections.abc import AsyncGenerator

import pytest

from shared.domain.errors import StaleFence
from shared.domain.ids import Seq, ThreadId
from shared.domain.log_writer import LogTail
from tests.kit.runs.definitions import NOW
from tests.kit.runs.stored_runs import IDS, THREAD, Stores, stored_runs

ENTRY = b'{"type":"status","at":1,"status":"running"}'


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def test_a_new_fence_whose_answer_was_lost_is_not_taken_twice(stores: Stores) -> None:
    run = await stores.claimed()
    taken = [await stores.checkpoints.take_new_fence(run, LogTail(Seq(2), [ENTRY]), NOW) for _ in range(3)]
    assert {one.fence for one in taken} == {run.fence + 1}
    assert (await stores.runs.look_up(run.id)).fence == run.fence + 1


async def test_what_is_emitted_until_a_new_fence_is_asked_for_again_is_stored(stores: Stores) -> None:
    """The repeated try was recognised and its tail ignored: what had been emitted since the first one was in no log."""
    run = await stores.claimed()
    await stores.checkpoints.take_new_fence(run, LogTail(Seq(2), [ENTRY]), NOW)
    renewed = await stores.checkpoints.take_new_fence(run, LogTail(Seq(2), [ENTRY, ENTRY]), NOW)
    assert await stores.events.read(run.id, Seq(1)) == [(2, ENTRY), (3, ENTRY)]
    assert (await stores.runs.look_up(run.id)).last_seq == 3
    await stores.claim(renewed)
    with pytest.raises(StaleFence):
        await stores.checkpoints.take_new_fence(run, LogTail(Seq(2), [ENTRY, ENTRY, ENTRY]), NOW)


async def test_a_claim_whose_answer_was_lost_does_not_claim_what_has_ended_since(stores: Stores) -> None:
    run, owner = await stores.submitted(thread_id=ThreadId("conv-2")), IDS.claim()
    claimed = await stores.runs.claim(run.id, run.dispatch, owner, NOW)
    assert claimed is not None
    await stores.settle(claimed)
    assert await stores.runs.claim(run.id, run.dispatch, owner, NOW) is None
    assert await stores.context(THREAD) == []
