"""Who tools without walls are, and their Python: a worker that is root gives them another user, or does not start.

Root's plain processes could read and change the whole machine. An operator who wants that says so by name, with
`HOLDFAST_TOOL_USER=root`.
"""

import asyncio
import os
import sys

import msgspec

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId
from worker.tools.interpreter import own_interpreter
from worker.tools.invocation import CallLimits, ToolInvocation
from worker.tools.process_sandbox import ProcessSandbox
from worker.tools.sandbox_choice import SYSTEM_PYTHONS, TRIAL_S, SandboxChoice, look_at, tools_user

ROOT_NAMES = ("root", "0")
TRIAL = """
import importlib, os, tempfile

def tool(uid):
    if {os.getuid(), os.geteuid()} != {uid} or os.getgroups() not in ([], [os.getgid()]):
        return "it is still root"
    importlib.import_module("decimal")
    with tempfile.TemporaryFile(dir=os.environ["TMPDIR"]) as file:
        file.write(b"a tool has its scratch directory")
    return "held"
"""


class PlainProcess(msgspec.Struct, frozen=True):
    """How a tool runs without walls."""

    python: str
    user: tuple[int, int] | None
    """User and group; None: the worker's own."""

    @property
    def whose_power(self) -> str:
        """Who can do what a tool can do."""
        if self.user is not None:
            return f"the user {self.user[0]}"
        return "root, which is this worker's user," if os.getuid() == 0 else "this worker's user"


async def plain_process(choice: SandboxChoice) -> PlainProcess:
    """How plain processes run here. Raises `InvalidRequest` when the worker is root and the tools' user cannot run
    tools, unless that user is said to be root."""
    user = None if choice.tool_user in ROOT_NAMES else tools_user(choice.tool_user)
    if user is None:
        return PlainProcess(choice.tool_python or sys.executable, None)
    reasons: list[str] = []
    for python in (choice.tool_python,) if choice.tool_python else (own_interpreter().executable, *SYSTEM_PYTHONS):
        reason = await _trial(python, user)
        if reason is None:
            return PlainProcess(python, user)
        reasons.append(f"{python}: {reason}")
    raise InvalidRequest(
        f"HOLDFAST_SANDBOX=process: this worker is root, and the user {choice.tool_user!r} (HOLDFAST_TOOL_USER) cannot "
        f"run tools here. {'; '.join(reasons)}. Run the worker as a normal user, or name a Python that this user can "
        "read in HOLDFAST_TOOL_PYTHON. If tools may do whatever root can, set HOLDFAST_TOOL_USER=root"
    )


async def _trial(python: str, user: tuple[int, int]) -> str | None:
    """Makes a call. None when a tool runs as the user that it should, else what went wrong."""
    try:
        await asyncio.to_thread(look_at, python)
    except InvalidRequest as error:
        return error.message
    invocation = ToolInvocation(ProjectId("trial"), TRIAL, "tool", {"uid": user[0]}, timeout_s=TRIAL_S)
    limits = CallLimits(memory_bytes=512 << 20, processor_s=10, file_bytes=1 << 20)
    outcome = await ProcessSandbox(limits, grace_s=1.0, python=python, user=user).call(invocation)
    said = " ".join((outcome.text, *outcome.stderr))
    return None if (outcome.status, outcome.text) == ("success", "held") else said
