"""Stored messages as JSON of Letta's wire: one stored answer becomes up to four messages there."""

import json
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, assert_never, get_args, overload
from uuid import UUID

import msgspec
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field

from api.letta.message_input import MessageType, wire_content
from shared.domain.events import StopReason
from shared.domain.ids import UUID4_PATTERN, AgentId, ConversationId, MessageId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    CompactionStats,
    Decision,
    Message,
    MessageBody,
    Summary,
    SystemMessage,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.domain.searches import LONGEST_QUERY

WireStopReason = Literal[
    "end_turn", "error", "llm_api_error", "invalid_llm_response", "invalid_tool_call", "max_steps",
    "max_tokens_exceeded", "no_tool_call", "tool_rule", "cancelled", "insufficient_credits", "requires_approval",
    "context_window_overflow_in_system_prompt",
]  # fmt: skip

STOP_REASONS: Mapping[str, WireStopReason] = {
    StopReason.ANSWERED: "end_turn",
    StopReason.ENDED_BY_RULE: "tool_rule",
    StopReason.STEPS_USED_UP: "max_steps",
    StopReason.TOKENS_USED_UP: "max_tokens_exceeded",
    StopReason.PARKED: "requires_approval",
    StopReason.CANCELLED: "cancelled",
    StopReason.FAILED: "error",
    StopReason.MODEL_FAILED: "llm_api_error",
    StopReason.INSTRUCTIONS_TOO_LONG: "context_window_overflow_in_system_prompt",
}
"""Letta's words for stop reasons. Letta has four more, with which no run ends here: after an unreadable answer, for
example, Holdfast asks the model again, and then reports a failure of the model."""

STORED_REASONS: Mapping[str, str] = {shown: reason for reason, shown in STOP_REASONS.items()}
"""The reverse table, for searches of runs."""


def wire_stop_reason(reason: str | None) -> str | None:
    """Letta's word for a stop reason. An unknown reason, which a newer release has stored, is returned unchanged."""
    return None if reason is None else STOP_REASONS.get(reason, reason)


# The common fields of all messages, in the wire's order, and the ids of their parts.


def envelope(
    message_type: str,
    *,
    message_id: str,
    date: str,
    otid: str | None = None,
    name: str | None = None,
    sender_id: str | None = None,
    step_id: str | None = None,
    run_id: str | None = None,
    seq_id: int | None = None,
) -> dict[str, Any]:
    """The common head of a message; a message's own fields follow it."""
    return {
        "id": message_id,
        "date": date,
        "name": name,
        "message_type": message_type,
        "otid": otid,
        "sender_id": sender_id,
        "step_id": step_id,
        "is_err": None,
        "seq_id": seq_id,
        "run_id": run_id,
    }


def whole_seconds(moment: datetime) -> str:
    """The `date` of a message."""
    return moment.astimezone(UTC).replace(microsecond=0).isoformat()


def moment_at(at_ms: int) -> datetime:
    """The moment of a Unix time in milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


@lru_cache(256)
def date_of(at_s: int) -> str:
    """The `date` at this Unix time, in seconds. All tokens within one second share it."""
    return whole_seconds(datetime.fromtimestamp(at_s, UTC))


@lru_cache(4096)
def part_otid(message_id: str, part: int) -> str:
    """The otid of one part of a message: the message's UUID with the low seven bits of its last byte set to `part`.
    Called for every token of a part."""
    whole = UUID(message_id.partition("-")[2])
    last = (whole.bytes[-1] & 0x80) | (part & 0x7F)
    return str(UUID(bytes=whole.bytes[:-1] + bytes([last])))


@overload
def wire_time(moment: datetime) -> str: ...
@overload
def wire_time(moment: None) -> None: ...
def wire_time(moment: datetime | None) -> str | None:
    """UTC with a Z, and microseconds if they are not zero."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def in_utc(moment: datetime) -> datetime:
    """A client's time, in UTC; a time without a time zone is UTC. Raises `ValueError` if UTC cannot express it."""
    try:
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the moment is outside the years 1 to 9999 of UTC") from error


Moment = Annotated[datetime, AfterValidator(in_utc)]
"""A time in a request. Without a time zone it is UTC."""

AwareMoment = Annotated[AwareDatetime, AfterValidator(in_utc)]
"""A time in a request, which must have a time zone."""


WireMessage = dict[str, Any]

NOT_ANSWERS = frozenset({"user_message", "system_message", "approval_response_message", "summary_message"})
"""Types that a plain answer omits: the client's own messages, and messages without a speaker."""


def types_for_strangers(asked: Collection[str] | None) -> list[str]:
    """The types out of `asked` (None: all) for readers that may not see the project's instructions to its agents."""
    return [name for name in get_args(MessageType) if name != "system_message" and (asked is None or name in asked)]


