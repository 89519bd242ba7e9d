"""Answers of the pages' dialects. First AG-UI's: the events of its streams, and what CopilotKit asks beside them."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from api.answers.messages import Anything, Fields


class AgUiEvent(TypedDict):
    """The `data` of each server-sent event. `type` determines its other fields."""

    type: Literal[
        "RUN_STARTED", "RUN_FINISHED", "RUN_ERROR",
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT",
        "MESSAGES_SNAPSHOT", "CUSTOM",
    ]  # fmt: skip
    threadId: NotRequired[str]
    runId: NotRequired[str]
    protocolVersion: NotRequired[str]
    input: NotRequired[Fields]
    outcome: NotRequired[Fields]
    usage: NotRequired[list[Fields]]
    message: NotRequired[str]
    code: NotRequired[str]
    messageId: NotRequired[str]
    role: NotRequired[str]
    delta: NotRequired[str]
    toolCallId: NotRequired[str]
    toolCallName: NotRequired[str]
    parentMessageId: NotRequired[str]
    content: NotRequired[str | list[Fields]]
    messages: NotRequired[list[Fields]]
    name: NotRequired[str]
    value: NotRequired[Anything]
    metadata: NotRequired[Fields]


class AgUiStop(TypedDict):
    """The run that was stopped, as it is now."""

    stopped: bool
    threadId: str
    runId: str
    run_id: str
    status: str


class RuntimeAgent(TypedDict):
    """An agent."""

    name: str
    description: str


class RuntimeInfo(TypedDict):
    """What CopilotKit needs to know of a runtime. Agents are named by their ids."""

    version: str
    agents: dict[str, RuntimeAgent]
    mode: Literal["sse"]
    audioFileTranscriptionEnabled: bool


# Answers of the AI SDK's dialect: the chunks of its streams, and its chats.


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
