"""A log as chunks of the AI SDK: each line of the mapping in each of the SDK's versions, and what holds of every
log, wherever a reader is cut off."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.ai_sdk.answer_chunks import CUT_OFF, AnswerChunks, Sdk, Seen, answer_id_of
from api.ai_sdk.chats import DONE, AnswerStream
from api.event_stream import StreamBroken
from api.runs.thread_projection import LegInput, ThreadCursor
from shared.domain import events
from shared.domain.approvals import Approval
from shared.domain.ids import AgentId, ApprovalId, MessageId, ProjectId, RunId, Seq, StepId, ThreadId
from shared.domain.log_writer import Entries
from shared.domain.messages import CompactionStats, ImageContent, TextContent, ToolReturn
from shared.domain.runs import Run, RunOptions
from shared.domain.threads import Leg
from shared.domain.tools import ClientTool
from tests.kit.product.ui_messages import UiMessageReader
from tests.kit.runs.random_logs import AT, MESSAGE, RUNNING, STEP, ended, logs, text

FIRST = RunId("run-00000000-0000-4000-8000-000000000001")
SECOND = RunId("run-00000000-0000-4000-8000-000000000002")
NEXT_STEP, NEXT_MESSAGE = StepId("step-2"), MessageId("message-bb")
ANSWER = answer_id_of(FIRST)
ALL: Sequence[Sdk] = (5, 6, 7)
MINE = {"dynamic": True, "providerExecuted": True}

Chunks = list[dict[str, Any]]


def run_of(run_id: RunId = FIRST, *, says_ends: bool = True) -> Run:
    return Run(
        id=run_id,
        project_id=ProjectId("default"),
        agent_id=AgentId("agent-1"),
        thread_id=ThreadId("agent-1"),
        continues=None if run_id == FIRST else FIRST,
        options=RunOptions(item_events=says_ends, client_tools=[ClientTool(name="mine")]),
        created_at=datetime(2026, 11, 1, tzinfo=UTC),
    )


def approval(call_id: str = "c", *, client_side: bool = False) -> Approval:
    return Approval(
        id=ApprovalId(f"approval-{call_id}"),
        project_id=ProjectId("default"),
        agent_id=AgentId("agent-1"),
        thread_id=ThreadId("agent-1"),
        run_id=FIRST,
        message_id=MESSAGE,
        tool_call_id=call_id,
        tool_name="look",
        arguments="{}",
        arguments_hash="",
        client_side=client_side,
        asked_at=datetime(2026, 11, 1, tzinfo=UTC),
    )


def leg_of(chunks: AnswerChunks, *log: events.Event, asked: Sequence[Approval] = (), run: Run | None = None) -> Chunks:
    told = list(chunks.begin(run or run_of()))
    for seq, event in enumerate([events.RunCreated(AT), *log], start=1):
        told += chunks.take(Seq(seq), event)
    return [*told, *chunks.asked(asked)]


def told_by(*log: events.Event, sdk: Sdk = 7, asked: Sequence[Approval] = (), run: Run | None = None) -> Chunks:
    """The chunks of an answer of one run, without its `start`. The version's own client takes them."""
    chunks = AnswerChunks(ANSWER, sdk)
    told = [*leg_of(chunks, *log, asked=asked, run=run), *chunks.finish()]
    read(told, sdk)
    assert told[0]["type"] == "start"
    assert told[0]["messageId"] == ANSWER
    return told[1:]


def read(told: Iterable[dict[str, Any]], sdk: Sdk = 7) -> UiMessageReader:
    reader = UiMessageReader(sdk)
    for chunk in told:
        reader.take(chunk)
    return reader


def thought(said: str) -> events.ReasoningChunk:
    return events.ReasoningChunk(AT, STEP, MESSAGE, said)


def called(call_id: str = "c", name: str = "look", by: events.AnsweredBy = "worker") -> list[events.Event]:
    begun = events.ToolCallChunk(AT, STEP, MESSAGE, call_id, name, None, 0, by != "worker", by)
    return [begun, events.ToolCallChunk(AT, STEP, MESSAGE, call_id, None, '{"a": 1}')]


def answered(*calls: events.AnsweredCall, step: StepId = STEP, message: MessageId = MESSAGE) -> events.Answered:
    return events.Answered(AT, step, message, "tool_calls" if calls else "stop", list(calls))


