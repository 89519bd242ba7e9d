"""The requests of a body to its worker. If a task of the body is cancelled, it withdraws its request at the worker."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from holdfast.agents.frames import Frame
from holdfast.agents.probes import Verdict, cannot_tell


class Worker(Protocol):
    """The worker, in the view of a body's process."""

    async def ask(self, frame: Frame) -> Frame:
        """Sends a frame and returns the answer to it."""
        ...

    def send(self, data: bytes) -> None:
        """Sends packed frames that have no answer."""
        ...


def given_up(call: str) -> Frame:
    """Returns the frame that ends a call because the body has given it up."""
    error = {"type": "CancelledError", "text": "the body has given up this call"}
    return {"t": "end", "call": call, "error": error}


def settled(call: str, verdict: Verdict, *, may_repeat: bool = False) -> Frame:
    """Returns the verdict on a lost call. `may_repeat`: the call starts again if the outcome stays unknown."""
    return {"t": "probed", "call": call, "kind": verdict.kind, "value": verdict.value, "may_repeat": may_repeat}


async def begun(worker: Worker, frame: Frame, is_ending: Callable[[], bool]) -> Frame:
    """Asks how a call begins. If the body gives it up before the answer, the call ends when it would begin.
    `is_ending`: whether the whole run is being cancelled, so that its calls need no end."""
    asked = asyncio.ensure_future(worker.ask(frame))
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        if not is_ending():
            answer = await asked
            if answer["t"] == "go":
                await worker.ask(given_up(answer["call"]))
            elif answer["t"] == "probe":
                await worker.ask(settled(answer["call"], cannot_tell()))
        raise


async def made_by_worker(worker: Worker, call: str, is_ending: Callable[[], bool]) -> Frame:
    """Waits for the end of a call that the worker makes."""
    try:
        return await worker.ask({"t": "await", "call": call})
    except asyncio.CancelledError:
        if not is_ending():
            await worker.ask(given_up(call))
        raise
