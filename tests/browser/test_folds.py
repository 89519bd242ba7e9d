"""How frames become a transcript and a waterfall: restarts, gaps, continuations, calls whose ids come twice."""

from typing import Any

from tests.kit.browser.viewer import Viewer

RUN = "run-1"


def frame(seq: int, kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "event": "message", "data": {"message_type": kind, "run_id": RUN, "seq_id": seq, **data}}


def text(seq: int, content: str, *, message: str = "message-1", **data: Any) -> dict[str, Any]:
    return frame(seq, "assistant_message", id=message, otid=message, content=content, **data)


def piece(seq: int, **delta: Any) -> dict[str, Any]:
    call = {"tool_call_id": "call_0", **delta}
    return frame(seq, "tool_call_message", id="message-1", otid="x", tool_call=call, tool_calls=call)


def result(seq: int, value: str) -> dict[str, Any]:
    returns = [{"tool_call_id": "call_0", "tool_return": value, "status": "success"}]
    return frame(seq, "tool_return_message", id="message-2", name="look", tool_returns=returns)


async def transcript_of(viewer: Viewer, *frames: dict[str, Any]) -> dict[str, Any]:
    """What the page's own module makes of the frames."""
    await viewer.open("/runs")
    return await viewer.page.evaluate(
        """async (frames) => {
          const { addFrame, emptyTranscript } = await import("/console/lib/frames.js");
          return frames.reduce(addFrame, emptyTranscript());
        }""",
        frames,
    )


async def spans_of(
    viewer: Viewer, started_at: int | None, *frames: dict[str, Any]
) -> list[tuple[str, int, int | None]]:
    await viewer.open("/runs")
    spans = await viewer.page.evaluate(
        """async ([frames, startedAt]) => {
          const { addToTimeline, emptyTimeline, spansOf } = await import("/console/lib/waterfall.js");
          return spansOf(frames.reduce(addToTimeline, emptyTimeline()), startedAt);
        }""",
        [list(frames), started_at],
    )
    return [(span["kind"], span["from"], span["to"]) for span in spans]


async def test_pieces_of_one_message_are_one_text(viewer: Viewer) -> None:
    found = await transcript_of(viewer, text(2, "Hello "), text(3, "you"), text(4, "Next", message="message-2"))
    assert [(item["text"], item["lastSeq"]) for item in found["items"]] == [("Hello you", 3), ("Next", 4)]


async def test_a_step_that_is_begun_again_makes_what_was_shown_void(viewer: Viewer) -> None:
    restarted = frame(
        1_000_002,
        "event_message",
        event_type="step_restarted",
        event_data={"attempt": 2, "void_message_ids": ["message-2"], "follows": 3},
    )
    found = await transcript_of(
        viewer,
        text(2, "Stays"),
        text(4, "Void by its id", message="message-2"),
        text(5, "Void by its number", message="message-3"),
        restarted,
        text(1_000_003, "Comes again", message="message-4"),
    )
    assert [(item["kind"], item["isVoid"]) for item in found["items"]] == [
        ("text", False), ("text", True), ("text", True), ("restarted", False), ("text", False),
    ]  # fmt: skip


def continued(seq: int, follows: int) -> dict[str, Any]:
    return frame(seq, "event_message", event_type="log_continued", event_data={"follows": follows})


async def test_an_answer_that_went_on_said_twice_what_had_not_been_stored(viewer: Viewer) -> None:
    found = await transcript_of(
        viewer,
        text(2, "One "),
        text(3, "two "),
        text(4, "three "),
        text(5, "Other", message="message-2"),
        continued(1_000_001, 3),
        text(1_000_002, "three "),
        text(1_000_003, "four"),
    )
    assert [(item["kind"], item["text"], item["isVoid"]) for item in found["items"]] == [
        ("text", "One two three four", False),
        ("text", "Other", True),
        ("text", "three ", True),
        ("continued", "", False),
    ]
    assert found["items"][-1]["data"]["voided"] == 2


async def test_an_answer_that_goes_on_behind_all_that_was_shown_loses_nothing(viewer: Viewer) -> None:
    found = await transcript_of(
        viewer, text(2, "One "), text(3, "two "), continued(1_000_001, 3), text(1_000_002, "three")
    )
    assert [(item["kind"], item["text"], item["isVoid"]) for item in found["items"]] == [
        ("text", "One two three", False),
        ("continued", "", False),
    ]
    assert found["items"][-1]["data"]["voided"] == 0


async def test_a_text_that_is_cut_twice_is_cut_by_its_numbers(viewer: Viewer) -> None:
    found = await transcript_of(
        viewer,
        *(text(seq, f"{seq} ") for seq in (2, 3, 4)),
        continued(1_000_001, 3),
        *(text(1_000_000 + seq, f"{seq} ") for seq in (2, 3, 4)),
        continued(2_000_001, 1_000_002),
        text(2_000_002, "end"),
    )
    kept = [item["text"] for item in found["items"] if item["kind"] == "text" and not item["isVoid"]]
    void = [item["text"] for item in found["items"] if item["isVoid"] and item["kind"] == "text"]
    assert (kept, void) == (["2 3 2 end"], ["4 ", "3 4 "])


