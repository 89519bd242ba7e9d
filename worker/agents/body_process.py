"""The processes of agents: a host has imported a module, and forks a process for each attempt of a run.

The programs in them are `holdfast.agents.host` and `holdfast.agents.child`.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import structlog

from shared.concurrency import lines_of, task_group
from shared.domain.errors import InvalidRequest, Unavailable
from shared.json_limits import printable_object

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Frame = dict[str, Any]

LONGEST_FRAME = 64_000_000
"""Bytes, as in `holdfast.agents.frames`."""

FRAMES = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` makes another one for each frame

LENGTH_BYTES = 4
READ_AT_ONCE = 65_536
START_S = 120.0
"""Seconds for a module to be imported."""

LAST_OUTPUT_S = 1.0

LAST_FRAMES = ("returned", "raised", "stopped")
"""The types of a body's last frame."""

LONGEST_MESSAGE = 1_000_000
LONGEST_LINE = 2000
"""Characters of a line of an agent's output that the log shows."""

BOOTSTRAP = """
import sys, types
holdfast = types.ModuleType("holdfast")
holdfast.__path__ = [sys.argv[1]]
sys.modules["holdfast"] = holdfast
from holdfast.agents.host import main
main()
"""
"""The first code of a host. It finds `holdfast.agents` in the folder that the worker names, and nothing else of it."""


def package_folder() -> Path:
    """The folder of the package `holdfast`, in a checkout and in an installation."""
    root = Path(__file__).resolve().parents[2]
    return root.parent if root.name == "product" else root / "holdfast"


class HostedAgent(NamedTuple):
    """An agent as its module describes it."""

    name: str
    description: str
    on_change: str
    framework: str
    """`function` for a plain one."""
    models: str
    version: str
    """Empty: its code declares none."""
    shares: bool
    """Whether its runs may share a process with others."""


class HostPlan(NamedTuple):
    """How a host is started."""

    module: str
    python: str
    environment: Mapping[str, str]
    keys: Mapping[str, str]
    """The worker's variables for providers of models."""
    max_mb: int
    """MiB that a process of an agent may have for itself; 0: any number."""
    has_keys: bool = True
    """Whether the host gets `keys`, because one of its agents asks models by itself."""


class UnfitModule(InvalidRequest):
    """The module cannot be a host's."""

    def __init__(self, said: Frame) -> None:
        super().__init__("; ".join(said["reasons"]))
        self.reasons: list[str] = said["reasons"]
        self.warnings: list[str] = said["warnings"]
        self.agents = [HostedAgent(**one) for one in said["agents"]]
        """The agents that it has registered."""
        self.trace: str = said["traceback"]
        """The traceback of the error that it raised. Empty: none."""


class HostGone(Unavailable):
    """The host has ended, and its processes with it; another one can be started. Or it can take no more requests."""


class ProcessEnd(NamedTuple):
    """How a process has ended."""

    status: int
    """Its exit code, negative for a signal."""
    grown_mb: int = 0
    """MiB that it had for itself when its host ended it, because these were too many; 0: it did not."""
    max_mb: int = 0
    """The limit for that; 0: none."""


