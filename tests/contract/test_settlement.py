"""Settling: once and for ever, with a conversation that is valid, a log that ends and the next run of the queue."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace
from sqlalchemy.exc import IntegrityError

from shared.domain.approvals import DENIAL
from shared.domain.errors import IllegalTransition, LogClosed, NotFound, StaleFence
from shared.domain.events import Ended, Failed, Stopped, ToolsReturned, decode
from shared.domain.ids import Seq, ThreadId
from shared.domain.lifecycle import TERMINAL, RunStatus, RunTrigger
from shared.domain.log_writer import LogTail, LogWriter
from shared.domain.messages import ApprovalResponse, AssistantMessage, Decision, ToolReturns
from shared.domain.runs import Run, RunError, Step, Usage
from shared.domain.settling import CANCELLED_WHILE_RUNNING, NEVER_STARTED, OUTCOME_UNKNOWN, RUN_FAILED
from shared.sql.definitions.agents import AgentFilter
from shared.sql.paging import Page
from shared.sql.runs.rows import apply
from shared.sql.runs.settlement import Settled, Settlement
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import (
    AGENT,
    IDS,
    IN_THREAD,
    THREAD,
    Stores,
    answer,
    approve,
    call,
    checkpoint,
    found,
    results,
    run_end,
    said,
    second_process,
    some_run,
    stored_runs,
    texts_of,
)

WAITS = call("a", needs_approval=True)
ENTRY = b'{"type":"status","at":1,"status":"running"}'


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def returned(stores: Stores) -> dict[str, str]:
    """The text of every result in the context, by tool call id."""
    return {
        result.tool_call_id: result.text
        for body in await stores.context()
        if isinstance(body, ToolReturns)
        for result in body.returns
    }


async def kinds(stores: Stores) -> list[str]:
    return [type(body).__name__ for body in await stores.context()]


async def test_a_run_is_settled_once(stores: Stores) -> None:
    run = await stores.claimed()
    last_words = answer("done")
    settled = await stores.settle(run, messages=[last_words], usage=Usage(prompt_tokens=3), step_count=2)
    assert settled.run == await stores.runs.look_up(run.id)
    assert (settled.run.status, settled.run.stop_reason) == (RunStatus.COMPLETED, "end_turn")
    assert (settled.run.usage.prompt_tokens, settled.run.step_count, settled.run.completed_at) == (3, 2, NOW)
    again = await stores.settle(run, RunTrigger.CANCEL, messages=[answer("too late")])
    assert again.run == settled.run, "its owner is told how it ended"
    assert await stores.runs.look_up(run.id) == settled.run
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi", "done"]


async def end_in(stores: Stores, status: RunStatus) -> Run:
    trigger = {
        RunStatus.COMPLETED: RunTrigger.COMPLETE,
        RunStatus.FAILED: RunTrigger.FAIL,
        RunStatus.CANCELLED: RunTrigger.CANCEL,
    }[status]
    return await stores.ended(trigger)


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_a_terminal_status_never_changes(stores: Stores, status: RunStatus) -> None:
    run = await end_in(stores, status)
    for trigger in RunTrigger:
        with pytest.raises(IllegalTransition):
            async with stores.database.write() as connection:
                await apply(connection, run.id, trigger, fence=run.fence, now=NOW)
    assert await stores.runs.look_up(run.id) == run


async def test_two_cancels_of_one_parked_run_meet(stores: Stores) -> None:
    for number in range(5):
        run = await stores.parked(WAITS, thread_id=ThreadId(f"conv-{number}"))
        async with second_process(stores) as other:
            ends = await asyncio.gather(*(each.settle(run, RunTrigger.CANCEL) for each in (stores, other)))
        cancelled = await stores.runs.look_up(run.id)
        assert cancelled.status is RunStatus.CANCELLED
        assert [end.run for end in ends] == [cancelled, cancelled]
        assert [list(end.tail.entries) for end in ends] == [[], []], "its stream ended when it was parked"


async def test_a_decision_and_a_cancel_of_one_parked_run_meet(stores: Stores) -> None:
    for number in range(5):
        thread = ThreadId(f"conv-{number}")
        run = await stores.parked(WAITS, thread_id=thread)
        async with second_process(stores) as other:
            continuation, end = await asyncio.gather(
                stores.decide(approve("a"), thread_id=thread),
                other.settle(run, RunTrigger.CANCEL),
                return_exceptions=True,
            )
        [asked] = await stores.asked(run)
        assert asked.decision is not None
        assert asked.decision.approve is isinstance(continuation, Run)
        assert isinstance(end, Settled)
        assert end.run == await stores.runs.look_up(run.id)
        assert end.run.status is (RunStatus.COMPLETED if isinstance(continuation, Run) else RunStatus.CANCELLED)


async def test_an_old_owner_settles_nothing(stores: Stores) -> None:
    old = await stores.claimed()
    new = await stores.taken_over(old)
    with pytest.raises(StaleFence):
        await stores.settle(old, messages=[answer("from the dead")])
    assert await stores.runs.look_up(old.id) == new
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi"]


async def test_cancelling_a_run_that_never_began_places_its_input(stores: Stores) -> None:
    run = await stores.submitted()
    settled = await stores.settle(run, RunTrigger.CANCEL)
    assert (settled.run.status, settled.run.turn) == (RunStatus.CANCELLED, 1)
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi"]


@pytest.mark.parametrize("is_claimed", [True, False])
async def test_a_failure_without_any_answer_leaves_no_trace(stores: Stores, is_claimed: bool) -> None:
    run = await (stores.claimed() if is_claimed else stores.submitted())
    end = run_end(RunTrigger.FAIL, error=RunError("llm_error", "no"), cause="model_error")
    settled = await stores.settle(run, RunTrigger.FAIL, end=end)
    assert (settled.run.error, settled.run.cause) == (RunError("llm_error", "no"), "model_error")
    assert await stores.context() == []
    assert await stores.messages.list_of_run(run) == []


async def test_a_failure_after_a_step_keeps_it(stores: Stores) -> None:
    run = await stores.recorded(await stores.claimed(), answer("", call("a")))
    run = await stores.recorded(run, results(found("a")))
    await stores.settle(run, RunTrigger.FAIL)
    assert await kinds(stores) == ["UserMessage", "AssistantMessage", "ToolReturns"]


async def test_a_failure_in_the_middle_of_an_answer_keeps_what_was_shown(stores: Stores) -> None:
    run = await stores.claimed()
    cut = answer("so far")
    await stores.settle(run, RunTrigger.FAIL, messages=[cut])
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi", "so far"]


async def test_a_cancel_keeps_the_question(stores: Stores) -> None:
    await stores.settle(await stores.claimed(), RunTrigger.CANCEL)
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi"]


async def test_a_rollback_takes_the_whole_run_out(stores: Stores) -> None:
    await stores.settle(await stores.claimed(), messages=[answer("before")])
    run = await stores.recorded(await stores.claimed(said("undo me")), answer("", call("a")))
    await stores.settle(run, RunTrigger.CANCEL, rollback=True)
    assert texts_of(await stores.messages.context(PROJECT, THREAD)) == ["hi", "before"]
    assert await stores.messages.list_of_run(run) == []
    assert texts_of(await stores.lists.page(IN_THREAD, limit=10)) == ["hi", "before"]


async def test_rolling_back_a_decision_still_answers_the_calls_that_were_asked_about(stores: Stores) -> None:
    await stores.parked(WAITS, call("b"))
    run = await stores.claim(await stores.decide(approve("a"), more=[said("and then?")]))
    settled = await stores.settle(run, RunTrigger.CANCEL, rollback=True, denial_reason="undone")
    assert await kinds(stores) == ["UserMessage", "AssistantMessage", "ApprovalResponse", "ToolReturns"]
    assert await returned(stores) == {call_id: DENIAL.format(reason="undone") for call_id in ("a", "b")}
    assert any(isinstance(decode(entry), ToolsReturned) for entry in settled.tail.entries)
    assert "and then?" not in texts_of(await stores.messages.context(PROJECT, THREAD))


async def test_cancelling_a_parked_run_denies_all_its_calls(stores: Stores) -> None:
    run = await stores.parked(WAITS, call("b"))
    settled = await stores.settle(
        run, RunTrigger.CANCEL, end=run_end(RunTrigger.CANCEL, cause="user"), denial_reason="never mind"
    )
    assert await returned(stores) == {call_id: DENIAL.format(reason="never mind") for call_id in ("a", "b")}
    [denied] = [body for body in await stores.context() if isinstance(body, ApprovalResponse)]
    assert denied.decisions == [Decision(tool_call_id="a", approve=False, reason="never mind")]
    [asked] = await stores.asked(run)
    assert (asked.decided_at, asked.decided_by) == (NOW, "user")
    assert asked.decision is not None
    assert not asked.decision.approve
    assert list(settled.tail.entries) == [], "its stream ended when it was parked"
    assert settled.run.last_seq == run.last_seq


async def test_results_that_were_there_are_kept_when_the_run_is_cut_off(stores: Stores) -> None:
    asking = answer("", call("a"), call("b"), call("c"))
    run = await stores.recorded(await stores.claimed(), asking, starting=[call("a"), call("b")])
    await stores.settle(run, RunTrigger.CANCEL, known_returns={"a": found("a", "here")})
    assert await returned(stores) == {"a": "here", "b": CANCELLED_WHILE_RUNNING, "c": NEVER_STARTED}


async def test_a_tool_that_was_started_and_lost_has_an_unknown_outcome(stores: Stores) -> None:
    run = await stores.recorded(await stores.claimed(), answer("", call("a"), call("b")), starting=[call("a")])
    await stores.settle(run, RunTrigger.FAIL, end=run_end(RunTrigger.FAIL, cause="worker_lost"))
    assert await returned(stores) == {"a": OUTCOME_UNKNOWN, "b": RUN_FAILED}


async def test_what_a_decision_says_of_a_call_outlives_its_cancel(stores: Stores) -> None:
    calls = [call(call_id, needs_approval=True) for call_id in ("ran", "denied", "silent", "free")]
    await stores.parked(*calls)
    brought = Decision(tool_call_id="ran", kind="tool", tool_return="from the client", stdout=["line"])
    refused = Decision(tool_call_id="denied", reason="too dear")
    run = await stores.decide(brought, refused, Decision(tool_call_id="silent"), approve("free"))
    await stores.settle(run, RunTrigger.CANCEL, denial_reason="not this one")
    assert await returned(stores) == {
        "ran": "from the client",
        "denied": DENIAL.format(reason="too dear"),
        "silent": DENIAL.format(reason="no reason was given"),
        "free": NEVER_STARTED,
    }


async def test_what_came_with_a_decision_follows_the_results(stores: Stores) -> None:
    await stores.parked(WAITS)
    run = await stores.claim(await stores.decide(approve("a"), more=[said("and then?")]))
    await stores.settle(run, RunTrigger.CANCEL)
    assert (await kinds(stores))[-3:] == ["ApprovalResponse", "ToolReturns", "UserMessage"]
    assert await returned(stores) == {"a": NEVER_STARTED}


async def test_the_end_of_the_log_follows_what_sql_lacked(stores: Stores) -> None:
    run = await stores.recorded(await stores.claimed(), answer("", call("a")), starting=[call("a")])
    unsaved = LogTail(Seq(run.last_seq + 1), [b'{"type":"status","at":1,"status":"running"}'])
    end = run_end(RunTrigger.FAIL, error=RunError("llm_error", "no"))
    settled = await stores.settle(run, RunTrigger.FAIL, tail=unsaved, end=end)
    stored = await stores.events.read(run.id, run.last_seq)
    assert [entry for _, entry in stored] == list(settled.tail.entries)
    assert [seq for seq, _ in stored] == list(range(run.last_seq + 1, settled.run.last_seq + 1))
    events = [decode(entry) for _, entry in stored]
    assert [type(event).__name__ for event in events] == [
        "StatusChanged", "ToolsReturned", "Stopped", "UsageReported", "Failed", "Ended",
    ]  # fmt: skip
    assert isinstance(events[2], Stopped)
    assert events[2].reason == "error"
    assert isinstance(events[4], Failed)


async def test_every_log_ends_even_of_a_run_that_never_began(stores: Stores) -> None:
    settled = await stores.settle(await stores.submitted(), RunTrigger.CANCEL)
    stored = await stores.events.read(settled.run.id, Seq(1))
    assert stored[0][0] == 2
    assert isinstance(decode(stored[-1][1]), Ended)


async def test_the_next_run_in_the_queue_gets_a_new_dispatch(stores: Stores) -> None:
    first = await stores.claimed()
    second, third = await stores.submitted(), await stores.submitted()
    settled = await stores.settle(first)
    assert settled.next is not None
    assert settled.next[:2] == (second.id, second.dispatch + 1)
    assert await stores.runs.claim(second.id, second.dispatch, IDS.claim(), NOW) is None, (
        "the dispatch of its submission is old"
    )
    settled = await stores.settle(await stores.claim(second))
    assert settled.next is not None
    assert settled.next.run_id == third.id
    assert (await stores.settle(await stores.claim(third))).next is None


async def refused(stores: Stores) -> Run:
    """A run that the thread's waiting for a person has refused."""
    end = run_end(RunTrigger.FAIL, error=RunError("internal_error", "no", "somebody must decide first"))
    refused = some_run(callback_url="http://127.0.0.1/called")
    return await stores.settlements.store_refused(refused, [said("me too")], Settlement(end=end, now=NOW))


