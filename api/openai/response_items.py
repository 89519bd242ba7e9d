"""Items of responses: the JSON of each when it opens, while it grows and when it closes, and lists of items. Pure."""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from api.openai.client_tools import text_in
from shared.domain.errors import InvalidRequest
from shared.domain.ids import MessageId, RunId, StepId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    AttachedFile,
    ContentPart,
    Decision,
    ImageContent,
    Message,
    NewMessage,
    Summary,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.domain.runs import Run

SERVER_LABEL = "holdfast"
"""Clients that know tools of MCP servers see an agent's own tools as those of a server with this name."""

ItemKind = Literal[
    "message", "reasoning", "function_call", "custom_tool_call", "mcp_call", "mcp_approval_request", "compaction"
]

Event = dict[str, Any]
"""A streamed event without its number."""

_OF_ARGUMENTS = {"function_call": "response.function_call_arguments", "mcp_call": "response.mcp_call_arguments"}


def message_item_id(message_id: MessageId, part: int, kind: Literal["msg", "rs"]) -> str:
    """The id of the item for a part of a message."""
    own = f"{kind}_{message_id.partition('-')[2].replace('-', '')}"
    return f"{own}_{part}" if part else own


def call_item_id(prefix: Literal["fc", "mcp", "mcpr"], run_id: RunId, step_id: StepId | None, call_id: str) -> str:
    """The id of the item for a call. `run_id` is the run whose model made the call."""
    named = "\n".join((run_id, step_id or "", call_id))
    return f"{prefix}_{hashlib.sha256(named.encode()).hexdigest()[:48]}"


def approval_item_id(run_id: RunId, call_id: str) -> str:
    """The id of the item by which a run asks for the approval of a call. The call's id suffices, because such calls are
    the last of their run."""
    return call_item_id("mcpr", run_id, None, call_id)


_SUMMARY = "holdfast-summary-1."


def compaction_item(message_id: MessageId, summary: str) -> dict[str, Any]:
    """The item for a summary. Clients send its content back unchanged. It contains the summary itself, encoded and not
    encrypted, so that the item stays valid after the server has deleted its copy."""
    item_id = "cmp_" + message_id.partition("-")[2].replace("-", "")
    content = f"{_SUMMARY}{b64encode(summary.encode()).decode()}" if summary else ""
    return {"id": item_id, "type": "compaction", "encrypted_content": content}


def summary_in(encrypted_content: str) -> str | None:
    """The summary in the content of a `compaction_item`. None: another server made it."""
    if not encrypted_content.startswith(_SUMMARY):
        return None
    try:
        return b64decode(encrypted_content.removeprefix(_SUMMARY), validate=True).decode() or None
    except ValueError:
        return None


