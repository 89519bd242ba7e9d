"""The life of a tool call in a worker, whatever its process is made of: started, waited for, and surely dead."""

import asyncio
from typing import Protocol

from shared.concurrency import AnswerTimeout
from worker.tools.capped_pipe import CappedPipe
from worker.tools.invocation import ToolInvocation, ToolOutcome
from worker.tools.outcomes import SHUTTING_DOWN, Frame, not_started, outcome, read_frame, text_limit

USED_UP = "the tool used up its memory and ended"


class CallProcess(Protocol):
    """The process of one call."""

    result: CappedPipe
    stdout: CappedPipe
    stderr: CappedPipe

    @property
    def stopped(self) -> bool:
        """It was told to stop before it had ended by itself."""
        ...

    @property
    def ending(self) -> str:
        """In words, how it ended."""
        ...

    async def start(self) -> None:
        """Raises `OSError` when it cannot be started."""
        ...

    async def exited(self) -> None:
        """Waits for the end. To be cancelled does no harm to the process."""
        ...

    def stop(self) -> None:
        """Asks the tool to clean up and end; what is left of it after the grace is killed. Does not wait."""
        ...

    @property
    def is_over(self) -> bool:
        """There is no process, or no longer."""
        ...

    def close(self) -> None:
        """Takes the last output and gives everything back."""
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
        """See `ToolSandbox.aclose`. The calls that still run get their grace, at the same time."""
        self._is_closed = True
        for process in self._calls:
            process.stop()
        for over in list(self._calls.values()):
            await over.wait()


async def _death(process: CallProcess) -> None:
    """Waits for the end whatever happens. A cancellation of the waiting task is raised when the process is dead."""
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
    """V8 says so, and then makes its process crash, each time by another signal."""
    return invocation.language == "javascript" and b"out of memory" in process.stderr.kept
