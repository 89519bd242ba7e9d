"""Submitting, claiming and cancelling: accepted once, owned by one at a time, run in the order of submission."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
from msgspec.structs import replace
from sqlalchemy.exc import IntegrityError

from shared.domain.errors import (
    Busy,
    CancelMode,
    IllegalTransition,
    LifecycleError,
    NotFound,
    PendingApproval,
    StaleFence,
    Unavailable,
)
from shared.domain.ids import Fence, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.log_writer import LogTail
from shared.domain.messages import ToolReturns
from shared.domain.runs import Run, RunOptions, SubmissionKeys
from shared.sql.runs.listing import QuietRun
from shared.sql.runs.run_store import Submitted
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT
from tests.kit.runs.stored_runs import (
    CANCEL,
    IDS,
    Stores,
    approve,
    call,
    next_seq,
    said,
    second_process,
    some_run,
    stored_runs,
    texts_of,
)

WAITS = call("a", needs_approval=True)
GIVEN = [said("hi")]


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def quiet(run: Run) -> QuietRun:
    """The run as a sweeper has seen it."""
    return QuietRun(run.id, run.status, run.dispatch, run.fence, NOW)


async def test_what_is_submitted_is_what_is_read(stores: Stores) -> None:
    run = some_run(
        options=RunOptions(background=True, max_steps=3, echoed={"deep": [1]}),
        callback_url="http://127.0.0.1/called",
    )
    given = [said("one"), said("two")]
    submitted = await stores.runs.submit(run, given)
    stored = replace(run, number=submitted.run.number, options=replace(run.options, first_words="one"))
    assert submitted == Submitted(stored, is_new=True)
    assert await stores.runs.input_of(run) == given
    assert await stores.runs.get(PROJECT, run.id) == submitted.run
    assert await stores.runs.look_up(run.id) == submitted.run


async def test_a_run_of_another_project_is_not_found(stores: Stores) -> None:
    run = await stores.submitted()
    with pytest.raises(NotFound):
        await stores.runs.get(OTHER_PROJECT, run.id)
    with pytest.raises(NotFound):
        await stores.runs.look_up(some_run().id)


async def test_the_same_keys_at_the_same_instant_give_one_run(stores: Stores) -> None:
    async with second_process(stores) as other:
        submitted = await asyncio.gather(
            *(
                each.runs.submit(some_run(), GIVEN, keys=SubmissionKeys(["otid:1"]))
                for each in (stores, other, stores, other)
            )
        )
    assert len({one.run.id for one in submitted}) == 1
    assert sorted(one.is_new for one in submitted) == [False, False, False, True]


async def test_one_known_key_is_enough_on_its_own_thread(stores: Stores) -> None:
    first = await stores.runs.submit(some_run(), GIVEN, keys=SubmissionKeys(["a", "b", "a"]))
    again = await stores.runs.submit(some_run(), GIVEN, keys=SubmissionKeys(["b", "c"]))
    elsewhere = await stores.runs.submit(some_run(thread_id=ThreadId("conv-2")), GIVEN, keys=SubmissionKeys(["b"]))
    assert again == Submitted(first.run, is_new=False)
    assert elsewhere.is_new


async def test_a_submission_that_must_not_wait_is_refused_while_a_run_is_active(stores: Stores) -> None:
    active = await stores.submitted()
    with pytest.raises(Busy) as refused:
        await stores.runs.submit(some_run(), GIVEN, refuse_if_busy=True)
    assert refused.value.run_id == active.id
    assert (await stores.runs.submit(some_run(thread_id=ThreadId("conv-2")), GIVEN, refuse_if_busy=True)).is_new


async def test_a_submission_is_refused_while_a_person_must_decide(stores: Stores) -> None:
    parked = await stores.parked(WAITS, call("b"))
    with pytest.raises(PendingApproval) as refused:
        await stores.runs.submit(some_run(), GIVEN)
    assert (refused.value.waiting.run_id, refused.value.waiting.tool_call_ids) == (parked.id, ["a"])


async def test_a_claim_gives_a_fence_and_begins_the_history(stores: Stores) -> None:
    run = await stores.submitted(said("one"), said("two"))
    claimed = await stores.claim(run)
    assert (claimed.status, claimed.fence, claimed.turn, claimed.started_at) == (RunStatus.RUNNING, 1, 1, NOW)
    assert texts_of(await stores.messages.context(PROJECT, run.thread_id)) == ["one", "two"]
    assert await stores.runs.owns(run.id, claimed.fence, claimed.dispatch)
    assert not await stores.runs.owns(run.id, Fence(0), claimed.dispatch)


async def test_a_reclaim_bumps_the_fence_and_keeps_the_history(stores: Stores) -> None:
    first = await stores.claimed()
    second = await stores.claim(first)
    assert (second.fence, second.turn, second.attempts_without_progress) == (2, 1, 2)
    assert texts_of(await stores.messages.context(PROJECT, first.thread_id)) == ["hi"]
    assert not await stores.runs.owns(first.id, first.fence, first.dispatch)


async def test_a_run_that_is_handed_over_is_not_to_blame(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.checkpoints.hand_over(run, LogTail(next_seq(run), ()), NOW)
    assert (await stores.claim(run)).attempts_without_progress == 1


async def test_a_claim_that_stumbles_over_stored_rows_says_so(stores: Stores) -> None:
    """Any broken rule of the database counted as "not yet": the run stayed created for ever, dispatched again and
    again, and nobody was told."""
    given = said("hi")
    await stores.claimed(given, thread_id=ThreadId("conv-2"))
    run = await stores.submitted(given)
    with pytest.raises(IntegrityError):
        await stores.runs.claim(run.id, run.dispatch, IDS.claim(), NOW)
    assert await stores.runs.look_up(run.id) == run


async def running(stores: Stores) -> Run:
    return await stores.claimed()


async def created_earlier(stores: Stores) -> Run:
    return await stores.submitted()


@pytest.mark.parametrize("before", [running, created_earlier])
async def test_a_claim_is_refused_while_another_run_comes_first(
    stores: Stores, before: Callable[[Stores], Awaitable[Run]]
) -> None:
    first = await before(stores)
    queued = await stores.submitted()
    assert await stores.runs.claim(queued.id, queued.dispatch, IDS.claim(), NOW) is None
    elsewhere = await stores.claimed(thread_id=ThreadId("conv-2"))
    assert elsewhere.status is RunStatus.RUNNING
    if first.status is RunStatus.CREATED:
        first = await stores.claim(first)
    await stores.settle(first)
    assert (await stores.claim(queued)).turn == 2


async def test_a_claim_is_refused_while_a_run_of_the_thread_is_parked(stores: Stores) -> None:
    first = await stores.submitted()
    queued = await stores.submitted()
    await stores.park(await stores.claim(first), WAITS)
    assert await stores.runs.claim(queued.id, queued.dispatch, IDS.claim(), NOW) is None


async def test_a_decision_goes_before_what_was_queued_and_has_the_turn_of_its_question(stores: Stores) -> None:
    first = await stores.submitted()
    queued = await stores.submitted(said("queued"))
    waiting = await stores.park(await stores.claim(first), WAITS)
    continuation = await stores.decide(approve("a"))
    assert (continuation.continues, continuation.turn, waiting.turn) == (waiting.id, 1, 1)
    assert await stores.runs.claim(queued.id, queued.dispatch, IDS.claim(), NOW) is None
    assert (await stores.claim(continuation)).turn == 1
    settled = await stores.settle(await stores.runs.look_up(continuation.id))
    assert settled.next is not None
    assert settled.next.run_id == queued.id
    assert (await stores.claim(queued)).turn == 2


async def test_two_processes_claim_one_run_with_two_fences(stores: Stores) -> None:
    run = await stores.submitted()
    async with second_process(stores) as other:
        claims = await asyncio.gather(
            *(each.runs.claim(run.id, run.dispatch, IDS.claim(), NOW) for each in (stores, other))
        )
    fences = [claimed.fence for claimed in claims if claimed is not None]
    assert fences
    assert len(set(fences)) == len(fences)
    assert (await stores.runs.look_up(run.id)).fence == max(fences)
    assert texts_of(await stores.messages.context(PROJECT, run.thread_id)) == ["hi"]


async def test_two_runs_of_a_thread_never_run_at_once(stores: Stores) -> None:
    runs = [await stores.submitted() for _ in range(3)]
    async with second_process(stores) as other:
        claims = await asyncio.gather(
            *(
                each.runs.claim(run.id, run.dispatch, IDS.claim(), NOW)
                for run in reversed(runs)
                for each in (stores, other)
            )
        )
    assert {claimed.id for claimed in claims if claimed is not None} == {runs[0].id}


async def test_an_old_dispatch_claims_nothing(stores: Stores) -> None:
    run = await stores.submitted()
    [dispatch] = await stores.runs.dispatch_again([quiet(run)])
    assert await stores.runs.dispatch_again([quiet(run)]) == [], "somebody else has dispatched meanwhile"
    assert await stores.runs.claim(run.id, run.dispatch, IDS.claim(), NOW) is None
    assert await stores.runs.claim(run.id, dispatch.number, IDS.claim(), NOW) is not None


async def test_a_run_that_has_ended_is_not_dispatched_again(stores: Stores) -> None:
    run = await stores.ended()
    assert await stores.runs.dispatch_again([quiet(run)]) == []
    assert await stores.runs.claim(run.id, run.dispatch, IDS.claim(), NOW) is None


async def test_a_lost_run_is_taken_over_by_one(stores: Stores) -> None:
    run = await stores.claimed()
    async with second_process(stores) as other:
        taken = await asyncio.gather(
            *(each.runs.take_over(run, IDS.claim(), NOW) for each in (stores, other)), return_exceptions=True
        )
    assert sorted(type(one).__name__ for one in taken) == ["Run", "StaleFence"]
    assert (await stores.runs.look_up(run.id)).fence == 2


async def test_a_run_that_is_not_running_is_not_taken_over(stores: Stores) -> None:
    run = await stores.ended()
    with pytest.raises(IllegalTransition):
        await stores.runs.take_over(run, IDS.claim(), NOW)


async def test_the_first_cancel_is_kept_and_a_stronger_one_replaces_after_step(stores: Stores) -> None:
    run = await stores.claimed()
    gentle = replace(CANCEL, mode=CancelMode.AFTER_STEP)
    assert (await stores.runs.request_cancel(run, gentle)).cancel == gentle
    assert (await stores.runs.request_cancel(run, replace(gentle, actor="bob"))).cancel == gentle
    strong = replace(CANCEL, mode=CancelMode.ROLLBACK)
    assert (await stores.runs.request_cancel(run, strong)).cancel == strong
    assert (await stores.runs.request_cancel(run, CANCEL)).cancel == strong


async def test_a_cancel_that_is_too_late_is_not_recorded(stores: Stores) -> None:
    run = await stores.ended()
    late = await stores.runs.request_cancel(run, CANCEL)
    assert (late.status, late.cancel) == (RunStatus.COMPLETED, None)


async def test_the_owner_says_when_it_began_to_stop(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.runs.request_cancel(run, CANCEL)
    await stores.runs.acknowledge_cancel(run.id, run.fence, NOW)
    cancel = (await stores.runs.look_up(run.id)).cancel
    assert cancel == replace(CANCEL, acknowledged_at=NOW)
    with pytest.raises(StaleFence):
        await stores.runs.acknowledge_cancel(run.id, Fence(0), NOW)


async def test_a_claim_and_a_cancel_of_one_run_do_not_both_win(stores: Stores) -> None:
    for number in range(5):
        run = await stores.submitted(thread_id=ThreadId(f"conv-{number}"))
        async with second_process(stores) as other:
            claimed, settled = await asyncio.gather(
                stores.runs.claim(run.id, run.dispatch, IDS.claim(), NOW),
                other.settle(run, RunTrigger.CANCEL),
                return_exceptions=True,
            )
        ended = await stores.runs.look_up(run.id)
        if isinstance(claimed, Run):
            assert isinstance(settled, LifecycleError | Unavailable)
            assert ended.status is RunStatus.RUNNING
        else:
            assert claimed is None
            assert ended.status is RunStatus.CANCELLED


async def test_a_cancel_and_a_claim_on_one_thread_take_two_turns(stores: Stores) -> None:
    for number in range(5):
        thread = ThreadId(f"conv-{number}")
        first, second = [await stores.submitted(thread_id=thread) for _ in range(2)]
        async with second_process(stores) as other:
            claimed, settled = await asyncio.gather(
                stores.runs.claim(first.id, first.dispatch, IDS.claim(), NOW), other.settle(second, RunTrigger.CANCEL)
            )
        if claimed is None and settled.next is not None:
            # The cancel came first and dispatched for the run that was behind it: the older dispatch is no longer good.
            claimed = await stores.runs.claim(first.id, settled.next.number, IDS.claim(), NOW)
        assert claimed is not None
        assert {claimed.turn, settled.run.turn} == {1, 2}


async def test_an_end_and_a_cancel_on_one_thread_do_not_lock_each_other_out(stores: Stores) -> None:
    for number in range(5):
        thread = ThreadId(f"conv-{number}")
        first = await stores.claimed(thread_id=thread)
        queued = await stores.submitted(thread_id=thread)
        async with second_process(stores) as other:
            await asyncio.gather(stores.settle(first), other.settle(queued, RunTrigger.CANCEL))
        assert await stores.status_of(first) is RunStatus.COMPLETED
        assert await stores.status_of(queued) is RunStatus.CANCELLED


async def test_a_decision_is_not_placed_twice(stores: Stores) -> None:
    await stores.parked(WAITS)
    continuation = await stores.claim(await stores.decide(approve("a")))
    await stores.claim(continuation)
    context = await stores.context()
    assert [type(body).__name__ for body in context] == ["UserMessage", "AssistantMessage", "ApprovalResponse"]
    assert not any(isinstance(body, ToolReturns) for body in context)


async def test_what_came_with_a_decision_waits_for_the_results(stores: Stores) -> None:
    await stores.parked(WAITS)
    continuation = await stores.decide(approve("a"), more=[said("and then?")])
    await stores.claim(continuation)
    assert "and then?" not in texts_of(await stores.messages.context(PROJECT, continuation.thread_id))


async def test_a_run_that_was_claimed_meanwhile_is_not_dispatched_again(stores: Stores) -> None:
    """A sweeper that had looked before the claim took a healthy run from its worker."""
    seen = await stores.submitted()
    claimed = await stores.claim(seen)
    assert await stores.runs.dispatch_again([quiet(seen)]) == []
    [again] = await stores.runs.dispatch_again([quiet(claimed)])
    assert again[:2] == (claimed.id, claimed.dispatch + 1)
