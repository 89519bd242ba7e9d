"""A tool call as the sandbox gets it, and what comes back. The seam behind which isolation can be strengthened."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from shared.domain.ids import ProjectId, RunId
from shared.domain.tools import DEFAULT_RETURN_CHAR_LIMIT, ToolLimits


class ToolInvocation(msgspec.Struct, frozen=True):
    """One call: source and arguments travel over a pipe, never pasted into code."""

    project_id: ProjectId
    """Whose call it is: calls of two projects share no process."""
    source_code: str
    function: str
    arguments: dict[str, Any]
    argument_schema: dict[str, Any] | None = None
    """JSON Schema of the arguments, if the client has sent one. What it defines in `$defs` comes as objects."""
    environment: dict[str, str] = {}
    """Variables that this tool may see; it sees no others."""
    agent: dict[str, Any] | None = None
    """The agent and its memory as JSON, for a function that has a parameter `agent_state`. None: it gets None."""
    folders: tuple[str, ...] = ()
    """Folders of packages that this tool may import from. It can only read them."""
    language: Literal["python", "javascript"] = "python"
    """A source in JavaScript is a module that exports the function. Where `function` is empty it is a program, whose
    value is what it exports as default."""
    parameters: tuple[str, ...] = ()
    """The order of the arguments, for a language that knows no others."""
    has_network: bool = False
    """It may connect to the hosts that the operator allows."""
    run_id: RunId | None = None
    """The run whose folder it shares with other calls, within `ToolSandbox.of_run`; None: it has no such folder."""
    timeout_s: float = 180.0
    limits: ToolLimits = ToolLimits()
    """What the tool itself says, where that is less."""
    return_char_limit: int = DEFAULT_RETURN_CHAR_LIMIT

    @property
    def longest_s(self) -> float:
        """Seconds after which the call is stopped."""
        return self.timeout_s if self.limits.timeout_s is None else min(self.timeout_s, self.limits.timeout_s)

    @property
    def limited_by(self) -> str:
        """What says `longest_s`: the tool, or the server's setting where the tool may take longer or says nothing."""
        own = self.limits.timeout_s
        return "limits.timeout_s of the tool" if own is not None and own <= self.timeout_s else "HOLDFAST_TOOL_TIMEOUT"


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one call may use. The kernel holds it to them."""

    memory_bytes: int
    """Address space."""
    processor_s: int
    file_bytes: int
    """The longest file that it writes."""
    threads: int = 1024
    """Where a call has no user of its own, all threads of its user count, so this can only stop a runaway."""

    def narrowed(self, wanted: ToolLimits) -> "CallLimits":
        """These, or what the tool says where that is less."""
        memory_bytes = self.memory_bytes if wanted.memory_mb is None else min(self.memory_bytes, wanted.memory_mb << 20)
        processor_s = self.processor_s if wanted.cpu_s is None else min(self.processor_s, wanted.cpu_s)
        return msgspec.structs.replace(self, memory_bytes=memory_bytes, processor_s=processor_s)


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

    def of_run(self, run_id: RunId) -> AbstractAsyncContextManager[None]:
        """Calls of the run may share a folder during the block. Behind it the folder is gone."""
        ...

    async def aclose(self) -> None:
        """Ends every call that still runs and frees what the sandbox holds."""
        ...
