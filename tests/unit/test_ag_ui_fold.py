"""The log in AG-UI: each kind of entry with its events, and what holds of every log wherever its reader was cut off."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings

from api.ag_ui.leg_fold import LONGEST_DELTA, Client
from api.event_stream import StreamBroken
from shared.domain import events
from shared.domain.approvals import Approval
from shared.domain.ids import ApprovalId, MessageId, Seq, StepId
from shared.domain.log_writer import Entries
from shared.domain.messages import (
    AssistantMessage,
    CompactionStats,
    Decision,
    ImageContent,
    Message,
    NewMessage,
    Reasoning,
    TextContent,
    ToolCall,
    ToolReturn,
    UserMessage,
)
from tests.kit.ag_ui import AgUiClient, ClientRefused, OldestAgUiClient, frames_in
from tests.kit.ag_ui.one_leg import CURRENT, OLDER, RUN, OneLeg, log_of
from tests.kit.runs.random_logs import AT, MESSAGE, RUNNING, STEP, ended, logs, text

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NEXT_STEP, AGAIN = StepId("step-2"), MessageId("message-bb")
RESULT = ToolReturn("c", "look", "success", "42")
THOUGHT = f"reasoning-{MESSAGE}"
SAID = [{"id": "u1", "role": "user", "content": "Hi"}]
SENDER = Client("thread-1", is_current=True, sent=SAID)
OLD_SENDER = SENDER._replace(is_current=False)
GIVEN = [NewMessage(id=MessageId("message-u1"), created_at=NOW, body=UserMessage("Hi", otid="u1"))]


def stored(message_id: str, body: Any) -> Message:
    return Message(
        id=MessageId(message_id),
        agent_id=RUN.agent_id,
        thread_id=RUN.thread_id,
        conversation_id=None,
        run_id=None,
        step_id=None,
        created_at=NOW,
        body=body,
    )


def asked(call_id: str = "c", *, client_side: bool = False, **more: Any) -> Approval:
    return Approval(
        id=ApprovalId(f"approval-{call_id}"),
        project_id=RUN.project_id,
        agent_id=RUN.agent_id,
        thread_id=RUN.thread_id,
        run_id=RUN.id,
        message_id=MESSAGE,
        tool_call_id=call_id,
        tool_name="look",
        arguments="{}",
        arguments_hash="",
        client_side=client_side,
        asked_at=NOW,
        **more,
    )


def shown(entries: Entries, client: Client = SENDER, **more: Any) -> bytes:
    return OneLeg(RUN, client, given=GIVEN, **more).of(entries)[0]


def told(*happened: events.Event, client: Client = SENDER, **more: Any) -> list[dict[str, Any]]:
    """The events between the beginning and the end."""
    return [frame.event for frame in frames_in(shown(log_of(*happened), client, **more))][1:]


def kinds(happened: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in happened]


def call_chunk(arguments: str | None = None, name: str | None = None, by: Any = None) -> events.ToolCallChunk:
    return events.ToolCallChunk(AT, STEP, MESSAGE, "c", name, arguments, answered_by=by)


def answered(arguments: str | None = None, by: events.AnsweredBy = "worker") -> events.Answered:
    return events.Answered(AT, STEP, MESSAGE, "tool_calls", [events.AnsweredCall("c", "look", arguments, by)])


WHOLE = events.Answered(AT, STEP, MESSAGE, "stop")
CALLED = [call_chunk(name="look"), call_chunk('{"a": 1}'), answered()]
RETURNED = events.ToolsReturned(AT, STEP, AGAIN, [RESULT])
RESTARTED = events.StepRestarted(at=AT, attempt=2, follows=Seq(2), void_message_ids=[MESSAGE])

TEXT = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
REASONING = ["REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT"]
REASONING_ENDS = ["REASONING_MESSAGE_END", "REASONING_END"]
CALL = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
CORRECTED = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "MESSAGES_SNAPSHOT", "TOOL_CALL_END"]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([RUNNING], []),
        ([events.Unknown()], []),
        ([text("")], []),
        ([text("Hel"), text("lo")], ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT"]),
        ([text("Hello"), WHOLE], TEXT),
        ([events.ReasoningChunk(AT, STEP, MESSAGE, "Hm."), text("Yes"), WHOLE], [*REASONING, *REASONING_ENDS, *TEXT]),
        ([call_chunk(name="look")], ["TOOL_CALL_START"]),
        ([text("So"), *CALLED], [*TEXT, *CALL]),
        ([events.ToolCalls(AT, STEP, MESSAGE, [ToolCall("c", "look", "{}")]), answered()], CALL),
        ([answered("{}")], CALL),
        ([call_chunk('{"a', "look"), answered('{"b": 2}')], CORRECTED),
        ([*CALLED, events.ToolStarted(AT, STEP, "c", "look")], CALL),
        ([*CALLED, events.ToolEnded(AT, STEP, "c", "success", 2, "42"), RETURNED], [*CALL, "TOOL_CALL_RESULT"]),
        ([*CALLED, RETURNED], [*CALL, "TOOL_CALL_RESULT"]),
        ([RETURNED], ["TOOL_CALL_RESULT"]),
        ([events.CallDecided(AT, STEP, "c", "look", "approved", "{}")], []),
        ([events.InputDelivered(AT, AGAIN, "And?", "u2")], TEXT),
        ([events.InputDelivered(AT, AGAIN, "", "u2")], ["TEXT_MESSAGE_START", "TEXT_MESSAGE_END"]),
        ([events.InputDelivered(AT, AGAIN, "Hi", "u1")], []),
        ([text("Hel"), RESTARTED], [*TEXT, "MESSAGES_SNAPSHOT"]),
        ([text("Hel"), events.LogContinued(AT, follows=Seq(2), attempt=2), text("lo")], [*TEXT[:2], TEXT[1]]),
        ([text("Hel"), events.Gap(AT, first_missing=Seq(3))], [*TEXT, "CUSTOM", "MESSAGES_SNAPSHOT"]),
        ([events.DataPart(AT, STEP, MESSAGE, "progress", {"done": 1})], ["CUSTOM"]),
        ([events.CompactionBegan(AT, "request", 10, 100)], ["CUSTOM"]),
        ([events.Compacted(AT, AGAIN, "They spoke.", CompactionStats(9, 2, 100))], ["CUSTOM"]),
        ([events.Stopped(AT, "end_turn"), events.UsageReported(AT)], []),
        (ended(), ["RUN_FINISHED"]),
        ([text("Hel"), *ended("cancelled")], [*TEXT, "RUN_FINISHED"]),
        (ended("error", events.Failed(AT, "worker_lost", "It broke.")), ["RUN_ERROR"]),
    ],
)  # fmt: skip
def test_each_entry_has_its_events(log: list[events.Event], expected: list[str]) -> None:
    assert kinds(told(*log)) == expected


def test_the_run_is_named_as_the_page_named_it() -> None:
    [started, *_] = frames_in(shown(log_of()))
    assert started.event == {
        "type": "RUN_STARTED",
        "threadId": "thread-1",
        "runId": "run-of-page",
        "protocolVersion": "1.0",
        "metadata": {"holdfast": {"run_id": RUN.id}},
    }
    assert started.cursor == "1.0.1"


def test_only_the_last_frame_of_an_entry_has_its_cursor() -> None:
    entries = log_of(events.ReasoningChunk(AT, STEP, MESSAGE, "Hm."), text("Yes"), *ended())
    cursors = [(frame.event["type"], frame.cursor) for frame in frames_in(shown(entries))]
    assert cursors == [
        ("RUN_STARTED", "1.0.1"),
        *[(kind, None) for kind in REASONING[:2]],
        ("REASONING_MESSAGE_CONTENT", "1.0.2"),
        *[(kind, None) for kind in (*REASONING_ENDS, "TEXT_MESSAGE_START")],
        *(("TEXT_MESSAGE_CONTENT", "1.0.3"), ("TEXT_MESSAGE_END", None), ("RUN_FINISHED", "1.0.6")),
    ]


def test_the_frames_of_parts_have_ids_that_are_those_of_the_messages() -> None:
    thought = events.ReasoningChunk(AT, STEP, MESSAGE, "Hm.")
    client = AgUiClient(SAID).read(shown(log_of(thought, text("So"), *CALLED, RETURNED, *ended())))
    assert client.messages == [
        *SAID,
        {"id": THOUGHT, "role": "reasoning", "content": "Hm."},
        {
            "id": MESSAGE,
            "role": "assistant",
            "content": "So",
            "toolCalls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}],
        },
        {"id": "result-c", "role": "tool", "toolCallId": "c", "content": "42"},
    ]


def test_a_failed_call_is_marked_in_the_messages_metadata() -> None:
    failed = ToolReturn("c", "look", "error", "No.", is_unknown=True)
    [result] = told(events.ToolsReturned(AT, STEP, AGAIN, [failed]))
    assert (result["content"], result["metadata"]) == ("No.", {"holdfast": {"status": "error", "outcome": "unknown"}})


def test_images_of_results_are_for_clients_that_know_them() -> None:
    image = ImageContent(data="aGk=", media_type="image/png")
    returned = events.ToolsReturned(
        AT, STEP, AGAIN, [ToolReturn("c", "look", "success", "See:", parts=[TextContent("See:"), image])]
    )
    [current], [older] = told(returned), told(returned, client=OLD_SENDER)
    source = {"type": "data", "value": "aGk=", "mimeType": "image/png"}
    assert current["content"] == [{"type": "text", "text": "See:"}, {"type": "image", "source": source}]
    assert older["content"] == "See:"


def test_a_result_that_the_client_has_sent_is_not_shown_to_it() -> None:
    sent = [*SAID, {"id": "t1", "role": "tool", "toolCallId": "c", "content": "42"}]
    assert told(RETURNED, client=Client("t", is_current=True, sent=sent)) == []
    assert kinds(told(RETURNED, client=CURRENT))[-1] == "TOOL_CALL_RESULT"


def test_a_long_piece_has_room_in_frames() -> None:
    body = shown(log_of(text("x" * (2 * LONGEST_DELTA + 1)), *ended()))
    assert AgUiClient(SAID).read(body).text == "x" * (2 * LONGEST_DELTA + 1)
    assert max(len(frame.event.get("delta", "")) for frame in frames_in(body)) == LONGEST_DELTA


@pytest.mark.parametrize("is_current", [True, False])
@pytest.mark.parametrize(
    ("waiting", "outcome", "of_older"),
    [
        ([], {"type": "success"}, None),
        ([asked(client_side=True)], {"type": "success", "pendingToolCallIds": ["c"]}, None),
        ([asked(decision=Decision("c", approve=True))], {"type": "success"}, None),
    ],
)
def test_what_a_run_comes_to(waiting: list[Approval], outcome: Any, of_older: Any, is_current: bool) -> None:
    client = Client("t", is_current=is_current, sent=SAID)
    [*_, finished] = told(*CALLED, *ended("requires_approval"), client=client, asked=waiting)
    assert finished.get("outcome") == (outcome if is_current else of_older)
    assert finished["usage"] == [
        {"inputTokens": 3, "outputTokens": 0, "totalTokens": 3}
        | {"reasoningTokens": 0, "cachedInputTokens": 0, "cacheWriteInputTokens": 0}
    ]


@pytest.mark.parametrize("client", [SENDER, OLD_SENDER])
def test_every_call_that_waits_for_a_person_is_an_interrupt(client: Client) -> None:
    waiting = [asked(expires_at=NOW), asked("d", client_side=True), asked("e", decision=Decision("e"))]
    [*_, finished] = told(*CALLED, *ended("requires_approval"), client=client, asked=waiting)
    [interrupt] = finished["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["reason"], interrupt["toolCallId"]) == ("approval-c", "tool_call", "c")
    assert interrupt["expiresAt"] == "2026-11-01T00:00:00Z"
    assert interrupt["responseSchema"]["required"] == ["approved"]


def test_a_cancel_is_an_outcome_of_its_own_for_clients_that_know_it() -> None:
    assert told(*ended("cancelled"))[-1]["outcome"] == {"type": "cancelled"}
    assert "outcome" not in told(*ended("cancelled"), client=OLD_SENDER)[-1]


def test_a_failure_is_the_last_that_is_said() -> None:
    failed = events.Failed(AT, "llm_rate_limit", "It broke.", "their words")
    [*_, last] = told(text("Hel"), *ended("llm_api_error", failed))
    assert (last["type"], last["message"], last["code"]) == ("RUN_ERROR", "It broke. their words", "llm_rate_limit")


def test_a_step_that_begins_again_takes_its_messages_away() -> None:
    lost = [events.ReasoningChunk(AT, STEP, MESSAGE, "Hm."), text("Hel"), call_chunk(name="look")]
    again = events.StepRestarted(at=AT, attempt=2, follows=Seq(4), void_message_ids=[MESSAGE])
    rest = [events.TextChunk(AT, NEXT_STEP, AGAIN, "Hello.")]
    rest += [events.ToolCallChunk(AT, NEXT_STEP, AGAIN, "c", "look", "{}")]
    body = shown(log_of(*lost, again, *rest, *ended()))
    client = AgUiClient(SAID).read(body)
    assert client.text == "Hello."
    assert client.calls == [("c", "look", "{}")], "the call has the id under which it is decided"
    assert client.of_role("reasoning") == [""], "without any reasoning in the snapshot, the void one would stay"


def test_a_step_that_begins_again_keeps_the_reasoning_of_earlier_turns() -> None:
    earlier = {"id": "reasoning-0", "role": "reasoning", "content": "Once."}
    lost = [events.ReasoningChunk(AT, STEP, MESSAGE, "Hm."), RESTARTED]
    client = AgUiClient([earlier, *SAID])
    client.read(shown(log_of(*lost, *ended()), Client("t", is_current=True, sent=[earlier, *SAID])))
    assert client.messages == [earlier, *SAID]


def test_a_run_that_is_joined_later_begins_with_the_messages_before_it() -> None:
    answer = AssistantMessage(
        text="See",
        reasoning=Reasoning("Hm."),
        tool_calls=[ToolCall("c", "look", "{}"), ToolCall("s", "send_message", "{}", speech="Hello.")],
    )
    before = [
        stored("message-0", UserMessage("Look.")),
        stored("message-1", answer),
        stored("message-s", UserMessage("(instructions)", role="system")),
    ]
    client = AgUiClient().read(shown(log_of(text("Yes."), *ended()), CURRENT, before=before))
    assert [(one["id"], one["role"]) for one in client.messages] == [
        ("message-0", "user"),
        ("reasoning-message-1", "reasoning"),
        ("message-1", "assistant"),
        ("message-1~", "assistant"),
        ("u1", "user"),
        (MESSAGE, "assistant"),
    ]
    assert client.text == "SeeHello.Yes."
    assert client.calls == [("c", "look", "{}")]


def test_a_reader_with_a_cursor_goes_on_in_the_middle_of_a_text() -> None:
    entries = log_of(text("Hel"), text("lo"), *ended())
    client = AgUiClient(SAID).read(shown(entries[:2]))
    tail = shown(entries, CURRENT, after=2)
    assert [frame.event["type"] for frame in frames_in(tail)] == [
        *("RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"),
    ]
    client.connects()
    assert client.read(tail).text == "Hello"


def test_a_reader_at_the_end_is_told_nothing() -> None:
    entries = log_of(text("Hello"), *ended())
    assert shown(entries, CURRENT, after=5) == b""
    assert shown(entries, CURRENT, after=99) == b""


def test_a_reader_is_told_at_once_that_its_run_is_at_work() -> None:
    entries = log_of(text("Hel"))
    assert [frame.event["type"] for frame in frames_in(shown(entries, CURRENT, after=2))] == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
    ]


def test_a_reader_had_seen_text_that_was_lost_with_redis() -> None:
    """It had "Hello" and was sent what follows "Hel"."""
    head = log_of(text("Hel"), text("l"), text("o"))
    client = AgUiClient(SAID).read(shown(head))
    goes_on = (Seq(1_000_001), events.encode(events.LogContinued(AT, follows=Seq(2), attempt=2, lost_events=True)))
    rest = [(Seq(1_000_002 + n), events.encode(event)) for n, event in enumerate([text("p!"), *ended()])]
    client.connects()
    client.read(shown([*head[:2], goes_on, *rest], CURRENT, after=4))
    assert client.text == "Help!"


def test_a_log_that_was_rewritten_behind_its_reader_breaks_the_stream_off() -> None:
    log = log_of(text("Hel"), text("lo"), events.LogContinued(AT, follows=Seq(2), attempt=2))
    with pytest.raises(StreamBroken):
        shown(log)


def test_a_run_that_was_deleted_ended_like_one_that_succeeded() -> None:
    leg = OneLeg(RUN, SENDER)
    body = leg.of(log_of(text("Hel")))[0] + leg.end_of(Seq(2))
    client = AgUiClient(SAID).read(body)
    assert client.outcomes[-1]["code"] == "run_deleted"


def test_the_verifier_refuses_what_clients_refuse() -> None:
    body = shown(log_of(text("Hel"), *ended()))
    frames = body.split(b"\n\n")
    without_end = b"\n\n".join(one for one in frames if b"TEXT_MESSAGE_END" not in one)
    for broken in (without_end, body[len(frames[0]) + 2 :], body + b'data: {"type":"PING"}\n\n', body + body[:40]):
        with pytest.raises((ClientRefused, ValueError)):
            AgUiClient(SAID).read(broken)


@settings(max_examples=150, deadline=None)
@given(logs())
def test_a_head_and_its_tail_are_the_whole_wherever_the_reader_was_cut_off(log: list[events.Event]) -> None:
    entries = log_of(*log)
    for sender, reader in ((SENDER, CURRENT), (OLD_SENDER, OLDER)):
        whole = AgUiClient(SAID, is_current=sender.is_current).read(shown(entries, sender))
        joined = AgUiClient(is_current=reader.is_current).read(shown(entries, reader))
        assert not_void(joined) == not_void(whole)
        for cut in range(1, len(entries)):
            client = AgUiClient(SAID, is_current=sender.is_current).read(shown(entries[:cut], sender))
            if client.cursor is None:
                continue
            client.connects()
            client.read(shown(entries, reader, after=int(client.cursor.split(".")[2])))
            assert not_void(client) == not_void(whole)
            assert client.outcomes == whole.outcomes


def cut_between_frames(entries: Entries, sender: Client) -> Iterator[bytes]:
    """The stream of a log, cut off behind each of its frames."""
    frames = shown(entries, sender).split(b"\n\n")[:-1]
    return (b"".join(one + b"\n\n" for one in frames[:number]) for number in range(1, len(frames)))


def resumed(client: AgUiClient, entries: Entries, reader: Client) -> AgUiClient:
    """The client after its page has asked for what is behind its cursor."""
    assert client.cursor is not None
    client.connects()
    return client.read(shown(entries, reader, after=int(client.cursor.split(".")[2])))


def not_void(client: AgUiClient) -> list[dict[str, Any]]:
    """The messages without those of reasoning that is void, of which a client may keep an empty one."""
    return [one for one in client.messages if one.get("content") != "" or "toolCalls" in one]


def expect_whole_wherever_it_breaks(entries: Entries) -> None:
    for sender, reader in ((SENDER, CURRENT), (OLD_SENDER, OLDER)):
        whole = AgUiClient(SAID, is_current=sender.is_current).read(shown(entries, sender))
        for head in cut_between_frames(entries, sender):
            client = AgUiClient(SAID, is_current=sender.is_current).read(head)
            if client.cursor is not None:
                assert not_void(resumed(client, entries, reader)) == not_void(whole), head.decode()
    oldest = OldestAgUiClient(SAID).read(shown(entries, OLD_SENDER))
    for head in cut_between_frames(entries, OLD_SENDER):
        client = OldestAgUiClient(SAID).read(head)
        if client.cursor is not None:
            resumed(client, entries, OLDER)
            assert sorted(client.calls) == sorted(oldest.calls), head.decode()
            assert sorted(client.texts) == sorted(oldest.texts), head.decode()


@settings(max_examples=40, deadline=None)
@given(logs())
def test_a_page_that_was_cut_off_inside_reasoning_and_joined_again_had_it_twice(log: list[events.Event]) -> None:
    """It asks without a cursor, so it is sent the run from its beginning. Newer clients keep reasoning that no snapshot
    has, and append to it."""
    entries = log_of(*log)
    for sender, reader in ((SENDER, CURRENT), (OLD_SENDER, OLDER)):
        whole = AgUiClient(SAID, is_current=sender.is_current).read(shown(entries, sender))
        for head in cut_between_frames(entries, sender):
            client = AgUiClient(SAID, is_current=sender.is_current).read(head)
            client.connects()
            assert not_void(client.read(shown(entries, reader))) == not_void(whole), head.decode()
    oldest = OldestAgUiClient(SAID).read(shown(entries, OLD_SENDER))
    for head in cut_between_frames(entries, OLD_SENDER):
        client = OldestAgUiClient(SAID).read(head)
        client.connects()
        client.read(shown(entries, OLDER))
        assert sorted(client.calls) == sorted(oldest.calls), head.decode()
        assert sorted(client.texts) == sorted(oldest.texts), head.decode()


@settings(max_examples=40, deadline=None)
@given(logs())
def test_a_connection_that_breaks_between_two_frames_loses_and_doubles_nothing(log: list[events.Event]) -> None:
    expect_whole_wherever_it_breaks(log_of(*log))


RESULT_TOO = ToolReturn("d", "look", "success", "43")
WHOLE_CALL = events.AnsweredCall("c", "look", '{"at":1}', "worker")
ASKS = events.ToolCallChunk(AT, STEP, MESSAGE, "c", "look", '{"at":', answered_by="worker")
ASKS_MORE = events.ToolCallChunk(AT, STEP, MESSAGE, "d", "look", "{}", answered_by="worker")
THINKS = events.ReasoningChunk(AT, STEP, MESSAGE, "Hm.")


@pytest.mark.parametrize(
    "entry",
    [
        [events.InputDelivered(AT, MessageId("message-cc"), "Wait!", "u2")],
        [ASKS, ASKS_MORE, events.ToolsReturned(AT, STEP, AGAIN, [RESULT, RESULT_TOO])],
        [ASKS, events.Answered(AT, STEP, MESSAGE, "tool_calls", [WHOLE_CALL])],
        [THINKS, ASKS, text("!")],
        [ASKS, THINKS, ASKS_MORE, events.Gap(AT, Seq(6))],
    ],
    ids=["words of the user", "two results", "the rest of arguments", "the beginning of a call", "two calls"],
)
def test_a_connection_broke_inside_an_entry_and_the_client_had_its_part_twice(entry: list[events.Event]) -> None:
    """The page goes on behind its cursor, which is before the entry. Release 0.0.47 showed a call twice as well when it
    went on inside the arguments, and a text twice after a call that came behind other reasoning."""
    expect_whole_wherever_it_breaks(log_of(text("Hel"), *entry, *ended()))


@settings(max_examples=50, deadline=None)
@given(logs())
def test_batches_do_not_matter(log: list[events.Event]) -> None:
    entries = log_of(*log)
    for client, after in ((SENDER, None), (CURRENT, None), (CURRENT, len(entries) // 2)):
        leg = OneLeg(RUN, client, given=GIVEN, after=after)
        assert b"".join(leg.of([entry])[0] for entry in entries) == shown(entries, client, after=after)