class AgentHost:
    """One host process. `running` starts it, and ends it with everything that it has forked."""

    def __init__(self, plan: HostPlan, control: socket.socket) -> None:
        self.plan = plan
        self.agents: list[HostedAgent] = []
        self.warnings: list[str] = []
        """Sentences about values of the module that work differently from their framework's documents."""
        self.is_gone = False
        self._control = control
        self._asked: deque[asyncio.Future[Any]] = deque()
        self.processes: set[BodyProcess] = set()
        """The processes that have a run, once for each run."""
        self._shared: list[ForkedProcess] = []
        self._joining = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Frame] = loop.create_future()
        loop.add_reader(control, self._readable)

    @classmethod
    @asynccontextmanager
    async def running(cls, plan: HostPlan) -> AsyncGenerator[Self]:
        """Starts a host for the block. Raises `InvalidRequest` with one sentence if the module cannot be used."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                process = await _started(plan, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        host = cls(plan, ours)
        async with task_group() as group:
            printed = [
                group.create_task(_log_lines(stream, name), name=f"{name} of {plan.module}")
                for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr"))
                if stream is not None
            ]
            try:
                await host.begin(process)
                yield host
            finally:
                host.hang_up()
                await process.wait()
                # A process that something of it has started may hold its output open.
                await asyncio.wait(printed, timeout=LAST_OUTPUT_S)
                for one in printed:
                    one.cancel()

    async def fork(self, agent: str) -> "BodyProcess":
        """Forks a process for one attempt of a run. Raises `HostGone`."""
        process, ours = await self._forked(agent, socket.SOCK_STREAM)
        process.runs = process.runs_begun = 1
        return BodyProcess(self, process, *await asyncio.open_unix_connection(sock=ours))

    async def join(self, agent: str, at_most: int) -> "BodyProcess":
        """Begins one attempt of a run in a process that has fewer runs than `at_most`, and forks one if there is none.
        Raises `HostGone`."""
        async with self._joining:
            while True:
                self._shared = [one for one in self._shared if one.is_open]
                process = next((one for one in self._shared if one.runs < at_most), None)
                if process is None:
                    process, control = await self._forked("", socket.SOCK_SEQPACKET)
                    process.open_for(control)
                    self._shared.append(process)
                if (ours := process.begin(agent)) is not None:
                    return BodyProcess(self, process, *await asyncio.open_unix_connection(sock=ours))

    async def _forked(self, agent: str, kind: socket.SocketKind) -> "tuple[ForkedProcess, socket.socket]":
        """A new process, and the other end of its socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            with theirs:
                asked = self._request({"t": "fork", "agent": agent}, [theirs.fileno()])
        except HostGone:
            ours.close()
            raise
        try:
            return ForkedProcess(self, *await asyncio.shield(asked)), ours
        except BaseException:
            ours.close()
            asked.add_done_callback(self._end_unwanted)
            raise

    def bury(self, pid: int) -> "asyncio.Future[ProcessEnd]":
        """Kills the process with its whole group; the future has its end."""
        return self._request({"t": "bury", "pid": pid})

    async def begin(self, process: asyncio.subprocess.Process) -> None:
        """Returns when the module is imported. Raises `InvalidRequest`."""
        try:
            async with asyncio.timeout(START_S):
                said = await self._ready
        except TimeoutError:
            raise InvalidRequest(f"{self.plan.module} was not imported within {START_S:g} s") from None
        except HostGone:
            how = "signal {}" if (status := await process.wait()) < 0 else "exit code {}"
            ended = f"{self.plan.python} ended with {how.format(abs(status))}"
            raise InvalidRequest(f"{ended} before it had imported {self.plan.module}") from None
        if said["t"] == "unfit":
            if said["traceback"]:
                log.warning("agents_unfit", module=self.plan.module, traceback=said["traceback"])
            raise UnfitModule(said)
        self.agents = [HostedAgent(**one) for one in said["agents"]]
        self.warnings = said["warnings"]

    def _request(self, message: Frame, descriptors: list[int] | None = None) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            if self.is_gone:
                raise BrokenPipeError
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors or [])
        except BlockingIOError as error:
            raise HostGone(f"the host of {self.plan.module} has more requests than its socket holds") from error
        except OSError as error:
            self._lose()
            raise HostGone(f"the host of {self.plan.module} is gone") from error
        self._asked.append(answer)
        return answer

    def _readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, LONGEST_MESSAGE, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._lose()
            return
        message = json.loads(data)
        if not self._ready.done():
            self._ready.set_result(message)
            return
        answer = self._asked.popleft()
        if not answer.done():
            is_new = message["t"] == "forked"
            ending = None if is_new else ProcessEnd(message["status"], message["grown_mb"], self.plan.max_mb)
            answer.set_result((message["pid"], descriptors[0]) if is_new else ending)

    def _lose(self) -> None:
        self.hang_up()
        gone = HostGone(f"the host of {self.plan.module} is gone")
        for waiting in (self._ready, *self._asked):
            if not waiting.done():
                waiting.set_exception(gone)
                waiting.exception()  # its caller may be gone as well

    def hang_up(self) -> None:
        """Ends the host, and with it everything that it has forked."""
        if not self.is_gone:
            self.is_gone = True
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()

    def _end_unwanted(self, forked: "asyncio.Future[tuple[int, int]]") -> None:
        """A process whose caller was cancelled before it existed."""
        if not forked.cancelled() and forked.exception() is None:
            pid, pidfd = forked.result()
            os.close(pidfd)
            with contextlib.suppress(HostGone):
                self.bury(pid)