async def test_a_refused_submission_is_stored_with_its_end_and_never_runs(stores: Stores) -> None:
    """It was stored first and refused second: after a crash in between, it was executed once the approval was
    decided."""
    parked = await stores.parked(WAITS)
    run = await refused(stores)
    assert (run.status, run.stop_reason, run.completed_at) == (RunStatus.FAILED, "error", NOW)
    assert run == await stores.runs.look_up(run.id)
    assert isinstance(decode((await stores.events.read(run.id, Seq(1)))[-1][1]), Ended)
    assert [due.run_id for due in await stores.callbacks.claim_due(NOW)] == [run.id]
    assert "me too" not in texts_of(await stores.messages.context(PROJECT, THREAD))
    assert await stores.status_of(parked) is RunStatus.AWAITING_APPROVAL
    continuation = await stores.claim(await stores.decide(approve("a")))
    assert (await stores.settle(continuation)).next is None
    assert await stores.runs.claim(run.id, run.dispatch, IDS.claim(), NOW) is None
    later = NOW + timedelta(days=1)
    assert await stores.listing.quiet(later, later) == []
    assert await stores.status_of(run) is RunStatus.FAILED


async def test_a_refused_submission_that_cannot_be_stored_whole_is_not_stored(stores: Stores) -> None:
    """One transaction: what goes wrong with its end leaves no run that could be claimed."""
    parked = await stores.parked(WAITS)
    [told, _] = await stores.messages.list_of_run(parked)
    twice = replace(said("me too"), id=told.id)
    run = some_run()
    with pytest.raises(IntegrityError):
        await stores.settlements.store_refused(run, [twice], Settlement(end=run_end(RunTrigger.FAIL), now=NOW))
    with pytest.raises(NotFound):
        await stores.runs.look_up(run.id)


