"""A history as plain text, for a model that is to summarise it and for a summary without a model. Pure."""

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


def transcript(history: Sequence[Message], *, longest_message: int, longest: int) -> str:
    """Who said what, a paragraph per message.

    Limits are in characters. What is longer loses its middle: how something began and how it ended says most.
    """
    paragraphs = [without_middle(text, longest_message) for message in history if (text := as_text(message.body))]
    return without_middle("\n\n".join(paragraphs), longest)


def as_text(body: MessageBody) -> str:
    """One message as text; empty for what the model is not told."""
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


def without_middle(text: str, longest: int) -> str:
    """The text, or its beginning and its end with a note between them."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
