"""How a conversation is left when a run ends: every call has its result, what was shown is what is kept."""

from typing import Any, Literal

import pytest

from shared.domain.approvals import DENIAL
from shared.domain.events import (
    Ended,
    Event,
    Failed,
    InputDelivered,
    LogContinued,
    ReasoningChunk,
    StatusChanged,
    StepRestarted,
    Stopped,
    TextChunk,
    ToolCallChunk,
    ToolCalls,
    ToolsReturned,
    UsageReported,
)
from shared.domain.ids import IdMaker, MessageId, Seq, StepId, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    Message,
    MessageBody,
    NewMessage,
    Reasoning,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.domain.runs import RunError, Usage
from shared.domain.settling import (
    CANCELLED_WHILE_RUNNING,
    NEVER_STARTED,
    OUTCOME_UNKNOWN,
    RUN_FAILED,
    BegunAnswer,
    OpenCalls,
    RunEnd,
    ShownStep,
    close_calls,
    end_events,
    open_calls,
    returns_event,
)
from tests.kit.runs.definitions import NOW, some_agent

IDS = IdMaker()
STEP = StepId("step-1")
M1, M2 = MessageId("message-1"), MessageId("message-2")
A, B = ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}")
WAITS = ToolCall("w", "buy", "{}", needs_approval=True)
ASKED = UserMessage(content="hi")
RETURNED = ToolReturns(returns=[ToolReturn("a", "look", "success", "found")])
APPROVED = ApprovalResponse(decisions=[Decision("w", approve=True)])


def history(*bodies: MessageBody) -> list[Message]:
    agent = some_agent()
    return [
        Message(
            id=IDS.message(),
            agent_id=agent.id,
            thread_id=ThreadId(agent.id),
            conversation_id=None,
            run_id=None,
            step_id=STEP,
            created_at=NOW,
            body=body,
            position=position,
        )
        for position, body in enumerate(bodies, start=1)
    ]


def calling(*calls: ToolCall) -> AssistantMessage:
    return AssistantMessage(tool_calls=list(calls))


@pytest.mark.parametrize(
    "bodies",
    [
        (),
        (ASKED,),
        (ASKED, AssistantMessage(text="hello")),
        (ASKED, calling(A), RETURNED),
        (ASKED, calling(A), RETURNED, ASKED),
        (ASKED, calling(A), RETURNED, AssistantMessage(text="hello")),
    ],
)
def test_a_history_whose_calls_have_their_results_has_none_open(bodies: tuple[MessageBody, ...]) -> None:
    assert open_calls(history(*bodies)) is None


def test_calls_without_results_are_open() -> None:
    expected = OpenCalls(step_id=STEP, calls=[A, B], decided=False)
    assert open_calls(history(ASKED, calling(A, B))) == expected
    assert open_calls(history(ASKED, calling(A, B), ASKED)) == expected, "a message that came later closes nothing"
    assert open_calls(history(ASKED, calling(A), RETURNED, calling(A, B))) == expected


def test_open_calls_carry_what_was_decided_of_them() -> None:
    open_ = open_calls(history(ASKED, calling(WAITS), APPROVED))
    assert open_ == OpenCalls(step_id=STEP, calls=[WAITS], decided=True, decisions=APPROVED.decisions)


Why = Literal["cancel", "error", "denied"]


def close(open_: OpenCalls, why: Why = "cancel", **fields: Any) -> tuple[list[NewMessage], dict[str, str]]:
    defaults: dict[str, Any] = {"known": {}, "started": set(), "reason": "stop", "ids": IDS, "now": NOW}
    closing = close_calls(open_, why=why, **(defaults | fields))
    last = closing[-1].body
    assert isinstance(last, ToolReturns)
    return closing, {result.tool_call_id: result.text for result in last.returns}


def test_every_open_call_gets_one_result_in_the_order_of_the_calls() -> None:
    [closing], texts = close(OpenCalls(STEP, [B, A], decided=False))
    assert list(texts) == ["b", "a"]
    assert closing.step_id == STEP
    assert isinstance(closing.body, ToolReturns)
    assert {(result.tool_name, result.status) for result in closing.body.returns} == {("look", "error")}


