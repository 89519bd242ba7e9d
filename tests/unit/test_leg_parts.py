"""A log as parts: each kind of entry with its parts, and what holds of every log."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings

from api.pages.leg_parts import (
    CallCut,
    CallGrew,
    CallOpened,
    CallReady,
    Compaction,
    DataShown,
    Decided,
    Injected,
    LegEnded,
    LegParts,
    Lost,
    Part,
    ReasoningClosed,
    ReasoningGrew,
    ReasoningOpened,
    Restarted,
    Returned,
    StepBegan,
    TextClosed,
    TextGrew,
    TextOpened,
)
from shared.domain import events
from shared.domain.ids import AgentId, MessageId, ProjectId, RunId, Seq, StepId, ThreadId
from shared.domain.messages import CompactionStats, ToolCall, ToolReturn
from shared.domain.runs import Run, RunOptions
from shared.domain.tools import ClientTool
from tests.kit.runs.random_logs import AT, MESSAGE, RUNNING, STEP, ended, logs, text

NEXT_STEP, NEXT_MESSAGE = StepId("step-2"), MessageId("message-bb")
RESULT = ToolReturn("c", "look", "success", "42")
LONG = ToolReturn("c", "look", "success", "4" * 2_000)
SAYS_HI = [StepBegan(STEP), TextOpened(MESSAGE, MESSAGE), TextGrew(MESSAGE, "Hi")]
DATA = events.DataPart(AT, STEP, MESSAGE, "progress", {"done": 1})
RESTARTED = events.StepRestarted(at=AT, attempt=2, follows=Seq(2), void_message_ids=[MESSAGE])


def run_of(*, says_ends: bool = True) -> Run:
    return Run(
        id=RunId("run-00000000-0000-4000-8000-000000000002"),
        project_id=ProjectId("default"),
        agent_id=AgentId("agent-1"),
        thread_id=ThreadId("agent-1"),
        options=RunOptions(item_events=says_ends, client_tools=[ClientTool(name="mine")]),
        created_at=datetime(2026, 11, 1, tzinfo=UTC),
    )


def parts_of(*log: events.Event, says_ends: bool = True) -> list[Part]:
    fold = LegParts(run_of(says_ends=says_ends))
    numbered = enumerate([events.RunCreated(AT), *log], start=1)
    return [part for seq, event in numbered for part in fold.take(Seq(seq), event)]


def thought(said: str) -> events.ReasoningChunk:
    return events.ReasoningChunk(AT, STEP, MESSAGE, said)


def chunk(call_id: str, name: str | None = "look", said: str | None = None, **more: Any) -> events.ToolCallChunk:
    return events.ToolCallChunk(AT, STEP, MESSAGE, call_id, name, said, **more)


def answered(*calls: events.AnsweredCall, reason: events.AnswerReason = "stop") -> events.Answered:
    return events.Answered(AT, STEP, MESSAGE, reason, list(calls))


def returned(*results: ToolReturn, step: StepId = STEP) -> events.ToolsReturned:
    return events.ToolsReturned(AT, step, MessageId("message-r"), list(results))


def opened(call_id: str, by: events.AnsweredBy = "worker") -> CallOpened:
    return CallOpened(call_id, "look", MESSAGE, by)


def ready(call_id: str, arguments: str = "{}", by: events.AnsweredBy = "worker") -> CallReady:
    return CallReady(call_id, "look", arguments, by)


DECISION = events.CallDecided(AT, STEP, "c", "look", "approved", "{}")
INPUT = events.InputDelivered(AT, MessageId("message-i"), "And?", "otid-1")
SUMMARY = events.Compacted(AT, MessageId("message-s"), "They talked.", CompactionStats(4, 2, 1000))
TABLE: list[tuple[str, Sequence[events.Event], Sequence[Part]]] = [
    ("a status", [RUNNING], []),
    ("a text", [text("Hi"), text(""), answered()], [*SAYS_HI, TextClosed(MESSAGE)]),
    (
        "a thought and a text",
        [thought("Hm"), text("Hi"), answered()],
        [
            StepBegan(STEP),
            ReasoningOpened(f"reasoning-{MESSAGE}", MESSAGE),
            ReasoningGrew(f"reasoning-{MESSAGE}", "Hm"),
            ReasoningClosed(f"reasoning-{MESSAGE}"),
            *SAYS_HI[1:],
            TextClosed(MESSAGE),
        ],
    ),
    (
        "a text that goes on after a call",
        [text("Hi"), chunk("c", said="{}"), text("!"), answered(events.AnsweredCall("c", "look"))],
        [
            *SAYS_HI,
            TextClosed(MESSAGE),
            opened("c"),
            CallGrew("c", "{}"),
            TextOpened(f"{MESSAGE}~", MESSAGE),
            TextGrew(f"{MESSAGE}~", "!"),
            ready("c"),
            TextClosed(f"{MESSAGE}~"),
        ],
    ),
    (
        "a call and its result, which comes twice",
        [
            chunk("c", said="{}"),
            answered(events.AnsweredCall("c", "look")),
            events.ToolEnded(AT, STEP, "c", "success", 2, "42"),
            returned(RESULT),
        ],
        [
            StepBegan(STEP),
            opened("c"),
            CallGrew("c", "{}"),
            ready("c"),
            Returned("c", ToolReturn("c", "", "success", "42")),
        ],
    ),
    (
        "a long result comes once",
        [
            chunk("c", said="{}"),
            answered(events.AnsweredCall("c", "look")),
            events.ToolEnded(AT, STEP, "c", "success", 2_000),
            returned(LONG),
        ],
        [StepBegan(STEP), opened("c"), CallGrew("c", "{}"), ready("c"), Returned("c", LONG)],
    ),
    (
        "arguments that a rule has completed",
        [chunk("c", said='{"a":1'), answered(events.AnsweredCall("c", "look", '{"a":1,"b":2}'))],
        [
            StepBegan(STEP),
            opened("c"),
            CallGrew("c", '{"a":1'),
            CallGrew("c", ',"b":2}'),
            ready("c", '{"a":1,"b":2}'),
        ],
    ),
    (
        "arguments that are others in the end",
        [chunk("c", said="{a}"), answered(events.AnsweredCall("c", "look", '{"a":1}'))],
        [StepBegan(STEP), opened("c"), CallGrew("c", "{a}"), ready("c", '{"a":1}')],
    ),
    (
        "a call that no piece has shown",
        [answered(events.AnsweredCall("c", "look", "{}", "person"))],
        [StepBegan(STEP), opened("c", "person"), CallGrew("c", "{}"), ready("c", by="person")],
    ),
    (
        "a call that is cut off",
        [chunk("c", said='{"a'), answered(events.AnsweredCall("c", "look"), reason="length")],
        [StepBegan(STEP), opened("c"), CallGrew("c", '{"a'), CallCut("c", "look", '{"a')],
    ),
    ("a decision", [DECISION, returned(RESULT)], [Decided(DECISION), Returned("c", RESULT)]),
    ("data before an answer", [DATA, text("Hi")], [DataShown(DATA), *SAYS_HI]),
    ("data that is void alone", [DATA, RESTARTED], [DataShown(DATA)]),
    ("an injected message", [INPUT], [Injected(INPUT)]),
    ("a summary", [SUMMARY], [Compaction(SUMMARY)]),
    (
        "a step that begins again",
        [text("Hi"), RESTARTED, events.TextChunk(AT, STEP, NEXT_MESSAGE, "Ho")],
        [
            *SAYS_HI,
            TextClosed(MESSAGE),
            Restarted(frozenset([MESSAGE]), (MESSAGE,)),
            StepBegan(STEP),
            TextOpened(NEXT_MESSAGE, NEXT_MESSAGE),
            TextGrew(NEXT_MESSAGE, "Ho"),
        ],
    ),
    ("a step of which nothing was shown", [events.StepRestarted(at=AT, attempt=2, follows=Seq(1))], []),
    ("a log that goes on", [text("Hi"), events.LogContinued(at=AT, follows=Seq(2), attempt=2)], SAYS_HI),
    (
        "a gap in a text",
        [text("Hi"), events.Gap(AT, Seq(3)), text("?"), answered()],
        [*SAYS_HI, TextClosed(MESSAGE), Lost()],
    ),
    (
        "the client's own call",
        [events.ToolCalls(AT, None, MESSAGE, [ToolCall("c", "look", "{}")]), returned(RESULT)],
        [opened("c"), CallGrew("c", "{}"), ready("c"), Returned("c", RESULT)],
    ),
    (
        "a result of speech, which clients saw as text",
        [returned(ToolReturn("c", "send_message", "success", "ok", of_speech=True))],
        [],
    ),
]


@pytest.mark.parametrize(("log", "parts"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_entry_has_its_parts(log: Sequence[events.Event], parts: Sequence[Part]) -> None:
    assert parts_of(*log) == list(parts)


@pytest.mark.parametrize("reason", ["end_turn", "cancelled", "requires_approval", "llm_api_error"])
def test_the_end_closes_what_is_open_and_names_what_waits(reason: str) -> None:
    asks = [chunk("c", said="{}", answered_by="person"), answered(events.AnsweredCall("c", "look", None, "person"))]
    failure = events.Failed(AT, "llm_error", "It broke.")
    log = [*asks, chunk("d", said="{", answered_by="client"), *ended(reason, failure)]
    [*_, cut, end] = parts_of(*log)
    assert cut == CallCut("d", "look", "{")
    assert end == LegEnded(reason, failure, events.UsageReported(AT, prompt_tokens=3), ("c",))


def test_a_log_without_the_ends_of_answers_has_them_where_the_next_one_begins() -> None:
    """The runs of dialects that do not ask for the events of items are shown to the others as well."""
    calls = [chunk("c", said="{}"), chunk("m", "mine", "{}")]
    later = events.TextChunk(AT, NEXT_STEP, NEXT_MESSAGE, "Ho")
    shown = parts_of(text("Hi"), *calls, returned(RESULT), later, *ended(), says_ends=False)
    assert [part for part in shown if isinstance(part, CallReady)] == [
        ready("c"),
        CallReady("m", "mine", "{}", "client"),
    ]
    kinds = [type(part) for part in shown]
    assert kinds.index(Returned) > kinds.index(CallReady)
    assert kinds[-2:] == [TextClosed, LegEnded]
    asks = parts_of(chunk("c", said="{}", needs_approval=True), *ended("requires_approval"), says_ends=False)
    assert ready("c", by="person") in asks
    cut = parts_of(chunk("c", said="{"), *ended("cancelled"), says_ends=False)
    assert CallCut("c", "look", "{") in cut


def test_ids_that_a_model_uses_again_are_told_apart() -> None:
    one = [chunk("c", said="{}"), answered(events.AnsweredCall("c", "look")), returned(RESULT)]
    again = [
        events.ToolCallChunk(AT, NEXT_STEP, NEXT_MESSAGE, "c", "look", "{}"),
        events.Answered(AT, NEXT_STEP, NEXT_MESSAGE, "tool_calls", [events.AnsweredCall("c", "look")]),
        returned(RESULT, step=NEXT_STEP),
    ]
    shown = parts_of(*one, *again)
    assert [part.id for part in shown if isinstance(part, Returned)] == ["c", "c~"]
    assert [part.id for part in shown if isinstance(part, CallReady)] == ["c", "c~"]


def test_a_rewritten_log_is_noticed() -> None:
    """Another worker goes on after an entry that this reader has passed: what it was sent is no longer valid."""
    fold = LegParts(run_of())
    for seq, event in enumerate([events.RunCreated(AT), text("Hi"), text("!")], start=1):
        fold.take(Seq(seq), event)
    fold.take(Seq(1_000_001), RESTARTED)
    assert fold.is_contradicted
    assert not LegParts(run_of()).is_contradicted


def test_a_deleted_log_ends() -> None:
    fold = LegParts(run_of())
    fold.take(Seq(1), events.RunCreated(AT))
    fold.take(Seq(2), text("Hi"))
    [closed, end] = fold.lost_ending()
    assert closed == TextClosed(MESSAGE)
    assert isinstance(end, LegEnded)
    assert end.failure is not None
    assert end.failure.error_type == "run_deleted"
    assert fold.lost_ending() == []


@settings(max_examples=200, deadline=None)
@given(logs())
def test_the_parts_of_every_log_open_grow_and_close(log: list[events.Event]) -> None:
    for says_ends in (True, False):
        shown = parts_of(*log, says_ends=says_ends)
        assert isinstance(shown[-1], LegEnded)
        _assert_sound(shown)


def _assert_sound(shown: Sequence[Part]) -> None:
    seen: set[str] = set()
    is_open: set[str] = set()
    complete: set[str] = set()
    for part in shown:
        match part:
            case TextOpened() | ReasoningOpened() | CallOpened():
                assert part.id not in seen
                seen.add(part.id)
                is_open.add(part.id)
            case TextGrew(text=said) | ReasoningGrew(text=said) | CallGrew(arguments=said):
                assert part.id in is_open
                assert said
            case TextClosed() | ReasoningClosed() | CallReady() | CallCut():
                is_open.remove(part.id)
                complete.add(part.id)
            case Returned():
                assert part.id not in is_open
            case StepBegan() | Restarted() | Lost() | LegEnded():
                assert not is_open
            case _:
                pass
    assert seen == complete