def look(call_id: str = "c", name: str = "look", by: events.AnsweredBy = "worker") -> events.AnsweredCall:
    return events.AnsweredCall(call_id, name, None, by)


def returned(*results: ToolReturn, step: StepId = STEP) -> events.ToolsReturned:
    return events.ToolsReturned(AT, step, MessageId("message-r"), list(results))


def result(said: str = "42", call_id: str = "c", **more: Any) -> ToolReturn:
    return ToolReturn(call_id, "look", more.pop("status", "success"), said, **more)


def decided(verdict: Any = "approved", **more: Any) -> events.CallDecided:
    return events.CallDecided(AT, STEP, "c", "look", verdict, approval_id=ApprovalId("approval-c"), **more)


STEP_STARTS, STEP_ENDS = {"type": "start-step"}, {"type": "finish-step"}
STOPS = {"type": "finish", "finishReason": "stop"}
HI: Chunks = [
    {"type": "text-start", "id": MESSAGE},
    {"type": "text-delta", "id": MESSAGE, "delta": "Hi"},
    {"type": "text-end", "id": MESSAGE},
]
INPUT: Chunks = [
    {"type": "tool-input-start", "toolCallId": "c", "toolName": "look", **MINE},
    {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": '{"a": 1}'},
    {"type": "tool-input-available", "toolCallId": "c", "toolName": "look", "input": {"a": 1}, **MINE},
]
OUTPUT = {"type": "tool-output-available", "toolCallId": "c", "output": "42", "dynamic": True}
FAILED = {"type": "tool-output-error", "toolCallId": "c", "errorText": "It broke.", "dynamic": True}
RESTARTED = events.StepRestarted(at=AT, attempt=2, follows=Seq(2), void_message_ids=[MESSAGE])
AGAIN: Chunks = [
    {"type": "text-start", "id": NEXT_MESSAGE},
    {"type": "text-delta", "id": NEXT_MESSAGE, "delta": "Hello"},
    {"type": "text-end", "id": NEXT_MESSAGE},
]
SAID = events.InputDelivered(AT, NEXT_MESSAGE, "And?", "u2")
STEERED = {"type": "steering-message", "id": "u2", "parts": [{"type": "text", "text": "And?"}]}


def failed(code: str, message: str) -> Chunks:
    part = {"type": "data-holdfast-error", "data": {"code": code, "message": message}}
    return [part, {"type": "error", "errorText": message}]


INJECTED = {"type": "data-holdfast-input", "id": "u2", "data": {"text": "And?"}}
VOID = {"type": "data-holdfast-void", "data": {"message_ids": [MESSAGE]}}
COMPACTED = events.Compacted(AT, NEXT_MESSAGE, "They talked.", CompactionStats(4, 2, 1000))


TABLE: list[tuple[list[Any], Chunks | None]] = [
    ([RUNNING, text("Hi"), answered()], [STEP_STARTS, *HI, STEP_ENDS]),
    ([events.Unknown(AT), text("Hi"), events.LogContinued(AT, follows=Seq(3)), answered()], None),
    (
        [thought("Hm."), text("Hi"), answered()],
        [
            STEP_STARTS,
            {"type": "reasoning-start", "id": f"reasoning-{MESSAGE}"},
            {"type": "reasoning-delta", "id": f"reasoning-{MESSAGE}", "delta": "Hm."},
            {"type": "reasoning-end", "id": f"reasoning-{MESSAGE}"},
            *(*HI, STEP_ENDS),
        ],
    ),
    ([*called(), answered(look()), returned(result())], [STEP_STARTS, *INPUT, OUTPUT, STEP_ENDS]),
    (
        [*called(), answered(look()), returned(result("It broke.", status="error"))],
        [STEP_STARTS, *INPUT, FAILED, STEP_ENDS],
    ),
    (
        [*called(), answered(look()), returned(result('{"n": [1]}', is_text=False))],
        [STEP_STARTS, *INPUT, {**OUTPUT, "output": {"n": [1]}}, STEP_ENDS],
    ),
    (
        [
            *(*called(), answered(look()), returned(result())),
            *(text("Hello", NEXT_MESSAGE, NEXT_STEP), answered(step=NEXT_STEP, message=NEXT_MESSAGE)),
        ],
        [STEP_STARTS, *INPUT, OUTPUT, STEP_ENDS, STEP_STARTS, *AGAIN, STEP_ENDS],
    ),
    (
        [events.CompactionBegan(AT, "request", 9, 8), COMPACTED, text("Hi"), answered()],
        [
            {"type": "data-holdfast-compaction", "data": {"state": "began"}, "transient": True},
            {"type": "data-holdfast-compaction", "data": {"state": "done"}, "transient": True},
            *(STEP_STARTS, *HI, STEP_ENDS),
        ],
    ),
    (
        [events.DataPart(AT, STEP, MESSAGE, "progress", {"done": 1}), text("Hi"), answered()],
        [{"type": "data-progress", "data": {"done": 1}, "transient": True}, STEP_STARTS, *HI, STEP_ENDS],
    ),
    (
        [text("Hi"), events.Gap(AT, first_missing=Seq(3)), text("lo"), answered()],
        [STEP_STARTS, *HI, {"type": "data-holdfast-gap", "data": {}}],
    ),
]
"""Logs, and their chunks up to the last one. None: a text alone."""


@pytest.mark.parametrize("sdk", ALL)
@pytest.mark.parametrize(("log", "expected"), TABLE)
def test_each_entry_gives_its_chunks(log: list[events.Event], expected: Chunks | None, sdk: Sdk) -> None:
    told = told_by(*log, *ended(), sdk=sdk)
    wanted = [STEP_STARTS, *HI, STEP_ENDS] if expected is None else expected
    assert told[: len(wanted)] == wanted
    assert told[-1] == STOPS


@pytest.mark.parametrize(
    ("sdk", "expected"),
    [
        (7, [STEP_STARTS, *HI, {"type": "reset-step"}, *AGAIN, STEP_ENDS]),
        (6, [STEP_STARTS, *HI, STEP_ENDS, VOID, STEP_STARTS, *AGAIN, STEP_ENDS]),
        (5, [STEP_STARTS, *HI, STEP_ENDS, VOID, STEP_STARTS, *AGAIN, STEP_ENDS]),
    ],
)
def test_a_step_that_begins_again_is_taken_back(sdk: Sdk, expected: Chunks) -> None:
    log = [text("Hi"), RESTARTED, text("Hello", NEXT_MESSAGE, NEXT_STEP)]
    told = told_by(*log, answered(step=NEXT_STEP, message=NEXT_MESSAGE), *ended(), sdk=sdk)
    assert told == [*expected, STOPS]


def called_in(attempt: int) -> list[events.Event]:
    """The model is asked again, and gives its call the same id."""
    step, message = StepId(f"step-{attempt}"), MessageId(f"message-{attempt}")
    begun = events.ToolCallChunk(AT, step, message, "c", "look", None, 0, False, "worker")
    return [begun, events.ToolCallChunk(AT, step, message, "c", None, '{"a": 1}')]


def taken_back(attempt: int, *, follows: int) -> events.StepRestarted:
    """Nothing that this attempt has shown counts."""
    void = [MessageId(f"message-{attempt}")]
    return events.StepRestarted(at=AT, attempt=attempt, follows=Seq(follows), void_message_ids=void)


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("before", [[], [*called(), answered(look()), returned(result("before"))]])
def test_a_call_of_a_step_that_was_taken_back_has_the_id_that_the_list_of_messages_gives_it(
    before: list[events.Event], restarts: int
) -> None:
    log = [*before]
    for attempt in range(restarts):
        log += called_in(attempt)
        log.append(taken_back(attempt, follows=1 + len(log)))
    log += [*called_in(9), answered(look(), step=StepId("step-9"), message=MessageId("message-9"))]
    told = told_by(*log, returned(result("after"), step=StepId("step-9")), *ended())
    shown = {part["toolCallId"]: part["output"] for part in read([{"type": "start"}, *told]).parts if "output" in part}
    assert shown == ({"c": "before", "c~": "after"} if before else {"c": "after"})


def test_a_call_that_waits_behind_a_step_that_was_taken_back_is_asked_about_by_its_id() -> None:
    log = [*called_in(1), taken_back(1, follows=3), *called_in(2)]
    parked = answered(look(by="person"), step=StepId("step-2"), message=MessageId("message-2"))
    told = told_by(*log, parked, *ended(events.StopReason.PARKED), asked=[approval()])
    [asked] = [chunk for chunk in told if chunk["type"] == "tool-approval-request"]
    assert asked["toolCallId"] == "c"
    [shown] = [part for part in read([{"type": "start"}, *told]).parts if "toolCallId" in part]
    assert shown["toolCallId"] == "c"


@pytest.mark.parametrize(("sdk", "expected"), [(7, STEERED), (6, INJECTED), (5, INJECTED)])
def test_a_message_that_was_injected_is_in_the_answer(sdk: Sdk, expected: dict[str, Any]) -> None:
    told = told_by(text("Hi"), answered(), SAID, *ended(), sdk=sdk)
    assert told == [STEP_STARTS, *HI, expected, STEP_ENDS, STOPS]


def test_a_page_that_has_the_message_is_not_sent_it_again() -> None:
    chunks = AnswerChunks(ANSWER, 7, Seen(messages=frozenset({"u2"})))
    assert STEERED not in leg_of(chunks, text("Hi"), answered(), SAID, *ended())


def test_a_step_that_is_taken_back_left_the_injected_message_in_its_place() -> None:
    log = [
        *(text("Hi"), answered(), SAID, text("Hello", NEXT_MESSAGE, NEXT_STEP)),
        events.StepRestarted(at=AT, attempt=2, follows=Seq(5), void_message_ids=[NEXT_MESSAGE]),
    ]
    reader = read([{"type": "start"}, *told_by(*log, *ended())])
    assert [part["type"] for part in reader.parts] == ["step-start", "text", "steering-message", "step-start"]


@pytest.mark.parametrize(
    ("reason", "sdk", "expected"),
    [
        ("end_turn", 7, [STOPS]),
        ("tool_rule", 5, [STOPS]),
        ("max_tokens_exceeded", 6, [{"type": "finish", "finishReason": "length"}]),
        ("max_steps", 7, [{"type": "finish", "finishReason": "other"}]),
        ("of_tomorrow", 7, [{"type": "finish", "finishReason": "other"}]),
        *(
            (
                "cancelled",
                sdk,
                [
                    {"type": "abort", "reason": "cancelled"},
                    {"type": "finish", "finishReason": "interrupted" if sdk == 7 else "other"},
                ],
            )
            for sdk in ALL
        ),
        ("error", 5, failed("error", "The run has failed.")),
        ("llm_api_error", 7, failed("error", "The run has failed.")),
    ],
)
def test_why_a_run_ended(reason: str, sdk: Sdk, expected: Chunks) -> None:
    told = told_by(text("Hi"), answered(), *ended(reason), sdk=sdk)
    assert told == [STEP_STARTS, *HI, STEP_ENDS, *expected]


def test_a_failure_is_the_last_chunk_and_says_why() -> None:
    told = told_by(text("Hi"), *ended("llm_api_error", events.Failed(AT, "llm_error", "It broke.")))
    assert told[-2:] == failed("llm_error", "It broke.")


def test_a_log_without_an_end_ends_the_answer_as_an_error() -> None:
    told = told_by(text("Hi"))
    assert told[-4:] == [HI[-1], STEP_ENDS, *failed("run_deleted", "The run was deleted.")]


@pytest.mark.parametrize("sdk", ALL)
def test_a_call_that_was_cut_off_is_an_error_and_not_made(sdk: Sdk) -> None:
    told = told_by(*called(), *ended("cancelled"), sdk=sdk)
    cut = {"type": "tool-input-error", "toolCallId": "c", "toolName": "look", "input": '{"a": 1}', "errorText": CUT_OFF}
    assert {**cut, **MINE} in told


@pytest.mark.parametrize("sdk", ALL)
def test_a_person_is_asked_at_the_end_of_the_run(sdk: Sdk) -> None:
    log = [*called(by="person"), answered(look(by="person"))]
    told = told_by(*log, *ended("requires_approval"), asked=[approval()], sdk=sdk)
    asks = [{"type": "tool-approval-request", "approvalId": "approval-c", "toolCallId": "c"}]
    expected = [STEP_STARTS, *INPUT, *(asks if sdk >= 6 else []), STEP_ENDS]
    assert told == [*expected, {"type": "finish", "finishReason": "tool-calls"}]


@pytest.mark.parametrize("sdk", ALL)
def test_a_call_of_the_page_is_its_own(sdk: Sdk) -> None:
    log = [*called(name="mine", by="client"), answered(look(name="mine", by="client"))]
    told = told_by(*log, *ended("requires_approval"), asked=[approval(client_side=True)], sdk=sdk)
    assert {"type": "tool-input-available", "toolCallId": "c", "toolName": "mine", "input": {"a": 1}} in told
    assert not any("providerExecuted" in chunk for chunk in told)
    assert not any(chunk["type"] == "tool-approval-request" for chunk in told)


def parked(sdk: Sdk, by: events.AnsweredBy = "person") -> tuple[AnswerChunks, Chunks]:
    """An answer that waits, and what was told of it."""
    chunks, name = AnswerChunks(ANSWER, sdk), "mine" if by == "client" else "look"
    log = [*called(name=name, by=by), answered(look(name=name, by=by)), *ended("requires_approval")]
    return chunks, leg_of(chunks, *log, asked=[approval(client_side=by == "client")])


APPROVED = {"type": "tool-approval-response", "approvalId": "approval-c", "approved": True}
DENIED = {**APPROVED, "approved": False, "reason": "no"}
REFUSED = result("Error: no", status="error")


@pytest.mark.parametrize(
    ("decision", "said", "sdk", "expected"),
    [
        (decided(), result(), 7, [APPROVED, OUTPUT]),
        (decided(), result(), 6, [OUTPUT]),
        (decided(), result(), 5, [OUTPUT]),
        (decided("denied", reason="no"), REFUSED, 7, [DENIED, {"type": "tool-output-denied", "toolCallId": "c"}]),
        (decided("denied", reason="no"), REFUSED, 6, [{"type": "tool-output-denied", "toolCallId": "c"}]),
        (
            decided("denied", reason="no"),
            REFUSED,
            5,
            [{"type": "tool-output-error", "toolCallId": "c", "errorText": "Error: no", "dynamic": True}],
        ),
        (decided("edited", arguments='{"a": 2}'), result(), 7, [{**INPUT[-1], "input": {"a": 2}}, APPROVED, OUTPUT]),
        (decided("edited", arguments='{"a": 2}'), result(), 5, [{**INPUT[-1], "input": {"a": 2}}, OUTPUT]),
    ],
)
def test_a_run_that_continues_the_answer_goes_on_in_the_same_message(
    decision: events.CallDecided, said: ToolReturn, sdk: Sdk, expected: Chunks
) -> None:
    chunks, told = parked(sdk)
    log = [decision, returned(said), text("Hello", NEXT_MESSAGE, NEXT_STEP)]
    more = leg_of(chunks, *log, answered(step=NEXT_STEP, message=NEXT_MESSAGE), *ended(), run=run_of(SECOND))
    metadata = {"holdfast": {"run_id": SECOND, "conversation_id": "default"}}
    assert more == [
        {"type": "message-metadata", "messageMetadata": metadata},
        *(*expected, STEP_STARTS, *AGAIN, STEP_ENDS),
    ]
    reader = read([*told, *more, *chunks.finish()], sdk)
    assert (reader.message["id"], reader.text, reader.finish_reason) == (ANSWER, "Hello", "stop")


@pytest.mark.parametrize("sdk", ALL)
def test_a_page_that_has_the_answer_is_told_the_rest_alone(sdk: Sdk) -> None:
    _, told = parked(sdk)
    page = read(told, sdk)
    seen = Seen(calls={"c": "c"}, approvals=frozenset({"approval-c"}))
    rest = AnswerChunks(ANSWER, sdk, seen)
    log = [decided(), returned(result()), text("Hello", NEXT_MESSAGE, NEXT_STEP)]
    more = leg_of(rest, *log, answered(step=NEXT_STEP, message=NEXT_MESSAGE), *ended(), run=run_of(SECOND))
    assert more[0]["messageId"] == ANSWER
    chunks, _ = parked(sdk)
    whole = [*told, *leg_of(chunks, *log, answered(step=NEXT_STEP, message=NEXT_MESSAGE), *ended(), run=run_of(SECOND))]
    continued = UiMessageReader(sdk, page.message)
    for chunk in more:
        continued.take(chunk)
    assert continued.message == read(whole, sdk).message


def test_a_result_that_the_page_has_sent_comes_back_in_a_replay_alone() -> None:
    log = [returned(result("sunny"))]
    chunks, _ = parked(7, "client")
    assert {"type": OUTPUT["type"], "toolCallId": "c", "output": "sunny"} in leg_of(
        chunks, *log, *ended(), run=run_of(SECOND)
    )
    rest = AnswerChunks(ANSWER, 7, Seen(calls={"c": "c"}, answered=frozenset({"c"})))
    assert [chunk["type"] for chunk in leg_of(rest, *log, *ended("max_steps"), run=run_of(SECOND))] == [
        *("start", "start-step", "message-metadata", "finish-step")
    ], "the page would send its results again if they were in the last step"


def test_the_result_of_a_call_that_the_page_does_not_know_broke_its_stream() -> None:
    rest = AnswerChunks(ANSWER, 7, Seen())
    log = [decided(), returned(result())]
    assert [chunk["type"] for chunk in leg_of(rest, *log, *ended(), run=run_of(SECOND))] == [
        *("start", "start-step", "message-metadata", "finish-step")
    ]


def test_images_in_a_result_are_parts_of_the_output() -> None:
    parts = [TextContent("A cat."), ImageContent(data="aGk=", media_type="image/png"), ImageContent(url="https://a.b")]
    told = told_by(*called(), answered(look()), returned(result("A cat.", parts=parts)), *ended())
    output = next(chunk["output"] for chunk in told if chunk["type"] == "tool-output-available")
    assert output == [
        {"type": "text", "text": "A cat."},
        {"type": "image", "url": "data:image/png;base64,aGk="},
        {"type": "image", "url": "https://a.b"},
    ]


@pytest.mark.parametrize("said", ["[1, 2", '{"n": ' + "1" * 5_000 + "}", '["\\ud800"]', "[" * 100_000])
def test_a_result_that_is_no_json_that_can_be_sent_on_stays_a_text(said: str) -> None:
    told = told_by(*called(), answered(look()), returned(result(said)), *ended())
    assert {**OUTPUT, "output": said} in told


def test_a_run_of_another_dialect_is_an_answer_too() -> None:
    told = told_by(text("Hi"), *ended(), run=run_of(says_ends=False))
    assert told == [STEP_STARTS, *HI, STEP_ENDS, STOPS]


# The stream of a whole answer, as its reader gets it.


def stream_of(log: list[events.Event], sdk: Sdk, after: ThreadCursor | None = None, *, at_once: int = 3) -> list[bytes]:
    """The frames of an answer after a cursor."""
    stream = AnswerStream(run_of(), sdk=sdk, after=after)
    leg = Leg(3, 0, run_of())
    entries: Entries = [(Seq(seq), events.encode(event)) for seq, event in enumerate(log, start=2)]
    body = stream.began(leg, LegInput([], []))
    for start in range(0, len(entries) - 1, at_once):
        body += stream.of_log(leg).of(entries[start : min(start + at_once, len(entries) - 1)])[0]
    seq, entry = entries[-1]
    body += stream.ended(leg, seq, events.decode(entry).at, [])
    return [frame + b"\n\n" for frame in (body + stream.over()).split(b"\n\n") if frame]


def cursor_in(frame: bytes) -> ThreadCursor | None:
    if not frame.startswith(b"id: "):
        return None
    return ThreadCursor(*map(int, frame.partition(b"\n")[0][4:].split(b".")))


@settings(max_examples=60, deadline=None)
@given(logs(), st.sampled_from(ALL))
def test_every_log_is_read_by_the_client_and_a_head_and_its_tail_are_the_whole(
    log: list[events.Event], sdk: Sdk
) -> None:
    whole = stream_of(log, sdk)
    reader = UiMessageReader(sdk).read(b"".join(whole))
    assert reader.is_done
    assert all(part.get("state") not in ("streaming", "input-streaming") for part in reader.parts)
    assert stream_of(log, sdk, at_once=1) == whole
    cursors = [cursor for frame in whole if (cursor := cursor_in(frame)) is not None]
    assert cursors == sorted(set(cursors))
    for number, frame in enumerate(whole):
        cursor = cursor_in(frame)
        if cursor is not None:
            assert whole[: number + 1] + stream_of(log, sdk, cursor) == whole
    assert whole[-1] == DONE


def test_a_reader_of_a_log_that_was_rewritten_is_cut_off() -> None:
    stream, leg = AnswerStream(run_of(), sdk=7), Leg(3, 0, run_of())
    stream.began(leg, LegInput([], []))
    log = [text("Hel"), text("lo"), events.LogContinued(AT, follows=Seq(2), attempt=2)]
    with pytest.raises(StreamBroken):
        stream.of_log(leg).of([(Seq(seq), events.encode(event)) for seq, event in enumerate(log, start=2)])
