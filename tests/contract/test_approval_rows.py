"""Deciding: all waiting calls together, once, by whoever is first; and the lists of what waits."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from shared.domain.approvals import hash_of
from shared.domain.errors import AlreadyDecided, Conflict, HoldfastError, NoPendingApproval, NotFound, WrongToolCalls
from shared.domain.ids import AgentId, ApprovalId, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.messages import Decision
from shared.domain.runs import Run, SubmissionKeys
from shared.sql.paging import Page
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT
from tests.kit.runs.stored_runs import (
    AGENT,
    CANCEL,
    THREAD,
    Stores,
    answer,
    approve,
    call,
    checkpoint,
    decided,
    found,
    request_of,
    results,
    said,
    second_process,
    some_run,
    stored_runs,
)

A, B = call("a", needs_approval=True), call("b", needs_approval=True)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def test_a_decision_closes_the_parked_run_and_starts_the_one_that_continues_it(stores: Stores) -> None:
    parked = await stores.parked(A, B)
    denial = Decision(tool_call_id="b", reason="too dear")
    continuation = await stores.decide(denial, approve("a"))
    closed = await stores.runs.look_up(parked.id)
    assert (closed.status, closed.stop_reason) == (RunStatus.COMPLETED, "requires_approval")
    assert (continuation.status, continuation.continues) == (RunStatus.CREATED, parked.id)
    asked = await stores.asked(parked)
    assert [(one.tool_call_id, one.decision) for one in asked] == [("a", approve("a")), ("b", denial)]
    assert {(one.decided_by, one.decided_at, one.continued_by) for one in asked} == {("ada", NOW, continuation.id)}
    assert await stores.approvals.waiting_on_thread(PROJECT, THREAD) == []


@pytest.mark.parametrize(
    "decisions", [[], [approve("a")], [approve("a"), approve("x")], [approve("a"), approve("b"), approve("x")]]
)
async def test_a_decision_covers_exactly_the_waiting_calls(stores: Stores, decisions: list[Decision]) -> None:
    parked = await stores.parked(A, B, call("c"))
    with pytest.raises(WrongToolCalls):
        await stores.decide(*decisions)
    assert await stores.runs.look_up(parked.id) == parked
    assert [one.decision for one in await stores.asked(parked)] == [None, None]


async def test_without_a_question_there_is_nothing_to_decide(stores: Stores) -> None:
    await stores.claimed()
    with pytest.raises(NoPendingApproval):
        await stores.decide(approve("a"))
    await stores.parked(A, thread_id=ThreadId("conv-2"))
    with pytest.raises(NoPendingApproval):
        await stores.decide(approve("a"))
    with pytest.raises(NoPendingApproval):
        await stores.decisions.decide_all(some_run(thread_id=ThreadId("conv-2")), [], by="ada")


async def test_a_repeat_gives_the_continuation_while_it_is_active(stores: Stores) -> None:
    await stores.parked(A)
    continuation = await stores.decide(approve("a"))
    assert (await stores.decide(approve("a"))).id == continuation.id
    await stores.claim(continuation)
    repeated = await stores.decisions.decide_all(some_run(), [decided(approve("a"))], by="bob")
    assert (repeated.run.id, repeated.is_new) == (continuation.id, False)


async def test_another_decision_than_the_first_is_refused_for_ever(stores: Stores) -> None:
    await stores.parked(A)
    continuation = await stores.decide(approve("a"))
    with pytest.raises(Conflict, match="was approved by ada"):
        await stores.decide(Decision(tool_call_id="a", reason="no"))
    run = await stores.claim(continuation)
    await stores.settle(await stores.recorded(run, results(found("a"))))
    with pytest.raises(Conflict, match="was approved by ada"):
        await stores.decide(Decision(tool_call_id="a", reason="no"))


async def test_a_repeat_after_the_continuation_says_that_it_was_decided(stores: Stores) -> None:
    await stores.parked(A)
    run = await stores.claim(await stores.decide(approve("a")))
    await stores.settle(await stores.recorded(run, results(found("a"))))
    with pytest.raises(AlreadyDecided):
        await stores.decide(approve("a"))


async def test_a_repeat_with_other_calls_beside_is_no_repeat(stores: Stores) -> None:
    await stores.parked(A)
    await stores.decide(approve("a"))
    with pytest.raises(NoPendingApproval):
        await stores.decide(approve("a"), approve("x"))


KEY = SubmissionKeys(["key:1"])


async def test_a_repeat_with_its_key_gives_the_continuation_for_ever(stores: Stores) -> None:
    await stores.parked(A)
    first = await stores.decisions.decide_all(
        some_run(), [decided(approve("a"))], keys=SubmissionKeys(["key:1"]), by="ada"
    )
    await stores.settle(await stores.claim(first.run))
    again = await stores.decisions.decide_all(
        some_run(), [decided(approve("a"))], keys=SubmissionKeys(["key:1"]), by="ada"
    )
    assert (again.run.id, again.is_new) == (first.run.id, False)


async def test_a_call_id_that_was_decided_in_an_earlier_turn_does_not_confuse(stores: Stores) -> None:
    await stores.parked(A)
    first = await stores.claim(await stores.decide(approve("a"), created_at=NOW))
    await stores.settle(await stores.recorded(first, results(found("a"))))
    await stores.parked(A)
    later = NOW + timedelta(seconds=1)
    second = await stores.decide(approve("a"), created_at=later)
    assert (await stores.decide(approve("a"), created_at=later)).id == second.id


async def test_two_people_decide_at_the_same_instant(stores: Stores) -> None:
    for number in range(5):
        thread = ThreadId(f"conv-{number}")
        parked = await stores.parked(A, thread_id=thread)
        yes, no = approve("a"), Decision(tool_call_id="a", reason="no")
        async with second_process(stores) as other:
            answers = await asyncio.gather(
                stores.decide(yes, thread_id=thread), other.decide(no, thread_id=thread), return_exceptions=True
            )
        [continuation] = [result for result in answers if isinstance(result, Run)]
        [refused] = [result for result in answers if isinstance(result, BaseException)]
        assert isinstance(refused, Conflict)
        [asked] = await stores.asked(parked)
        assert (asked.decision, asked.continued_by) == (yes if answers[0] is continuation else no, continuation.id)


async def test_a_cancelled_question_cannot_be_decided(stores: Stores) -> None:
    parked = await stores.parked(A)
    await stores.settle(parked, RunTrigger.CANCEL)
    with pytest.raises(NoPendingApproval):
        await stores.decide(approve("a"))


async def test_a_recorded_cancel_is_before_a_decision(stores: Stores) -> None:
    parked = await stores.parked(A)
    await stores.runs.request_cancel(parked, CANCEL)
    with pytest.raises(NoPendingApproval):
        await stores.decide(approve("a"))
    assert await stores.status_of(parked) is RunStatus.AWAITING_APPROVAL
    assert (await stores.settle(parked, RunTrigger.CANCEL)).run.status is RunStatus.CANCELLED


async def test_a_cancel_and_a_decision_at_the_same_instant_have_one_winner(stores: Stores) -> None:
    for number in range(5):
        thread = ThreadId(f"conv-{number}")
        parked = await stores.parked(A, thread_id=thread)

        async def decide(thread: ThreadId = thread) -> Run | None:
            try:
                return await stores.decide(approve("a"), thread_id=thread)
            except HoldfastError:
                return None

        async with second_process(stores) as other:
            continuation, cancelled = await asyncio.gather(decide(), other.runs.request_cancel(parked, CANCEL))
        assert (continuation is None) == (cancelled.cancel is not None)


async def test_one_decision_is_written_once(stores: Stores) -> None:
    parked = await stores.parked(A)
    [asked] = await stores.asked(parked)
    decide = stores.decisions.decide
    first = await decide(asked, approve("a"), by="ada", now=NOW)
    with pytest.raises(Conflict):
        await decide(asked, Decision(tool_call_id="a"), by="bob", now=NOW)
    assert await decide(asked, approve("a"), by="bob", now=NOW) == first
    assert first.run is not None
    [asked] = await stores.asked(parked)
    assert (asked.decision, asked.decided_by, asked.continued_by) == (approve("a"), "ada", first.run.id)


async def test_a_request_is_shown_in_its_own_project(stores: Stores) -> None:
    parked = await stores.parked(A)
    [asked] = await stores.asked(parked)
    assert await stores.approvals.get(PROJECT, asked.id) == asked
    assert asked.arguments_hash == hash_of(A.arguments)
    for project, approval_id in ((OTHER_PROJECT, asked.id), (PROJECT, ApprovalId("approval-0"))):
        with pytest.raises(NotFound):
            await stores.approvals.get(project, approval_id)


async def test_what_waits_in_a_project_is_listed_oldest_first(stores: Stores) -> None:
    first = await stores.parked(A, B)
    second = await stores.parked(A, thread_id=ThreadId("conv-2"))
    await stores.settle(await stores.parked(A, thread_id=ThreadId("conv-3")), RunTrigger.CANCEL)
    waiting = await stores.approvals.of_project(PROJECT, Page(ascending=True))
    assert {(one.run_id, one.tool_call_id) for one in waiting} == {
        (first.id, "a"), (first.id, "b"), (second.id, "a"),
    }  # fmt: skip
    assert len(await stores.approvals.of_project(PROJECT, Page(limit=1, ascending=True))) == 1
    assert await stores.approvals.of_project(PROJECT, Page(ascending=True), agent_id=AGENT.id) == waiting
    assert await stores.approvals.of_project(PROJECT, Page(ascending=True), agent_id=AgentId("agent-2")) == []
    assert await stores.approvals.of_project(OTHER_PROJECT, Page()) == []


async def test_what_was_decided_is_listed_by_its_decision(stores: Stores) -> None:
    conversations = [ThreadId(f"conv-{number}") for number in range(3)]
    parked = [await stores.parked(A, thread_id=thread_id) for thread_id in conversations]
    asked = [(await stores.asked(run))[0] for run in parked]
    for minutes, one in ((2, asked[0]), (1, asked[1])):
        await stores.decisions.decide(one, approve("a"), by="ada", now=NOW + timedelta(minutes=minutes))

    newest = await stores.approvals.of_project(PROJECT, Page(), is_decided=True)
    assert [one.id for one in newest] == [asked[0].id, asked[1].id]
    assert {one.decided_by for one in newest} == {"ada"}
    assert await stores.approvals.of_project(PROJECT, Page(after=asked[0].id), is_decided=True) == newest[1:]
    assert await stores.approvals.of_project(PROJECT, Page(limit=1, ascending=True), is_decided=True) == newest[1:]
    assert await stores.approvals.of_project(PROJECT, Page(), is_decided=True, agent_id=AGENT.id) == newest
    assert await stores.approvals.of_project(PROJECT, Page(), is_decided=True, thread_id=conversations[1]) == newest[1:]
    assert await stores.approvals.of_project(PROJECT, Page(), is_decided=True, agent_id=AgentId("agent-2")) == []
    assert await stores.approvals.of_project(OTHER_PROJECT, Page(), is_decided=True) == []


async def test_requests_that_nobody_decided_in_time_are_found(stores: Stores) -> None:
    run = await stores.claimed(said("all of it"))
    asking = answer("may I?", A, B, call("c", needs_approval=True))
    late = NOW + timedelta(seconds=5)
    await stores.settlements.park(
        run,
        checkpoint(run, asking),
        [
            request_of(run, asking, A, expires_at=late, on_expiry="deny"),
            request_of(run, asking, B, expires_at=late, on_expiry="keep"),
            request_of(run, asking, call("c"), on_expiry="cancel"),
        ],
    )
    assert await stores.approvals.expired(NOW) == []
    assert [one.tool_call_id for one in await stores.approvals.expired(late)] == ["a"]
    await stores.decide(approve("a"), approve("b"), approve("c"))
    assert await stores.approvals.expired(late) == []
