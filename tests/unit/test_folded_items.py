"""What a fold may rely on in a log, as a table: logs that keep the promises of `shared/domain/events.py`, and what each
of them comes to; and logs that break one, which is found out."""

from typing import Any

import msgspec
import pytest

from shared.domain import events
from shared.domain.events import (
    SHORT_RESULT,
    Answered,
    AnsweredCall,
    CallDecided,
    Ended,
    Event,
    Gap,
    LogContinued,
    ReasoningChunk,
    StepRestarted,
    Stopped,
    TextChunk,
    ToolCallChunk,
    ToolCalls,
    ToolEnded,
    ToolsReturned,
    ToolStarted,
    tool_ended,
)
from shared.domain.ids import ApprovalId, MessageId, Seq, StepId
from shared.domain.messages import TextContent, ToolCall, ToolReturn
from shared.domain.settling import ShownStep
from tests.kit.runs.folded_items import FoldedItems

STEP, FIRST, SECOND = StepId("step-1"), MessageId("message-1"), MessageId("message-2")
AGAIN = MessageId("message-3")
FOUND = ToolReturn(tool_call_id="call-1", tool_name="look", status="success", text="42")
RETURNED = ToolsReturned(9, STEP, SECOND, [FOUND])
TEXT = TextChunk(2, STEP, FIRST, "Hello", 0)
NAMED = ToolCallChunk(2, STEP, FIRST, "call-1", "look", part=1)
ARGUMENTS = ToolCallChunk(2, STEP, FIRST, "call-1", None, "{}", part=1)
WHOLE = Answered(3, STEP, FIRST, "stop")
CALLED = Answered(3, STEP, FIRST, "tool_calls", [AnsweredCall("call-1", "look")])
STARTED, TOOL_ENDED = ToolStarted(4, STEP, "call-1", "look"), tool_ended(FOUND, STEP, 5)
RESTARTED = StepRestarted(at=6, attempt=2, follows=Seq(2), void_message_ids=[FIRST])
DECIDED = CallDecided(1, STEP, "call-1", "look", "approved", arguments="{}", approval_id=ApprovalId("approval-1"))

TEXT_KEY, CALL_KEY = ("text", FIRST, "0"), ("call", STEP, "call-1")


def ends(reason: str) -> tuple[Event, ...]:
    return Stopped(9, reason), Ended(9)


KEPT: dict[str, tuple[tuple[Event, ...], dict[tuple[str, str, str], str]]] = {
    "an answer": ((TEXT, TEXT, WHOLE, *ends("end_turn")), {TEXT_KEY: "HelloHello"}),
    "reasoning and text": (
        (ReasoningChunk(1, STEP, FIRST, "Hm.", 1), TEXT, WHOLE, *ends("end_turn")),
        {TEXT_KEY: "Hello", ("reasoning", FIRST, "1"): "Hm."},
    ),
    "a tool": (
        (NAMED, ARGUMENTS, CALLED, STARTED, TOOL_ENDED, RETURNED, *ends("tool_rule")),
        {CALL_KEY: "{}"},
    ),
    "arguments that the model has corrected": (
        (NAMED, ARGUMENTS, msgspec.structs.replace(CALLED, calls=[AnsweredCall("call-1", "look", '{"a":1}')]),
         RETURNED, *ends("end_turn")),
        {CALL_KEY: '{"a":1}'},
    ),
    "a whole call": (
        (ToolCalls(2, STEP, FIRST, [ToolCall("call-1", "look", "{}")]), CALLED, RETURNED, *ends("end_turn")),
        {CALL_KEY: "{}"},
    ),
    "a call that no piece has shown": ((CALLED, RETURNED, *ends("end_turn")), {CALL_KEY: ""}),
    "a call that a client asked for": (
        (ToolCalls(2, None, FIRST, [ToolCall("call-1", "look", "{}")]), RETURNED, *ends("end_turn")),
        {("call", "None", "call-1"): "{}"},
    ),
    "a call that waits": ((NAMED, ARGUMENTS, CALLED, *ends("requires_approval")), {CALL_KEY: "{}"}),
    "a call that was approved": ((DECIDED, STARTED, TOOL_ENDED, RETURNED, *ends("end_turn")), {}),
    "a cancel in an answer": ((TEXT, *ends("cancelled")), {}),
    "a cancel in a tool": ((NAMED, CALLED, STARTED, RETURNED, *ends("cancelled")), {CALL_KEY: ""}),
    "a worker that was lost in an answer": (
        (TEXT, RESTARTED, TextChunk(7, STEP, AGAIN, "Hi"), msgspec.structs.replace(WHOLE, message_id=AGAIN),
         *ends("end_turn")),
        {("text", AGAIN, "0"): "Hi"},
    ),
    "an answer that another worker goes on with": (
        (TEXT, LogContinued(6, Seq(2), 2), TEXT, WHOLE, *ends("end_turn")),
        {TEXT_KEY: "HelloHello"},
    ),
    "a worker that was lost in a tool": (
        (NAMED, CALLED, STARTED, msgspec.structs.replace(RESTARTED, void_message_ids=[]), STARTED, TOOL_ENDED,
         RETURNED, *ends("end_turn")),
        {CALL_KEY: ""},
    ),
    "a gap": ((TEXT, Gap(6, Seq(3)), RETURNED, *ends("end_turn")), {}),
}  # fmt: skip

