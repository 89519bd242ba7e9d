"""Tracks the runs of this worker, and interrupts them for a cancel, a lost lease or a shutdown.

The API stores a cancel in SQL, and then announces it in Redis by publish and by flag. The publish is fast, the flag
reaches a worker that was not listening, and the record in SQL reaches it if the API died before the announcement.
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
"""Seconds for which the steps of other runs may continue before a run begins alone."""


@dataclass(kw_only=True, eq=False)
class ActiveRun:
    """A run that this worker owns or is about to claim."""

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
        """Returns whether this worker may begin more runs: not while it executes a run alone that has not finished a
        step."""
        alone = self._alone
        return alone is None or (alone.publisher is not None and alone.publisher.has_saved)

    @contextmanager
    def tracking(self, run_id: RunId, dispatch: int) -> Generator[ActiveRun]:
        """Makes a run of this dispatch reachable within the block. Raises `ShutdownRequested` if this worker executes
        another run alone."""
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
        """Prevents other runs from beginning within the block until `active` has finished a step. Raises
        `ShutdownRequested` if this worker already executes another run alone."""
        if not self.takes_more():
            raise ShutdownRequested
        self._alone = active
        try:
            yield
        finally:
            if self._alone is active:
                self._alone = None

    async def others_left(self, active: ActiveRun) -> None:
        """Hands over all other runs: after their steps, or after `NEIGHBOURS_S` in the middle of a step. Raises the
        lost lease or shutdown that interrupted `active` meanwhile."""
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
        """Delivers cancels within the block."""
        async with (
            background(self._listen(), name="listen for cancels"),
            background(self._look_regularly(), name="look for cancels"),
        ):
            yield

    def lease_lost(self, run_id: RunId, dispatch: int) -> None:
        """Stops a run that another worker may own now, unless this worker has it by a newer dispatch."""
        active = self._active.get(run_id)
        if active is not None and active.dispatch == dispatch:
            active.interruption.interrupt(LeaseLost())

    def end_after_steps(self) -> None:
        """Hands every run over after its current step, including runs that are claimed later."""
        self._leaving = True
        for active in self._active.values():
            active.interruption.leave()

    def shut_down(self) -> None:
        """Interrupts every run, so that it is handed over, including runs that are claimed later."""
        self._shutting_down = True
        for active in list(self._active.values()):
            active.interruption.interrupt(ShutdownRequested())

    async def still_owned(self, run_id: RunId, dispatch: int) -> bool:
        """Returns whether, according to SQL, this worker still owns the run by this dispatch and no newer dispatch
        exists. Raises `Unavailable`."""
        active = self._active.get(run_id)
        if active is None or active.publisher is None:
            return False
        run = active.publisher.run
        # The worker may have claimed the run again by a newer dispatch.
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
        """Finds cancels whose API process died between the record and the announcement."""
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
            # The run may have ended meanwhile; the cancel itself is delivered.
            log.debug("cancel_not_acknowledged", run_id=run_id, reason=str(error))