@dataclass
class Item:
    """One item. It keeps its place in the output, even if it becomes void."""

    index: int
    kind: ItemKind
    id: str
    message_id: MessageId
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    """For a client's tool: its namespace, if it has one."""
    pieces: list[str] = field(default_factory=list[str])
    """Text, reasoning, arguments or the summary."""
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    encrypted: str | None = None
    """For reasoning: its form for the provider, encrypted."""
    output: str | None = None
    error: str | None = None
    approval_id: str | None = None
    """For an approved call: the item that asked for the approval."""
    has_arguments: bool = False
    """The arguments are complete."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def shown(self, *, is_empty: bool = False) -> dict[str, Any]:
        """The item in its current state; with `is_empty`, as it was when it opened."""
        text = "" if is_empty else self.text
        match self.kind:
            case "message":
                content = [] if is_empty else [_text_part(text)]
                return {
                    "id": self.id,
                    "type": "message",
                    "status": self.status,
                    "role": "assistant",
                    "content": content,
                }
            case "reasoning":
                return self._shown_reasoning(text, is_empty=is_empty)
            case "function_call" | "custom_tool_call":
                of_call = {"call_id": self.call_id, "name": self.name}
                of_call |= {"arguments": text} if self.kind == "function_call" else {"input": text_in(text)}
                of_call |= {} if self.namespace is None else {"namespace": self.namespace}
                return {"id": self.id, "type": self.kind, "status": self.status, **of_call}
            case "mcp_call":
                return self._shown_mcp_call(text)
            case "mcp_approval_request":
                asked = {"server_label": SERVER_LABEL, "name": self.name, "arguments": text}
                return {"id": self.id, "type": "mcp_approval_request", **asked}
            case "compaction":
                return compaction_item(self.message_id, text)

    def _shown_reasoning(self, text: str, *, is_empty: bool) -> dict[str, Any]:
        # Null fields are omitted: the schema of Open Responses forbids them.
        said = [] if is_empty else [{"type": "summary_text", "text": text}]
        shown: dict[str, Any] = {"id": self.id, "type": "reasoning", "summary": said}
        if self.encrypted is not None:
            shown["encrypted_content"] = self.encrypted
        return shown

    def _shown_mcp_call(self, text: str) -> dict[str, Any]:
        said = [{"type": "text", "text": self.error}]
        failed = None if self.error is None else {"type": "mcp_tool_execution_error", "content": said}
        return {
            "id": self.id,
            "type": "mcp_call",
            "status": self.status,
            "server_label": SERVER_LABEL,
            "name": self.name,
            "arguments": text,
            "output": self.output,
            "error": failed,
            "approval_request_id": self.approval_id,
        }

    def opened(self) -> Iterator[Event]:
        """The events that open the item."""
        added = {"output_index": self.index, "item": self.shown(is_empty=True)}
        yield {"type": "response.output_item.added", **added}
        place = self._place()
        match self.kind:
            case "message":
                yield {"type": "response.content_part.added", **place, "content_index": 0, "part": _text_part("")}
            case "reasoning":
                part = {"type": "summary_text", "text": ""}
                yield {"type": "response.reasoning_summary_part.added", **place, "summary_index": 0, "part": part}
            case "mcp_call":
                yield {"type": "response.mcp_call.in_progress", **place}
            case _:
                pass

    def grown(self, piece: str) -> Iterator[Event]:
        """The events of one more piece."""
        if not piece:
            return
        self.pieces.append(piece)
        place = self._place()
        match self.kind:
            case "message":
                delta: dict[str, Any] = {"content_index": 0, "delta": piece, "logprobs": []}
                yield {"type": "response.output_text.delta", **place, **delta}
            case "reasoning":
                yield {"type": "response.reasoning_summary_text.delta", **place, "summary_index": 0, "delta": piece}
            case "function_call" | "mcp_call":
                yield {"type": f"{_OF_ARGUMENTS[self.kind]}.delta", **place, "delta": piece}
            case "custom_tool_call" | "mcp_approval_request" | "compaction":
                return  # the input is decoded when it is whole; for the others there is no event that all clients know

    def with_arguments(self, last_word: str | None) -> Iterator[Event]:
        """The end of a call's arguments. `last_word`: the corrected arguments of the model. None: the arguments as they
        were streamed."""
        if self.has_arguments:
            return
        if last_word is not None:
            self.pieces = [last_word]
        self.has_arguments = True
        if self.kind == "custom_tool_call":
            kind, text = "response.custom_tool_call_input", text_in(self.text)
            yield {"type": f"{kind}.delta", **self._place(), "delta": text}
            yield {"type": f"{kind}.done", **self._place(), "input": text}
        elif self.kind in _OF_ARGUMENTS:
            named = {"name": self.name} if self.kind == "function_call" else {}
            yield {"type": f"{_OF_ARGUMENTS[self.kind]}.done", **self._place(), "arguments": self.text, **named}

    def closed(self, status: Literal["completed", "incomplete", "failed"]) -> Iterator[Event]:
        """The events that close the item."""
        self.status = status
        place, text = self._place(), self.text
        match self.kind:
            case "message":
                of_part = {**place, "content_index": 0}
                yield {"type": "response.output_text.done", **of_part, "text": text, "logprobs": []}
                yield {"type": "response.content_part.done", **of_part, "part": _text_part(text)}
            case "reasoning":
                of_part = {**place, "summary_index": 0}
                yield {"type": "response.reasoning_summary_text.done", **of_part, "text": text}
                part = {"type": "summary_text", "text": text}
                yield {"type": "response.reasoning_summary_part.done", **of_part, "part": part}
            case "function_call" | "custom_tool_call" | "mcp_call":
                yield from self.with_arguments(None)
                if self.kind == "mcp_call" and status != "incomplete":
                    yield {"type": f"response.mcp_call.{'completed' if status == 'completed' else 'failed'}", **place}
            case "mcp_approval_request" | "compaction":
                pass
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.shown()}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# Lists of items: the input of a response, and the contents of a conversation, with its waiting items. Pure.


class ItemsPage(NamedTuple):
    """The range of items that a request asks for."""

    limit: int
    ascending: bool
    after: str | None
    """The page begins after the item with this id."""


def input_items(run: Run, given: Sequence[Message | NewMessage]) -> list[dict[str, Any]]:
    """The items of a response's input, oldest first. `given` has its messages."""
    owner = run.continues or run.id
    return [item for message in given for item in items_of(owner, message)]


