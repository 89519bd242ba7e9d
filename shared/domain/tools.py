"""Tools, as stored. A tool's source is text: the API parses it, and only the worker's sandbox runs it."""

import hashlib
import re
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from shared.domain.ids import ProjectId, ToolId
from shared.domain.packages import ToolPackages

DEFAULT_RETURN_CHAR_LIMIT = 50_000
LEAST_TOOL_MEMORY_MB = 64
"""With less, an interpreter does not start."""

CUSTOM = "custom"
"""The type of a tool that a client made."""

PYTHON, TYPESCRIPT = LANGUAGES = ("python", "typescript")
"""What tools are written in: the wire's source types for them."""

BASE_TYPES = "letta_"
"""How the types of the product's own tools begin."""


_SAYS_OF_OTHERS = (
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
)
"""Keywords by which an object may have more names than those of its `properties`."""

_TAKES_ANY = re.compile(r"[(,]\s*\*\*\s*\w")
"""`**` behind a bracket or a comma: a parameter that takes every name, or an argument, which does no harm here."""


class SandboxTier(StrEnum):
    """How strong the walls around a tool's code are, the strongest first."""

    ONE = "tier 1"
    """Namespaces, landlock and seccomp."""
    TWO = "tier 2"
    """Landlock and seccomp."""
    PROCESS = "process"
    """A process with limits, which is no wall."""


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one call of a tool may use. None: as much as the worker gives, which is also the most."""

    timeout_s: float | None = None
    """Seconds from start to end."""
    cpu_s: int | None = None
    """Seconds of processor time."""
    memory_mb: int | None = None
    """Address space, MiB."""


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
    network: Literal["none", "host"] = "none"
    """`host`: it may connect to the hosts that the operator allows."""
    scratch: Literal["call", "run"] = "call"
    """`run`: beside its own scratch directory, a call shares a folder with other such calls of its run."""
    return_char_limit: int = DEFAULT_RETURN_CHAR_LIMIT
    limits: ToolLimits | None = None
    source_type: str = PYTHON
    tool_type: str = CUSTOM
    pip_requirements: list[dict[str, Any]] | None = None
    npm_requirements: list[dict[str, Any]] | None = None
    packages: ToolPackages | None = None
    """What `pip_requirements` came to; None where nothing is asked for, or the server installed nothing."""
    approval_expires_s: float | None = None
    """How long an approval of this tool may wait; None: for ever."""
    on_approval_expiry: Literal["keep", "deny", "cancel"] = "keep"
    metadata: dict[str, Any] = {}
    created_at: datetime
    updated_at: datetime

    @property
    def version(self) -> str | None:
        """SHA-256 of what a call of the tool does, hexadecimal: another one stands for another source, schema, network
        or other packages. None for the product's own tools, whose source no caller can change."""
        if self.tool_type.startswith(BASE_TYPES):
            return None
        runs = [
            self.tool_type,
            self.source_type,
            self.source_code,
            self.json_schema,
            self.args_json_schema,
            self.packages,
            self.network,
            self.scratch,
        ]
        return hashlib.sha256(msgspec.json.encode(runs, order="deterministic")).hexdigest()

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return self.json_schema.get("parameters") or {"type": "object", "properties": {}}

    @property
    def accepted_arguments(self) -> dict[str, Any]:
        """`parameters` as a call is checked by them: a name that they have not is refused, as the function would. Not
        where the schema says what becomes of other names, or where the source has `**` of a function that takes any."""
        parameters = self.parameters
        is_open = any(name in parameters for name in _SAYS_OF_OTHERS)
        takes_any = self.source_type == PYTHON and _TAKES_ANY.search(self.source_code) is not None
        if self.tool_type != CUSTOM or is_open or takes_any or not isinstance(parameters.get("properties"), dict):
            return parameters
        return {**parameters, "additionalProperties": False}


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client declared with its request and runs itself."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
