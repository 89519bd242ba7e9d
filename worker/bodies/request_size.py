"""The number of tokens in a request, before it is sent. No I/O.

The provider has counted the last request of a history with its answer, instructions and tools: that count is exact.
Everything after it is estimated. So is a whole request without such a count: the first one of a history, one after a
compaction or for another model, and one whose server reports no tokens.

The estimate is one token for every three bytes of UTF-8, and is too high for most texts: with the tokenizers of today's
models, English prose needs about 0.7 of it, code and JSON between 0.8 and 1.0, Chinese and Japanese between 0.7 and
1.2. Long numbers, keys and base64 need two or three times the estimate. So a request that stays below 0.9 of a window
by estimates alone is seldom refused, and if it is, `ContextWindow` shortens it.

This module also renders a history as text, for a model that summarises it and for a summary without a model.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shared.domain.ids import StepId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    ContentPart,
    ImageContent,
    Message,
    MessageBody,
    Summary,
    SystemMessage,
    ToolReturns,
    UserMessage,
    data_of_file,
    text_of,
)
from worker.models.provider import ToolSpec

BYTES_PER_TOKEN = 3

TOKENS_AROUND = 4
"""Tokens that a provider adds around each message, call and tool: roles, names of fields, separators."""

TOKENS_AROUND_RESULT = 24
"""For a tool's result, which the model gets with its status and its time, and for a summary, which is marked as one."""

TOKENS_OF_IMAGE = 1_500
"""Roughly the providers' count for an image of ordinary size. Its bytes say nothing about it."""


CHARACTERS_PER_TOKEN_OF_FILE = 25
"""For a file's base64. Providers count 1,500 to 3,000 tokens for a page of a document, which has about 50 kB."""


def text_tokens(text: str) -> int:
    """Estimates the tokens of a text; 0 only for an empty one."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def fixed_tokens(system: str, tools: Sequence[ToolSpec]) -> int:
    """Estimates the tokens of every request, whatever the history: the instructions and the tools."""
    schemas = sum(text_tokens(tool.name + tool.description) + _json_tokens(tool.parameters) for tool in tools)
    return text_tokens(system) + schemas + TOKENS_AROUND * (1 + len(tools))


def history_tokens(history: Sequence[Message]) -> int:
    """Estimates the tokens of the messages."""
    return sum(body_tokens(message.body) for message in history)


def body_tokens(body: MessageBody) -> int:
    """Estimates the tokens of one message in a request."""
    match body:
        case UserMessage(content=content):
            parts: list[ContentPart] = [] if isinstance(content, str) else content
            images = sum(isinstance(part, ImageContent) for part in parts)
            files = sum(len(data_of_file(part)) for part in parts) // CHARACTERS_PER_TOKEN_OF_FILE
            return TOKENS_AROUND + text_tokens(text_of(content)) + TOKENS_OF_IMAGE * images + files
        case AssistantMessage(text=text, tool_calls=calls, reasoning=reasoning):
            called = sum(TOKENS_AROUND + text_tokens(call.name + call.arguments) for call in calls)
            thought = 0 if reasoning is None else text_tokens(reasoning.text)
            return TOKENS_AROUND + text_tokens(text) + thought + called
        case ToolReturns(returns=returns):
            return sum(TOKENS_AROUND_RESULT + text_tokens(one.text) for one in returns)
        case Summary(text=text):
            return TOKENS_AROUND_RESULT + text_tokens(text)
        case SystemMessage() | ApprovalResponse():
            return 0


def _json_tokens(value: Mapping[str, object]) -> int:
    return -(-len(msgspec.json.encode(value)) // BYTES_PER_TOKEN)


class LastAnswer(NamedTuple):
    """The newest answer of a history. Its step has the provider's count."""

    step_id: StepId
    since: Sequence[Message]
    """The messages after it."""


def last_answer(history: Sequence[Message]) -> LastAnswer | None:
    """The newest answer. None: there is none, or a later summary has replaced the counted history."""
    for place in range(len(history) - 1, -1, -1):
        message = history[place]
        if isinstance(message.body, AssistantMessage) and message.step_id is not None:
            summaries = (one for one in history if isinstance(one.body, Summary))
            is_stale = any(one.created_at >= message.created_at for one in summaries)
            return None if is_stale else LastAnswer(message.step_id, history[place + 1 :])
    return None


def taken_before(history: Sequence[Message]) -> Sequence[Message]:
    """The part of a history that a provider has accepted: the messages before its newest answer."""
    for place in range(len(history) - 1, -1, -1):
        if isinstance(history[place].body, AssistantMessage):
            return history[:place]
    return ()


LEFT_OUT = "[… {characters} characters left out …]"

EXCERPT_OF_MESSAGE, EXCERPT_OF_ALL = 200, 4_000
"""Characters of an excerpt."""


def transcript(history: Sequence[Message], *, longest_message: int, longest: int) -> str:
    """The history as text: a paragraph per message, with its speaker.

    Limits are in characters. A longer text loses its middle, because its beginning and its end are most important. An
    earlier summary covers many messages, so it may fill half of the limit for all.
    """
    paragraphs = [
        without_middle(text, max(longest_message, longest // 2 if isinstance(message.body, Summary) else 0))
        for message in history
        if (text := as_text(message.body))
    ]
    return without_middle("\n\n".join(paragraphs), longest)


def excerpt(history: Sequence[Message], longest: int | None = None) -> str:
    """Replaces a summary that no model can write: the beginning and the end of every message."""
    whole = EXCERPT_OF_ALL if longest is None else min(longest, EXCERPT_OF_ALL)
    return transcript(history, longest_message=EXCERPT_OF_MESSAGE, longest=whole)


def as_text(body: MessageBody) -> str:
    """One message as text; empty for a message that the model does not get."""
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
