"""Items of a conversation that wait: function calls that came without their outputs, and the items after them.

Clients store the results of their loop in several requests: each has room for 20 items, and a person may approve a call
meanwhile. A model must never get a call without its result, so such items are stored outside the conversation's
context, and enter it once the outputs are there. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from api.openai.response_items_list import items_of
from shared.domain.errors import InvalidRequest
from shared.domain.ids import RunId
from shared.domain.messages import AssistantMessage, Decision, NewMessage, ToolCall, ToolReturn, ToolReturns

MOST_WAITING = 1_000
"""Messages that may wait in one conversation."""


class Arranged(NamedTuple):
    """The messages of a conversation that enter its context now, and those that wait."""

    entering: list[NewMessage]
    waiting: list[NewMessage]


def arranged(messages: Sequence[NewMessage]) -> Arranged:
    """The waiting items begin with the first answer that has a call without a result."""
    place = next((n for n in range(len(messages)) if _open_calls(messages, n)), len(messages))
    return Arranged([*messages[:place]], [*messages[place:]])


def answered(
    messages: Sequence[NewMessage], outputs: Mapping[str, Decision], made: Sequence[NewMessage]
) -> list[NewMessage]:
    """The messages with these results, each after its call. `made` are empty messages for them, as many as there are
    outputs. Raises `InvalidRequest` for a result without a waiting call."""
    told = list(messages)
    for (call_id, decision), empty in zip(outputs.items(), made, strict=True):
        found = next(((n, call) for n in range(len(told)) for call in _open_calls(told, n) if call.id == call_id), None)
        if found is None:
            raise InvalidRequest(f"No tool call found for function call output with call_id {call_id}.", field="items")
        asking, call = found
        before = _returns_behind(told, asking)
        order = [one.id for one in _calls_of(told[asking])]
        results = sorted([*before, _result(call, decision)], key=lambda one: order.index(one.tool_call_id))
        stored = told[asking + 1] if before else empty
        told[asking + 1 : asking + 1 + bool(before)] = [replace(stored, body=ToolReturns(results))]
    return told


def without(messages: Sequence[NewMessage], owner: RunId, item_id: str) -> list[NewMessage] | None:
    """The waiting messages without one item; None if they do not contain it. Raises `InvalidRequest` for a call whose
    output is there."""
    for place, message in enumerate(messages):
        if item_id not in [item["id"] for item in items_of(owner, message)]:
            continue
        left = _left_of(messages, place, owner, item_id)
        return [*messages[:place], *([] if left is None else [left]), *messages[place + 1 :]]
    return None


def first_open_call(messages: Sequence[NewMessage]) -> ToolCall | None:
    """The first call in the messages without an output."""
    return next((call for n in range(len(messages)) for call in _open_calls(messages, n)), None)


def _result(call: ToolCall, output: Decision) -> ToolReturn:
    text = output.tool_return or ""
    return ToolReturn(call.id, call.name, output.status, text, parts=output.parts, is_plain=output.is_plain)


def _left_of(messages: Sequence[NewMessage], place: int, owner: RunId, item_id: str) -> NewMessage | None:
    """A message without one of its items."""
    message = messages[place]
    match message.body:
        case ToolReturns(returns=returns):
            kept = [one for one in returns if item_id not in _ids_of(message, owner, ToolReturns([one]))]
            return replace(message, body=ToolReturns(kept)) if kept else None
        case AssistantMessage(text=text, tool_calls=calls) if calls:
            kept_calls = [one for one in calls if item_id not in _ids_of(message, owner, _asking(one))]
            text = text if len(kept_calls) < len(calls) else ""
            if any(one not in kept_calls for one in calls if one not in _open_calls(messages, place)):
                raise InvalidRequest("a call cannot be deleted before its output is", field="item_id")
            body = replace(message.body, text=text, tool_calls=kept_calls)
            return replace(message, body=body) if text or kept_calls else None
        case _:
            return None


def _ids_of(message: NewMessage, owner: RunId, body: AssistantMessage | ToolReturns) -> list[str]:
    return [item["id"] for item in items_of(owner, replace(message, body=body))]


def _asking(call: ToolCall) -> AssistantMessage:
    return AssistantMessage(tool_calls=[call])


def _calls_of(message: NewMessage) -> list[ToolCall]:
    return message.body.tool_calls if isinstance(message.body, AssistantMessage) else []


def _returns_behind(messages: Sequence[NewMessage], place: int) -> list[ToolReturn]:
    """The results of the calls in an answer."""
    body = messages[place + 1].body if place + 1 < len(messages) else None
    return body.returns if isinstance(body, ToolReturns) else []


def _open_calls(messages: Sequence[NewMessage], place: int) -> list[ToolCall]:
    """The calls without results in the message at this place."""
    calls = _calls_of(messages[place])
    if not calls:
        return []
    known = {one.tool_call_id for one in _returns_behind(messages, place)}
    return [call for call in calls if call.id not in known]
