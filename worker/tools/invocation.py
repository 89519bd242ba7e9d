"""A tool call as the sandbox gets it, and what comes back. The seam behind which isolation can be strengthened."""

from typing import Any, Literal, Protocol

import msgspec

from shared.domain.tools import DEFAULT_RETURN_CHAR_LIMIT


class ToolInvocation(msgspec.Struct, frozen=True):
    """One call: source and arguments travel over a pipe, never pasted into code."""

    source_code: str
    function: str
    arguments: dict[str, Any]
    argument_schema: dict[str, Any] | None = None
    """JSON Schema of the arguments, if the client has sent one. What it defines in `$defs` comes as objects."""
    environment: dict[str, str] = {}
    """Variables that this tool may see; it sees no others."""
    agent: dict[str, Any] | None = None
    """The agent and its memory as JSON, for a function that has a parameter `agent_state`. None: it gets None."""
    timeout_s: float = 180.0
    return_char_limit: int = DEFAULT_RETURN_CHAR_LIMIT


class ToolOutcome(msgspec.Struct, frozen=True):
    """What the call came to. Tenant data: nothing in it is trusted."""

    status: Literal["success", "error"]
    text: str
    stdout: list[str] = []
    stderr: list[str] = []
    is_text: bool = True
    """As in `ToolReturn`."""


class ToolSandbox(Protocol):
    """Runs tool calls."""

    async def call(self, invocation: ToolInvocation) -> ToolOutcome:
        """Runs one call. A tool's own failure is an outcome, never an exception.

        When the awaiting task is cancelled, the tool gets its chance to clean up and is dead, with every process that
        it started, before the cancellation goes on.
        """
        ...

    async def aclose(self) -> None:
        """Ends every call that still runs and frees what the sandbox holds."""
        ...