def conversation_items(history: Sequence[Message]) -> list[dict[str, Any]]:
    """The items of a conversation, oldest first."""
    asking: RunId | None = None
    items: list[dict[str, Any]] = []
    brought: set[str] = set()
    for message in history:
        match message.body:
            case AssistantMessage():
                asking, brought = message.run_id, set()
            case ApprovalResponse(decisions=decisions):
                brought = {one.tool_call_id for one in decisions if one.kind == "tool"}
            case ToolReturns(returns=returns):
                # The client's own items show these results already.
                message = replace(
                    message, body=ToolReturns([one for one in returns if one.tool_call_id not in brought])
                )
            case _:
                pass
        items += items_of(asking or RunId(message.thread_id), message)
    return items


def wire_items(items: Sequence[dict[str, Any]], page: ItemsPage) -> dict[str, Any]:
    """The page of a list of items, oldest first. Raises `InvalidRequest` if no item has the id `after`."""
    ordered = list(items if page.ascending else reversed(items))
    if page.after is not None:
        place = next((number for number, item in enumerate(ordered) if item["id"] == page.after), None)
        if place is None:
            raise InvalidRequest(f"there is no item {page.after[:100]!r} in this list", field="after")
        ordered = ordered[place + 1 :]
    return wire_list(ordered, page.limit)


