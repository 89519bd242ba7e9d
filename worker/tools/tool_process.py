"""One isolated process of one tool call, seen from the worker: it is started, waited for, stopped, and surely dead.

`sandbox_choice.py` makes it for a call; `child_watcher.py` is its other side. A call ends with its process,
never with an end of file. Waiting is by callback, so that no task has to be cancelled or can be forgotten.
"""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any, Protocol, cast

from shared.concurrency import AnswerTimeout
from worker.tools.guest.child_watcher import descendants, kill_all, processes
from worker.tools.outcomes import (
    SHUTTING_DOWN,
    CappedPipe,
    Frame,
    PayloadPipe,
    ToolInvocation,
    ToolOutcome,
    child_ends,
    how_it_ended,
    not_started,
    outcome,
    read_frame,
    text_limit,
)

CHILD = str(Path(__file__).parent / "guest" / "child_watcher.py")
OUTPUT_BYTES = 256 << 10
PATIENCE_S = 1.0
"""Seconds beyond the grace in which the watcher must kill everything. After that the worker does it."""


class ToolProcess(asyncio.SubprocessProtocol):
    """A `CallProcess` with a watcher, and the tool below it."""

    def __init__(
        self,
        *,
        python: str,
        directory: str,
        user: tuple[int, int] | None,
        payload: bytes,
        result_bytes: int,
        grace_s: float,
        program: dict[str, Any] | None = None,
    ) -> None:
        """`program`: the frame for `child_node.py`, for a call that becomes Node.js."""
        self._loop = asyncio.get_running_loop()
        self._python = python
        self._directory = directory
        self._user = user
        self._grace_s = grace_s
        self._program = program
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self.stopped = False
        self._last_resort: asyncio.TimerHandle | None = None
        self._pipes = contextlib.ExitStack()
        self._payload = PayloadPipe(payload)
        self.result = CappedPipe(result_bytes)
        self.stdout = CappedPipe(OUTPUT_BYTES)
        self.stderr = CappedPipe(OUTPUT_BYTES)

    @property
    def exit_status(self) -> int:
        """The watcher's report: 128 + n if signal n killed the tool; below zero if a signal killed the watcher."""
        status = self._transport.get_returncode() if self._transport else None
        return -1 if status is None else status

    @property
    def ending(self) -> str:
        return how_it_ended(self.exit_status)

    async def start(self) -> None:
        with child_ends(self._pipes, (self._payload, self.result, self.stdout, self.stderr)):
            command = [CHILD, str(self.result.child_end), str(os.getpid()), str(self._grace_s)]
            command.append("" if self._user is None else f"{self._user[0]}:{self._user[1]}")
            if self._program is not None:
                command.append(json.dumps(self._program))
            await self._loop.subprocess_exec(
                lambda: self,
                *(self._python, "-I", "-S", *command),
                stdin=self._payload.child_end,
                stdout=self.stdout.child_end,
                stderr=self.stderr.child_end,
                pass_fds=(self.result.child_end,),
                cwd=self._directory,
                env={"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": self._directory, "TMPDIR": self._directory},
                start_new_session=True,
            )
        self._payload.send()
        if self.stopped and self._last_resort is None:
            self._terminate()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)  # uvloop's is no subclass of asyncio's

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)

    @property
    def is_over(self) -> bool:
        return self._transport is None or self._exited.done()

    async def exited(self) -> None:
        await asyncio.wait([self._exited])

    def stop(self) -> None:
        if self.stopped or self._exited.done():
            return
        self.stopped = True
        if self._transport is not None:
            self._terminate()

    def close(self) -> None:
        if self._last_resort is not None:
            self._last_resort.cancel()
        if self._transport is not None:
            if self.exit_status < 0:  # the watcher was killed before it could kill the processes below it
                self._kill_session(self._transport.get_pid())
            self._transport.close()
        for channel in (self.result, self.stdout, self.stderr):
            channel.drain()
        self._pipes.close()

    def _terminate(self) -> None:
        self._signal(signal.SIGTERM)
        self._last_resort = self._loop.call_later(self._grace_s + PATIENCE_S, self._kill)

    def _kill(self) -> None:
        if self._transport is not None and not self._exited.done():
            pid = self._transport.get_pid()
            kill_all(descendants(pid))
            self._kill_session(pid)

    def _kill_session(self, session: int) -> None:
        kill_all([pid for pid, _, its_session in processes() if its_session == session])
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._transport is not None:
            with contextlib.suppress(ProcessLookupError):
                self._transport.send_signal(number)


