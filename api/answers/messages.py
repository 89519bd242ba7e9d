"""Messages, in lists and in whole answers. Frames of streams have similar forms, with the same fields first."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, WithJsonSchema
from typing_extensions import TypeAliasType, TypedDict

# Building blocks of all answer types.


Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339, with the time zone."""

Anything = Annotated[Any, WithJsonSchema({})]

Fields = dict[str, Anything]
"""An object whose fields a client or a provider has chosen."""

Nothing = Annotated[None, WithJsonSchema({"type": "null"})]
"""A field of Letta's wire that never has a value here."""


class Recorded(TypedDict):
    """The times at which an object was created and changed. Its authors are not stored."""

    created_by_id: Nothing
    last_updated_by_id: Nothing
    created_at: Time
    updated_at: Time


class MessageHead(TypedDict):
    """The fields of every message. In a list `seq_id` is null."""

    id: str
    date: Time
    name: str | None
    otid: str | None
    sender_id: str | None
    step_id: str | None
    is_err: bool | None
    seq_id: int | None
    run_id: str | None


class TextPart(TypedDict):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ImageSource(TypedDict):
    """The place of an image: a URL, or base64 data."""

    type: Literal["url", "base64"]
    url: NotRequired[str]
    media_type: NotRequired[str]
    data: NotRequired[str]


class ImagePart(TypedDict):
    """An image."""

    type: Literal["image"]
    source: ImageSource


Content = str | list[TextPart | ImagePart]


class SystemMessage(MessageHead):
    """The agent's instructions, in the form that the model got."""

    message_type: Literal["system_message"]
    content: Content


class UserMessage(MessageHead):
    """A user's message."""

    message_type: Literal["user_message"]
    content: Content


class AssistantMessage(MessageHead):
    """A text of the agent."""

    message_type: Literal["assistant_message"]
    content: str


class ReasoningMessage(MessageHead):
    """The model's reasoning."""

    message_type: Literal["reasoning_message"]
    source: str
    reasoning: str
    signature: str | None


class ToolCall(TypedDict):
    """A call of a tool."""

    name: str
    arguments: str
    tool_call_id: str


class ToolCallMessage(MessageHead):
    """The agent calls tools. `tool_call` is the first of `tool_calls`."""

    message_type: Literal["tool_call_message"]
    tool_call: ToolCall
    tool_calls: list[ToolCall]


class ApprovalRequestMessage(MessageHead):
    """The agent wants to call tools, and waits for a person's decisions."""

    message_type: Literal["approval_request_message"]
    tool_call: ToolCall
    tool_calls: list[ToolCall]


class ToolReturn(TypedDict):
    """The result of one call."""

    type: Literal["tool"]
    tool_return: Content
    status: Literal["success", "error"]
    tool_call_id: str
    stdout: list[str] | None
    stderr: list[str] | None
    outcome: NotRequired[Literal["unknown"]]


class ToolReturnMessage(MessageHead):
    """The results of calls. The fields beside `tool_returns` are those of the first result."""

    message_type: Literal["tool_return_message"]
    tool_return: str
    status: Literal["success", "error"]
    tool_call_id: str
    stdout: list[str] | None
    stderr: list[str] | None
    tool_returns: list[ToolReturn]
    outcome: NotRequired[Literal["unknown"]]


class Captured(TypedDict):
    """The captured turn is stored."""

    success: bool
    messages_created: int
    run_ids: list[str]


class ApprovalDecision(TypedDict):
    """A person's decision on one call."""

    type: Literal["approval"]
    tool_call_id: str
    approve: bool
    reason: str | None
    edited_arguments: NotRequired[str]


class ApprovalResponseMessage(MessageHead):
    """A person's decisions. The fields beside `approvals` are those of the first decision."""

    message_type: Literal["approval_response_message"]
    approvals: list[ApprovalDecision | ToolReturn]
    approve: bool | None
    approval_request_id: str | None
    reason: str | None


class CompactionStats(TypedDict):
    """The result of a compaction."""

    trigger: str
    context_tokens_before: int | None
    context_tokens_after: int | None
    context_window: int | None
    messages_count_before: int
    messages_count_after: int


class SummaryMessage(MessageHead):
    """A summary, which replaces older messages."""

    message_type: Literal["summary_message"]
    summary: str
    compaction_stats: CompactionStats | None


_AnyMessage = (
    SystemMessage
    | UserMessage
    | AssistantMessage
    | ReasoningMessage
    | ToolCallMessage
    | ApprovalRequestMessage
    | ToolReturnMessage
    | ApprovalResponseMessage
    | SummaryMessage
)
Message = TypeAliasType("Message", Annotated[_AnyMessage, Field(discriminator="message_type")])


class FoundMessage(TypedDict):
    """A message that a search has found, and its place."""

    message_type: str
    content: Content
    message_id: str
    agent_id: str
    conversation_id: str | None
    created_at: Time


class CompactionResult(TypedDict):
    """The result of a compaction."""

    summary: str
    num_messages_before: int
    num_messages_after: int


class StopReason(TypedDict):
    """The reason why a run stopped."""

    message_type: Literal["stop_reason"]
    stop_reason: str | None


class UsageStatistics(TypedDict):
    """The tokens of a run."""

    message_type: Literal["usage_statistics"]
    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    step_count: int
    cached_input_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    context_tokens: int | None
    run_ids: list[str] | None
    estimated: NotRequired[bool]


