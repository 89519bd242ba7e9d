"""Finds the isolation that this machine can give to tools, by a trial at the start of a worker, not by a guess.

A tier counts only if a call was really made in it, and the isolation refused what it exists to refuse.
"""

import asyncio
import os
import pwd
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId, RunId
from shared.domain.tools import SandboxTier
from worker.tools.guest.child_seccomp import is_known
from worker.tools.interpreter import LOOK, Interpreter, NodeProgram, answer_of, described, own_interpreter
from worker.tools.isolated_sandbox import IsolatedSandbox, ZygoteNeeds, ZygotePool
from worker.tools.outcomes import (
    NO_NODE,
    CallLimits,
    ToolInvocation,
    ToolOutcome,
    ToolSandbox,
    not_started,
    payload,
    refused,
    result_bytes,
)
from worker.tools.scratch import ToolFolders, is_too_full, room, with_run_folder
from worker.tools.tool_process import RunningCalls, ToolProcess
from worker.tools.zygote import ZygotePlan, bubblewrap

SYSTEM_PYTHONS = ("/usr/local/bin/python3", "/usr/bin/python3")
"""Used if root's own Python is not readable for the tools' user."""
TIERS = {"auto": (SandboxTier.ONE, SandboxTier.TWO), "tier1": (SandboxTier.ONE,), "tier2": (SandboxTier.TWO,)}
TRIAL_S = 20.0
TRIAL_LIMITS = CallLimits(memory_bytes=512 << 20, processor_s=10, file_bytes=1 << 20)
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

_FOUND: dict["SandboxChoice", ZygotePlan] = {}
"""The cached result for each choice of settings: a machine does not change while a process is alive."""


class SandboxChoice(msgspec.Struct, frozen=True):
    """The settings for the isolation of tools."""

    sandbox: str
    tool_user: str
    tool_python: str
    scratch_mb: int

    async def best_isolation(self) -> ZygotePlan | None:
        """Returns the best isolation that works here. None for a plain process, if the settings demand it or this kind
        of machine has nothing better. Raises `InvalidRequest`, with the reason and the fix, if no isolation works."""
        if self.sandbox == "process" or (self.sandbox == "auto" and sys.platform != "linux"):
            return None
        if self not in _FOUND:
            _FOUND[self] = await self._found()
        return _FOUND[self]

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
    """Returns the user and group of tools; None if the worker is a normal user, whose tools run as that user."""
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
    """Returns the Python at this path. Raises `InvalidRequest` if there is none, or if it is too old."""
    try:
        return described(answer_of(path, "-I", "-S", "-c", LOOK).splitlines())
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InvalidRequest(f"HOLDFAST_TOOL_PYTHON: {path} cannot run tools: {error}") from error


async def trial(plan: ZygotePlan) -> str | None:
    """Makes a call in this isolation. Returns None if the isolation held, otherwise the reason."""
    quick = msgspec.structs.replace(plan, preload=False)
    pool = ZygotePool(quick)
    sandbox = IsolatedSandbox(quick, TRIAL_LIMITS, grace_s=1.0, pool=pool)
    invocation = ToolInvocation(ProjectId("trial"), TRIAL, "tool", {}, timeout_s=TRIAL_S)
    try:
        zygote = await pool.zygote(ZygoteNeeds(invocation.project_id))
        if zygote.landlock < 1:
            return (
                "the kernel has no landlock: it needs Linux 5.13 or newer, with landlock in its list of security "
                "modules (the boot parameter lsm=)"
            )
        return not_held(await sandbox.call(invocation))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        await sandbox.aclose()


def not_held(outcome: ToolOutcome) -> str | None:
    """Returns why the isolation has not held in a trial; None if it has."""
    if (outcome.status, outcome.text) == ("success", "held"):
        return None
    return " ".join((outcome.text, *outcome.stderr))


# Runs each tool call in an interpreter of its own: bounded, without our environment, and dead when the call is over.
#
# This keeps a tool's mistakes away from the worker. It does not protect against malice: a tool shares the machine's
# files and network, and the worker's user unless that is root. It is for machines that have nothing better, and for
# tools that all users trust.


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
        """`grace_s`: seconds from SIGTERM to SIGKILL. `node`: runs JavaScript calls; None: refuses them. `user`: the
        user and group of tools, for a worker that is root; None: the worker's own. `folders`: by default below the
        system's temporary folder."""
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
        """See `ToolSandbox.aclose`. All running calls get their grace at the same time."""
        await self._running.aclose()
        await self._folders.aclose()