# The life of a tool call in a worker, for every kind of process: it is started, waited for, and surely dead.


USED_UP = "the tool used up its memory and ended"


class CallProcess(Protocol):
    """The process of one call."""

    result: CappedPipe
    stdout: CappedPipe
    stderr: CappedPipe

    @property
    def stopped(self) -> bool:
        """Whether the worker stopped the process before it had ended by itself."""
        ...

    @property
    def ending(self) -> str:
        """How the process ended, in words."""
        ...

    async def start(self) -> None:
        """Starts the process. Foreign code runs only after this has returned, because the payload is sent last. Raises
        `OSError` if that fails."""
        ...

    async def exited(self) -> None:
        """Waits for the end. A cancellation of the wait does not affect the process."""
        ...

    def stop(self) -> None:
        """Asks the tool to clean up and end. Processes that are left after the grace are killed. Does not wait."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the process has ended, or was never started."""
        ...

    def close(self) -> None:
        """Reads the last output and frees all resources."""
        ...


class RunningCalls:
    """The calls of one sandbox."""

    def __init__(self) -> None:
        self._calls: dict[CallProcess, asyncio.Event] = {}
        self._is_closed = False

    async def run(self, process: CallProcess, invocation: ToolInvocation) -> ToolOutcome:
        """See `ToolSandbox.call`. Every process of the call is dead when this returns or raises."""
        if self._is_closed:
            return SHUTTING_DOWN
        self._calls[process] = asyncio.Event()
        timed_out = False
        try:
            async with AnswerTimeout(invocation.longest_s):
                await process.start()
                await process.exited()
        except TimeoutError:
            timed_out = True
        except OSError as error:
            return not_started(error)
        finally:
            process.stop()
            try:
                await _death(process)
            finally:
                process.close()
                self._calls.pop(process).set()
        return _outcome(process, invocation, timed_out=timed_out)

    async def aclose(self) -> None:
        """See `ToolSandbox.aclose`. All running calls get their grace at the same time."""
        self._is_closed = True
        for process in self._calls:
            process.stop()
        for over in list(self._calls.values()):
            await over.wait()


async def _death(process: CallProcess) -> None:
    """Waits for the end in any case, and raises a cancellation of the waiting task only when the process is dead."""
    cancellation: asyncio.CancelledError | None = None
    while not process.is_over:
        try:
            await process.exited()
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


def _outcome(process: CallProcess, invocation: ToolInvocation, *, timed_out: bool) -> ToolOutcome:
    frame = read_frame(process.result)
    if timed_out:
        frame = Frame("error", f"Error: tool timed out after {invocation.longest_s:g} s ({invocation.limited_by})")
    elif process.stopped:
        frame = Frame("error", "Error: the tool was stopped, because the worker is shutting down")
    elif frame is None:
        ending = USED_UP if _complains_of_memory(process, invocation) else process.ending
        frame = Frame("error", f"Error executing function {invocation.function}: {ending} without a result")
    return outcome(frame, text_limit(invocation), process.stdout, process.stderr)


def _complains_of_memory(process: CallProcess, invocation: ToolInvocation) -> bool:
    """V8 reports this in its error output, and then makes its process crash, each time by another signal."""
    return invocation.language == "javascript" and b"out of memory" in process.stderr.kept