def wire_messages(messages: Iterable[Message], types: Collection[str] | None = None) -> list[WireMessage]:
    """The wire's messages for stored ones, in order; with `types`, only those of these types."""
    shown = [wire for message in messages for wire in wire_message(message)]
    return shown if types is None else [wire for wire in shown if wire["message_type"] in types]


def parts_of(messages: Iterable[Message]) -> int:
    """Roughly the number of values in the wire's messages, which determines the time to render them."""
    return sum(VALUES_OF_A_MESSAGE * (1 + _inside(message.body)) for message in messages)


def _inside(body: MessageBody) -> int:
    match body:
        case AssistantMessage(tool_calls=several) | ToolReturns(returns=several) | ApprovalResponse(decisions=several):
            return len(several)
        case UserMessage(content=list(several)):
            return len(several)
        case _:
            return 0


VALUES_OF_A_MESSAGE = 12


def is_shown(message: Message, types: Collection[str]) -> bool:
    """Whether a part of the stored message has one of the types."""
    return any(wire["message_type"] in types for wire in wire_message(message))


def wire_message(message: Message) -> list[WireMessage]:
    """The wire's messages for one stored message."""
    body = message.body
    match body:
        case SystemMessage():
            return [{**_head("system_message", message), "content": body.text}]
        case UserMessage():
            return [_user_message(message, body)]
        case AssistantMessage():
            return _assistant_parts(message, body)
        case ApprovalResponse():
            return [_approval_response(message, body)]
        case ToolReturns():
            head = _head("tool_return_message", message, otid=part_otid(message.id, 0))
            shown = [one for one in body.returns if not one.of_speech]
            return [{**head, **tool_return_fields(shown)}] if shown else []
        case Summary():
            return [_summary_message(message, body)]
        case _:
            assert_never(body)


def wire_approval_request(message: Message, waiting: Container[str]) -> WireMessage | None:
    """The part of a stored answer that asks for approval, with the calls that still wait; None without such calls."""
    body = message.body
    if isinstance(body, AssistantMessage):
        calls = [call for call in body.tool_calls if call.id in waiting]
        message = msgspec.structs.replace(message, body=msgspec.structs.replace(body, tool_calls=calls))
    return next((part for part in wire_message(message) if part["message_type"] == "approval_request_message"), None)


def tool_return_fields(returns: Sequence[ToolReturn]) -> WireMessage:
    """Results of one answer's calls. The top-level fields are those of the first result, as text only."""
    first = returns[0]
    return {
        "name": first.tool_name,
        "tool_return": first.text,
        "status": first.status,
        "tool_call_id": first.tool_call_id,
        "stdout": first.stdout,
        "stderr": first.stderr,
        **outcome_field(first),
        "tool_returns": [_wire_result(one, one.text) | outcome_field(one) for one in returns],
    }


def _wire_result(result: ToolReturn | Decision, text: str | None) -> WireMessage:
    return {
        "type": "tool",
        "tool_return": text if result.parts is None else wire_content(result.parts),
        "status": result.status,
        "tool_call_id": result.tool_call_id,
        "stdout": result.stdout,
        "stderr": result.stderr,
    }


def outcome_field(result: ToolReturn) -> WireMessage:
    """Our own field `outcome`: with it programs need not parse the text to learn that a call's effect is unknown."""
    return {"outcome": "unknown"} if result.is_unknown else {}


def tool_call_fields(calls: Sequence[ToolCall]) -> WireMessage:
    """Complete tool calls: the first one, and the list of all."""
    shown = [{"name": call.name, "arguments": call.arguments, "tool_call_id": call.id} for call in calls]
    return {"tool_call": shown[0], "tool_calls": shown}


def _head(message_type: str, message: Message, **given: Any) -> WireMessage:
    message_id: MessageId = given.pop("message_id", message.id)
    return envelope(
        message_type,
        message_id=message_id,
        date=whole_seconds(message.created_at),
        step_id=message.step_id,
        run_id=message.run_id,
        **given,
    )


def otid_of(message_id: MessageId, given: str | None) -> str:
    """The otid of a user's message: the client's own, or a constant one derived from the message."""
    return given or part_otid(message_id, 0)


def _user_message(message: Message, body: UserMessage) -> WireMessage:
    kind = "system_message" if body.role == "system" else "user_message"
    head = _head(kind, message, otid=otid_of(message.id, body.otid), name=body.name, sender_id=body.sender_id)
    return {**head, "content": wire_content(body.content)}


def _summary_message(message: Message, body: Summary) -> WireMessage:
    return {**_head("summary_message", message), **summary_fields(body.text, body.stats)}


