"""How a conversation's stream becomes a talk: turns over several runs, decisions, queues, and logs that are gone."""

from typing import Any

from tests.kit.browser.viewer import Viewer


def placed(cursor: str, run: str, kind: str, **data: Any) -> dict[str, Any]:
    seq = int(cursor.rpartition(".")[2])
    found = {"message_type": kind, "run_id": run, "seq_id": seq, "cursor": cursor, "date": "2026-01-01", **data}
    return {"seq": seq, "cursor": cursor, "event": "message", "data": found}


def note(cursor: str, run: str, event_type: str, **data: Any) -> dict[str, Any]:
    return placed(cursor, run, "event_message", event_type=event_type, event_data=data)


def started(cursor: str, run: str, *texts: str, **data: Any) -> dict[str, Any]:
    said = [{"id": f"message-{text}", "otid": f"otid-{text}", "role": "user", "content": text} for text in texts]
    turn, leg, _ = map(int, cursor.split("."))
    return note(cursor, run, "run_started", turn=turn, leg=leg, input=said, **data)


def answered(cursor: str, run: str, text: str) -> dict[str, Any]:
    return placed(cursor, run, "assistant_message", id=f"answer-{run}", otid=f"answer-{run}", content=text)


def ended(cursor: str, run: str, status: str = "completed", reason: str = "end_turn") -> dict[str, Any]:
    asked = [{"id": "approval-1", "tool_call_id": "call_0", "tool_name": "launch"}]
    approvals = asked if status == "awaiting_approval" else []
    return note(cursor, run, "run_ended", status=status, stop_reason=reason, approvals=approvals)


def resolved(cursor: str, run: str, **decision: Any) -> dict[str, Any]:
    return note(cursor, run, "approvals_resolved", decisions=[{"tool_call_id": "call_0", **decision}])


def asks(cursor: str, run: str) -> dict[str, Any]:
    call = {"tool_call_id": "call_0", "name": "launch", "arguments": "{}"}
    return placed(cursor, run, "approval_request_message", id="asks", otid="asks", tool_call=call, tool_calls=[call])


PARKED = [
    started("1.0.1", "run-1", "go"),
    asks("1.0.2", "run-1"),
    ended("1.0.3", "run-1", "awaiting_approval", "requires_approval"),
]


async def conversation_of(viewer: Viewer, *frames: dict[str, Any]) -> dict[str, Any]:
    """What the page's own module makes of the frames."""
    await viewer.open("/runs")
    return await viewer.page.evaluate(
        """async (frames) => {
          const { addEvent, EMPTY } = await import("/console/lib/conversation.js");
          const { otids, ...found } = frames.reduce(addEvent, EMPTY);
          return { ...found, otids: [...otids] };
        }""",
        list(frames),
    )


async def entries_of(
    viewer: Viewer, messages: list[dict[str, Any]], *frames: dict[str, Any], **talk: Any
) -> list[tuple[str, str]]:
    """What a talk shows, as kinds and texts."""
    await viewer.open("/runs")
    entries = await viewer.page.evaluate(
        """async ([messages, frames, talk]) => {
          const { addEvent, EMPTY } = await import("/console/lib/conversation.js");
          const { pastEntries, presentEntries, shownTurns } = await import("/console/lib/talk_entries.js");
          const turns = shownTurns(frames.reduce(addEvent, EMPTY).turns, messages);
          const past = pastEntries(messages, [], new Set(turns.flatMap((turn) => turn.runIds)));
          return [...past, ...presentEntries(turns, talk.queued ?? [], talk.sent ?? [])];
        }""",
        [messages, list(frames), talk],
    )
    return [(entry["kind"], _text_of(entry)) for entry in entries]


def _text_of(entry: dict[str, Any]) -> str:
    if entry["kind"] in ("said", "queued"):
        return entry.get("text") or entry["runId"]
    transcript = entry["transcript"] if entry["kind"] == "past" else entry["turn"]["transcript"]
    return "".join(item["text"] for item in transcript["items"])


