"""The zygotes of one worker: one per project, so that no project's calls share a memory layout or a hash seed.

A zygote that has made many calls is replaced: those that run finish on the old one. One that nobody needs for a while
is ended, and of those that nobody needs just now only some are kept.
"""

import asyncio
from collections import OrderedDict

import msgspec

from shared.domain.ids import ProjectId
from worker.tools.zygote import Zygote, ZygotePlan

CALLS_OF_ONE = 1000
IDLE_S = 300.0
MOST_IDLE = 8


class ZygoteNeeds(msgspec.Struct, frozen=True):
    """What a call needs of its zygote. Calls that need something else do not share it."""

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
        """The project's zygote for such calls; started, if there is none. Raises `OSError` when it does not start."""
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
        # One caller's cancellation must not end a start that others wait for.
        return await asyncio.shield(self._starting[key])

    async def aclose(self) -> None:
        """Ends every zygote, and what still runs in it."""
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
        """The one that was used last stays, for the call that it was started for."""
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
