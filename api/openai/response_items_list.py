"""Lists of items: what a response was given, and what a conversation has. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from api.openai.response_items import approval_item_id, call_item_id, message_item_id
from shared.domain.errors import InvalidRequest
from shared.domain.ids import MessageId, RunId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    ContentPart,
    ImageContent,
    MessageBody,
    Summary,
    TextContent,
    ToolReturns,
    UserMessage,
)
from shared.domain.runs import Run


class ItemsPage(NamedTuple):
    """Which items of a list are wanted."""

    limit: int
    ascending: bool
    after: str | None
    """The id of the item behind which the page begins."""


def wire_input_items(run: Run, given: Sequence[tuple[MessageId, MessageBody]], page: ItemsPage) -> dict[str, Any]:
    """The page of a response's input. `given` has the messages of its input, oldest first."""
    owner = run.continues or run.id
    return wire_items([item for message_id, body in given for item in items_of(owner, message_id, body)], page)


def wire_items(items: Sequence[dict[str, Any]], page: ItemsPage) -> dict[str, Any]:
    """The page of a list of items, oldest first. Raises `InvalidRequest` for an `after` that is not among them."""
    ordered = list(items if page.ascending else reversed(items))
    if page.after is not None:
        place = next((number for number, item in enumerate(ordered) if item["id"] == page.after), None)
        if place is None:
            raise InvalidRequest(f"there is no item {page.after[:100]!r} in this list", field="after")
        ordered = ordered[place + 1 :]
    shown = ordered[: page.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(ordered) > len(shown),
    }


def items_of(owner: RunId, message_id: MessageId, body: MessageBody) -> Iterator[dict[str, Any]]:
    """The items of a message. `owner` is the run whose calls a decision is about."""
    match body:
        case UserMessage(content=content, role=role):
            said = [TextContent(content)] if isinstance(content, str) else content
            parts = [_input_part(part) for part in said]
            yield _message(message_id, role if role != "assistant" else "user", parts)
        case Summary(text=text):
            yield _message(message_id, "user", [{"type": "input_text", "text": text}])
        case AssistantMessage():
            yield from _answer_items(owner, message_id, body)
        case ToolReturns(returns=returns):
            for one in returns:
                output = {"call_id": one.tool_call_id, "output": one.text, "status": "completed"}
                item_id = call_item_id("fc", owner, None, f"output of {message_id} {one.tool_call_id}")
                yield {"id": item_id.replace("fc_", "fco_"), "type": "function_call_output", **output}
        case ApprovalResponse(decisions=decisions):
            for decision in decisions:
                own = call_item_id("fc", owner, None, f"decision of {message_id} {decision.tool_call_id}")
                if decision.kind == "tool":
                    output = {"call_id": decision.tool_call_id, "output": decision.tool_return or ""}
                    yield {
                        "id": own.replace("fc_", "fco_"),
                        "type": "function_call_output",
                        "status": "completed",
                        **output,
                    }
                    continue
                asked = approval_item_id(owner, decision.tool_call_id)
                verdict = {"approval_request_id": asked, "approve": decision.approve, "reason": decision.reason}
                yield {"id": own.replace("fc_", "mcpa_"), "type": "mcp_approval_response", **verdict}
        case _:
            return


def _answer_items(owner: RunId, message_id: MessageId, body: AssistantMessage) -> Iterator[dict[str, Any]]:
    if body.text:
        part = {"type": "output_text", "text": body.text, "annotations": [], "logprobs": []}
        yield _message(message_id, "assistant", [part])
    for call in body.tool_calls:
        item_id = call_item_id("fc", owner, None, f"call of {message_id} {call.id}")
        of_call = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        yield {"id": item_id, "type": "function_call", "status": "completed", **of_call}


def _message(message_id: MessageId, role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    item_id = message_item_id(message_id, 0, "msg")
    return {"id": item_id, "type": "message", "status": "completed", "role": role, "content": parts}


def _input_part(part: ContentPart) -> dict[str, Any]:
    match part:
        case TextContent(text=text):
            return {"type": "input_text", "text": text}
        case ImageContent():
            url = part.url or f"data:{part.media_type};base64,{part.data}"
            return {"type": "input_image", "image_url": url, "detail": "auto", "file_id": None}