async def test_turns_follow_each_other_and_pieces_join(viewer: Viewer) -> None:
    found = await conversation_of(
        viewer,
        *(started("1.0.1", "run-1", "one"), answered("1.0.2", "run-1", "You "), answered("1.0.3", "run-1", "said")),
        *(ended("1.0.4", "run-1"), started("2.0.1", "run-2", "two"), answered("2.0.2", "run-2", "Well")),
    )
    assert [turn["number"] for turn in found["turns"]] == [1, 2]
    assert [turn["transcript"]["items"][0]["text"] for turn in found["turns"]] == ["You said", "Well"]
    assert [turn["transcript"]["hasEnded"] for turn in found["turns"]] == [True, False]
    assert found["otids"] == ["otid-one", "otid-two"]


async def test_a_decision_is_shown_at_its_call_before_and_after_the_run_goes_on(viewer: Viewer) -> None:
    open_still = await conversation_of(viewer, *PARKED)
    assert open_still["turns"][0]["isWaiting"] is True
    decided = [*PARKED, resolved("1.0.4", "run-1", decision="approve", decided_by="ada")]
    found = await conversation_of(viewer, *decided)
    [turn] = found["turns"]
    assert turn["isWaiting"] is False
    assert turn["transcript"]["items"][0]["call"]["decision"]["decided_by"] == "ada"
    goes_on = [
        started("1.1.1", "run-2", continues="run-1", decisions=[]),
        answered("1.1.2", "run-2", "Off."),
        ended("1.1.3", "run-2"),
    ]
    [turn] = (await conversation_of(viewer, *decided, *goes_on))["turns"]
    assert turn["runIds"] == ["run-1", "run-2"]
    assert [item["kind"] for item in turn["transcript"]["items"]] == ["call", "leg", "text"]
    assert turn["transcript"]["stopReason"] == "end_turn"


async def test_a_call_of_a_cancelled_run_is_open_no_more(viewer: Viewer) -> None:
    found = await conversation_of(viewer, *PARKED, resolved("1.0.4", "run-1", decision="cancelled", decided_by=None))
    [turn] = found["turns"]
    assert (turn["isWaiting"], turn["transcript"]["stopReason"]) == (False, "cancelled")


async def test_each_thing_is_shown_once_wherever_it_comes_from(viewer: Viewer) -> None:
    history = [
        {"id": "m-0", "message_type": "user_message", "run_id": "run-0", "otid": "otid-0", "content": "before"},
        {"id": "m-1", "message_type": "user_message", "run_id": "run-1", "otid": "otid-one", "content": "one"},
        {"id": "m-2", "message_type": "assistant_message", "run_id": "run-1", "otid": "x", "content": "Yes."},
    ]
    frames = [started("1.0.1", "run-1", "one"), answered("1.0.2", "run-1", "Yes."), ended("1.0.3", "run-1")]
    queued = [{"id": "run-2", "metadata": {"first_words": "two"}}, {"id": "run-3", "metadata": {"first_words": "th"}}]
    sent = [{"otid": "otid-three", "text": "three", "ifBusy": "enqueue", "runId": "run-3", "error": None}]
    assert await entries_of(viewer, history, *frames, queued=queued, sent=sent) == [
        *(("said", "before"), ("said", "one"), ("live", "Yes.")),
        *(("said", "two"), ("queued", "run-2"), ("said", "three"), ("queued", "run-3")),
    ]


async def test_a_turn_whose_log_retention_has_deleted_is_read_from_the_history(viewer: Viewer) -> None:
    history = [
        {"id": "m-1", "message_type": "user_message", "run_id": "run-1", "otid": "otid-one", "content": "one"},
        {"id": "m-2", "message_type": "assistant_message", "run_id": "run-1", "otid": "x", "content": "Yes."},
    ]
    gap = note("1.0.9", "run-1", "gap", first_missing=2, last_missing=9)
    frames = [started("1.0.1", "run-1", "one"), gap, ended("1.0.10", "run-1")]
    assert await entries_of(viewer, history, *frames) == [("said", "one"), ("past", "Yes.")]
    # While the history knows no answer, the gap is all that is known.
    assert await entries_of(viewer, history[:1], *frames) == [("said", "one"), ("live", "")]
