"""Tools, as stored. A tool's source is text: the API parses it, and only the worker's sandbox runs it."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from shared.domain.ids import ProjectId, ToolId

DEFAULT_RETURN_CHAR_LIMIT = 50_000

CUSTOM = "custom"
"""The type of a tool that a client made."""

BASE_TYPES = "letta_"
"""How the types of the product's own tools begin."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that agents can be given."""

    id: ToolId
    project_id: ProjectId
    name: str
    description: str
    source_code: str
    json_schema: dict[str, Any]
    """`{"name", "description", "parameters": JSON Schema of the arguments}`."""
    args_json_schema: dict[str, Any] | None = None
    tags: list[str] = []
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool = False
    """The tool may run at the same time as other calls of the same answer."""
    idempotent: bool = False
    """The tool may be started again after a crash. False: the model is told of such a call that its outcome is
    unknown."""
    return_char_limit: int = DEFAULT_RETURN_CHAR_LIMIT
    source_type: str = "python"
    tool_type: str = CUSTOM
    pip_requirements: list[dict[str, Any]] | None = None
    npm_requirements: list[dict[str, Any]] | None = None
    approval_expires_s: float | None = None
    """How long an approval of this tool may wait; None: for ever."""
    on_approval_expiry: Literal["keep", "deny", "cancel"] = "keep"
    metadata: dict[str, Any] = {}
    created_at: datetime
    updated_at: datetime

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return self.json_schema.get("parameters") or {"type": "object", "properties": {}}


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client declared with its request and runs itself."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
