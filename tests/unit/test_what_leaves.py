"""What leaves a full context in the middle of a run, what is cut, and how large a request is taken to be."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.domain.agents import CompactionOptions
from shared.domain.ids import StepId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    ImageContent,
    Message,
    MessageBody,
    Summary,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolReturns,
    UserMessage,
)
from shared.domain.models import window_of
from shared.domain.settling import open_calls
from tests.kit.model_server.model_calls import history, returned
from worker.bodies.answer import fixed_tokens, history_tokens, last_answer, text_tokens
from worker.bodies.summary import SUMMARY_SHARE, longest_that_fits, select_for_summary, truncated
from worker.models.provider import ToolSpec

ALL = CompactionOptions(mode="all")
WINDOW = CompactionOptions()


def turns(*bodies: list[MessageBody]) -> list[Message]:
    """A history of turns, behind a system message and an earlier summary."""
    messages = history(SystemMessage("Be kind."), Summary("They met."), *(body for turn in bodies for body in turn))
    numbers = [0, 0, *(number for number, turn in enumerate(bodies, start=1) for _ in turn)]
    return [replace(message, turn=number) for message, number in zip(messages, numbers, strict=True)]


def asked(text: str, answer: str = "yes") -> list[MessageBody]:
    return [UserMessage(text), AssistantMessage(text=answer)]


def step(name: str, result: str) -> list[MessageBody]:
    return [AssistantMessage(tool_calls=[ToolCall(name, "add", "{}")]), ToolReturns([returned(name, result)])]


def gone(messages: list[Message], room: int, options: CompactionOptions = WINDOW) -> list[MessageBody]:
    return [
        message.body for message in select_for_summary(messages, turn=messages[-1].turn, options=options, room=room)
    ]


def test_the_oldest_turns_leave_and_the_newest_that_fit_their_share_stay() -> None:
    messages = turns(*[asked(f"question {number} " + "x" * 300) for number in range(10)])
    left = gone(messages, room=1_000)
    assert left == [message.body for message in messages[1 : 1 + len(left)]]
    kept = [message.body for message in messages[1 + len(left) :]]
    assert kept[0] == UserMessage("question 8 " + "x" * 300)


def test_all_before_the_present_turn_leaves_when_so_asked_or_when_the_turn_is_long() -> None:
    messages = turns(asked("a"), asked("b"), asked("c" * 900))
    assert gone(messages, room=1_000, options=ALL) == [message.body for message in messages[1:6]]
    assert gone(messages, room=500) == [message.body for message in messages[1:6]]


def test_the_question_of_a_long_turn_stays_with_its_last_steps() -> None:
    steps = [body for number in range(20) for body in step(f"c{number}", "y" * 300)]
    messages = turns(asked("a"), [UserMessage("the question"), *steps])
    left = gone(messages, room=1_000)
    kept = [message.body for message in messages if message.body not in left]
    assert kept[:2] == [SystemMessage("Be kind."), UserMessage("the question")]
    assert kept[2:] == steps[-4:]


def test_one_step_that_is_too_long_stays_alone() -> None:
    messages = turns([UserMessage("note"), UserMessage("the question"), *step("c1", "y"), *step("c2", "y" * 9_000)])
    left = gone(messages, room=1_000)
    assert [message.body for message in messages if message.body not in left] == [
        SystemMessage("Be kind."),
        UserMessage("the question"),
        *step("c2", "y" * 9_000),
    ]


def test_nothing_leaves_when_only_the_question_is_there() -> None:
    assert gone(turns([UserMessage("q" * 9_000)]), room=100) == []
    assert gone(turns([UserMessage("q" * 9_000), *step("c1", "r" * 9_000)]), room=100) == []


def test_calls_approvals_and_results_stay_together() -> None:
    waited: list[MessageBody] = [
        AssistantMessage(tool_calls=[ToolCall("c1", "add", "{}", needs_approval=True)]),
        ApprovalResponse([Decision("c1", approve=True)]),
        ToolReturns([returned("c1", "z" * 300)]),
        UserMessage("by the way"),
    ]
    messages = turns(asked("a"), [UserMessage("q"), *step("c0", "z" * 300), *waited, *step("c2", "z" * 300)])
    for room in range(100, 2_000, 50):
        left = gone(messages, room)
        kept = [message for message in messages if message.body not in left]
        calls = {call.id for one in kept if isinstance(one.body, AssistantMessage) for call in one.body.tool_calls}
        results = {one.tool_call_id for m in kept if isinstance(m.body, ToolReturns) for one in m.body.returns}
        assert calls == results


BODIES = st.lists(
    st.one_of(
        st.integers(1, 900).map(lambda size: [UserMessage("u" * size)]),
        st.integers(1, 900).map(lambda size: step(f"call_{size}", "r" * size)),
        st.integers(1, 900).map(lambda size: [AssistantMessage(text="a" * size)]),
    ),
    min_size=1,
    max_size=12,
)


@given(st.lists(BODIES, min_size=1, max_size=4), st.integers(50, 3_000), st.sampled_from([ALL, WINDOW]))
def test_whatever_leaves_what_stays_is_whole(
    given_turns: list[list[list[MessageBody]]], room: int, options: CompactionOptions
) -> None:
    messages = turns(*[[UserMessage("q"), *(body for unit in turn for body in unit)] for turn in given_turns])
    left = select_for_summary(messages, turn=messages[-1].turn, options=options, room=room)
    ids = {message.id for message in left}
    kept = [message for message in messages[1:] if message.id not in ids]
    waiting: set[str] = set()
    for message in kept:
        if isinstance(message.body, ToolReturns):
            assert {one.tool_call_id for one in message.body.returns} == waiting
            waiting = set()
        else:
            assert not waiting
        if isinstance(message.body, AssistantMessage):
            waiting = {call.id for call in message.body.tool_calls}
    assert open_calls(kept) is None
    assert any(message.turn == messages[-1].turn for message in kept)
    if left and history_tokens(kept) > room * (1 - SUMMARY_SHARE):
        present = [message for message in kept if message.turn == messages[-1].turn]
        assert present == kept, "nothing of the earlier turns stays while it is too long"


def test_a_long_text_loses_its_middle_and_says_so() -> None:
    [message] = truncated(history(UserMessage("begin " + "x" * 1_000 + " end")), 100)
    assert isinstance(message.body, UserMessage)
    assert str(message.body.content).startswith("begin x")
    assert str(message.body.content).endswith("x end")
    assert "[… 910 characters are left out here: the text does not fit" in str(message.body.content)


def test_what_is_short_stays_the_very_message() -> None:
    messages = history(UserMessage("q"), *step("c1", "r"), Summary("s"), AssistantMessage(text="a" * 999))
    assert [one is two for one, two in zip(truncated(messages, 100), messages, strict=True)] == [True] * 5


def test_every_kind_of_text_that_is_not_the_models_is_cut() -> None:
    parts = [TextContent("t" * 999), ImageContent(url="http://x/y.png")]
    messages = history(UserMessage(parts), *step("c1", "r" * 999), Summary("s" * 999))
    for message in truncated(messages, 500):
        assert "characters are left out here" in str(message.body) or isinstance(message.body, AssistantMessage)
    assert "http://x/y.png" in str(truncated(messages, 500))
    assert "An image is left out here" in str(truncated(messages, 400))


def test_texts_are_halved_until_they_fit_and_no_further_than_the_least() -> None:
    messages = history(UserMessage("x" * 30_000))
    assert longest_that_fits(messages, room=20_000, longest=40_000) == 40_000
    assert longest_that_fits(messages, room=4_000, longest=40_000) == 10_000
    assert longest_that_fits(messages, room=1, longest=40_000) == 400


def test_a_request_is_counted_with_its_instructions_and_tools() -> None:
    assert text_tokens("") == 0
    assert text_tokens("abc") == text_tokens("文") == 1
    assert text_tokens("half \ud800") > 0
    tool = ToolSpec("look", "Looks.", {"type": "object", "properties": {"of": {"type": "string"}}})
    assert fixed_tokens("x" * 300, []) >= 100
    assert fixed_tokens("x" * 300, [tool]) - fixed_tokens("x" * 300, []) > 20
    assert history_tokens(history(UserMessage([ImageContent(data="A" * 9_000_000)]))) < 2_000


def test_the_last_answer_tells_whose_count_is_used() -> None:
    messages = history(UserMessage("q"), AssistantMessage(text="a"), UserMessage("r"))
    answered = [messages[0], replace(messages[1], step_id=StepId("step-1")), messages[2]]
    found = last_answer(answered)
    assert found is not None
    assert (found.step_id, list(found.since)) == ("step-1", [messages[2]])
    assert last_answer(messages[:1]) is None


def test_a_count_from_before_a_summary_is_not_used() -> None:
    summary, question, answer = history(Summary("s"), UserMessage("q"), AssistantMessage(text="a"))
    counted = replace(answer, step_id=StepId("step-1"))
    assert last_answer([replace(summary, created_at=answer.created_at), question, counted]) is None
    earlier = replace(summary, created_at=answer.created_at - timedelta(seconds=1))
    assert last_answer([earlier, question, counted]) is not None


def test_a_chosen_window_is_no_larger_than_the_models_own_where_that_is_known() -> None:
    assert window_of("builtin/echo", None) == 32_000
    assert window_of("builtin/echo", 1_000) == 1_000
    assert window_of("builtin/echo", 64_000) == 32_000
    assert window_of("vllm/my-own-model", 500_000) == 500_000
