"""Answers of the AI SDK's dialect: the chunks of its streams, and its chats."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from api.answers.messages import Anything, Fields


class UiMessageChunk(TypedDict):
    """The `data` of each server-sent event. `type` determines its other fields; `data-holdfast-…` are further types."""

    type: str
    id: NotRequired[str]
    messageId: NotRequired[str]
    messageMetadata: NotRequired[Fields]
    delta: NotRequired[str]
    toolCallId: NotRequired[str]
    toolName: NotRequired[str]
    dynamic: NotRequired[bool]
    providerExecuted: NotRequired[bool]
    inputTextDelta: NotRequired[str]
    input: NotRequired[Anything]
    output: NotRequired[Anything]
    errorText: NotRequired[str]
    approvalId: NotRequired[str]
    approved: NotRequired[bool]
    reason: NotRequired[str]
    parts: NotRequired[list[Fields]]
    data: NotRequired[Fields]
    transient: NotRequired[bool]
    finishReason: NotRequired[str]


class UiMessage(TypedDict):
    """A message as a page has it."""

    id: str
    role: Literal["user", "assistant"]
    parts: list[Fields]
    metadata: NotRequired[Fields]


class UiChat(TypedDict):
    """A chat for a page to begin with."""

    id: str
    messages: list[UiMessage]
    is_running: bool
    """An answer is at work or queued. It is none of the messages: the stream shows it from its beginning."""


class StoppedChat(TypedDict):
    """The run that was stopped, as it is now."""

    run_id: str
    status: str
