"""The runs that this worker has, and how cancels, lost leases and the end of the worker reach them.

SQL has a cancel before the API announces it, by publish and by flag. The publish makes it fast, the flag reaches a
worker that was not listening, and the record in SQL reaches it when the API died before the announcement.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import structlog

from shared.concurrency import Clock, background, unix_ms
from shared.domain.errors import CancelMode, HoldfastError, LeaseLost, ShutdownRequested, Unavailable
from shared.domain.events import StatusChanged
from shared.domain.ids import RunId
from shared.redis.channel_listener import CancelSignal
from shared.sql.runs.run_store import RunStore
from worker.run.interruption import Interruption
from worker.run.publisher import Publisher

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NEIGHBOURS_S = 10.0
"""Seconds that the steps of other runs may still take before a run begins alone."""


@dataclass(kw_only=True, eq=False)
class ActiveRun:
    """A run that this worker has, or is about to claim."""

    dispatch: int
    interruption: Interruption
    publisher: Publisher | None = None
    """None until the run is claimed."""


@dataclass(kw_only=True)
class ActiveRuns:
    """Tracks the runs of this worker, and interrupts them."""

    signal: CancelSignal
    runs: RunStore
    clock: Clock
    look_every_s: float
    _leaving: bool = False
    _shutting_down: bool = False
    _alone: ActiveRun | None = None
    _left: asyncio.Event = field(default_factory=asyncio.Event)
    _active: dict[RunId, ActiveRun] = field(default_factory=dict[RunId, ActiveRun])

    def takes_more(self) -> bool:
        """Whether this worker may begin more runs. It may not while a run is executed alone here that has not finished
        a step."""
        alone = self._alone
        return alone is None or (alone.publisher is not None and alone.publisher.has_saved)

    @contextmanager
    def tracking(self, run_id: RunId, dispatch: int) -> Generator[ActiveRun]:
        """Makes a run of this dispatch reachable while the block lasts. Raises `ShutdownRequested` when another
        one runs alone here."""
        if not self.takes_more():
            raise ShutdownRequested
        active = self._active[run_id] = ActiveRun(dispatch=dispatch, interruption=Interruption())
        if self._leaving:
            active.interruption.leave()
        if self._shutting_down:
            active.interruption.interrupt(ShutdownRequested())
        try:
            yield active
        finally:
            if self._active.get(run_id) is active:
                del self._active[run_id]
                self._left.set()

    @contextmanager
    def alone(self, active: ActiveRun) -> Generator[None]:
        """Lets no other run begin in this block until `active` has finished a step. Raises `ShutdownRequested` when
        another run is executed alone here already."""
        if not self.takes_more():
            raise ShutdownRequested
        self._alone = active
        try:
            yield
        finally:
            if self._alone is active:
                self._alone = None

    async def others_left(self, active: ActiveRun) -> None:
        """Hands over all other runs: after their steps, and after `NEIGHBOURS_S` in the middle of them. Raises what has
        interrupted `active` meanwhile."""
        others = [other for other in self._active.values() if other is not active]
        for other in others:
            other.interruption.leave()
        leave_at_once = False
        deadline = self.clock.monotonic() + NEIGHBOURS_S
        while any(other in self._active.values() for other in others):
            if self.clock.monotonic() >= deadline and not leave_at_once:
                leave_at_once = True
                for other in others:
                    other.interruption.interrupt(ShutdownRequested())
            self._left.clear()
            try:
                async with asyncio.timeout(None if leave_at_once else deadline - self.clock.monotonic()):
                    await self._left.wait()
            except TimeoutError:
                continue
        if isinstance(active.interruption.error, (LeaseLost, ShutdownRequested)):
            raise active.interruption.error

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Delivers cancels for as long as the block lasts."""
        async with (
            background(self._listen(), name="listen for cancels"),
            background(self._look_regularly(), name="look for cancels"),
        ):
            yield

    def lease_lost(self, run_id: RunId, dispatch: int) -> None:
        """Stops a run that another worker may own now; but not when this worker has it by a newer dispatch."""
        active = self._active.get(run_id)
        if active is not None and active.dispatch == dispatch:
            active.interruption.interrupt(LeaseLost())

    def end_after_steps(self) -> None:
        """Lets every run be handed over when its step has ended; also those that are claimed from now on."""
        self._leaving = True
        for active in self._active.values():
            active.interruption.leave()

    def shut_down(self) -> None:
        """Stops every run, so that it is handed over; also those that are claimed from now on."""
        self._shutting_down = True
        for active in list(self._active.values()):
            active.interruption.interrupt(ShutdownRequested())

    async def still_owned(self, run_id: RunId, dispatch: int) -> bool:
        """Whether SQL says that a run of this worker is still its own by this dispatch, and was not dispatched for
        another one. Raises `Unavailable`."""
        active = self._active.get(run_id)
        if active is None or active.publisher is None:
            return False
        run = active.publisher.run
        # The worker may have claimed the run again, by a newer dispatch.
        return run.dispatch == dispatch and await self.runs.owns(run.id, run.fence, run.dispatch)

    async def _listen(self) -> None:
        async with self.signal.listen() as announcements:
            async for announced in announcements:
                if announced is None:
                    await self._look_at_flags()
                else:
                    await self._deliver(*announced)

    async def _look_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.look_every_s)
            await self._look_at_flags()
            await self._look_at_records()

    async def _look_at_flags(self) -> None:
        if not self._active:
            return
        try:
            raised = await self.signal.raised(list(self._active))
        except Unavailable as error:
            log.warning("cancel_flags_unreadable", reason=str(error))
            return
        for run_id, mode in raised.items():
            await self._deliver(run_id, mode)

    async def _look_at_records(self) -> None:
        """Finds the cancels whose API process died between the record and the announcement."""
        if not self._active:
            return
        try:
            recorded = await self.runs.cancels_among(list(self._active))
        except Unavailable as error:
            log.warning("cancel_records_unreadable", reason=str(error))
            return
        for run_id, mode in recorded.items():
            await self._deliver(run_id, mode)

    async def _deliver(self, run_id: RunId, mode: CancelMode) -> None:
        active = self._active.get(run_id)
        if active is None or not active.interruption.request_cancel(mode) or active.publisher is None:
            return
        now, publisher = self.clock.now(), active.publisher
        if publisher.run.options.status_events:
            publisher.emit_unless_closed(StatusChanged(unix_ms(now), "cancelling", "user"))
        log.info("cancel_reached_run", run_id=run_id, mode=mode)
        try:
            await self.runs.acknowledge_cancel(run_id, publisher.run.fence, now)
        except HoldfastError as error:
            # The run may have ended meanwhile; the cancel itself has been delivered.
            log.debug("cancel_not_acknowledged", run_id=run_id, reason=str(error))
