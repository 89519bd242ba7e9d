"""Runs each tool call as an isolated fork of its project's zygote. `SandboxTier` lists the kinds of isolation.

The worker holds the call by its pidfd. A call ends with its process, never with an end of file.

A worker has one zygote per project, so that no project's calls share a memory layout or a hash seed. A zygote that has
made many calls is replaced; its running calls finish first. A zygote that was idle for a while is ended, and at most a
few idle zygotes are kept.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec

from shared.domain.ids import ProjectId, RunId
from shared.domain.tools import SandboxTier
from worker.proxy.call_proxy import EgressProxy, proxy_of_call
from worker.proxy.exchange import EgressDialer
from worker.tools.outcomes import (
    NO_NODE,
    CallLimits,
    CappedPipe,
    PayloadPipe,
    ToolInvocation,
    ToolOutcome,
    child_ends,
    how_it_ended,
    not_started,
    payload,
    refused,
    result_bytes,
)
from worker.tools.scratch import ScratchWatch, ToolFolders, is_too_full, room, with_run_folder
from worker.tools.tool_process import OUTPUT_BYTES, RunningCalls
from worker.tools.zygote import RUN_FOLDER, ForkedCall, Zygote, ZygoteGone, ZygotePlan

CALLS_OF_ONE = 1000
IDLE_S = 300.0
MOST_IDLE = 8


class ZygoteNeeds(msgspec.Struct, frozen=True):
    """The requirements of a call for its zygote. Calls with different requirements do not share a zygote."""

    project_id: ProjectId
    folders: tuple[str, ...] = ()
    network: bool = False
    runs: str = ""
    """As in `ZygotePlan`."""


class ZygotePool:
    """Starts zygotes when they are needed."""

    def __init__(
        self, plan: ZygotePlan, *, calls_of_one: int = CALLS_OF_ONE, idle_s: float = IDLE_S, most_idle: int = MOST_IDLE
    ) -> None:
        self._plan = plan
        self._calls_of_one = calls_of_one
        self._idle_s = idle_s
        self._most_idle = most_idle
        self._current: OrderedDict[ZygoteNeeds, Zygote] = OrderedDict()
        self._starting: dict[ZygoteNeeds, asyncio.Task[Zygote]] = {}
        self._idle_timers: dict[Zygote, asyncio.TimerHandle] = {}
        self._retired: set[Zygote] = set()
        self._endings: set[asyncio.Task[None]] = set()

    async def zygote(self, key: ZygoteNeeds) -> Zygote:
        """Returns the project's zygote for such calls; starts it if there is none. Raises `OSError` if that fails."""
        found = self._current.get(key)
        if found is not None and not found.is_gone and found.begun < self._calls_of_one:
            self._current.move_to_end(key)
            if timer := self._idle_timers.pop(found, None):
                timer.cancel()
            return found
        if found is not None:
            self._retire(key)
        if key not in self._starting:
            self._starting[key] = asyncio.create_task(self._start(key), name="start a zygote")
        # One caller's cancellation must not end a start that other callers wait for.
        return await asyncio.shield(self._starting[key])

    async def aclose(self) -> None:
        """Ends every zygote, with the calls that still run in it."""
        for task in list(self._starting.values()):
            await asyncio.wait([task])
        for key in list(self._current):
            self._retire(key)
        for zygote in list(self._retired):
            self._end(zygote)
        while self._endings:
            await asyncio.wait(self._endings)

    async def _start(self, key: ZygoteNeeds) -> Zygote:
        plan = msgspec.structs.replace(self._plan, folders=key.folders, network=key.network, runs=key.runs)
        zygote = Zygote(plan, self._when_idle)
        try:
            await zygote.start()
            self._current[key] = zygote
            self._drop_idle()
        finally:
            del self._starting[key]
        return zygote

    def _retire(self, key: ZygoteNeeds) -> None:
        zygote = self._current.pop(key)
        self._retired.add(zygote)
        if zygote.is_idle:
            self._end(zygote)

    def _when_idle(self, zygote: Zygote) -> None:
        if zygote in self._retired:
            self._end(zygote)
            return
        key = next((key for key, current in self._current.items() if current is zygote), None)
        if key is None:
            return
        if zygote.is_gone:
            self._retire(key)
            return
        if timer := self._idle_timers.pop(zygote, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._idle_timers[zygote] = loop.call_later(self._idle_s, self._retire_if_idle, key, zygote)
        self._drop_idle()

    def _retire_if_idle(self, key: ZygoteNeeds, zygote: Zygote) -> None:
        if zygote.is_idle and self._current.get(key) is zygote:
            self._retire(key)

    def _drop_idle(self) -> None:
        """Keeps the most recently used zygotes. The last one was just started for a call."""
        idle = [key for key, zygote in self._current.items() if zygote.is_idle]
        for key in idle[: max(0, len(idle) - self._most_idle)]:
            self._retire(key)

    def _end(self, zygote: Zygote) -> None:
        self._retired.discard(zygote)
        if timer := self._idle_timers.pop(zygote, None):
            timer.cancel()
        task = asyncio.create_task(zygote.aclose(), name="end a zygote")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


STARTS = 3
"""How often a call is tried if the zygotes end before they have begun it."""
WALLS_FAILED = 71
CLOCK_S = 0.2
"""Seconds. The kernel compares a call's processor time with its limit only from time to time."""


class IsolatedSandbox:
    """A `ToolSandbox` of tier 1 or 2."""

    def __init__(
        self,
        plan: ZygotePlan,
        limits: CallLimits,
        *,
        grace_s: float,
        pool: ZygotePool | None = None,
        folders: ToolFolders | None = None,
        reach: EgressDialer | None = None,
    ) -> None:
        """`grace_s`: seconds from SIGTERM to SIGKILL. `folders`: by default below the system's temporary folder.
        `reach`: connects calls with a network to the allowed hosts; None: no call gets a network."""
        self._plan = plan
        self._folders = folders or ToolFolders(Path(tempfile.gettempdir()), plan.user)
        self._reach = reach
        self._limits = limits
        self._grace_s = grace_s
        self._pool = pool or ZygotePool(plan)
        self._running = RunningCalls()

    async def call(self, invocation: ToolInvocation) -> ToolOutcome:
        """See `ToolSandbox.call`. Every process of the call is dead when this returns or raises."""
        if invocation.language == "javascript" and self._plan.node is None:
            return NO_NODE
        if reason := self._why_no_network(invocation):
            return refused(reason)
        try:
            run_folder = self._folders.of_invocation(invocation)
            if run_folder and await asyncio.to_thread(is_too_full, str(run_folder), self._plan.scratch_bytes):
                return refused(f"the run's folder is full: it holds more than {room(self._plan.scratch_bytes)}")
            async with self._prepared(invocation, run_folder) as process:
                return await self._running.run(process, invocation)
        except OSError as error:
            return not_started(error)

    def of_run(self, run_id: RunId) -> AbstractAsyncContextManager[None]:
        """See `ToolSandbox.of_run`."""
        return self._folders.of_run(run_id)

    async def aclose(self) -> None:
        """See `ToolSandbox.aclose`."""
        await self._running.aclose()
        await self._pool.aclose()
        await self._folders.aclose()

    def _why_no_network(self, invocation: ToolInvocation) -> str:
        if not invocation.has_network:
            return ""
        if self._reach is None:
            return "it asks for a network, and this worker gives none (HOLDFAST_TOOL_NETWORK)"
        if self._plan.tier is not SandboxTier.ONE:
            return f"it asks for a network, which needs tier 1, and this worker's tools have {self._plan.tier}"
        return ""

    @asynccontextmanager
    async def _prepared(self, invocation: ToolInvocation, run_folder: Path | None) -> AsyncGenerator["WalledProcess"]:
        """Yields the call's process, not started. Its folder, its proxy and its watches last as long as the block."""
        async with contextlib.AsyncExitStack() as stack:
            directory = ""
            if self._plan.tier is not SandboxTier.ONE:
                directory = await stack.enter_async_context(self._folders.of_call())
            proxy = None
            if invocation.has_network and self._reach is not None:
                proxy = await stack.enter_async_context(proxy_of_call(self._reach, invocation.idempotency_key))
            process = self._process(invocation, directory, run_folder, proxy)
            for watched, name in ((directory, "its scratch directory"), (run_folder, "the run's folder")):
                if watched:
                    watch = ScratchWatch(str(watched), self._plan.scratch_bytes, process.kill, name=name)
                    stack.enter_context(watch)
            yield process

    def _process(
        self, invocation: ToolInvocation, directory: str, run_folder: Path | None, proxy: EgressProxy | None
    ) -> "WalledProcess":
        plan = msgspec.structs.replace(self._plan, folders=invocation.folders)
        limits = self._limits.narrowed(invocation.limits)
        inside = msgspec.structs.replace(invocation, folders=tuple(plan.folders_inside))
        is_apart = plan.tier is SandboxTier.ONE
        if run_folder:
            inside = with_run_folder(inside, RUN_FOLDER if is_apart else str(run_folder))
        return WalledProcess(
            self._pool,
            ZygoteNeeds(
                project_id=invocation.project_id,
                folders=invocation.folders,
                network=proxy is not None,
                runs=str(run_folder.parent) if run_folder and is_apart else "",
            ),
            payload(inside, limits),
            limits,
            grace_s=self._grace_s,
            result_bytes=result_bytes(invocation),
            directory=directory,
            becomes_node=invocation.language == "javascript",
            run_folder="" if run_folder is None else run_folder.name if is_apart else str(run_folder),
            proxy=proxy,
        )


class WalledProcess:
    """A `CallProcess` that is forked by a zygote."""

    def __init__(
        self,
        pool: ZygotePool,
        needs: ZygoteNeeds,
        sent: bytes,
        limits: CallLimits,
        *,
        grace_s: float,
        result_bytes: int,
        directory: str,
        becomes_node: bool = False,
        run_folder: str = "",
        proxy: EgressProxy | None = None,
    ) -> None:
        """`sent`: the payload. `result_bytes`: the longest frame that is read. `directory`: the call's writable folder,
        if it has no file system of its own. `run_folder`: as in `Zygote.fork`. `proxy`: gets the call's socket."""
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._needs = needs
        self._processor_s = limits.processor_s
        self._node_limits = limits if becomes_node else None
        self._grace_s = grace_s
        self._directory = directory
        self._run_folder = run_folder
        self._proxy = proxy
        self._pipes = contextlib.ExitStack()
        self._payload = PayloadPipe(sent)
        self._call: ForkedCall | None = None
        self._last_resort: asyncio.TimerHandle | None = None
        self._killed_because = ""
        self.stopped = False
        self.result = CappedPipe(result_bytes)
        self.stdout = CappedPipe(OUTPUT_BYTES)
        self.stderr = CappedPipe(OUTPUT_BYTES)

    @property
    def ending(self) -> str:
        status = None if self._call is None else self._call.status
        if self._killed_because:
            return self._killed_because
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        used = 0.0 if self._call is None else self._call.processor_s
        if code == -signal.SIGKILL and used > self._processor_s - CLOCK_S:
            return f"the tool used up its {self._processor_s} s of processor time and was killed"
        return "its walls could not be built; it ended" if code == WALLS_FAILED else how_it_ended(code)

    async def start(self) -> None:
        with child_ends(self._pipes, (self._payload, self.result, self.stdout, self.stderr)) as ends:
            self._call = await self._forked(ends)
        if self._proxy is not None and (listening := self._call.take_listening()) is not None:
            self._proxy.listen(listening)
        self._payload.send()
        if self.stopped:
            self._terminate(self._call)

    async def _forked(self, ends: list[int]) -> ForkedCall:
        for attempt in range(STARTS):
            zygote = await self._pool.zygote(self._needs)
            try:
                return await zygote.fork(ends, self._directory, self._run_folder, self._node_limits)
            except ZygoteGone:
                if attempt + 1 == STARTS:
                    raise
        raise ZygoteGone("no zygote stayed alive")

    @property
    def is_over(self) -> bool:
        return self._call is None or self._call.over.done()

    async def exited(self) -> None:
        if self._call is not None:
            await asyncio.wait([self._call.over])

    def stop(self) -> None:
        if self.stopped or (self._call is not None and self.is_over):
            return
        self.stopped = True
        if self._call is not None:
            self._terminate(self._call)

    def kill(self, because: str) -> None:
        """Kills the call without grace. `because`: the reason, as the call's result shows it."""
        if self._call is not None and not self.is_over:
            self._killed_because = because
            self._call.signal(signal.SIGKILL)

    def close(self) -> None:
        if self._last_resort is not None:
            self._last_resort.cancel()
        if self._call is not None:
            self._call.close()
        for channel in (self.result, self.stdout, self.stderr):
            channel.drain()
        self._pipes.close()

    def _terminate(self, call: ForkedCall) -> None:
        call.signal(signal.SIGTERM)
        self._last_resort = self._loop.call_later(self._grace_s, call.signal, signal.SIGKILL)