@pytest.mark.parametrize(
    ("why", "started", "fresh"),
    [("cancel", CANCELLED_WHILE_RUNNING, NEVER_STARTED), ("error", OUTCOME_UNKNOWN, RUN_FAILED)],
)
def test_the_model_is_told_whether_the_tool_had_been_started(why: Why, started: str, fresh: str) -> None:
    _, texts = close(OpenCalls(STEP, [A, B], decided=False), why, started={"a"})
    assert texts == {"a": started, "b": fresh}


def test_a_known_result_is_kept() -> None:
    known = ToolReturn("a", "look", "success", "found")
    [closing], texts = close(OpenCalls(STEP, [A, B], decided=False), known={"a": known}, started={"a", "b"})
    assert isinstance(closing.body, ToolReturns)
    assert closing.body.returns[0] == known
    assert texts["b"] == CANCELLED_WHILE_RUNNING


def test_undecided_calls_are_denied_together_with_those_that_need_nobody() -> None:
    closing, texts = close(OpenCalls(STEP, [A, WAITS], decided=False), reason="not now")
    assert closing[0].body == ApprovalResponse(decisions=[Decision("w", approve=False, reason="not now")])
    assert texts == {"a": DENIAL.format(reason="not now"), "w": DENIAL.format(reason="not now")}


def test_decided_calls_are_not_denied_again() -> None:
    closing, texts = close(OpenCalls(STEP, [WAITS], decided=True, decisions=APPROVED.decisions))
    assert len(closing) == 1
    assert texts == {"w": NEVER_STARTED}


def test_what_the_decision_says_is_the_result() -> None:
    brought = Decision("w", kind="tool", tool_return="bought", status="error", stdout=["a line"])
    denied = Decision("a", reason="too dear")
    open_ = OpenCalls(STEP, [WAITS, A], decided=True, decisions=[brought, denied])
    [closing], texts = close(open_)
    assert texts == {"w": "bought", "a": DENIAL.format(reason="too dear")}
    assert isinstance(closing.body, ToolReturns)
    assert (closing.body.returns[0].status, closing.body.returns[0].stdout) == ("error", ["a line"])


def partial(*events: Event) -> NewMessage | None:
    return ShownStep(events).partial_answer(cut_by="cancel", model="builtin/echo", now=NOW)


def text(piece: str, message_id: MessageId = M1) -> TextChunk:
    return TextChunk(1, STEP, message_id, piece)


def thought(piece: str) -> ReasoningChunk:
    return ReasoningChunk(1, STEP, M1, piece)


def body_of(message: NewMessage | None) -> AssistantMessage:
    assert message is not None
    assert isinstance(message.body, AssistantMessage)
    return message.body


def test_a_partial_answer_is_what_was_streamed() -> None:
    cut = partial(thought("h"), thought("m"), text("so "), text("far"))
    assert body_of(cut) == AssistantMessage(
        text="so far", reasoning=Reasoning("hm"), partial=True, cut_by="cancel", model="builtin/echo"
    )
    assert cut is not None
    assert (cut.id, cut.step_id, cut.created_at) == (M1, STEP, NOW)


@pytest.mark.parametrize(
    "events",
    [
        [],
        [StatusChanged(1, "running")],
        [InputDelivered(1, M1, "more")],
        [ToolsReturned(1, STEP, M1, [])],
        [text("void"), StepRestarted(at=2, attempt=2, follows=Seq(2), void_message_ids=[M1])],
        [thought("hm")],
        [ToolCallChunk(1, STEP, M2, "a", name="look")],
        [ToolCalls(1, STEP, M2, [A])],
    ],
)
def test_where_no_text_was_shown_there_is_no_partial_answer(events: list[Event]) -> None:
    assert partial(*events) is None


def test_what_a_restarted_step_had_shown_is_void() -> None:
    cut = partial(text("void"), StepRestarted(at=2, attempt=2, follows=Seq(2), void_message_ids=[M1]), text("new", M2))
    assert body_of(cut).text == "new"
    assert cut is not None
    assert cut.id == M2