async def test_the_result_of_a_call_that_was_not_stored_comes_again_to_its_call(viewer: Viewer) -> None:
    found = await transcript_of(
        viewer,
        piece(2, name="look"),
        piece(3, arguments='{"of":'),
        piece(4, arguments=' "a"}'),
        result(5, "lost"),
        continued(1_000_001, 4),
        result(1_000_002, "found"),
    )
    calls = [(item["call"]["arguments"], item["call"]["result"], item["isVoid"]) for item in found["items"][:2]]
    assert calls == [('{"of": "a"}', "found", False), ('{"of": "a"}', "lost", True)]
    found = await transcript_of(
        viewer,
        piece(2, name="look"),
        piece(3, arguments='{"of":'),
        piece(4, arguments=' "lost"}'),
        continued(1_000_001, 3),
        piece(1_000_002, arguments=' "b"}'),
    )
    assert found["items"][0]["call"]["arguments"] == '{"of": "b"}'


async def test_a_gap_and_an_error_are_shown_where_they_are(viewer: Viewer) -> None:
    gap = frame(9, "event_message", event_type="gap", event_data={"first_missing": 3, "last_missing": 9})
    error = frame(11, "error_message", error_type="rate_limit", message="Too much", detail=None)
    found = await transcript_of(viewer, text(2, "Before"), gap, text(10, "After", message="message-2"), error)
    assert [item["kind"] for item in found["items"]] == ["text", "gap", "text", "error"]
    assert found["error"]["error_type"] == "rate_limit"


async def test_calls_come_in_pieces_and_their_ids_may_come_twice(viewer: Viewer) -> None:
    found = await transcript_of(
        viewer,
        piece(2, name="look"),
        piece(3, arguments='{"of":'),
        piece(4, arguments=' "a"}'),
        result(5, "first"),
        piece(6, name="look", arguments="{}"),
        result(7, "second"),
    )
    calls = [item["call"] for item in found["items"]]
    assert [(call["name"], call["arguments"], call["result"]) for call in calls] == [
        ("look", '{"of": "a"}', "first"),
        ("look", "{}", "second"),
    ]


async def test_the_run_that_goes_on_after_an_approval_follows(viewer: Viewer) -> None:
    asked = [{"tool_call_id": "call_0", "name": "launch", "arguments": "{}"}]
    returns = [{"tool_call_id": "call_0", "tool_return": "ok", "status": "success"}]
    parked = [
        frame(1, "run_status", status="created"),
        frame(2, "approval_request_message", id="message-1", otid="x", tool_call=asked[0], tool_calls=asked),
        frame(3, "stop_reason", stop_reason="requires_approval"),
        {"seq": 4, "event": "done", "data": None},
    ]
    found = await transcript_of(viewer, *parked)
    assert (found["stopReason"], found["hasEnded"]) == ("requires_approval", True)
    resumed = frame(2, "tool_return_message", id="message-2", name="launch", tool_returns=returns)
    resumed["data"]["run_id"] = "run-2"
    found = await transcript_of(viewer, *parked, resumed)
    assert (found["stopReason"], found["hasEnded"], found["leg"]) == (None, False, 1)
    assert [item["kind"] for item in found["items"]] == ["call", "leg"]
    assert found["items"][0]["call"]["result"] == "ok"


async def test_the_waterfall_has_every_wait(viewer: Viewer) -> None:
    call = {"tool_call_id": "call_0", "name": "look", "arguments": "{}"}
    frames = [
        frame(1, "run_status", status="created", at_ms=1000),
        text(2, "Hm ", at_ms=1500, step_id="step-1"),
        frame(3, "tool_call_message", tool_call=call, tool_calls=[call], at_ms=1600, step_id="step-1"),
        frame(4, "tool_return_message", name="look", tool_returns=[{"tool_call_id": "call_0"}], at_ms=2600),
        text(5, "Done", message="message-3", at_ms=2900, step_id="step-2"),
        text(6, ".", message="message-3", at_ms=3000, step_id="step-2"),
        {"seq": 7, "event": "done", "data": None},
    ]
    steps = [("stream", 1500, 1600), ("tool", 1600, 2600), ("first", 2600, 2900), ("stream", 2900, 3000)]
    assert await spans_of(viewer, 1200, *frames) == [("wait", 1000, 1200), ("first", 1200, 1500), *steps]
    assert await spans_of(viewer, None, *frames) == [("first", 1000, 1500), *steps]


async def test_the_waterfall_shows_a_lost_worker_and_a_person(viewer: Viewer) -> None:
    call = {"tool_call_id": "call_0", "name": "launch", "arguments": "{}"}
    restarted = frame(
        1_000_002, "event_message", event_type="step_restarted", event_data={"void_message_ids": []}, at_ms=8000
    )
    asks = frame(1_000_003, "approval_request_message", tool_call=call, tool_calls=[call], at_ms=9000, step_id="step-2")
    again = frame(1, "run_status", status="created", at_ms=60_000)
    again["data"]["run_id"] = "run-2"
    returned = frame(2, "tool_return_message", name="launch", tool_returns=[{"tool_call_id": "call_0"}], at_ms=61_000)
    found = await spans_of(
        viewer,
        1100,
        frame(1, "run_status", status="created", at_ms=1000),
        text(2, "Hm ", at_ms=1500, step_id="step-1"),
        restarted,
        asks,
        {"seq": 1_000_004, "event": "done", "data": None},
        again,
        returned,
    )
    assert [span for span in found if span[0] in ("lost", "person", "tool")] == [
        ("lost", 1500, 8000),
        ("person", 9000, 60_000),
        ("tool", 60_000, 61_000),
    ]
