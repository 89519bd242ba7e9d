"""The processes of agents. A host (`hosts`) forks one for each attempt of a run. Their program is
`holdfast.agents.child`."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from shared.domain.errors import Unavailable
from shared.json_limits import printable_object

Frame = dict[str, Any]

LONGEST_FRAME = 64_000_000
"""Bytes, as in `holdfast.agents.frames`."""

FRAMES = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` would make another one for each frame

LENGTH_BYTES = 4
READ_AT_ONCE = 65_536

LAST_FRAMES = ("returned", "raised", "stopped")
"""The types of a body's last frame."""


class HostGone(Unavailable):
    """The host has ended with its processes, and another one can be started; or it accepts no more requests."""


class ProcessEnd(NamedTuple):
    """The way in which a process has ended."""

    status: int
    """The exit code, negative for a signal."""
    grown_mb: int = 0
    """The process's own memory in MiB, if its host ended it for exceeding the limit; otherwise 0."""
    max_mb: int = 0
    """The limit of that memory; 0: none."""


class ForkedProcess:
    """A process with the body of one run, or with the bodies of several runs."""

    def __init__(self, bury: Callable[[int], "asyncio.Future[ProcessEnd]"], pid: int, pidfd: int) -> None:
        self.pid = pid
        self.runs = 0
        """The number of its current runs."""
        self.runs_begun = 0
        self.is_open = False
        """Whether further runs may join."""
        self._bury_at_host = bury
        self._pidfd = pidfd
        self._control: socket.socket | None = None
        self._buried: asyncio.Future[ProcessEnd] | None = None
        self._is_dead = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._died)

    def open_for(self, control: socket.socket) -> None:
        """Lets the process have several runs, which it gets over this socket."""
        control.setblocking(False)
        self._control, self.is_open = control, True

    def begin(self, agent: str) -> socket.socket | None:
        """Begins a run of this agent. Returns our end of its socket; None if the process accepts no further runs."""
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

    def lose_run(self) -> None:
        """Removes a run whose caller was cancelled. The process ends if it has no other run."""
        self.runs, self.is_open = self.runs - 1, False
        if not self.runs:
            with contextlib.suppress(HostGone):
                self._bury()
            self._close()

    async def kill(self) -> ProcessEnd | None:
        """Ends the process with all processes that it has started, and waits until it is gone. Returns how it has
        ended; None if its host is gone and cannot report that."""
        self.is_open = False
        try:
            return await asyncio.shield(self._bury())
        except HostGone:
            # The end of its host kills the process, but no process that it has started.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            await self._is_dead.wait()
            return None
        finally:
            self._close()

    def _bury(self) -> "asyncio.Future[ProcessEnd]":
        if self._buried is None:
            self._buried = self._bury_at_host(self.pid)
        return self._buried

    def _died(self) -> None:
        """A process that this one has started may still hold its socket open: killing the group closes the socket."""
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
            self._is_dead.set()  # other tasks that wait for this must not wait for ever
        if self._control is not None:
            self._control.close()
            self._control = None


class BodyProcess:
    """The process of one attempt of a run, as this run uses it."""

    def __init__(
        self,
        of_host: "set[BodyProcess]",
        process: ForkedProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._of_host = of_host
        self._process = process
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._taken = 0
        """Bytes of the buffer whose frames are already taken."""
        self._heard_at = time.monotonic()
        self.has_ended = False
        """Whether the body has sent its last frame."""
        self.goes_on = False
        """Whether a part of the run continues after that frame."""
        of_host.add(self)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_shared(self) -> bool:
        """Whether the process has had other runs, too."""
        return self._process.runs_begun > 1

    @property
    def has_others(self) -> bool:
        """Whether the process has other runs now."""
        return self._process.runs > 1

    @property
    def silent_s(self) -> float:
        """Seconds since its last frame."""
        return time.monotonic() - self._heard_at

    def send(self, frame: Frame) -> None:
        """Sends a frame. Does nothing if the process is gone."""
        if self._writer.is_closing():
            return
        data = FRAMES.encode(frame).encode()
        self._writer.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)

    async def receive(self) -> Frame | None:
        """Returns the next frame. None if the process has ended, or has sent bytes that are not a frame."""
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
            # Read all that has arrived: a body that emits tokens sends many frames at once.
            more = await self._reader.read(READ_AT_ONCE)
            if not more:
                raise EOFError
            self._buffer += more
            self._heard_at = time.monotonic()
        return printable_object(data, apart_from="value")

    def _next_in_buffer(self) -> bytearray | None:
        """Takes the next frame's JSON. None if it is incomplete. Raises `ValueError` if it is too long."""
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
        """Asks the process to stop executing this run, and waits for its answer. Returns whether the run has stopped
        completely: threads and processes that it has started continue."""
        self.send({"t": "leave"})
        try:
            while (frame := await self._received())["t"] != "left":
                pass
        except (EOFError, ConnectionError, ValueError):
            return False
        return not frame["goes_on"]

    async def leave(self) -> None:
        """Leaves the process to its other runs, and ends it if there are none. It accepts no further runs if a part of
        this run continues there, or waits for ever."""
        process = self._process
        process.runs -= 1
        if process.runs == 0:
            await self.kill()
            return
        if self.goes_on or not self.has_ended:
            process.is_open = False
        self._close()

    async def kill(self) -> ProcessEnd | None:
        """Ends the process with its other runs and all processes that it has started, and waits until it is gone.
        Returns how it has ended; None if its host is gone and cannot report that."""
        try:
            return await self._process.kill()
        finally:
            self._close()

    def _close(self) -> None:
        self._writer.close()
        self._of_host.discard(self)