def summary_fields(text: str, stats: CompactionStats | None) -> WireMessage:
    """A summary, and the result of its compaction."""
    return {"summary": text, "compaction_stats": None if stats is None else wire_stats(stats)}


def summary_as_content(text: str, stats: CompactionStats, at: datetime) -> str:
    """A summary for clients that do not know the wire's type of summary messages: the content of a user's message,
    packed like messages that Letta's server itself puts there."""
    said = f"Old messages have left the context. A summary takes their place:\n{text}"
    alert = {"type": "system_alert", "message": said, "time": wire_time(at), "compaction_stats": wire_stats(stats)}
    return json.dumps(alert, ensure_ascii=False)


WIRE_STATS: Mapping[str, str] = {
    "trigger": "trigger",
    "context_tokens_before": "tokens_before",
    "context_tokens_after": "tokens_after",
    "context_window": "context_window",
    "messages_count_before": "messages_before",
    "messages_count_after": "messages_after",
}
"""The wire's names for the fields of `CompactionStats`."""


def wire_stats(stats: CompactionStats) -> WireMessage:
    """The outcome of a compaction."""
    return {name: getattr(stats, field) for name, field in WIRE_STATS.items()}


def _assistant_parts(message: Message, body: AssistantMessage) -> list[WireMessage]:
    parts: list[WireMessage] = []
    if body.reasoning is not None:
        head = _head("reasoning_message", message, otid=part_otid(message.id, len(parts)))
        said = {"source": "reasoner_model", "reasoning": body.reasoning.text, "signature": body.reasoning.signature}
        parts.append({**head, **said})
    if body.text or not (parts or body.tool_calls):
        head = _head("assistant_message", message, otid=part_otid(message.id, len(parts)))
        parts.append({**head, "content": body.text})
    for said in [call.speech for call in body.tool_calls if call.speech is not None]:
        head = _head("assistant_message", message, otid=part_otid(message.id, len(parts)))
        parts.append({**head, "content": said})
    calls = [call for call in body.tool_calls if not call.needs_approval and call.speech is None]
    if calls:
        shown_as = _id_of(message, body, "calls")
        head = _head("tool_call_message", message, message_id=shown_as, otid=part_otid(shown_as, len(parts)))
        parts.append({**head, **tool_call_fields(calls)})
    waiting = [call for call in body.tool_calls if call.needs_approval]
    if waiting:
        shown_as = _id_of(message, body, "approvals")
        head = _head("approval_request_message", message, message_id=shown_as, otid=shown_as)
        parts.append({**head, **tool_call_fields(waiting)})
    return parts


def _id_of(message: Message, body: AssistantMessage, kind: str) -> MessageId:
    if body.sibling_id is not None and body.sibling_holds == kind:
        return body.sibling_id
    return message.id


def _approval_response(message: Message, body: ApprovalResponse) -> WireMessage:
    approvals = [_wire_decision(decision) for decision in body.decisions]
    first = body.decisions[0]
    by_approval = first.kind == "approval"
    return {
        **_head("approval_response_message", message),
        "approvals": approvals,
        "approve": first.approve if by_approval else None,
        "approval_request_id": first.tool_call_id,
        "reason": first.reason if by_approval else None,
    }


def _wire_decision(decision: Decision) -> WireMessage:
    if decision.kind == "tool":
        return _wire_result(decision, decision.tool_return)
    edited = {} if decision.edited_arguments is None else {"edited_arguments": decision.edited_arguments}
    return {
        "type": "approval",
        "tool_call_id": decision.tool_call_id,
        "approve": decision.approve,
        "reason": decision.reason,
        **edited,
    }


# Full-text search in messages, on Letta's wire.


SAID = frozenset({"user_message", "assistant_message"})
"""The message types that a search covers."""


class MessageSearch(BaseModel):
    """The query and the scope of a search. Every mode searches for words: Holdfast stores no vectors of messages."""

    query: Annotated[str, Field(max_length=LONGEST_QUERY)]
    search_mode: Literal["vector", "fts", "hybrid"] = "hybrid"
    agent_id: Annotated[AgentId | None, Field(pattern=f"^agent-{UUID4_PATTERN}$")] = None
    conversation_id: ConversationId | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 50
    start_date: Moment | None = None
    end_date: Moment | None = None


def wire_found(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The found messages, each with its place."""
    return [
        {
            "message_type": shown["message_type"],
            "content": shown["content"],
            "message_id": message.id,
            "agent_id": message.agent_id,
            "conversation_id": message.conversation_id,
            "created_at": wire_time(message.created_at),
        }
        for message in messages
        for shown in wire_messages([message], SAID)
    ]
