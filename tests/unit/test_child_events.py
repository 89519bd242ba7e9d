"""What a run's log says of the runs that it has started."""

from shared.domain.approvals import WaitingCalls
from shared.domain.events import ChildStarted, ChildWaits, StepRestarted, child_key, decode, encode
from shared.domain.ids import AgentId, ApprovalId, MessageId, RunId, Seq, ThreadId
from shared.domain.settling import ShownStep

STARTED = ChildStarted(7, "call-1", RunId("run-2"), AgentId("agent-2"))
WAITS = ChildWaits(
    8,
    "call-1",
    WaitingCalls(
        run_id=RunId("run-2"),
        agent_id=AgentId("agent-2"),
        thread_id=ThreadId("agent-2"),
        message_id=MessageId("message-1"),
        tool_call_ids=["call-9"],
        approval_ids=[ApprovalId("approval-1")],
    ),
)


def test_events_of_children_are_read_as_they_were_written() -> None:
    assert [decode(encode(event)) for event in (STARTED, WAITS)] == [STARTED, WAITS]


def test_the_next_owner_knows_what_was_said_of_a_child() -> None:
    shown = ShownStep([STARTED, StepRestarted(at=9, attempt=2, follows=Seq(2)), WAITS])
    assert shown.shown_children == {child_key(STARTED), child_key(WAITS)}
    assert child_key(STARTED) != child_key(WAITS)