class ForkedProcess:
    """A process with the body of a run, or with those of several."""

    def __init__(self, host: AgentHost, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.runs = 0
        """The runs that it has now."""
        self.runs_begun = 0
        self.is_open = False
        """Whether further runs may join."""
        self._host = host
        self._pidfd = pidfd
        self._control: socket.socket | None = None
        self._buried: asyncio.Future[ProcessEnd] | None = None
        self._is_dead = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._died)

    def open_for(self, control: socket.socket) -> None:
        """Makes the process one for several runs, which it gets over this socket."""
        control.setblocking(False)
        self._control, self.is_open = control, True

    def begin(self, agent: str) -> socket.socket | None:
        """Begins a run of this agent. Returns the end of its socket. None: the process takes no further ones."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                if self._control is None:
                    raise BrokenPipeError
                socket.send_fds(self._control, [json.dumps({"agent": agent}).encode()], [theirs.fileno()])
        except OSError:
            ours.close()
            self.is_open = False
            return None
        self.runs, self.runs_begun = self.runs + 1, self.runs_begun + 1
        return ours

    async def kill(self) -> ProcessEnd | None:
        """Ends the process with everything that it has started, and returns when it is gone. Returns how it has ended;
        None if its host is gone and cannot say it."""
        self.is_open = False
        try:
            return await asyncio.shield(self._bury())
        except HostGone:
            # The end of its host kills the process, but nothing that the process has started.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            await self._is_dead.wait()
            return None
        finally:
            self._close()

    def _bury(self) -> "asyncio.Future[ProcessEnd]":
        if self._buried is None:
            self._buried = self._host.bury(self.pid)
        return self._buried

    def _died(self) -> None:
        """A process that it has started may still hold its socket open: the end of its group closes that."""
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.is_open = False
        self._is_dead.set()
        with contextlib.suppress(HostGone):
            self._bury()

    def _close(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
            self._is_dead.set()  # other tasks that wait for it must not wait for ever
        if self._control is not None:
            self._control.close()
            self._control = None


class BodyProcess:
    """The process of one attempt of a run, as this run has it."""

    def __init__(
        self, host: AgentHost, process: ForkedProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host = host
        self._process = process
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._taken = 0
        """Bytes of the buffer whose frames were taken."""
        self._heard_at = time.monotonic()
        self.has_ended = False
        """Whether the body has said its last."""
        self.goes_on = False
        """Whether something of it goes on behind that."""
        host.processes.add(self)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_shared(self) -> bool:
        """Whether it has had other runs, too."""
        return self._process.runs_begun > 1

    @property
    def has_others(self) -> bool:
        """Whether it has other runs now."""
        return self._process.runs > 1

    @property
    def silent_s(self) -> float:
        """Seconds since it has said something."""
        return time.monotonic() - self._heard_at

    def send(self, frame: Frame) -> None:
        """Sends a frame. A process that is gone does not get it."""
        if self._writer.is_closing():
            return
        data = FRAMES.encode(frame).encode()
        self._writer.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)

    async def receive(self) -> Frame | None:
        """Returns the next frame. None if the process has ended, or sends what is no frame."""
        try:
            frame = await self._received()
            if frame["t"] == "left":
                self.goes_on = frame["goes_on"]
                frame = await self._received()
        except (EOFError, ConnectionError, ValueError):
            return None
        self.has_ended = frame["t"] in LAST_FRAMES
        return frame

    async def _received(self) -> Frame:
        while (data := self._next_in_buffer()) is None:
            # As much as has come: a body that emits tokens sends many frames at once.
            more = await self._reader.read(READ_AT_ONCE)
            if not more:
                raise EOFError
            self._buffer += more
            self._heard_at = time.monotonic()
        return printable_object(data, apart_from="value")

    def _next_in_buffer(self) -> bytearray | None:
        """Takes the next frame's JSON. None: not all of it has come. Raises `ValueError` if it is too long."""
        buffer, start = self._buffer, self._taken + LENGTH_BYTES
        end = start + int.from_bytes(buffer[self._taken : start], "big")
        if end - start > LONGEST_FRAME:
            raise ValueError(f"a frame has {end - start} bytes")
        if len(buffer) < end:
            del buffer[: self._taken]
            self._taken = 0
            return None
        self._taken = end
        return buffer[start:end]

    async def freeze(self) -> bool:
        """Asks the process to execute nothing of this run any more, and waits for its answer. Returns whether nothing
        of it goes on: a thread and a process that the run has started do."""
        self.send({"t": "leave"})
        try:
            while (frame := await self._received())["t"] != "left":
                pass
        except (EOFError, ConnectionError, ValueError):
            return False
        return not frame["goes_on"]

    async def leave(self) -> None:
        """Leaves the process to its other runs. It ends if there are none. It takes no further runs if something of
        this one goes on, or waits there for ever."""
        process = self._process
        process.runs -= 1
        if process.runs == 0:
            await self.kill()
            return
        if self.goes_on or not self.has_ended:
            process.is_open = False
        self._close()

    async def kill(self) -> ProcessEnd | None:
        """Ends the process with everything that it has started, and with its other runs; returns when it is gone.
        Returns how it has ended; None if its host is gone and cannot say it."""
        try:
            return await self._process.kill()
        finally:
            self._close()

    def _close(self) -> None:
        self._writer.close()
        self._host.processes.discard(self)


async def _started(plan: HostPlan, control: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *(plan.python, "-c", BOOTSTRAP, str(package_folder()), str(control), str(plan.max_mb), plan.module),
            pass_fds=(control,),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**plan.environment, **(plan.keys if plan.has_keys else {})},
            start_new_session=True,
        )
    except OSError as error:
        raise InvalidRequest(f"HOLDFAST_AGENTS_PYTHON (--agents-python) cannot be started: {error}") from error


async def _log_lines(stream: asyncio.StreamReader, name: str) -> None:
    """Logs what agents print, a line at a time."""
    async for line in lines_of(stream):
        if text := line.decode(errors="replace").rstrip():
            log.info("agent_printed", stream=name, text=text[:LONGEST_LINE])
