"""The messages of an agent file, as messages of ours."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, cast

from api.letta.agent_file import FileAgent, FileDecision, FileMessage, FileReturn
from api.letta.content import as_object, content_parts, tool_result
from api.letta.packed_texts import is_packed_summary, unpacked_result, unpacked_summary
from shared.domain.brought_agents import BroughtHistory, PlacedMessage
from shared.domain.errors import InvalidRequest
from shared.domain.ids import IdMaker
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    ContentPart,
    Decision,
    MessageBody,
    Reasoning,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)

NO_IMAGE = "[An image that the agent file does not hold.]"


class FileHistory:
    """Makes a history of an agent's messages. `place` is where the agent stands in the file.

    The file's own instructions are left out: they are rendered anew, from the agent's settings and its memory.
    """

    def __init__(self, ids: IdMaker, now: datetime, place: str) -> None:
        self._history = BroughtHistory(ids)
        self._now = now
        self._place = place
        self._tool_names: dict[str, str] = {}

    @property
    def undecided(self) -> int:
        """Calls that waited for a person."""
        return self._history.undecided

    def take(self, agent: FileAgent) -> list[PlacedMessage]:
        """The whole history. What has left the context comes before it."""
        numbered = {message.id: number for number, message in enumerate(agent.messages)}
        shown = agent.in_context_message_ids
        inside = list(numbered.values()) if shown is None else [numbered[one] for one in dict.fromkeys(shown)]
        outside = sorted(set(numbered.values()).difference(inside))
        for number in outside:
            self._add(agent.messages[number], number, in_context=False)
        for place, number in enumerate(inside):
            message = agent.messages[number]
            if place or message.role != "system":
                self._add(message, number, in_context=True)
        return self._history.finish()

    def _add(self, message: FileMessage, number: int, *, in_context: bool) -> None:
        self._tool_names.update((call.id, call.function.name) for call in message.tool_calls or ())
        try:
            body = self._body(message)
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{self._place}.messages[{number}].{error}", field=f"{self._place}.messages[{number}]"
            ) from error
        if body is not None:
            self._history.add(body, message.created_at or self._now, in_context=in_context)

    def _body(self, message: FileMessage) -> MessageBody | None:
        match message.role:
            case "user" | "system" as role:
                return _user(message, role)
            case "summary":
                return unpacked_summary(_joined(message.content))
            case "tool":
                returns = self._returns(message)
                return ToolReturns(returns) if returns else None
            case "approval" if not message.tool_calls:
                decisions = list(_decisions(message))
                return ApprovalResponse(decisions) if decisions else None
            case "assistant" | "approval":
                return _answer(message)

    def _returns(self, message: FileMessage) -> list[ToolReturn]:
        """Older servers have one result per message, in its text."""
        given = message.tool_returns or [FileReturn()]
        called = [(one, one.tool_call_id or message.tool_call_id) for one in given]
        return [self._return(one, call_id, message) for one, call_id in called if call_id]

    def _return(self, one: FileReturn, call_id: str, message: FileMessage) -> ToolReturn:
        text, parts = _result(_joined(message.content) if one.func_response is None else one.func_response)
        return ToolReturn(
            tool_call_id=call_id,
            tool_name=self._tool_names.get(call_id) or message.name or "unknown",
            status=one.status,
            text=text,
            stdout=one.stdout,
            stderr=one.stderr,
            parts=parts,
        )


def _joined(content: str | list[dict[str, Any]] | None) -> str:
    return content if isinstance(content, str) else "\n".join(_texts(content or (), "text", "text"))


def _result(said: str | list[dict[str, Any]] | None) -> tuple[str, list[ContentPart] | None]:
    """A result as text, and in parts when it has some."""
    text, parts = tool_result(_with_images(said))
    return (unpacked_result(text) if parts is None else text), parts


def _user(message: FileMessage, role: str) -> MessageBody:
    given = _with_images(message.content) or ""
    content = given if isinstance(given, str) else content_parts(given, field="content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], TextContent):
        content = content[0].text
    if isinstance(content, str) and role == "user" and is_packed_summary(content):
        return unpacked_summary(content)
    return UserMessage(content, role="system" if role == "system" else "user", name=message.name)


def _with_images(content: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]] | None:
    """The content with its images as a request has them. Letta keeps some in its own storage, and their data beside."""
    return content if isinstance(content, str) or content is None else [_with_image(part) for part in content]


def _with_image(part: dict[str, Any]) -> dict[str, Any]:
    given: Any = part.get("source")
    if part.get("type") != "image" or not isinstance(given, dict):
        return part
    source = cast("dict[str, Any]", given)
    if source.get("type") != "letta":
        return part
    if not source.get("data"):
        return {"type": "text", "text": NO_IMAGE}
    return {"type": "image", "source": {**source, "type": "base64"}}


def _answer(message: FileMessage) -> AssistantMessage:
    parts: list[dict[str, Any]] = (
        [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content or []
    )
    waits = message.role == "approval"
    calls = {
        call.id: ToolCall(call.id, call.function.name, call.function.arguments, waits)
        for call in message.tool_calls or ()
    }
    return AssistantMessage(
        text="\n".join(_texts(parts, "text", "text")),
        reasoning=_reasoning(parts),
        tool_calls=list(calls.values()),
        model=message.model,
    )


def _texts(parts: Iterable[dict[str, Any]], kind: str, key: str) -> list[str]:
    return [part[key] for part in parts if part.get("type") == kind and isinstance(part.get(key), str)]


def _reasoning(parts: Sequence[dict[str, Any]]) -> Reasoning | None:
    """What the model thought aloud. What a provider has hidden is left out: it is of use to that provider alone."""
    thoughts = _texts(parts, "reasoning", "reasoning")
    for part in parts:
        if part.get("type") == "summarized_reasoning" and isinstance(part.get("summary"), list):
            pieces = [as_object(piece) or {} for piece in cast("list[Any]", part["summary"])]
            thoughts.extend(str(piece.get("text", "")) for piece in pieces)
    if not thoughts:
        return None
    signatures = _texts(parts, "reasoning", "signature")
    return Reasoning("\n".join(thoughts), signatures[-1] if signatures else None)


def _decisions(message: FileMessage) -> Iterable[Decision]:
    for one in message.approvals or ():
        if one.tool_call_id is not None:
            yield _decision(one, one.tool_call_id)
    if not message.approvals and message.approve is not None and message.approval_request_id:
        yield Decision(message.approval_request_id, approve=message.approve, reason=message.denial_reason)


def _decision(one: FileDecision, call_id: str) -> Decision:
    if one.approve is not None:
        return Decision(call_id, approve=one.approve, reason=one.reason, edited_arguments=one.edited_arguments)
    text, parts = _result(one.tool_return if one.func_response is None else one.func_response)
    return Decision(
        call_id,
        kind="tool",
        tool_return=text,
        status=one.status,
        stdout=one.stdout,
        stderr=one.stderr,
        parts=parts,
    )
