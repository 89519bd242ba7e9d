"""Ends a block of code from outside, with a reason.

asyncio can only cancel a task, and a `CancelledError` does not say why. Here the caller that stops a run passes a typed
error (cancel requested, lease lost, shutdown, timeout), and the block raises it. It works like `asyncio.timeout`: it
cancels the task, and at the end of the block replaces the cancellation by the error. Other cancellations pass through
unchanged, and none stays pending.
"""

import asyncio
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any

from shared.domain.errors import CancelMode, CancelRequested, RunInterrupted, RunTimeout


class Interruption:
    """The handle by which other code on the same event loop interrupts one block.

        interruption = Interruption()          # may be handed out and even used before the block begins
        try:
            async with interruption.interrupting("run 7", timeout_s=3600):
                ...
        except RunInterrupted: ...

    The first interrupt wins; later ones, and those after the block's end, are ignored. If the block ends with a result
    before the interrupt reaches it, the result stands. If the block fails, the interrupt is raised from that failure,
    because libraries turn a cancellation into errors of their own. One object serves one block.
    """

    def __init__(self) -> None:
        self._error: RunInterrupted | None = None
        self._after_step = False
        self._leaves = False
        self._task: asyncio.Task[Any] | None = None
        self._name = ""
        self._cancelling_before = 0
        self._shields = 0
        self._delivered = False
        self._closed = False

    @property
    def error(self) -> RunInterrupted | None:
        """The error that interrupts the block, now, earlier or later."""
        return self._error

    @property
    def after_step(self) -> bool:
        """Whether a cancel waits for the current step to end. The block must check this."""
        return self._after_step

    @property
    def leaves(self) -> bool:
        """Whether the block is to be handed over after the current step. The block must check this."""
        return self._leaves

    def leave(self) -> None:
        """Asks the block to let another worker continue after the current step."""
        self._leaves = True

    def interrupt(self, error: RunInterrupted) -> None:
        """Raises `error` in the block, where it awaits. Does nothing if the block has ended or another interrupt came
        first."""
        if self._is_open():
            self._error = error
            self._deliver()

    def request_cancel(self, mode: CancelMode) -> bool:
        """Interrupts with `CancelRequested`, or notes that the block is to stop after its step. False if nothing
        changes: a cancel was requested before, or the block is ending anyway."""
        after_step = mode is CancelMode.AFTER_STEP
        if not self._is_open() or (after_step and self._after_step):
            return False
        if after_step:
            self._after_step = True
        else:
            self.interrupt(CancelRequested(mode))
        return True

    @contextmanager
    def shielded(self) -> Generator[None]:
        """Protects a write from interruption: an interrupt that comes meanwhile is delivered afterwards. Several tasks
        of the block may use it, and it may be nested. It does not stop cancellations from elsewhere."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            self._deliver()

    def interrupting(self, name: str, *, timeout_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Returns the interruptible block. `name` is for tracebacks. The block raises `RunTimeout` after `timeout_s`,
        and an earlier interrupt at once."""
        return _InterruptibleBlock(self, name, timeout_s)

    def begin(self, name: str) -> None:
        """The block calls this when it begins, in its own task."""
        if self._task is not None or self._closed:
            raise RuntimeError("an Interruption serves one block")
        if self._error is not None:
            self._closed = True
            raise self._error
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be interrupted")
        self._task = task
        self._name = name
        self._cancelling_before = task.cancelling()

    async def end(self, failure: BaseException | None) -> None:
        """The block calls this when it ends; no interrupt reaches it afterwards. Raises the interrupt, if any, instead
        of `failure`."""
        self._closed = True
        if self._error is None or self._task is None or not self._delivered:
            return
        pending = await _take_pending_cancellation()
        if self._task.uncancel() > self._cancelling_before:
            if pending and not isinstance(failure, asyncio.CancelledError):
                raise asyncio.CancelledError  # it came from elsewhere, and the line above has consumed it
        elif isinstance(failure, asyncio.CancelledError):
            raise self._error from None
        elif isinstance(failure, Exception):
            raise self._error from failure

    def _is_open(self) -> bool:
        return not self._closed and self._error is None and not self._unwinding()

    def _deliver(self) -> None:
        if self._error is None or self._task is None or self._shields or self._delivered or self._closed:
            return
        if not self._unwinding():
            self._delivered = True
            self._task.cancel(f"{self._name} is interrupted: {self._error}")

    def _unwinding(self) -> bool:
        """Whether other code has cancelled the block, whose clean-up must not be interrupted."""
        return self._task is not None and self._task.cancelling() > self._cancelling_before


class _InterruptibleBlock(AbstractAsyncContextManager[None]):
    """The scope of an `Interruption`."""

    def __init__(self, interruption: Interruption, name: str, timeout_s: float | None) -> None:
        self._interruption = interruption
        self._name = name
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        self._interruption.begin(self._name)
        if self._timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout_s, self._time_out)

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._interruption.end(failure)

    def _time_out(self) -> None:
        self._interruption.interrupt(RunTimeout())


async def _take_pending_cancellation() -> bool:
    """Returns whether the current task has a pending cancellation, and consumes it. Otherwise the cancellation would
    hit the task's next await, far outside the block."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return True
    return False
