"""Which walls this machine can give to tools: tried out at the start of a worker, not guessed.

A tier counts only if a call was really made behind its walls, and the walls refused what they are there to refuse.
"""

import asyncio
import os
import pwd
import subprocess
import sys

import msgspec

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId
from shared.domain.tools import SandboxTier
from worker.tools.inside.child_seccomp import is_known
from worker.tools.interpreter import LOOK, Interpreter, described, own_interpreter
from worker.tools.invocation import CallLimits, ToolInvocation
from worker.tools.outcomes import payload, result_bytes
from worker.tools.running_calls import RunningCalls
from worker.tools.scratch import scratch_directory
from worker.tools.walled_sandbox import WalledProcess
from worker.tools.zygote_plan import ZygotePlan, bubblewrap
from worker.tools.zygote_pool import ZygoteNeeds, ZygotePool

SYSTEM_PYTHONS = ("/usr/local/bin/python3", "/usr/bin/python3")
"""Where root's own Python is closed to the tools' user."""
TIERS = {
    "auto": (SandboxTier.ONE, SandboxTier.TWO),
    "tier1": (SandboxTier.ONE,),
    "tier2": (SandboxTier.TWO,),
}
LOOK_S = 120.0
"""Longer than a machine stands still: a worker that begins meanwhile would do without this Python."""
TRIAL_S = 20.0
TRIAL = """
import errno, importlib, json, os, socket, tempfile

def tool():
    own = os.getpid()
    for name, attempt in {
        "start a process": os.fork,
        "open a socket": socket.socket,
        "read another's files": lambda: open("/etc/passwd"),
        "look at the machine": lambda: os.listdir("/"),
    }.items():
        try:
            attempt()
        except OSError as error:
            continue
        if os.getpid() != own:
            os._exit(0)
        return "a tool could " + name
    importlib.import_module("decimal")
    with tempfile.TemporaryFile() as file:
        file.write(b"a tool has its scratch directory")
    return "held"
"""
FIX = (
    'see docs/tools.md, "Walls"; to run tools of people whom you trust as plain processes, set HOLDFAST_SANDBOX=process'
)

_FOUND: dict[tuple[str, str, str, int], ZygotePlan] = {}
"""What was found for a choice of settings: a machine does not change while a process lives."""


class SandboxChoice(msgspec.Struct, frozen=True):
    """What the settings say of the walls around tools."""

    sandbox: str
    tool_user: str
    tool_python: str
    scratch_mb: int

    async def best_walls(self) -> ZygotePlan | None:
        """The best walls that work here; None for a plain process, which was asked for, or is all that this kind of
        machine has. Raises `InvalidRequest` when there are none, with the reason and the fix."""
        if self.sandbox == "process" or (self.sandbox == "auto" and sys.platform != "linux"):
            return None
        key = (self.sandbox, self.tool_user, self.tool_python, self.scratch_mb)
        if key not in _FOUND:
            _FOUND[key] = await self._found()
        return _FOUND[key]

    async def _found(self) -> ZygotePlan:
        if sys.platform != "linux" or not is_known(os.uname().machine):
            here = f"{sys.platform} on {os.uname().machine}"
            raise InvalidRequest(f"the walls around tools need Linux on x86_64 or aarch64, this is {here}; {FIX}")
        user, reasons = tools_user(self.tool_user), list[str]()
        for tier in TIERS[self.sandbox]:
            if tier is SandboxTier.ONE and bubblewrap() is None:
                reasons.append("tier 1: bubblewrap (bwrap) is not installed")
                continue
            for interpreter in await self._interpreters(is_root=user is not None):
                plan = ZygotePlan(tier, interpreter, self.scratch_mb << 20, user)
                reason = await trial(plan)
                if reason is None:
                    return plan
                reasons.append(f"{tier} with {interpreter.executable}: {reason}")
        raise InvalidRequest(f"no walls around tools work on this machine. {'; '.join(reasons)}. {FIX}")

    async def _interpreters(self, *, is_root: bool) -> list[Interpreter]:
        if self.tool_python:
            return [await asyncio.to_thread(look_at, self.tool_python)]
        found = [own_interpreter()]
        for path in SYSTEM_PYTHONS if is_root else ():
            try:
                found.append(await asyncio.to_thread(look_at, path))
            except InvalidRequest:
                continue
        return found


def tools_user(name: str) -> tuple[int, int] | None:
    """User and group that tools get; None when the worker is a normal user, whose tools are its own."""
    if os.getuid() != 0:
        return None
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        raise InvalidRequest(f"HOLDFAST_TOOL_USER: this machine has no user {name!r}") from None
    if entry.pw_uid == 0:
        raise InvalidRequest("HOLDFAST_TOOL_USER: tools never run as root; name another user, or run the worker as one")
    return entry.pw_uid, entry.pw_gid


def look_at(path: str) -> Interpreter:
    """The Python at this path. Raises `InvalidRequest` when it is none, or too old."""
    try:
        answer = subprocess.run(  # noqa: S603 - the operator's own choice, or the system's
            [path, "-I", "-S", "-c", LOOK], capture_output=True, text=True, timeout=LOOK_S, check=True, env={}
        )
        return described(answer.stdout.splitlines())
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InvalidRequest(f"HOLDFAST_TOOL_PYTHON: {path} cannot run tools: {error}") from error


async def trial(plan: ZygotePlan) -> str | None:
    """Makes a call behind these walls. None when they held, else what went wrong."""
    pool = ZygotePool(msgspec.structs.replace(plan, preload=False))
    limits = CallLimits(memory_bytes=512 << 20, processor_s=10, file_bytes=1 << 20)
    invocation = ToolInvocation(ProjectId("trial"), TRIAL, "tool", {}, timeout_s=TRIAL_S)
    needs = ZygoteNeeds(invocation.project_id)
    try:
        zygote = await pool.zygote(needs)
        if zygote.landlock < 1:
            return (
                "the kernel has no landlock: it needs Linux 5.13 or newer, with landlock in its list of security "
                "modules (the boot parameter lsm=)"
            )
        async with scratch_directory(plan.user) as directory:
            scratch = "" if plan.tier is SandboxTier.ONE else directory
            sent = payload(invocation, limits)
            process = WalledProcess(
                pool,
                needs,
                sent,
                limits,
                grace_s=1.0,
                result_bytes=result_bytes(invocation),
                directory=scratch,
            )
            outcome = await RunningCalls().run(process, invocation)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        await pool.aclose()
    said = " ".join((outcome.text, *outcome.stderr))
    return None if (outcome.status, outcome.text) == ("success", "held") else said