async def test_a_refused_submission_leaves_the_queue_as_it_is(stores: Stores) -> None:
    """It gave the next run of the thread a new dispatch, of which nobody told the workers: the dispatch that they had
    could no longer claim the run, and it waited for the sweeper."""
    parked = await stores.parked(WAITS)
    waiting = await stores.decide(approve("a"))
    await refused(stores)
    assert await stores.status_of(parked) is RunStatus.COMPLETED
    assert await stores.runs.claim(waiting.id, waiting.dispatch, IDS.claim(), NOW) is not None


async def test_an_event_that_is_emitted_while_the_end_is_stored_takes_no_number_of_it(stores: Stores) -> None:
    """A tool's late output had the number of the end: readers saw it in the place of why the run had stopped."""
    run = await stores.claimed()
    writer = LogWriter(run.fence)
    writer.begin(Seq(1), None)
    writer.emit(ENTRY)
    unsaved = writer.to_store()
    writer.close()
    with pytest.raises(LogClosed):
        writer.emit(ENTRY)
    settled = await stores.settle(run, tail=unsaved)
    writer.end(settled.tail)
    assert writer.last == settled.run.last_seq
    stored = await stores.events.read(run.id, Seq(1))
    assert LogTail(stored[0][0], [entry for _, entry in stored]) == writer.to_send()
    assert isinstance(decode(stored[-1][1]), Ended)


