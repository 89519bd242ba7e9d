"""What a compaction summarises, what it keeps, and what the model is shown of it."""

from msgspec.structs import replace

from shared.domain.agents import CompactionOptions
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Message,
    MessageBody,
    Summary,
    SystemMessage,
    ToolCall,
    ToolReturns,
    UserMessage,
)
from tests.kit.model_server.model_calls import history, returned
from worker.bodies.answer import transcript
from worker.bodies.summary import messages_to_summarise

WINDOW = 100_000
CALLS = AssistantMessage(tool_calls=[ToolCall("c1", "add", '{"a": 1}')])
RESULT = ToolReturns([returned("c1", "2")])


def turns(*bodies: list[MessageBody]) -> list[Message]:
    """A history of turns, behind a system message."""
    messages = history(SystemMessage("Be kind."), *(body for turn in bodies for body in turn))
    numbers = [0, *(number for number, turn in enumerate(bodies, start=1) for _ in turn)]
    return [replace(message, turn=number) for message, number in zip(messages, numbers, strict=True)]


def asked(text: str, answer: str = "yes") -> list[MessageBody]:
    return [UserMessage(text), AssistantMessage(text=answer)]


def gone(messages: list[Message], keep_share: float = 0.3, window: int = WINDOW) -> list[MessageBody]:
    options = CompactionOptions(mode="sliding_window", keep_share=keep_share)
    return [message.body for message in messages_to_summarise(messages, options, window)]


def test_all_leaves_only_the_system_message() -> None:
    messages = turns(asked("a"), asked("b"))
    assert messages_to_summarise(messages, CompactionOptions(mode="all"), WINDOW) == messages[1:]


def test_a_window_keeps_the_newest_turns_that_fit_into_its_share() -> None:
    messages = turns(*[asked(f"question {number}") for number in range(10)])
    kept = messages[1:][len(gone(messages)) :]
    assert [message.body for message in kept] == [*asked("question 7"), *asked("question 8"), *asked("question 9")]


def test_the_last_turn_stays_when_it_is_small_beside_the_window() -> None:
    assert gone(turns(asked("a"), asked("b" * 400))) == asked("a")


def test_a_turn_that_fills_the_window_is_summarised_with_the_rest() -> None:
    messages = turns(asked("a"), asked("b" * 4000))
    assert gone(messages, window=1000) == [message.body for message in messages[1:]]


def test_a_single_turn_is_summarised_whole() -> None:
    assert gone(turns(asked("a"))) == asked("a")
    assert gone(turns()) == []


def test_calls_and_their_results_are_never_separated() -> None:
    tool_turn: list[MessageBody] = [UserMessage("add"), CALLS, RESULT, UserMessage("and?"), AssistantMessage(text="2")]
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
        messages = turns(asked("a"), tool_turn, asked("b"), tool_turn)
        kept = messages[1:][len(gone(messages, share)) :]
        assert not kept or isinstance(kept[0].body, UserMessage)
        results = sum(isinstance(message.body, ToolReturns) for message in kept)
        assert results == sum(message.body == CALLS for message in kept)


def test_several_messages_of_one_submission_stay_together() -> None:
    submission: list[MessageBody] = [UserMessage("note", role="system"), UserMessage("b"), AssistantMessage(text="yes")]
    assert gone(turns(asked("a"), submission)) == asked("a")


def test_a_share_of_everything_still_summarises_something() -> None:
    assert gone(turns(asked("a"), asked("b")), keep_share=1.0) == asked("a")


def test_a_transcript_says_who_said_what() -> None:
    messages = history(
        SystemMessage("Be kind."),
        Summary("They met."),
        UserMessage("add"),
        CALLS,
        ApprovalResponse([]),
        RESULT,
        AssistantMessage(text="2"),
    )
    assert transcript(messages, longest_message=100, longest=1000).split("\n\n") == [
        "summary of what came before: They met.",
        "user: add",
        'assistant: [calls add with {"a": 1}]',
        "result of add (success): 2",
        "assistant: 2",
    ]


def test_a_transcript_that_is_too_long_loses_its_middle() -> None:
    shown = transcript(history(UserMessage("x" * 500)), longest_message=20, longest=1000)
    assert shown == "user: xxxx\n[… 486 characters left out …]\nxxxxxxxxxx"
    many = transcript(history(*[UserMessage(f"m{number}") for number in range(100)]), longest_message=20, longest=60)
    assert many.startswith("user: m0\n")
    assert many.endswith("user: m99")
    assert len(many) < 110
