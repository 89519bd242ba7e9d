"""Calls of an agent's tools that a client asks for, on Letta's wire."""

from typing import Any

import msgspec
from pydantic import BaseModel, Field

from api.letta.messages import outcome_field
from shared.domain.messages import ToolReturn


class ToolRunRequest(BaseModel):
    """What a tool is to be called with."""

    args: dict[str, Any] = Field(default_factory=dict[str, Any])

    def arguments(self) -> str:
        """The arguments as JSON, as a model would write them."""
        return msgspec.json.encode(self.args).decode()


def wire_tool_result(result: ToolReturn) -> dict[str, Any]:
    """What a call came to. One that failed returns nothing: why it did is the last of what it complained of."""
    failed = result.status == "error"
    complaints = result.stderr
    if failed:
        complaints = [*(complaints or ()), result.text]
    return {
        "status": result.status,
        "func_return": None if failed else _returned(result),
        "agent_state": None,
        "stdout": result.stdout,
        "stderr": complaints,
        "sandbox_config_fingerprint": None,
        **outcome_field(result),
    }


def _returned(result: ToolReturn) -> Any:
    """What the tool returned, as far as JSON can say it."""
    if result.is_text:
        return result.text
    if result.text == "None":
        return None
    try:
        return msgspec.json.decode(result.text)
    except msgspec.DecodeError:
        return result.text
