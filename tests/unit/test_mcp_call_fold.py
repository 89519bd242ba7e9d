"""What a call's log comes to, whatever its order and its losses."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from api.mcp.call_fold import CallFold, call_result, ended_call, input_requests
from shared.domain import events
from shared.domain.ids import Seq
from shared.domain.messages import ToolCall
from shared.domain.runs import Run
from tests.kit.runs.stored_runs import IDS

AT = 1_700_000_000_000
FIRST, SECOND = IDS.step(), IDS.step()
MESSAGE, AGAIN = IDS.message(), IDS.message()
CALL = ToolCall("call-1", "launch", '{"target": "moon"}')


def run() -> Run:
    agent_id = IDS.agent()
    return Run(
        id=IDS.run(),
        project_id=msgspec.convert("default", Any),
        agent_id=agent_id,
        thread_id=msgspec.convert(agent_id, Any),
        created_at=datetime(2026, 11, 1, tzinfo=UTC),
    )


def text(said: str, step: Any = FIRST, message: Any = MESSAGE, part: int = 0) -> events.TextChunk:
    return events.TextChunk(AT, step, message, said, part)


def folded(*happened: events.Event) -> tuple[CallFold, list[str]]:
    fold = CallFold(run())
    heard = [fold.take(Seq(seq), event) for seq, event in enumerate(happened, start=1)]
    return fold, [one for one in heard if one]


def ended(reason: str = "end_turn") -> tuple[events.Event, ...]:
    return events.Stopped(AT, reason), events.UsageReported(AT), events.Ended(AT)


def test_the_text_is_that_of_the_last_step_that_said_something() -> None:
    fold, _ = folded(text("Let me see."), text("It is ", SECOND, AGAIN), text("six.", SECOND, AGAIN), *ended())
    assert fold.text == "It is six."
    fold, _ = folded(text("Let me see."), events.ToolStarted(AT, SECOND, "c", "look"), *ended())
    assert fold.text == "Let me see."


def test_parts_of_an_answer_are_told_apart() -> None:
    fold, _ = folded(text("One."), text("Two.", part=1), *ended())
    assert fold.text == "One.\n\nTwo."


def test_a_step_that_is_taken_back_leaves_what_was_said_before() -> None:
    back = events.StepRestarted(at=AT, attempt=2, follows=Seq(2), void_message_ids=[AGAIN], lost_call=True)
    fold, heard = folded(text("Before."), text("It i", SECOND, AGAIN), back, *ended())
    assert fold.text == "Before."
    assert heard[-1] == "goes on at another worker"


def test_a_call_that_was_taken_back_asks_nobody() -> None:
    waits = events.ToolCalls(AT, FIRST, MESSAGE, [CALL], needs_approval=True)
    back = events.LogContinued(AT, follows=Seq(0))
    fold, _ = folded(waits, back, *ended("requires_approval"))
    assert fold.waiting == []


@pytest.mark.parametrize(
    ("log", "status", "is_error", "told"),
    [
        ((text("Yes."), *ended()), "completed", False, "Yes."),
        ((text("Ye"), *ended("cancelled")), "cancelled", True, "Ye\n\nThe run was cancelled."),
        ((text("Yes."), *ended("max_steps")), "completed", False, "used up its steps"),
        ((text("Yes."), *ended("max_tokens_exceeded")), "completed", False, "used up its tokens"),
        ((text("Ye"), events.Failed(AT, "llm_server_error", "It broke.", "words"), *ended("error")), "failed", True,
         "It broke. words"),
        ((text("Ye"), events.Gap(AT, first_missing=Seq(2)), *ended()), "failed", True, "its answer is not known"),
        ((text("Ye"),), "failed", True, "The run was deleted."),
    ],
)  # fmt: skip
def test_the_result_says_how_the_run_ended(log: Any, status: str, is_error: bool, told: str) -> None:
    fold, _ = folded(*log)
    result = ended_call(run(), fold, can_ask=True)
    assert (result["structuredContent"]["status"], result["isError"]) == (status, is_error)
    assert told in result["content"][0]["text"] == result["structuredContent"]["text"]


def test_a_client_that_can_ask_is_given_the_question_and_another_one_the_place() -> None:
    waits = events.ToolCalls(AT, FIRST, MESSAGE, [CALL], needs_approval=True)
    fold, heard = folded(waits, *ended("requires_approval"))
    assert heard == ["waits for approval of launch"]
    asked = ended_call(run(), fold, can_ask=True)
    assert (asked["resultType"], list(asked["inputRequests"])) == ("input_required", ["call-1"])
    told = ended_call(run(), fold, can_ask=False)
    assert (told["resultType"], told["isError"]) == ("complete", False)
    assert "POST /v1/approvals/" in told["content"][0]["text"]


def test_long_arguments_are_cut_in_a_question() -> None:
    [asked] = input_requests([ToolCall("c", "launch", "x" * 5_000)]).values()
    assert asked["params"]["message"].endswith("… (5000 characters)")
    assert len(asked["params"]["message"]) < 2_100


def test_what_happens_is_heard_once_and_in_words() -> None:
    fold, heard = folded(
        events.RunCreated(AT),
        events.ToolStarted(AT, FIRST, "call-1", "launch"),
        events.ToolEnded(AT, FIRST, "call-1", "error"),
        events.ToolEnded(AT, FIRST, "call-1", "success"),
        events.CallDecided(AT, FIRST, "call-1", "launch", "denied"),
        events.CompactionBegan(AT, "post_step_context_check", 1, 2),
        *ended(),
    )
    assert heard[1:] == [
        "calls launch",
        "launch has failed",
        "the tool has ended",
        "launch was denied",
        "shortens its history",
    ]
    assert fold.is_over


def test_a_result_without_words_has_none() -> None:
    assert call_result(run(), "", status="completed")["content"] == [{"type": "text", "text": ""}]