# Limits how many tool calls run at once, and shares the places fairly among projects.
#
# A model may ask for a hundred calls in one answer. Each call is a process, so without a bound one answer could take
# the machine's memory.


class CallSlots:
    """Places for calls. A place that becomes free goes to the waiting project with the fewest places, and among such
    projects to the one that has waited longest.

    Beyond `slots` there are `spare_slots`, only for projects without a place: if the calls of one project take all
    other places, for as long as a call may last, another project need not wait.
    """

    def __init__(self, slots: int, spare_slots: int = 0) -> None:
        self._free = slots
        """Below zero: the number of spare places that are taken."""
        self._spare = spare_slots
        self._taken: Counter[ProjectId] = Counter()
        self._waiting: dict[ProjectId, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, project_id: ProjectId) -> AsyncGenerator[None]:
        """Waits for a place, and keeps it for the block."""
        await self._take(project_id)
        try:
            yield
        finally:
            self._release(project_id)

    async def _take(self, project_id: ProjectId) -> None:
        if self._has_place_for(project_id):
            self._grant(project_id)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(project_id, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._release(project_id)
            else:
                self._forget(project_id, place)
            raise

    def _has_place_for(self, project_id: ProjectId) -> bool:
        return self._free > 0 or (project_id not in self._taken and self._free > -self._spare)

    def _grant(self, project_id: ProjectId) -> None:
        self._free -= 1
        self._taken[project_id] += 1

    def _release(self, project_id: ProjectId) -> None:
        self._free += 1
        self._taken[project_id] -= 1
        if not self._taken[project_id]:
            del self._taken[project_id]
        if not self._waiting:
            return
        chosen = min(self._waiting, key=lambda waiting: self._taken[waiting])
        if not self._has_place_for(chosen):
            return
        place = self._waiting[chosen][0]
        self._forget(chosen, place)
        self._grant(chosen)
        place.set_result(None)

    def _forget(self, project_id: ProjectId, place: asyncio.Future[None]) -> None:
        """Removes a place. If the project has more calls that wait, it becomes the last of the waiting projects."""
        places = self._waiting.pop(project_id)
        places.remove(place)
        if places:
            self._waiting[project_id] = places


class BoundedSandbox:
    """A `ToolSandbox` in front of another one. A call's time begins when it has its place."""

    def __init__(self, sandbox: ToolSandbox, *, calls_at_once: int, spare_calls: int = 0) -> None:
        """`spare_calls`: places beyond `calls_at_once`, for projects that have none."""
        self._sandbox = sandbox
        self._slots = CallSlots(calls_at_once, spare_calls)

    async def call(self, invocation: ToolInvocation) -> ToolOutcome:
        """See `ToolSandbox.call`."""
        async with self._slots.slot(invocation.project_id):
            return await self._sandbox.call(invocation)

    def of_run(self, run_id: RunId) -> AbstractAsyncContextManager[None]:
        """See `ToolSandbox.of_run`."""
        return self._sandbox.of_run(run_id)

    async def aclose(self) -> None:
        """See `ToolSandbox.aclose`. Waiting calls get their places as others end, and are refused then."""
        await self._sandbox.aclose()


# The user and the Python of tools without isolation. A worker that is root gives tools another user, or does not start:
# root's plain processes could read and change the whole machine. An operator who wants that sets
# `HOLDFAST_TOOL_USER=root`.


ROOT_NAMES = ("root", "0")
PLAIN_TRIAL = """
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
    """The Python and the user of a tool without isolation."""

    python: str
    user: tuple[int, int] | None
    """User and group; None: the worker's own."""

    @property
    def acting_user(self) -> str:
        """The user whose rights a tool has, in words."""
        if self.user is not None:
            return f"the user {self.user[0]}"
        return "root, which is this worker's user," if os.getuid() == 0 else "this worker's user"


async def plain_process(choice: SandboxChoice) -> PlainProcess:
    """Returns the plan for plain processes here. Raises `InvalidRequest` if the worker is root and the tools' user
    cannot run tools, unless the settings name root as that user."""
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
    """Makes a call. Returns None if the tool runs as the right user, otherwise the reason."""
    try:
        await asyncio.to_thread(look_at, python)
    except InvalidRequest as error:
        return error.message
    invocation = ToolInvocation(ProjectId("trial"), PLAIN_TRIAL, "tool", {"uid": user[0]}, timeout_s=TRIAL_S)
    return not_held(await ProcessSandbox(TRIAL_LIMITS, grace_s=1.0, python=python, user=user).call(invocation))