Late = Callable[[Stores, Run, LogTail], Awaitable[object]]
LATE: dict[str, Late] = {
    "record_events": lambda stores, run, tail: stores.checkpoints.record_events(run, tail, NOW),
    "hand_over": lambda stores, run, tail: stores.checkpoints.hand_over(run, tail, NOW),
    "record": lambda stores, run, tail: stores.checkpoints.record(run, checkpoint(run, tail=tail)),
    "take_new_fence": lambda stores, run, tail: stores.checkpoints.take_new_fence(run, tail, NOW),
}
ENDS: dict[str, Callable[[Stores, Run], Awaitable[object]]] = {
    "settle": lambda stores, run: stores.settle(run),
    "park": lambda stores, run: stores.park(run, WAITS),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_an_event_that_comes_behind_the_end_is_refused_and_changes_no_number(
    stores: Stores, end: Callable[[Stores, Run], Awaitable[object]], late: Late
) -> None:
    run = await stores.claimed()
    await end(stores, run)
    ended, log = await stores.runs.look_up(run.id), await stores.events.read(run.id, Seq(1))
    with pytest.raises(IllegalTransition):
        await late(stores, run, LogTail(Seq(2), [ENTRY] * 9))
    assert await stores.runs.look_up(run.id) == ended
    assert await stores.events.read(run.id, Seq(1)) == log


async def test_the_step_and_the_agent_say_how_it_ended(stores: Stores) -> None:
    run = await stores.claimed()
    step = Step(id=IDS.step(), run_id=run.id, agent_id=AGENT.id, number=1, model="builtin/echo", created_at=NOW)
    await stores.settle(run, RunTrigger.CANCEL, step=replace(step, status="cancelled"))
    assert (await stores.steps.get(PROJECT, step.id)).status == "cancelled"
    assert await stores.last_stop_reason() == "cancelled"
    for reason, agent_ids in (("cancelled", [AGENT.id]), ("end_turn", [])):
        found = await stores.agents.list(PROJECT, AgentFilter(last_stop_reason=reason), Page())
        assert [agent.id for agent in found] == agent_ids


async def test_answers_are_not_stored_twice(stores: Stores) -> None:
    last_words = answer("done")
    run = await stores.recorded(await stores.claimed(), last_words)
    await stores.settle(run, messages=[last_words])
    bodies = await stores.context()
    assert [body.text for body in bodies if isinstance(body, AssistantMessage)] == ["done"]
