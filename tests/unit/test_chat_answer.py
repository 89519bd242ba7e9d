"""What chat completions make of a log: whole, and in chunks of which nothing can be taken back."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from api.openai.chat_answer import ChatAnswer, ChatChunks
from shared.domain import events
from shared.domain.ids import AgentId, IdMaker, MessageId, ProjectId, Seq, StepId, ThreadId
from shared.domain.runs import Run, RunOptions
from shared.domain.tools import ClientTool

IDS = IdMaker()
STEP = IDS.step()
FIRST, SECOND, THIRD = IDS.message(), IDS.message(), IDS.message()
CREATED = events.RunCreated(at=0)
END = [events.Stopped(0, "end_turn"), events.UsageReported(0, prompt_tokens=3, completion_tokens=2), events.Ended(0)]


def a_run() -> Run:
    agent_id = AgentId("agent-1")
    return Run(
        id=IDS.run(),
        project_id=ProjectId("p"),
        agent_id=agent_id,
        thread_id=ThreadId(agent_id),
        options=RunOptions(client_tools=[ClientTool(name="weather", description="", parameters={})]),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def says(message_id: MessageId, *texts: str, part: int = 0) -> list[events.Event]:
    return [events.TextChunk(0, StepId(STEP), message_id, text, part) for text in texts]


def restarted(*void: MessageId, follows: int = 1000) -> events.Event:
    """`follows`: the number behind which nothing counts."""
    return events.StepRestarted(at=0, attempt=2, void_message_ids=list(void), follows=Seq(follows))


def calls(message_id: MessageId, *pieces: tuple[str, str | None, str | None]) -> list[events.Event]:
    return [
        events.ToolCallChunk(0, StepId(STEP), message_id, call_id, name, arguments, needs_approval=True)
        for call_id, name, arguments in pieces
    ]


def chunks_of(log: Sequence[events.Event | events.Unknown], *, with_usage: bool = False) -> list[dict[str, Any]]:
    chunks = ChatChunks(a_run(), "agent-1", with_usage=with_usage)
    shown = [chunk for seq, event in enumerate(log, start=1) for chunk in chunks.of(Seq(seq), event)]
    return [*shown, *chunks.lost_ending()]


def pieces_of(log: Sequence[events.Event]) -> list[str]:
    shown = [choice["delta"].get("content") for chunk in chunks_of(log) for choice in chunk.get("choices", [])]
    return [text for text in shown if text]


def whole_of(log: Sequence[events.Event]) -> dict[str, Any]:
    answer = ChatAnswer(a_run(), "agent-1")
    for seq, event in enumerate(log, start=1):
        answer.take(Seq(seq), event)
    assert answer.outcome.error is None
    return answer.completion()


def text_of(log: Sequence[events.Event]) -> str:
    return whole_of(log)["choices"][0]["message"]["content"]


def test_texts_of_several_answers_are_joined_by_an_empty_line() -> None:
    log = [CREATED, *says(FIRST, "Let ", "me see."), *says(SECOND, "", "It is ", "six."), *END]
    assert pieces_of(log) == ["Let ", "me see.", "\n\nIt is ", "six."]
    assert text_of(log) == "Let me see.\n\nIt is six."


def test_so_are_text_and_speech_of_one_answer() -> None:
    log = [CREATED, *says(FIRST, "Hm."), *says(FIRST, "Hello ", "you.", part=1), *END]
    assert "".join(pieces_of(log)) == text_of(log) == "Hm.\n\nHello you."


@pytest.mark.parametrize(
    ("again", "shown"),
    [
        (("one ", "two ", "three"), ["one ", "two ", "three"]),
        (("one two three",), ["one ", "two ", "three"]),
        (("one ", "too"), ["one ", "two ", "\n\none too"]),
        (("One.",), ["one ", "two ", "\n\nOne."]),
        (("one ", "two "), ["one ", "two "]),
        (("one ",), ["one ", "two "]),
    ],
)
def test_a_step_that_begins_again_does_not_say_the_same_twice(again: tuple[str, ...], shown: list[str]) -> None:
    """A deploy in the middle of an answer: plain clients were shown its first words twice."""
    log = [CREATED, *says(FIRST, "one ", "two "), restarted(FIRST), *says(SECOND, *again), *END]
    assert pieces_of(log) == shown
    assert text_of(log) == "".join(again)


def test_a_step_that_begins_again_twice_catches_up_once() -> None:
    beginning = [CREATED, *says(FIRST, "Hm."), *says(SECOND, "one ", "two "), restarted(SECOND)]
    third = IDS.message()
    log = [*beginning, *says(THIRD, "one "), restarted(THIRD), *says(third, "one ", "two ", "three"), *END]
    assert pieces_of(log) == ["Hm.", "\n\none ", "two ", "three"]
    assert text_of(log) == "Hm.\n\none two three"


def test_a_step_that_begins_again_before_it_said_anything_changes_nothing() -> None:
    log = [CREATED, *says(FIRST, "Hm."), restarted(SECOND), *says(THIRD, "one"), *END]
    assert "".join(pieces_of(log)) == text_of(log) == "Hm.\n\none"


@pytest.mark.parametrize("follows", [1, 2, 3])
def test_the_first_words_were_shown_twice_where_worker_and_redis_were_lost_together(follows: int) -> None:
    """Nobody knew whose they were, so no message was named: only the number said that they are void."""
    log = [CREATED, *says(FIRST, "one ", "two "), restarted(follows=follows), *says(SECOND, "one ", "two ", "three")]
    kept = ["one ", "two "][: follows - 1]
    whole = "".join(kept) + "\n\n" * bool(kept) + "one two three"
    assert text_of([*log, *END]) == whole
    if follows == 1:
        assert pieces_of([*log, *END]) == ["one ", "two ", "three"]


def test_an_answer_that_goes_on_from_before_its_last_words_does_not_say_them_twice() -> None:
    """The next owner knows what SQL has of the answer, and readers had seen more."""
    beginning = [CREATED, *says(FIRST, "one ", "two ", "three "), events.LogContinued(0, follows=Seq(2), attempt=2)]
    for again in (("two ", "three ", "four"), ("two three four",), ("two thr", "ee four")):
        log = [*beginning, *says(FIRST, *again), *END]
        assert "".join(pieces_of(log)) == text_of(log) == "one two three four"
    other = [*beginning, *says(FIRST, "too"), *END]
    assert text_of(other) == "one too"
    assert "".join(pieces_of(other)) == "one two three \n\none too"


def test_calls_that_are_void_by_number_are_not_made() -> None:
    waits = events.Stopped(0, "requires_approval")
    log = [CREATED, *calls(FIRST, ("c1", "weather", "{}")), restarted(follows=1)]
    log += [*calls(SECOND, ("c2", "weather", "{}")), waits, events.UsageReported(0), events.Ended(0)]
    [choice] = whole_of(log)["choices"]
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["c2"]


def test_an_answer_that_follows_a_shorter_second_try_is_shown_whole() -> None:
    log = [CREATED, *says(FIRST, "one ", "two"), restarted(FIRST), *says(SECOND, "one "), *says(THIRD, "end"), *END]
    assert pieces_of(log) == ["one ", "two", "\n\nend"]
    assert text_of(log) == "one \n\nend"


def test_calls_of_the_client_come_whole_at_the_end_and_void_ones_never() -> None:
    """The arguments of a call that was cut off would be joined with those of the next one."""
    log = [
        CREATED,
        *calls(FIRST, ("c1", "weather", None), ("c1", None, '{"pl')),
        restarted(FIRST),
        *calls(
            SECOND, ("c2", "weather", None), ("c2", None, '{"place": '), ("c3", "weather", "{}"), ("c2", None, '"x"}')
        ),
        events.Stopped(0, "requires_approval"),
        events.UsageReported(0),
        events.Ended(0),
    ]
    made = [("c2", '{"place": "x"}'), ("c3", "{}")]

    [shown] = [
        one["choices"][0]["delta"]["tool_calls"]
        for one in chunks_of(log)
        if "tool_calls" in str(one["choices"][0]["delta"])
    ]
    assert [(one["index"], one["id"], one["function"]["arguments"]) for one in shown] == [
        (number, *call) for number, call in enumerate(made)
    ]
    [choice] = whole_of(log)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [(one["id"], one["function"]["arguments"]) for one in choice["message"]["tool_calls"]] == made


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("tool_rule", "stop"),
        ("max_tokens_exceeded", "length"),
        ("max_steps", "length"),
        ("cancelled", "length"),
        ("a newer word", "stop"),
    ],
)
def test_why_it_ends(stop_reason: str, finish_reason: str) -> None:
    log = [CREATED, events.Stopped(0, stop_reason), events.UsageReported(0), events.Ended(0)]
    ending = {"finish_reason": finish_reason, "native_finish_reason": stop_reason}
    for choice in (chunks_of(log)[-1]["choices"][0], whole_of(log)["choices"][0]):
        assert choice == choice | ending


def test_usage_comes_last_and_alone_when_it_is_asked_for() -> None:
    *chunks, last = chunks_of([CREATED, *says(FIRST, "Hi"), *END], with_usage=True)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)
    assert [chunk["usage"] for chunk in chunks] == [None] * 3


FAILED = [events.Stopped(0, "error"), events.Failed(0, "internal_error", "Oh."), events.Ended(0)]


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ([CREATED, events.Gap(0, Seq(2)), *END], "log_gap"),
        ([CREATED, *says(FIRST, "Hi")], "run_deleted"),
        (
            [CREATED, events.Stopped(0, "error"), events.Failed(0, "internal_error", "Oh."), events.Ended(0)],
            "internal_error",
        ),
    ],
)
def test_an_answer_that_is_not_whole_ends_with_an_error(log: list[events.Event], code: str) -> None:
    *_, last = chunks_of(log)
    assert last["error"]["code"] == code


def test_what_a_newer_release_writes_is_passed_over() -> None:
    assert [one["choices"][0]["delta"] for one in chunks_of([CREATED, events.Unknown(), *END])] == [
        {"role": "assistant", "content": ""},
        {},
    ]