def test_an_answer_that_goes_on_is_one_answer_and_two_calls_of_the_model() -> None:
    shown = ShownStep([text("first"), LogContinued(2, Seq(2), attempt=2), text(" second")])
    assert shown.beginning == BegunAnswer(M1, STEP, "first second")
    assert (shown.text, shown.lost_calls, shown.lost_text) == (" second", 1, "first")
    assert body_of(partial(text("first"), LogContinued(2, Seq(2), attempt=2), text(" second"))).text == "first second"


def test_a_new_fence_of_the_same_worker_loses_no_call() -> None:
    shown = ShownStep([text("first"), LogContinued(2, Seq(2)), text(" second")])
    assert (shown.text, shown.lost_calls) == ("first second", 0)


@pytest.mark.parametrize(
    "events",
    [
        [],
        [text(" ")],
        [thought("hm"), text("so")],
        [text("so"), ToolCallChunk(1, STEP, M1, "a", name="look")],
        [text("so"), InputDelivered(1, M2, "more")],
        [text("void"), StepRestarted(at=2, attempt=2, follows=Seq(2), void_message_ids=[M1])],
    ],
)
def test_what_no_model_can_go_on_with_is_no_beginning(events: list[Event]) -> None:
    assert ShownStep(events).beginning is None


def test_what_came_in_before_an_answer_began_is_answered_by_it() -> None:
    assert ShownStep([InputDelivered(1, M2, "more"), text("so")]).beginning == BegunAnswer(M1, STEP, "so")


def test_calls_that_were_being_written_are_not_kept() -> None:
    cut = partial(
        text("let me"),
        ToolCallChunk(1, STEP, M2, "a", name="look"),
        ToolCallChunk(1, STEP, M2, "a", arguments='{"q'),
        ToolCallChunk(1, STEP, M2, "a", arguments='": 1'),
        ToolCalls(1, STEP, M2, [B]),
    )
    assert body_of(cut).tool_calls == [], "they were never run"
    assert cut is not None
    assert cut.id == M1, "the text's message, not that of the calls beside it"


def test_only_results_are_shown_as_results() -> None:
    message = NewMessage(id=M1, created_at=NOW, body=RETURNED, step_id=STEP)
    assert returns_event(message, at=5) == ToolsReturned(5, STEP, M1, RETURNED.returns)
    assert returns_event(NewMessage(id=M1, created_at=NOW, body=ASKED), at=5) is None


def ends(error: RunError | None) -> list[Event]:
    return end_events(
        RunEnd(trigger=RunTrigger.FAIL, stop_reason="error", error=error)
        if error
        else RunEnd(trigger=RunTrigger.COMPLETE, stop_reason="end_turn"),
        at=5,
        status=RunStatus.FAILED if error else RunStatus.COMPLETED,
        usage=Usage(prompt_tokens=1, estimated=True),
        step_count=2,
        status_events=True,
    )


def test_a_stream_ends_with_its_reason_its_usage_and_the_end() -> None:
    assert ends(None) == [
        StatusChanged(5, "completed"),
        Stopped(5, "end_turn"),
        UsageReported(5, prompt_tokens=1, step_count=2, estimated=True),
        Ended(5),
    ]


def test_a_failed_stream_says_why_before_it_ends() -> None:
    assert ends(RunError("llm_error", "no", "detail"))[-2:] == [Failed(5, "llm_error", "no", "detail"), Ended(5)]


@pytest.mark.parametrize(
    "opening",
    [
        StepRestarted(at=2, attempt=2, follows=Seq(2), lost_call=True),
        LogContinued(2, Seq(2), attempt=2, lost_call=True),
    ],
)
def test_a_call_is_lost_whether_or_not_it_had_shown_anything(opening: Event) -> None:
    for shown, text_lost in ((ShownStep([opening]), ""), (ShownStep([text("first"), opening]), "first")):
        assert (shown.lost_calls, shown.lost_text) == (1, text_lost)
    assert ShownStep([opening, opening, opening]).lost_calls == 3


def test_a_worker_that_left_between_steps_has_lost_no_call() -> None:
    assert ShownStep([StepRestarted(at=2, attempt=2, follows=Seq(2))]).lost_calls == 0