class Generated(TypedDict):
    """A model's answer to a single question, without the agent. `usage.run_ids` names the run of the question."""

    content: str
    model: str
    usage: UsageStatistics


class Answer(TypedDict):
    """The results of a run, for a request that waited for it."""

    messages: list[Message]
    stop_reason: StopReason
    usage: UsageStatistics
    logprobs: Nothing
    turns: list[Fields] | None


# Frames of a run's stream: the `data` of each server-sent event. The last `data` is the text `[DONE]`.


class Shown(TypedDict):
    """Fields that only some frames have: the time of the event, in Unix milliseconds, if the reader asks for it; and
    the frame's place, in a stream of several runs."""

    at_ms: NotRequired[int]
    cursor: NotRequired[str]
    """In the stream of a conversation: the id of this frame, from which a reader can resume."""


class PingFrame(MessageHead, Shown):
    """A keep-alive, or an event that this reader did not ask for."""

    message_type: Literal["ping"]


class UserMessageFrame(MessageHead, Shown):
    """A message that the run received while it worked."""

    message_type: Literal["user_message"]
    content: Content


class AssistantMessageFrame(AssistantMessage, Shown):
    """The agent's text: complete, or with `stream_tokens` the next piece of it."""


class ReasoningMessageFrame(ReasoningMessage, Shown):
    """The model's reasoning: complete, or with `stream_tokens` the next piece of it."""


class ToolCallDelta(TypedDict):
    """The next piece of a call: first its name, then pieces of its arguments. Other fields are null or absent."""

    name: NotRequired[str | None]
    arguments: NotRequired[str | None]
    tool_call_id: str


class ToolCallFrame(MessageHead, Shown):
    """The agent calls tools. With `stream_tokens` both fields are the next piece of one call."""

    message_type: Literal["tool_call_message"]
    tool_call: ToolCall | ToolCallDelta
    tool_calls: list[ToolCall] | ToolCallDelta


class ApprovalRequestFrame(MessageHead, Shown):
    """The agent wants to call tools, and waits for a person's decisions. With `stream_tokens` in pieces."""

    message_type: Literal["approval_request_message"]
    tool_call: ToolCall | ToolCallDelta
    tool_calls: list[ToolCall] | ToolCallDelta


class ToolReturnFrame(ToolReturnMessage, Shown):
    """The results of calls."""


class SummaryFrame(SummaryMessage, Shown):
    """A summary, which replaces older messages."""


class EventFrame(MessageHead, Shown):
    """An event outside the conversation's messages: `step_restarted`, `log_continued`, `gap`, `compaction`,
    `child_run_started`, `child_run_waits`, `data`. In the stream of a conversation also `run_started`, `run_ended`,
    `approvals_resolved` and `caught_up`."""

    message_type: Literal["event_message"]
    event_type: str
    event_data: Fields


class RunStatusFrame(Shown):
    """The run's status has changed. Only for readers that ask for these frames."""

    message_type: Literal["run_status"]
    status: str
    cause: str | None
    date: Time
    run_id: str
    seq_id: int


class StopReasonFrame(StopReason, Shown):
    """The reason why the run stopped."""

    run_id: str
    seq_id: int


class UsageFrame(UsageStatistics, Shown):
    """The tokens of the run."""

    run_id: str
    seq_id: int


class Failure(TypedDict):
    """The reason why a run or a step failed."""

    message_type: Literal["error_message"]
    run_id: str
    error_type: str
    message: str
    detail: str | None
    code: str
    hint: str
    pending_request_id: NotRequired[str]
    tool_call_ids: NotRequired[list[str]]
    approval_ids: NotRequired[list[str]]
    resolve: NotRequired[str]
    waiting_run_id: NotRequired[str]


class ErrorFrame(Failure, Shown):
    """The run failed. The SSE event has the name `error`."""

    seq_id: int | None


_AnyFrame = (
    PingFrame
    | UserMessageFrame
    | AssistantMessageFrame
    | ReasoningMessageFrame
    | ToolCallFrame
    | ApprovalRequestFrame
    | ToolReturnFrame
    | SummaryFrame
    | EventFrame
    | RunStatusFrame
    | StopReasonFrame
    | UsageFrame
    | ErrorFrame
)
Frame = TypeAliasType("Frame", Annotated[_AnyFrame, Field(discriminator="message_type")])


# Messages of JSON-RPC, at the address of the Model Context Protocol.


class McpError(TypedDict):
    """The error of a request."""

    code: int
    """The protocol's code."""
    message: str
    data: NotRequired[Anything]
    """The details for programs: for our own errors `code` and `hint`, as in every other answer."""


class McpMessage(TypedDict):
    """The answer to a request: its result, or its error."""

    jsonrpc: Literal["2.0"]
    id: str | int | None
    result: NotRequired[Fields]
    """Its `resultType` names its kind: `complete`, `input_required` or `task`."""
    error: NotRequired[McpError]


class McpNotification(TypedDict):
    """The progress of a call."""

    jsonrpc: Literal["2.0"]
    method: Literal["notifications/progress"]
    params: Fields


McpEvent = TypeAliasType("McpEvent", McpNotification | McpMessage)
"""The `data` of each server-sent event of a call: notifications of its progress, and finally its answer."""
