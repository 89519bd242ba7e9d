"""The log as a response: each kind of entry with what it gives, and what holds of every log, wherever it is cut."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from api.openai.response_fold import MOST_EVENTS, USUAL_FOLD, WITH_COMPACTIONS, ResponseFold, fold_of
from api.openai.response_items import approval_item_id, summary_in
from api.openai.response_object import DIALECT
from api.openai.responses_service import DONE, ResponseStream
from shared.domain import events
from shared.domain.ids import AgentId, IdMaker, MessageId, ProjectId, RunId, Seq, StepId, ThreadId
from shared.domain.messages import CompactionStats, ToolCall, ToolReturn
from shared.domain.runs import Run, RunOptions
from shared.domain.tools import ClientTool
from tests.kit.product.responses_client import assert_sound
from tests.kit.runs.random_logs import AT, MESSAGE, RUNNING, STEP, ended, logs, text

IDS = IdMaker()
PARENT = RunId("run-00000000-0000-4000-8000-000000000001")
OTHER_STEP, AGAIN = StepId("step-2"), MessageId("message-bb")
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def run_of(*, background: bool = True, continues: RunId | None = None, **echoed: Any) -> Run:
    says_ends = echoed.pop("says_ends", True)
    return Run(
        id=RunId("run-00000000-0000-4000-8000-000000000002"),
        project_id=ProjectId("default"),
        agent_id=AgentId("agent-1"),
        thread_id=ThreadId("agent-1"),
        continues=continues,
        options=RunOptions(
            dialect=DIALECT,
            item_events=says_ends,
            background=background,
            client_tools=[ClientTool(name="mine")],
            echoed={"holdfast_fold": USUAL_FOLD, **echoed},
        ),
        created_at=datetime(2026, 11, 1, tzinfo=UTC),
    )


def numbered(happened: Iterable[events.Event]) -> list[tuple[Seq, events.Event]]:
    log = [events.RunCreated(AT), *happened]
    return [(Seq(seq), event) for seq, event in enumerate(log, start=1)]


def folded(*happened: events.Event, run: Run | None = None) -> tuple[ResponseFold, list[dict[str, Any]]]:
    """What a log gives."""
    fold = fold_of(run or run_of())
    return fold, [told for seq, event in numbered(happened) for told in fold.take(seq, event)]


def kinds(told: Iterable[dict[str, Any]]) -> list[str]:
    """The types of events, without what begins and ends every response."""
    said = [event["type"].removeprefix("response.") for event in told]
    return [kind for kind in said if kind not in ("created", "queued", "in_progress", "completed")]


def called(
    call_id: str, name: str = "look", by: events.AnsweredBy = "worker", *, step: StepId = STEP, said: str = "{}"
) -> list[events.Event]:
    waits = by != "worker"
    begun = events.ToolCallChunk(AT, step, MESSAGE, call_id, name, None, 0, waits, by if waits else None)
    return [begun, events.ToolCallChunk(AT, step, MESSAGE, call_id, None, said)]


def answered(*calls: events.AnsweredCall, reason: Any = None, step: StepId = STEP, **more: Any) -> events.Answered:
    return events.Answered(AT, step, MESSAGE, reason or ("tool_calls" if calls else "stop"), list(calls), **more)


def returned(call_id: str, said: str = "42", status: Any = "success", step: StepId = STEP) -> events.ToolsReturned:
    return events.ToolsReturned(AT, step, AGAIN, [ToolReturn(call_id, "look", status, said)])


WORKERS = events.AnsweredCall("c", "look")
OPENS_TEXT = ["output_item.added", "content_part.added", "output_text.delta"]
CLOSES_TEXT = ["output_text.done", "content_part.done", "output_item.done"]
OPENS_CALL = ["output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta"]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([RUNNING, text("Hel"), text("lo"), answered()], [*OPENS_TEXT, "output_text.delta", *CLOSES_TEXT]),
        (
            [events.ReasoningChunk(AT, STEP, MESSAGE, "Hm."), text("Yes."), answered()],
            [
                *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
                *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
                *(*OPENS_TEXT, *CLOSES_TEXT),
            ],
        ),
        (
            [*called("c", "mine", "client"), answered(events.AnsweredCall("c", "mine", answered_by="client"))],
            [
                *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
                "output_item.done",
            ],
        ),
        (
            [*called("c", by="person"), answered(events.AnsweredCall("c", "look", answered_by="person"))],
            ["output_item.added", "output_item.done"],
        ),
        (
            [*called("c"), answered(WORKERS), events.ToolStarted(AT, STEP, "c", "look"), returned("c")],
            [*OPENS_CALL, "mcp_call_arguments.done", "mcp_call.completed", "output_item.done"],
        ),
        (
            [*called("c"), answered(WORKERS), events.ToolEnded(AT, STEP, "c", "error", 3, "bad"), returned("c", "bad")],
            [*OPENS_CALL, "mcp_call_arguments.done", "mcp_call.failed", "output_item.done"],
        ),
        ([answered(events.AnsweredCall("c", "look", "{}"))], ["output_item.added", "mcp_call.in_progress"]),
        ([events.InputDelivered(AT, AGAIN, "And?")], []),
        ([events.StatusChanged(AT, "awaiting_approval")], []),
    ],
)
def test_each_entry_gives_its_events(log: list[events.Event], expected: list[str]) -> None:
    _, told = folded(*log)
    assert kinds(told)[: len(expected)] == expected
    if log and not (isinstance(log[-1], events.Answered) and log[-1].calls):
        assert len(kinds(told)) == len(expected)


def test_the_models_last_word_on_arguments_counts() -> None:
    fold, told = folded(*called("c", said='{"a": 1'), answered(events.AnsweredCall("c", "look", '{"a": 2}')))
    done = next(event for event in told if event["type"] == "response.mcp_call_arguments.done")
    assert done["arguments"] == fold.response()["output"][0]["arguments"] == '{"a": 2}'


@pytest.mark.parametrize(
    ("reason", "answer", "status", "details"),
    [
        ("end_turn", "stop", "completed", None),
        ("tool_rule", "stop", "completed", None),
        ("max_tokens_exceeded", "length", "incomplete", "max_output_tokens"),
        ("error", "content_filter", "incomplete", "content_filter"),
        ("max_steps", "stop", "incomplete", "max_messages"),
        ("cancelled", "stop", "cancelled", None),
        ("requires_approval", "stop", "completed", None),
        ("of_tomorrow", "stop", "completed", None),
    ],
)
def test_why_a_run_ended(reason: str, answer: Any, status: str, details: str | None) -> None:
    fold, told = folded(text("Yes."), answered(reason=answer), *ended(reason))
    response = fold.response()
    assert response["status"] == status
    assert response["incomplete_details"] == (None if details is None else {"reason": details})
    assert (response["completed_at"] is not None) is (status == "completed")
    assert told[-1] == {
        "type": "response.failed" if status == "cancelled" else f"response.{status}",
        "response": response,
        "sequence_number": len(told) - 1,
    }


@pytest.mark.parametrize(
    ("error_type", "code"),
    [
        ("llm_rate_limit", "rate_limit_exceeded"),
        ("budget_exceeded", "rate_limit_exceeded"),
        ("llm_bad_request", "invalid_prompt"),
        ("worker_lost", "server_error"),
    ],
)
def test_a_failure_has_one_of_openais_codes(error_type: str, code: str) -> None:
    fold, _ = folded(*ended("llm_api_error", events.Failed(AT, error_type, "It broke.", "their words")))
    assert fold.response()["error"] == {"code": code, "message": "It broke. their words"}


def test_an_approved_call_is_the_first_of_the_continuation() -> None:
    run = run_of(continues=PARENT)
    decided = events.CallDecided(AT, STEP, "c", "look", "edited", '{"a": 1}')
    denied = events.CallDecided(AT, STEP, "d", "look", "denied")
    fold, told = folded(decided, denied, returned("c"), returned("d", "no"), text("Done."), *ended(), run=run)
    call, message = fold.response()["output"]
    assert (call["type"], call["arguments"], call["output"]) == ("mcp_call", '{"a": 1}', "42")
    assert call["approval_request_id"] == approval_item_id(PARENT, "c")
    assert message["type"] == "message"
    assert_sound(told)


def test_a_step_that_begins_again_leaves_its_items_void() -> None:
    again = events.StepRestarted(at=AT, attempt=2, follows=Seq(4), void_message_ids=[MESSAGE])
    lost = [text("Hel"), *called("c", "mine", "client")]
    rest = [
        *(text("Hello.", AGAIN), *called("c", "mine", "client", step=OTHER_STEP)),
        answered(events.AnsweredCall("c", "mine", answered_by="client"), step=OTHER_STEP),
    ]
    fold, told = folded(*lost, again, *rest, *ended("requires_approval"))
    shown = fold.response()["output"]
    assert [item["type"] for item in shown] == ["message", "function_call"]
    assert shown[0]["content"][0]["text"] == "Hello."
    added = [event["item"] for event in told if event["type"] == "response.output_item.added"]
    ids = [item["call_id"] for item in added if "call_id" in item]
    assert len(ids) == len(set(ids)) == 2, "a helper takes two calls of one id for one"
    void = [event["item"] for event in told if event["type"] == "response.output_item.done"][:2]
    assert [item["status"] for item in void] == ["completed", "incomplete"], "the text had ended before its call began"
    assert_sound(told)


def test_numbers_jump_over_a_gap_and_the_response_says_so() -> None:
    gap = events.Gap(AT, first_missing=Seq(3))
    fold = fold_of(run_of())
    log = [(Seq(1), events.RunCreated(AT)), (Seq(2), text("Hel")), (Seq(9), gap)]
    log += [(Seq(10 + number), event) for number, event in enumerate(ended())]
    told = [one for seq, event in log for one in fold.take(seq, event)]
    numbers = [event["sequence_number"] for event in told]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] >= MOST_EVENTS * 7
    assert fold.response()["incomplete_details"] == {"reason": "log_gap"}


def test_the_events_of_a_lost_worker_had_the_numbers_of_its_successor() -> None:
    """Worker and Redis were lost together, and a reader that came back was told nothing more, not even the end."""
    shown_once = [(Seq(1), events.RunCreated(AT)), (Seq(2), RUNNING), *((Seq(3 + n), text("a")) for n in range(20))]
    again = events.StepRestarted(at=AT, attempt=2, follows=Seq(2), lost_events=True)
    successor = 1_000_001
    stored = [*shown_once[:2], (Seq(successor), again), (Seq(successor + 1), text("b", AGAIN, OTHER_STEP))]
    stored += [(Seq(successor + 2 + number), event) for number, event in enumerate(ended())]
    first, second = fold_of(run_of()), fold_of(run_of())
    seen = [one for seq, event in shown_once for one in first.take(seq, event)]
    told = [one for seq, event in stored for one in second.take(seq, event)]
    behind = [one for one in told if one["sequence_number"] > seen[-1]["sequence_number"]]
    assert told[:3] == seen[:3]
    assert behind == told[3:]
    assert behind[0]["type"] == "response.in_progress", "a client that had more is told how the response stands"
    assert behind[-1]["type"] == "response.completed"
    _helper_takes(told)


def test_a_reader_whose_cursor_is_behind_the_end_is_told_the_end() -> None:
    """It was shown events that are lost, and [DONE] alone would leave it without a response."""
    log = [(seq, events.encode(event)) for seq, event in numbered([text("a"), *ended()])]
    whole, is_over = ResponseStream(run_of()).of(log)
    end = whole.split(b"\n\n")[-3]
    number = json.loads(end.partition(b"data: ")[2])["sequence_number"]
    assert is_over
    assert ResponseStream(run_of(), starting_after=number + 1).of(log) == (end + b"\n\n" + DONE, True)
    assert ResponseStream(run_of(), starting_after=number).of(log) == (DONE, True)


def test_a_log_that_was_rewritten_behind_its_reader_contradicts_it() -> None:
    fold, _ = folded(text("Hel"), text("lo"), events.LogContinued(AT, follows=Seq(2), attempt=2))
    assert fold.is_contradicted
    fold, _ = folded(text("Hel"), events.LogContinued(AT, follows=Seq(2), attempt=2))
    assert not fold.is_contradicted


def test_a_corrected_request_for_approval_was_shown_as_it_was_at_first() -> None:
    """A person would have approved something else than what is made."""
    corrected = events.AnsweredCall("c", "look", '{"a": 2}', answered_by="person")
    fold, _ = folded(*called("c", by="person", said='{"a": 1}'), answered(corrected))
    assert fold.response()["output"][0]["arguments"] == '{"a": 2}'
    fold, _ = folded(answered(corrected))
    assert fold.response()["output"][0]["arguments"] == '{"a": 2}'


def test_a_run_of_another_dialect_had_incomplete_items() -> None:
    """Its log does not say when an answer is whole."""
    look = events.ToolCalls(AT, STEP, MESSAGE, [ToolCall("c", "look", "{}")])
    log = [text("Let me see."), look, returned("c"), text("It is 42.", AGAIN, OTHER_STEP), *ended()]
    fold, told = folded(*log, run=run_of(says_ends=False))
    assert [(item["type"], item["status"]) for item in fold.response()["output"]] == [
        ("message", "completed"),
        ("mcp_call", "completed"),
        ("message", "completed"),
    ]
    assert_sound(told)
    fold, told = folded(text("Hel"), *ended("cancelled"), run=run_of(says_ends=False))
    assert fold.response()["output"][0]["status"] == "incomplete"


def test_a_call_that_a_gap_has_cut_was_shown_twice() -> None:
    fold = fold_of(run_of())
    begun = called("c", "mine", "client")[0]
    whole = answered(events.AnsweredCall("c", "mine", "{}", answered_by="client"))
    log = [(Seq(1), events.RunCreated(AT)), (Seq(2), begun), (Seq(5), events.Gap(AT, first_missing=Seq(3)))]
    log += [(Seq(6 + number), event) for number, event in enumerate([whole, *ended("requires_approval")])]
    for seq, event in log:
        assert list(fold.take(seq, event)) is not None
    assert len(fold.response()["output"]) == 1


def test_a_reader_that_has_seen_what_is_missing_for_others_was_not_told() -> None:
    fold, _ = folded(text("Hel"), text("lo"), events.Gap(AT, first_missing=Seq(3)))
    assert fold.is_contradicted


def test_a_step_that_begins_again_left_an_item_open_that_it_does_not_name() -> None:
    again = events.StepRestarted(at=AT, attempt=2, follows=Seq(2), void_message_ids=[])
    fold, told = folded(text("Hel"), again, text("Hello.", AGAIN, OTHER_STEP), answered(step=OTHER_STEP), *ended())
    assert [item["content"][0]["text"] for item in fold.response()["output"]] == ["Hello."]
    assert_sound(told)


def test_a_text_closed_behind_the_call_that_followed_it() -> None:
    """LangChain took the end of the text for a second, empty text. Numbers of earlier responses must not change."""
    asked = events.AnsweredCall("c", "mine", answered_by="client")
    thought = events.ReasoningChunk(AT, STEP, MESSAGE, "Hm.")
    whole = events.ToolCalls(AT, STEP, MESSAGE, [ToolCall("c", "mine", "{}")], needs_approval=False)
    for call in ([*called("c", "mine", "client"), answered(asked)], [whole, answered(asked)], [answered(asked)]):
        for version, order in ((USUAL_FOLD, [0, 0, 1, 1, 2, 2]), (1, [0, 0, 1, 2, 1, 2])):
            fold, told = folded(thought, text("Yes."), *call, *ended(), run=run_of(holdfast_fold=version))
            changes = [one for one in told if one["type"].startswith("response.output_item")]
            assert [one["output_index"] for one in changes] == order
            assert [item["type"] for item in fold.response()["output"]] == ["reasoning", "message", "function_call"]
            assert_sound(told)
    fold, told = folded(text("A"), *called("c", "mine", "client"), text("B"), answered(asked), *ended())
    assert [item["type"] for item in fold.response()["output"]] == ["message", "function_call", "message"]
    assert_sound(told)


def test_a_log_without_an_end_ends_the_response() -> None:
    fold, told = folded(text("Hel"))
    told += fold.lost_ending()
    assert_sound(told)
    assert told[-1]["type"] == "response.failed"


def test_a_summary_is_an_item_for_those_that_have_asked_for_it_and_for_no_others() -> None:
    """Numbers of responses that were made before the fold knew summaries must not change."""
    log = [events.Compacted(AT, AGAIN, "They talked.", CompactionStats(4, 2, 1000)), text("Yes."), answered(), *ended()]
    fold, told = folded(*log, run=run_of(holdfast_fold=WITH_COMPACTIONS))
    [compaction, message] = fold.response()["output"]
    assert (compaction["type"], message["type"]) == ("compaction", "message")
    assert summary_in(compaction["encrypted_content"]) == "They talked."
    assert_sound(told)
    _helper_takes(told)
    for usual in (run_of(holdfast_fold=1), run_of()):
        fold, told = folded(*log, run=usual)
        assert [item["type"] for item in fold.response()["output"]] == ["message"]
        assert_sound(told)


def _helper_takes(told: Sequence[dict[str, Any]]) -> None:
    """The SDK's own helper for streams follows them. It raises for what it does not understand."""
    state = ResponseStreamState[Any](input_tools=omit, text_format=omit)
    for event in told:
        state.handle_event(SDK_EVENT.validate_python(event))


@settings(max_examples=150, deadline=None)
@given(logs(), st.booleans(), st.integers(1, WITH_COMPACTIONS))
def test_every_log_is_followed_by_the_sdk_from_every_cut(
    log: list[events.Event], background: bool, version: int
) -> None:
    run = run_of(background=background, holdfast_fold=version)
    fold, told = folded(*log, run=run)
    assert_sound(told)
    _helper_takes(told)
    assert fold.response() == told[-1]["response"]
    for cut in range(0, len(told), 5):
        _helper_takes(told[: cut + 1])
    again = fold_of(run)
    rest = [one for seq, event in numbered(log) for one in again.take(seq, event)]
    assert rest == told
