"""What a sleep-time agent is told of the turns of its agent, and after which of them."""

import pytest

from shared.domain.groups import (
    BEFORE_FIRST,
    INTRODUCTION,
    LEFT_OUT,
    LONGEST_LINE,
    LONGEST_TRANSCRIPT,
    count_turn,
    transcript,
)
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    ImageContent,
    MessageBody,
    Reasoning,
    Summary,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from tests.kit.model_server.model_calls import history


def told(*said: MessageBody) -> list[str]:
    text = transcript(history(*said))
    assert text.startswith(INTRODUCTION)
    return text.removeprefix(INTRODUCTION).split("\n")


def test_it_says_who_said_what() -> None:
    call, speech = ToolCall("1", "look", '{"q": 1}'), ToolCall("2", "send_message", "{}", speech="Hello, Ada.")
    returns = [
        ToolReturn("1", "look", "success", "found"),
        ToolReturn("2", "send_message", "success", "ok", of_speech=True),
    ]
    denied, brought = Decision("1", approve=False, reason="too dear"), Decision("3", kind="tool", tool_return="4")
    assert told(
        SystemMessage("Be brief."),
        UserMessage([TextContent("Who am I?"), ImageContent(url="http://127.0.0.1/i.png")]),
        UserMessage("Hi.", name="Ada"),
        UserMessage("The lights went out.", role="system"),
        AssistantMessage(reasoning=Reasoning("She asks."), text="I look.", tool_calls=[call, speech]),
        ApprovalResponse([denied, brought]),
        ToolReturns(returns),
        Summary("Earlier."),
    ) == [
        "user: Who am I?",
        "user: [image]",
        "Ada: Hi.",
        "assistant: <thinking>She asks.</thinking>",
        "assistant: I look.",
        "assistant: Calling tool look",
        "assistant: Hello, Ada.",
        "user: [denied a call: too dear]",
        "assistant: Tool look returned: found",
    ]


def test_a_long_message_is_cut_and_says_how_much_is_missing() -> None:
    [line] = told(UserMessage("x" * (LONGEST_LINE + 7)))
    assert line == f"user: {'x' * LONGEST_LINE} [7 characters more]"


def test_of_a_long_transcript_the_newest_part_is_told() -> None:
    count = LONGEST_TRANSCRIPT // LONGEST_LINE + 2
    lines = told(*(UserMessage(f"{number:03}" + "x" * (LONGEST_LINE - 3)) for number in range(count)))
    assert lines[0] == LEFT_OUT
    assert lines[-1].startswith(f"user: {count - 1:03}")
    assert sum(map(len, lines)) < LONGEST_TRANSCRIPT + len(LEFT_OUT) + 1


@pytest.mark.parametrize(
    ("frequency", "counter", "after", "is_due"),
    [
        (None, None, None, True),
        (0, None, None, False),
        (1, BEFORE_FIRST, 0, True),
        (5, BEFORE_FIRST, 0, True),
        (5, 0, 1, False),
        (5, 4, 0, True),
        (2, 4, 1, False),
        (5, None, 0, True),
    ],
)
def test_the_first_turn_is_due_and_then_every_nth(
    frequency: int | None, counter: int | None, after: int | None, is_due: bool
) -> None:
    assert count_turn(frequency, counter) == (after, is_due)