BROKEN: dict[str, tuple[Event, ...]] = {
    "an item that stays open": (TEXT, *ends("end_turn")),
    "a piece behind its end": (TEXT, WHOLE, TEXT),
    "a call that the end of its answer does not name": (NAMED, WHOLE),
    "two ends of one call": (CALLED, CALLED),
    "a call without a result": (CALLED, *ends("end_turn")),
    "a tool that ends twice": (CALLED, STARTED, TOOL_ENDED, TOOL_ENDED),
    "a tool that starts twice": (CALLED, STARTED, STARTED),
    "two results": (CALLED, STARTED, tool_ended(msgspec.structs.replace(FOUND, text="43"), STEP, 5), RETURNED),
    "two decisions": (DECIDED, DECIDED),
    "an event behind the end": (*ends("cancelled"), TEXT),
    "another answerer": (msgspec.structs.replace(NAMED, answered_by="client"), CALLED),
    "another answer": (TEXT, msgspec.structs.replace(WHOLE, message_id=AGAIN)),
}


@pytest.mark.parametrize("name", KEPT)
def test_every_item_is_closed_once(name: str) -> None:
    log, closed = KEPT[name]
    folded = FoldedItems(events.decode(events.encode(event)) for event in log)
    assert folded.broken == []
    assert {key: text for key, text in folded.closed.items() if key not in folded.void} == closed
    assert (folded.open, folded.running) == ({}, set())


@pytest.mark.parametrize("name", BROKEN)
def test_a_log_that_breaks_a_promise_is_found_out(name: str) -> None:
    assert FoldedItems(BROKEN[name]).broken


@pytest.mark.parametrize(
    ("result", "repeated"),
    [
        (FOUND, "42"),
        (msgspec.structs.replace(FOUND, text="x" * SHORT_RESULT), "x" * SHORT_RESULT),
        (msgspec.structs.replace(FOUND, text="x" * (SHORT_RESULT + 1)), None),
        (msgspec.structs.replace(FOUND, parts=[TextContent("42")]), None),
    ],
    ids=["short", "just short", "long", "with parts"],
)
def test_a_long_result_is_not_stored_twice(result: ToolReturn, repeated: str | None) -> None:
    ended = tool_ended(result, STEP, 5)
    assert ended == ToolEnded(5, STEP, "call-1", "success", len(result.text), repeated)


def test_no_model_goes_on_with_an_answer_whose_end_was_shown() -> None:
    """Its item was closed for readers: a word behind it would have no place."""
    assert ShownStep([TEXT]).beginning is not None
    shown = ShownStep([TEXT, WHOLE])
    assert shown.beginning is None
    assert shown.message_id == FIRST, "its message is void when the step begins again"


def test_decisions_that_were_shown_are_known_to_the_next_owner() -> None:
    assert ShownStep([DECIDED, RESTARTED]).decided_calls == {"call-1"}


def test_an_older_release_passes_over_the_events_of_items() -> None:
    """They are types of their own, and it knows only their time."""
    for event in (WHOLE, STARTED, TOOL_ENDED, DECIDED):
        entry = events.encode(event)
        named = msgspec.json.decode(entry, type=dict[str, Any])["type"]
        assert named in {"answered", "tool_started", "tool_ended", "decided"}
        assert msgspec.json.decode(entry, type=events.Unknown) == events.Unknown(event.at)
