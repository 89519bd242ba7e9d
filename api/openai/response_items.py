"""The items of a response's output: the JSON of each when it opens, while it grows, and when it closes. Pure."""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from shared.domain.ids import MessageId, RunId, StepId

SERVER_LABEL = "holdfast"
"""Clients that know tools of MCP servers see an agent's own tools as those of a server with this name."""

ItemKind = Literal["message", "reasoning", "function_call", "mcp_call", "mcp_approval_request", "compaction"]

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
    """The id of the item by which a run asks for the approval of a call. These calls are the last of the run, so their
    ids suffice."""
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
    pieces: list[str] = field(default_factory=list[str])
    """Text, reasoning, arguments or the summary."""
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    encrypted: str | None = None
    """For reasoning: the provider's own form of it."""
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
            case "function_call":
                of_call = {"call_id": self.call_id, "name": self.name, "arguments": text}
                return {"id": self.id, "type": "function_call", "status": self.status, **of_call}
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
        failed = (
            None if self.error is None else {"type": "mcp_tool_execution_error", "content": _as_content(self.error)}
        )
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
        """The events that open it."""
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
            case "mcp_approval_request" | "compaction":
                return  # there is no event that all clients know

    def with_arguments(self, last_word: str | None) -> Iterator[Event]:
        """The end of a call's arguments. `last_word`: the corrected arguments of the model. None: the arguments as they
        were streamed."""
        if self.has_arguments:
            return
        if last_word is not None:
            self.pieces = [last_word]
        self.has_arguments = True
        if self.kind not in _OF_ARGUMENTS:
            return
        named = {"name": self.name} if self.kind == "function_call" else {}
        yield {"type": f"{_OF_ARGUMENTS[self.kind]}.done", **self._place(), "arguments": self.text, **named}

    def closed(self, status: Literal["completed", "incomplete", "failed"]) -> Iterator[Event]:
        """The events that close it."""
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
            case "function_call" | "mcp_call":
                yield from self.with_arguments(None)
                if self.kind == "mcp_call":
                    yield {"type": f"response.mcp_call.{'completed' if status == 'completed' else 'failed'}", **place}
            case "mcp_approval_request" | "compaction":
                pass
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.shown()}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _as_content(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]
