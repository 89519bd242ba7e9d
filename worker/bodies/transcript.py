"""A history as text, for a model that summarises it and for a summary without a model. No I/O."""

from collections.abc import Sequence

from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Message,
    MessageBody,
    Summary,
    SystemMessage,
    ToolReturns,
    UserMessage,
    text_of,
)

LEFT_OUT = "[… {characters} characters left out …]"

EXCERPT_OF_MESSAGE, EXCERPT_OF_ALL = 200, 4_000
"""Characters of an excerpt."""


def transcript(history: Sequence[Message], *, longest_message: int, longest: int) -> str:
    """The history as text: who said what, a paragraph per message.

    Limits are in characters. A longer text loses its middle: its beginning and its end say most. An earlier summary
    stands for more than any message, and may have half of all.
    """
    paragraphs = [
        without_middle(text, max(longest_message, longest // 2 if isinstance(message.body, Summary) else 0))
        for message in history
        if (text := as_text(message.body))
    ]
    return without_middle("\n\n".join(paragraphs), longest)


def excerpt(history: Sequence[Message], longest: int | None = None) -> str:
    """What takes the place of a summary that no model can write: the beginning and the end of every message."""
    whole = EXCERPT_OF_ALL if longest is None else min(longest, EXCERPT_OF_ALL)
    return transcript(history, longest_message=EXCERPT_OF_MESSAGE, longest=whole)


def as_text(body: MessageBody) -> str:
    """One message as text; empty for a message that the model does not see."""
    match body:
        case UserMessage(content=content, role=role):
            return f"{role}: {text_of(content) or '[an image]'}"
        case AssistantMessage(text=text, tool_calls=calls):
            called = [f"[calls {call.name} with {call.arguments}]" for call in calls]
            return "\n".join(["assistant: " + text, *called] if text else [f"assistant: {call}" for call in called])
        case ToolReturns(returns=returns):
            return "\n".join(f"result of {one.tool_name} ({one.status}): {one.text}" for one in returns)
        case Summary(text=text):
            return f"summary of what came before: {text}"
        case SystemMessage() | ApprovalResponse():
            return ""


def without_middle(text: str, longest: int, note: str = LEFT_OUT) -> str:
    """The text, or its beginning and its end with a note between them."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n{note.format(characters=len(text) - 2 * half)}\n{text[len(text) - half :]}"