def wire_list(found: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of a list. `found` has more entries than the page if the list goes on."""
    shown = found[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(found) > limit,
    }


def without_instructions(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items without the agent's instructions, for keys that may not see them."""
    return [item for item in items if item.get("role") not in _INSTRUCTING]


_INSTRUCTING = ("system", "developer")


def items_of(owner: RunId, message: Message | NewMessage) -> Iterator[dict[str, Any]]:
    """The items of a message. `owner` is the run that made its calls, or to whose calls it responds."""
    message_id, body = message.id, message.body
    match body:
        case UserMessage(content=content, role=role):
            said = [TextContent(content)] if isinstance(content, str) else content
            parts = [_input_part(part) for part in said]
            yield _message(message_id, role if role != "assistant" else "user", parts)
        case Summary(text=text):
            yield compaction_item(message_id, text)
        case AssistantMessage():
            yield from _answer_items(owner, message, body)
        case ToolReturns(returns=returns):
            for one in returns:
                yield _output(message_id, one.tool_call_id, one.text, one.parts)
        case ApprovalResponse(decisions=decisions):
            for decision in decisions:
                if decision.kind == "tool":
                    yield _output(message_id, decision.tool_call_id, decision.tool_return or "", decision.parts)
                    continue
                asked = approval_item_id(owner, decision.tool_call_id)
                verdict = {"approval_request_id": asked, "approve": decision.approve, "reason": decision.reason}
                own = _own_id("mcpa", message_id, decision.tool_call_id)
                yield {"id": own, "type": "mcp_approval_response", **verdict}
        case _:
            return


def _answer_items(owner: RunId, message: Message | NewMessage, body: AssistantMessage) -> Iterator[dict[str, Any]]:
    message_id = message.id
    if body.text:
        yield _message(message_id, "assistant", [_text_part(body.text)])
    # Clients may repeat answers of other servers, which number the calls of each answer from one.
    step_id = message.step_id or (None if isinstance(message, Message) and message.run_id else StepId(message_id))
    for call in body.tool_calls:
        item_id = call_item_id("fc", owner, step_id, call.id)
        of_call = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        yield {"id": item_id, "type": "function_call", "status": "completed", **of_call}


def _output(message_id: MessageId, call_id: str, text: str, parts: list[ContentPart] | None) -> dict[str, Any]:
    own, output = _own_id("fco", message_id, call_id), [_input_part(part) for part in parts or ()]
    result = {"call_id": call_id, "output": output or text}
    return {"id": own, "type": "function_call_output", "status": "completed", **result}


def _own_id(prefix: Literal["fco", "mcpa"], message_id: MessageId, call_id: str) -> str:
    """The id of an item if its message has several. It begins with the message, so that the item can be found."""
    own = message_id.partition("-")[2].replace("-", "")
    return f"{prefix}_{own}_{hashlib.sha256(call_id.encode()).hexdigest()[:16]}"


def _message(message_id: MessageId, role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    item_id = message_item_id(message_id, 0, "msg")
    return {"id": item_id, "type": "message", "status": "completed", "role": role, "content": parts}


def _input_part(part: ContentPart) -> dict[str, Any]:
    match part:
        case TextContent(text=text, file=AttachedFile() as file):
            data = file.data or b64encode(text.partition("\n")[2].encode()).decode()
            return {
                "type": "input_file",
                "filename": file.name,
                "file_data": f"data:{file.media_type};base64,{data}",
                "file_id": None,
            }
        case TextContent(text=text):
            return {"type": "input_text", "text": text}
        case ImageContent():
            url = part.url or f"data:{part.media_type};base64,{part.data}"
            return {"type": "input_image", "image_url": url, "detail": "auto", "file_id": None}


# Waiting items of a conversation: function calls that came without their outputs, and the items after them.
#
# Clients store the results of their loop in several requests: each has room for 20 items, and a person may approve a
# call meanwhile. A model must never get a call without its result, so such items are stored outside the conversation's
# context, and enter it once the outputs are there. Pure.


MOST_WAITING = 1_000
"""Messages that may wait in one conversation."""


class Arranged(NamedTuple):
    """The messages of a conversation that enter its context now, and the messages that wait."""

    entering: list[NewMessage]
    waiting: list[NewMessage]


def arranged(messages: Sequence[NewMessage]) -> Arranged:
    """The waiting items begin with the first answer that has a call without a result."""
    place = next((n for n in range(len(messages)) if _open_calls(messages, n)), len(messages))
    return Arranged([*messages[:place]], [*messages[place:]])


def answered(
    messages: Sequence[NewMessage], outputs: Mapping[str, Decision], made: Sequence[NewMessage]
) -> list[NewMessage]:
    """The messages with these results, each after its call. `made` has an empty message for each output. Raises
    `InvalidRequest` for a result without a waiting call."""
    filled = list(messages)
    for (call_id, decision), empty in zip(outputs.items(), made, strict=True):
        calls = ((n, call) for n in range(len(filled)) for call in _open_calls(filled, n))
        found = next((one for one in calls if one[1].id == call_id), None)
        if found is None:
            raise InvalidRequest(f"No tool call found for function call output with call_id {call_id}.", field="items")
        asking, call = found
        before = _returns_behind(filled, asking)
        order = [one.id for one in _calls_of(filled[asking])]
        results = sorted([*before, _result(call, decision)], key=lambda one: order.index(one.tool_call_id))
        stored = filled[asking + 1] if before else empty
        filled[asking + 1 : asking + 1 + bool(before)] = [replace(stored, body=ToolReturns(results))]
    return filled


def without(messages: Sequence[NewMessage], owner: RunId, item_id: str) -> list[NewMessage] | None:
    """The waiting messages without one item; None if they lack the item. Raises `InvalidRequest` for a call that has
    its output."""
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
            kept_calls = [
                one for one in calls if item_id not in _ids_of(message, owner, AssistantMessage(tool_calls=[one]))
            ]
            text = text if len(kept_calls) < len(calls) else ""
            if any(one not in kept_calls for one in calls if one not in _open_calls(messages, place)):
                raise InvalidRequest("a call cannot be deleted before its output is", field="item_id")
            body = replace(message.body, text=text, tool_calls=kept_calls)
            return replace(message, body=body) if text or kept_calls else None
        case _:
            return None


def _ids_of(message: NewMessage, owner: RunId, body: AssistantMessage | ToolReturns) -> list[str]:
    return [item["id"] for item in items_of(owner, replace(message, body=body))]


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
