"""Runs each tool call in an interpreter of its own: bounded, without our environment, and gone when the call is over.

This keeps a tool's mistakes away from the worker. It is no wall against malice: a tool shares the machine's files
and network, and the worker's user unless that is root. It is for machines that have no better, and for tools that
everybody trusts.
"""

import asyncio
import sys
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from shared.domain.ids import RunId
from worker.tools.folders import ToolFolders, with_run_folder
from worker.tools.invocation import CallLimits, ToolInvocation, ToolOutcome
from worker.tools.node_program import NodeProgram
from worker.tools.outcomes import NO_NODE, not_started, payload, refused, result_bytes
from worker.tools.running_calls import RunningCalls
from worker.tools.scratch_watch import is_too_full, room
from worker.tools.tool_process import ToolProcess


class ProcessSandbox:
    """A `ToolSandbox` with one process group per call."""

    def __init__(
        self,
        limits: CallLimits,
        *,
        grace_s: float,
        python: str = sys.executable,
        node: NodeProgram | None = None,
        user: tuple[int, int] | None = None,
        folders: ToolFolders | None = None,
    ) -> None:
        """`grace_s`: from SIGTERM to SIGKILL. `node`: what JavaScript calls become; None: there are none. `user`: the
        user and group that tools become, for a worker that is root; None: the worker's own. `folders`: among the
        system's temporary ones if not given."""
        self._limits = limits
        self._grace_s = grace_s
        self._python = python
        self._node = node
        self._user = user
        self._folders = folders or ToolFolders(Path(tempfile.gettempdir()), user)
        self._running = RunningCalls()

    async def call(self, invocation: ToolInvocation) -> ToolOutcome:
        """See `ToolSandbox.call`. Every process of the call is dead when this returns or raises."""
        limits, program = self._limits.narrowed(invocation.limits), None
        if invocation.language == "javascript":
            if self._node is None:
                return NO_NODE
            program = self._node.for_child() | {"limits": msgspec.to_builtins(limits)}
        try:
            if run_folder := self._folders.of_invocation(invocation):
                if await asyncio.to_thread(is_too_full, str(run_folder), self._limits.file_bytes):
                    return refused(f"the run's folder is full: it holds more than {room(self._limits.file_bytes)}")
                invocation = with_run_folder(invocation, str(run_folder))
            async with self._folders.of_call() as directory:
                process = ToolProcess(
                    python=self._python,
                    directory=directory,
                    payload=payload(invocation, limits),
                    user=self._user,
                    result_bytes=result_bytes(invocation),
                    grace_s=self._grace_s,
                    program=program,
                )
                return await self._running.run(process, invocation)
        except OSError as error:
            return not_started(error)

    def of_run(self, run_id: RunId) -> AbstractAsyncContextManager[None]:
        """See `ToolSandbox.of_run`."""
        return self._folders.of_run(run_id)

    async def aclose(self) -> None:
        """See `ToolSandbox.aclose`. The calls that still run get their grace, at the same time."""
        await self._running.aclose()
        await self._folders.aclose()
