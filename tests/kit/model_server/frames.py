"""Server-sent events and small parts that all protocols share."""

import json
from typing import Any

from tests.kit.model_server.turn import Call


def data(payload: dict[str, Any]) -> bytes:
    """An event without a name."""
    return f"data: {json.dumps(payload)}\n\n".encode()


def event(payload: dict[str, Any]) -> bytes:
    """An event that is named after its `type`."""
    return f"event: {payload['type']}\ndata: {json.dumps(payload)}\n\n".encode()


def arguments_text(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def call_id(call: Call, prefix: str, answer: int, index: int) -> str:
    """The call's own id, or one that no other call of this server has."""
    return call.id or f"{prefix}_{answer:04d}{index:02d}"
