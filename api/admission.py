"""Submissions take turns: a few at a time are stored, and the others wait in the order in which they came.

A burst would otherwise take every connection to the database, and whoever wants to read or to cancel would wait behind
it. What waits here holds nothing but its body. It is refused only when too many wait, or when its time is over.
"""

import asyncio
import re
from collections.abc import Callable
from contextvars import ContextVar

from starlette.types import Receive, Scope

from shared.concurrency import background
from shared.domain.errors import Unavailable

_SUBMITS = re.compile(
    r"/v1/(?:agents/[^/]+/(?:messages(?:/stream|/async)?|summarize|generate|tools/[^/]+/run)"
    r"|conversations/[^/]+/(?:messages|compact)"
    r"|chat/completions(?:/chat/completions)?)"
)
"""Paths whose POST makes a run."""


class Permit:
    """The turn of one submission. It ends with its block, or earlier with `end_turn`."""

    def __init__(self, permits: asyncio.Semaphore) -> None:
        self._permits: asyncio.Semaphore | None = permits

    def __enter__(self) -> None:
        self._before = _PERMIT.set(self)

    def __exit__(self, *_: object) -> None:
        _PERMIT.reset(self._before)
        self.end()

    def end(self) -> None:
        if self._permits is not None:
            self._permits.release()
        self._permits = None


_PERMIT: ContextVar[Permit | None] = ContextVar("turn of a submission", default=None)


def release_permit() -> None:
    """Lets the next submission go on. For who has stored one, or is about to wait for something else."""
    permit = _PERMIT.get()
    if permit is not None:
        permit.end()


class Admission:
    """Gives turns to `at_once` submissions, first come, first served. Up to `most_waiting` wait for theirs, each for up
    to `wait_s` seconds. `on_refused` gets the reason of each refusal: `full` or `late`."""

    def __init__(
        self, *, at_once: int, most_waiting: int, wait_s: float, on_refused: Callable[[str], None] = lambda _: None
    ) -> None:
        self._permits = asyncio.Semaphore(at_once)
        self._most_waiting = most_waiting
        self._wait_s = wait_s
        self._on_refused = on_refused
        self.waiting = 0
        """Submissions that wait for their turn."""

    async def enter(self, receive: Receive) -> Permit:
        """Waits for a turn. Raises `Unavailable` when there is none to be had, and `ClientLeft` when `receive` says so
        meanwhile."""
        if self._permits.locked():
            await self._wait(receive)
        else:
            await self._permits.acquire()
        return Permit(self._permits)

    async def _wait(self, receive: Receive) -> None:
        if self.waiting >= self._most_waiting:
            self._on_refused("full")
            said = f"{self.waiting} submissions wait already (HOLDFAST_WAITING_SUBMISSIONS)"
            raise Unavailable(f"{said}; send the request again")
        self.waiting += 1
        has_permit = goes_on = False
        try:
            async with asyncio.timeout(self._wait_s), background(_until_left(receive), name="watch a waiting client"):
                await self._permits.acquire()
                has_permit = True
            goes_on = True
        except TimeoutError:
            self._on_refused("late")
            said = f"the submission had no turn within {self._wait_s:g} s (HOLDFAST_SUBMISSION_WAIT)"
            raise Unavailable(f"{said}; send the request again") from None
        finally:
            self.waiting -= 1
            if has_permit and not goes_on:
                self._permits.release()  # the client left, or the time was over, in this very moment


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientLeft


def is_submission(scope: Scope) -> bool:
    """Whether the request makes a run."""
    return scope["method"] == "POST" and _SUBMITS.fullmatch(scope["path"]) is not None
