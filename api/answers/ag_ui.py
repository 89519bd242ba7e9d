"""Answers of AG-UI's dialect: the events of its streams, and what CopilotKit asks beside them."""

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
