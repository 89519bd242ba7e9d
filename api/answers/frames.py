"""Frames of a run's stream: the `data` of each server-sent event. The last one is the text `[DONE]`."""

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from api.answers.messages import (
    AssistantMessage,
    Content,
    MessageHead,
    ReasoningMessage,
    StopReason,
    SummaryMessage,
    ToolCall,
    ToolReturnMessage,
    UsageStatistics,
)
from api.answers.values import Fields, Time


class Shown(TypedDict):
    """What a frame has where its reader asks for the times of events: Unix milliseconds."""

    at_ms: NotRequired[int]


class PingFrame(MessageHead, Shown):
    """A sign of life, or a number that means nothing to this reader."""

    message_type: Literal["ping"]


class UserMessageFrame(MessageHead, Shown):
    """A message that the run took in while it worked."""

    message_type: Literal["user_message"]
    content: Content


class AssistantMessageFrame(AssistantMessage, Shown):
    """What the agent says: the whole text, or with `stream_tokens` the next piece of it."""


class ReasoningMessageFrame(ReasoningMessage, Shown):
    """What the model thinks: the whole text, or with `stream_tokens` the next piece of it."""


class ToolCallDelta(TypedDict):
    """The next piece of a call: its name first, then pieces of its arguments. What is not in it is null or absent."""

    name: NotRequired[str | None]
    arguments: NotRequired[str | None]
    tool_call_id: str


class ToolCallFrame(MessageHead, Shown):
    """The agent calls tools. With `stream_tokens` both fields are the next piece of one call."""

    message_type: Literal["tool_call_message"]
    tool_call: ToolCall | ToolCallDelta
    tool_calls: list[ToolCall] | ToolCallDelta


class ApprovalRequestFrame(MessageHead, Shown):
    """The agent wants to call tools, and a person has to decide it. With `stream_tokens` it comes in pieces."""

    message_type: Literal["approval_request_message"]
    tool_call: ToolCall | ToolCallDelta
    tool_calls: list[ToolCall] | ToolCallDelta


class ToolReturnFrame(ToolReturnMessage, Shown):
    """What calls came to."""


class SummaryFrame(SummaryMessage, Shown):
    """A summary took the place of older messages."""


class EventFrame(MessageHead, Shown):
    """Something that is no part of the conversation: `step_restarted`, `log_continued`, `gap`, `compaction`."""

    message_type: Literal["event_message"]
    event_type: str
    event_data: Fields


class RunStatusFrame(Shown):
    """The run has another status. For readers that ask for it."""

    message_type: Literal["run_status"]
    status: str
    cause: str | None
    date: Time
    run_id: str
    seq_id: int


class StopReasonFrame(StopReason, Shown):
    """Why the run stopped."""

    run_id: str
    seq_id: int


class UsageFrame(UsageStatistics, Shown):
    """The tokens of the run."""

    run_id: str
    seq_id: int


class ErrorFrame(Shown):
    """The run failed. It comes as an event of the name `error`."""

    message_type: Literal["error_message"]
    run_id: str
    error_type: str
    message: str
    detail: str | None
    seq_id: int | None
    code: str
    hint: str
    pending_request_id: NotRequired[str]
    tool_call_ids: NotRequired[list[str]]
    approval_ids: NotRequired[list[str]]
    resolve: NotRequired[str]
    waiting_run_id: NotRequired[str]


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
