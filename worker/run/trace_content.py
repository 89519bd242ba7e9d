"""What users, models and tools said, as spans hold it when the operator asks for it: JSON in the shape of
OpenTelemetry's conventions for generative AI. Images are named and left out."""

from collections.abc import Sequence
from typing import Any

import msgspec

from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Message,
    MessageBody,
    Summary,
    SystemMessage,
    ToolReturns,
    UserMessage,
    text_with_notes,
)
from shared.telemetry.tracer import Attributes
from worker.run.observed import Observed, ObservedModelCall, ObservedToolCall

MOST_CHARACTERS = 64_000
"""Of a history: each step has it again, and a receiver may refuse a batch that is too long. The newest are kept."""


def asked_content(what: Observed) -> Attributes:
    """What is said when it begins."""
    match what:
        case ObservedModelCall(call=call):
            messages, left_out = _newest(call.history)
            return {
                "gen_ai.system_instructions": _json([{"type": "text", "content": call.system[:MOST_CHARACTERS]}]),
                "gen_ai.input.messages": _json(messages),
                "holdfast.input.left_out": left_out or None,
            }
        case ObservedToolCall(call=call):
            return {"gen_ai.tool.call.arguments": call.arguments[:MOST_CHARACTERS]}
        case _:
            return {}


def answered_content(what: Observed) -> Attributes:
    """What is said when it ends."""
    match what:
        case ObservedModelCall(answer=AssistantMessage() as answer):
            shown = [{**one, "finish_reason": what.finish_reason} for one in _messages(answer)]
            return {"gen_ai.output.messages": _json(shown)}
        case ObservedToolCall(returned=returned) if returned is not None:
            return {"gen_ai.tool.call.result": returned.text[:MOST_CHARACTERS]}
        case _:
            return {}


def _newest(history: Sequence[Message]) -> tuple[list[dict[str, Any]], int]:
    """The newest messages that fit, oldest first, and how many do not."""
    kept: list[list[dict[str, Any]]] = []
    room = MOST_CHARACTERS
    for message in reversed(history):
        shown = _messages(message.body)
        room -= len(_json(shown))
        if room < 0:
            break
        kept.append(shown)
    return [one for shown in reversed(kept) for one in shown], len(history) - len(kept)


def _messages(body: MessageBody) -> list[dict[str, Any]]:
    match body:
        case UserMessage():
            text = body.content if isinstance(body.content, str) else text_with_notes(body.content)
            return [_message(body.role, _text(text))]
        case AssistantMessage():
            thought = [{"type": "reasoning", "content": body.reasoning.text}] if body.reasoning else []
            calls = [
                {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
                for call in body.tool_calls
            ]
            return [_message("assistant", [*thought, *_text(body.text), *calls])]
        case ToolReturns():
            results = [
                {"type": "tool_call_response", "id": one.tool_call_id, "response": one.text} for one in body.returns
            ]
            return [_message("tool", results)]
        case Summary():
            return [_message("system", _text(body.text))]
        case SystemMessage() | ApprovalResponse():
            return []  # the instructions of the call stand for the one, the results for the other


def _message(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": role, "parts": parts}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "content": text}] if text else []


def _json(value: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(value).decode()
