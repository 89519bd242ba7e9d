"""The messages of a conversation. They belong to no provider: `worker/models` turns them into a provider's request, and
a dialect into a client's messages.

One answer of the model is one `AssistantMessage`, whatever it holds: reasoning, text, calls that may start and calls
that wait for a person.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from shared.domain.ids import AgentId, BlockId, ConversationId, MessageId, RunId, StepId, ThreadId


class AttachedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file in a user's message."""

    name: str
    media_type: str
    data: str | None = None
    """Base64. None: the file is a text, and follows the first line of the part's text."""


class TextContent(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """A piece of text in a user's message or in a tool's result."""

    text: str
    file: AttachedFile | None = None
    """The file that the text stands for. Readers, models and releases that take no files use the text."""


class ImageContent(msgspec.Struct, frozen=True, tag="image"):
    """An image in a user's message or in a tool's result: either a URL or base64 data with its media type."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    name: str | msgspec.UnsetType = msgspec.UNSET
    """The name that pages show."""


ContentPart = TextContent | ImageContent


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call that the model asked for. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str
    needs_approval: bool = False
    """The call waits: a person decides it, or the client runs it."""
    speech: str | None = None
    """The text that the agent sends by this call (`send_message`). Clients see the text, and not the call."""
    tool_version: str | None = None
    """For a call that a person decides: `Tool.version` of the tool that the person was asked about."""


class ToolReturn(msgspec.Struct, frozen=True):
    """The result of a tool call."""

    tool_call_id: str
    tool_name: str
    status: Literal["success", "error"]
    text: str
    stdout: list[str] | None = None
    """Lines that the tool printed; None when no tool ran here (denied, or run by the client)."""
    stderr: list[str] | None = None
    """The tool's error output, as one text."""
    of_speech: bool = False
    """Clients saw the call as text, and do not see its result."""
    parts: list[ContentPart] | None = None
    """The result as the client sent it, if it was in parts. `text` then has the same without the images."""
    is_text: bool = True
    """The tool returned a string. Otherwise `text` is the returned value as JSON, or as Python prints it."""
    is_plain: bool = False
    """The model gets the text alone, without the status and the time, because the client sent it so."""
    is_unknown: bool = False
    """The tool was started, and its worker died before the result was stored."""


class Reasoning(msgspec.Struct, frozen=True):
    """The model's reasoning. The signature goes back to the provider unchanged."""

    text: str
    signature: str | None = None


class Decision(msgspec.Struct, frozen=True):
    """The decision of a person about one waiting tool call, or the result of a client that ran the tool itself."""

    tool_call_id: str
    kind: Literal["approval", "tool"] = "approval"
    approve: bool = False
    reason: str | None = None
    tool_return: str | None = None
    """For kind `tool`: the result that the client sent."""
    status: Literal["success", "error"] = "success"
    stdout: list[str] | None = None
    stderr: list[str] | None = None
    edited_arguments: str | None = None
    """For an approval: JSON arguments that replace the requested ones."""
    parts: list[ContentPart] | None = None
    """For kind `tool`: the result in parts, which may be images, if the client sent it in parts."""
    is_plain: bool = False
    """For kind `tool`: as in `ToolReturn`."""


class SystemMessage(msgspec.Struct, frozen=True, tag="system"):
    """The agent's instructions, as they were when the history began."""

    text: str


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    """A message from a user or, with role `system`, from the application."""

    content: str | list[ContentPart]
    role: Literal["user", "system", "assistant"] = "user"
    otid: str | None = None
    """The client's own id for this message."""
    name: str | None = None
    sender_id: str | None = None


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant"):
    """One answer of the model."""

    text: str = ""
    reasoning: Reasoning | None = None
    tool_calls: list[ToolCall] = []
    partial: bool = False
    """The answer was cut off: cancelled, failed, or its worker died. The message has the streamed part."""
    cut_by: Literal["cancel", "error"] | None = None
    """Why a partial answer ended; the next turn tells the model."""
    model: str | None = None
    """Handle of the model that spoke."""
    provider_response: str | None = None
    """JSON of the provider-neutral response: the signatures and ids that must go back unchanged. None if partial."""
    seen_memory: dict[BlockId, int] = {}
    """For an answer that rewrites a memory block: the versions of the blocks that the model was shown."""
    sibling_id: MessageId | None = None
    """A second id, for the part that clients see as a message of its own if only some of the calls wait."""
    sibling_holds: Literal["calls", "approvals"] | None = None


class ApprovalResponse(msgspec.Struct, frozen=True, tag="approval_response"):
    """The decisions on the calls of the answer before it."""

    decisions: list[Decision]


class ToolReturns(msgspec.Struct, frozen=True, tag="tool_returns"):
    """The results of every call of one answer."""

    returns: list[ToolReturn]


CompactionTrigger = Literal["request", "post_step_context_check", "context_window_exceeded"]
"""Why a history is compacted, as it is stored: a client asked; the next request would be too long; the provider
reported that one was."""


class CompactionStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a compaction. The instructions count as one of the messages, as in the model's request."""

    messages_before: int
    messages_after: int
    context_window: int
    """Tokens that the model can take in."""
    trigger: CompactionTrigger = "request"
    tokens_before: int | None = None
    tokens_after: int | None = None
    """Tokens of the model's request before and after; estimates, the first one based on the provider's count."""


class Summary(msgspec.Struct, frozen=True, tag="summary"):
    """Replaces messages that have left the context."""

    text: str
    stats: CompactionStats | None = None


MessageBody = SystemMessage | UserMessage | AssistantMessage | ApprovalResponse | ToolReturns | Summary


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One stored message with its place in the history."""

    id: MessageId
    agent_id: AgentId
    thread_id: ThreadId
    conversation_id: ConversationId | None
    run_id: RunId | None
    step_id: StepId | None
    created_at: datetime
    body: MessageBody
    turn: int = 0
    """The run's place in its thread; messages are ordered by (turn, position)."""
    position: int = 0
    """Order within the turn; given by the store."""


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be stored with a run; the store adds the run's agent, thread and turn."""

    id: MessageId
    created_at: datetime
    body: MessageBody
    step_id: StepId | None = None


def text_of(content: str | list[ContentPart]) -> str:
    """The text of a user's message, without images."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextContent))


def text_with_notes(parts: list[ContentPart]) -> str:
    """The text of the parts, with a note where images are left out."""
    count = sum(isinstance(part, ImageContent) for part in parts)
    note = "" if count == 0 else "[Image omitted]" if count == 1 else f"[{count} images omitted]"
    return "\n".join(text for text in (text_of(parts), note) if text)


FILES = "input_file"
"""The entry of `RunOptions.demanded` which means that the model must take files."""


def has_files(content: str | list[ContentPart]) -> bool:
    """Whether the content has files that are not text."""
    return not isinstance(content, str) and any(data_of_file(part) for part in content)


def data_of_file(part: ContentPart) -> str:
    """The base64 of a file that is not text; empty for any other part."""
    return (part.file.data or "") if isinstance(part, TextContent) and part.file is not None else ""


FIRST_WORDS = 200
"""Characters of a submission that lists of runs show."""


def first_words(given: Iterable[NewMessage]) -> str | None:
    """How a submission begins, in one line: the first message of a user with text. None if there is none. Messages of
    the application (role `system`) are for the model, and not for readers of lists of runs."""
    for message in given:
        if isinstance(message.body, UserMessage) and message.body.role == "user":
            content = message.body.content
            text = content if isinstance(content, str) else text_with_notes(content)
            # A text may be megabytes long, and leading blanks do not count.
            words = " ".join(text.lstrip()[: 4 * FIRST_WORDS].split())
            if words:
                return words if len(words) <= FIRST_WORDS else words[: FIRST_WORDS - 1].rstrip() + "…"
    return None


CHARACTERS_PER_TOKEN = 4
"""English prose has about four characters per token with every current tokenizer."""


def tokens_in(characters: int) -> int:
    """The approximate number of tokens in this number of characters; 0 only for no characters.

    Used if no provider has counted them: for answers that were cut off, for servers and offline models that report
    nothing, and for sizes that are shown before anything is sent.
    """
    return -(-characters // CHARACTERS_PER_TOKEN)


def estimate_tokens(text: str) -> int:
    """The approximate number of tokens of a text; 0 only for an empty one."""
    return tokens_in(len(text))


def text_to_count(history: Sequence[Message]) -> str:
    """The conversation as text, to count its tokens by."""
    return msgspec.json.encode([message.body for message in history]).decode()


CHARACTERS_OF_A_MESSAGE = 200
"""The fixed cost of scanning a message, as the number of characters that are scanned in the same time."""


def weight(history: Iterable[Message]) -> int:
    """The cost of scanning the messages, in characters. Computing it is cheap."""
    return sum(CHARACTERS_OF_A_MESSAGE + _characters_of(message.body) for message in history)


def _characters_of(body: MessageBody) -> int:
    match body:
        case Summary(text=text) | SystemMessage(text=text):
            return len(text)
        case UserMessage(content=content):
            return len(content) if isinstance(content, str) else sum(map(_characters_of_part, content))
        case AssistantMessage(text=text, tool_calls=calls, provider_response=kept):
            called = sum(CHARACTERS_OF_A_MESSAGE + len(call.arguments) for call in calls)
            return len(text) + called + len(kept or "")
        case ToolReturns(returns=returns):
            return sum(CHARACTERS_OF_A_MESSAGE + len(one.text) for one in returns)
        case ApprovalResponse(decisions=decisions):
            return CHARACTERS_OF_A_MESSAGE * len(decisions)


def _characters_of_part(part: ContentPart) -> int:
    said = part.text if isinstance(part, TextContent) else part.data or ""
    return CHARACTERS_OF_A_MESSAGE + len(said) + len(data_of_file(part))


def estimate_message_tokens(body: MessageBody) -> int:
    """The approximate number of tokens that a message adds to the model's request, without images."""
    match body:
        case UserMessage(content=content):
            return estimate_tokens(text_of(content))
        case AssistantMessage(text=text, tool_calls=calls):
            return tokens_in(len(text) + sum(len(call.name) + len(call.arguments) for call in calls))
        case ToolReturns(returns=returns):
            return tokens_in(sum(len(one.text) for one in returns))
        case Summary(text=text):
            return estimate_tokens(text)
        case SystemMessage() | ApprovalResponse():
            return 0


class ImportedMessage(msgspec.Struct, frozen=True):
    """A message with its turn. Turn 0 has the summaries with which a history begins."""

    turn: int
    message: NewMessage
    in_context: bool = True
