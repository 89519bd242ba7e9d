"""Lets only so many tool calls run at once, and shares the places fairly among projects.

A model may ask for a hundred calls in one answer. Each is a process, so without a bound one answer could take the
machine's memory.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from shared.domain.ids import ProjectId, RunId
from worker.tools.invocation import ToolInvocation, ToolOutcome, ToolSandbox


class CallSlots:
    """Places for calls. One that gets free goes to the waiting project that has the fewest, and among those that have
    as few, to the one that has waited longest.

    Beyond `slots` there are `spare_slots`, which only a project takes that has no place: calls of one project that take
    all others for as long as a call may last do not keep another project waiting.
    """

    def __init__(self, slots: int, spare_slots: int = 0) -> None:
        self._free = slots
        """Below zero: so many spare places are taken."""

        self._spare = spare_slots
        self._taken: Counter[ProjectId] = Counter()
        self._waiting: dict[ProjectId, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, project_id: ProjectId) -> AsyncGenerator[None]:
        """Waits for a place, and has it for the block."""
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
        """A project that goes on waiting goes to the end of those that wait."""
        places = self._waiting.pop(project_id)
        places.remove(place)
        if places:
            self._waiting[project_id] = places


class BoundedSandbox:
    """A `ToolSandbox` in front of another one. A call's time begins when it has its place."""

    def __init__(self, sandbox: ToolSandbox, *, calls_at_once: int, spare_calls: int = 0) -> None:
        """`spare_calls`: beyond `calls_at_once`, for projects that have none."""
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
        """See `ToolSandbox.aclose`. Calls that wait get their places as others end, and are refused then."""
        await self._sandbox.aclose()
