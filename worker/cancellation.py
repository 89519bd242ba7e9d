"""Cancels, lost leases and shutdowns on their way into the runs of this worker.

A cancel is announced twice, by publish and by flag, and was recorded in SQL before: the publish makes it fast, the
flag finds those who were not listening, the record finds the rest.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from shared.background import background
from shared.clock import Clock, unix_ms
from shared.domain.errors import CancelMode, CancelRequested, HoldfastError, LeaseLost, ShutdownRequested, Unavailable
from shared.domain.events import StatusChanged
from shared.domain.ids import RunId
from shared.domain.runs import Run
from shared.redis.cancel_signal import CancelSignal
from shared.sql.run_store import RunStore
from worker.interruption import Interruption
from worker.publisher import Publisher

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class HeldRun(NamedTuple):
    """A run in this worker's hands."""

    run: Run
    interruption: Interruption
    publisher: Publisher


@dataclass(kw_only=True)
class Cancellation:
    """Knows the runs that this worker holds and how to reach into them."""

    signal: CancelSignal
    runs: RunStore
    clock: Clock
    look_every_s: float
    _shutting_down: bool = False
    _held: dict[RunId, HeldRun] = field(default_factory=dict[RunId, HeldRun])

    @asynccontextmanager
    async def holding(self, run: Run, interruption: Interruption, publisher: Publisher) -> AsyncGenerator[None]:
        """Makes a run reachable for as long as the block lasts."""
        held = self._held[run.id] = HeldRun(run, interruption, publisher)
        if self._shutting_down:
            interruption.interrupt(ShutdownRequested())
        try:
            yield
        finally:
            if self._held.get(run.id) is held:
                del self._held[run.id]

    async def raise_if_requested(self, run: Run) -> None:
        """Raises `CancelRequested` when the cancel came before the run was reachable."""
        if run.cancel is not None:
            raise CancelRequested(run.cancel.mode)
        try:
            raised = await self.signal.raised([run.id])
        except Unavailable:
            return
        if run.id in raised:
            await self._deliver(run.id, raised[run.id])

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Delivers cancels for as long as the block lasts."""
        async with (
            background(self._listen(), name="listen for cancels"),
            background(self._look_regularly(), name="look for cancels"),
        ):
            yield

    def lease_lost(self, run_id: RunId) -> None:
        """Stops a run that another worker may own now."""
        if run_id in self._held:
            self._held[run_id].interruption.interrupt(LeaseLost())

    def shut_down(self) -> None:
        """Stops every run, to be handed over; also those that were claimed a moment ago and are not known here yet."""
        self._shutting_down = True
        for held in list(self._held.values()):
            held.interruption.interrupt(ShutdownRequested())

    async def still_owned(self, run_id: RunId) -> bool:
        """Whether SQL says that a run which this worker holds is still its own, and is to be nobody else's."""
        if run_id not in self._held:
            return False
        run = self._held[run_id].run
        return await self.runs.owns(run.id, run.fence, run.ring)

    async def _listen(self) -> None:
        async with self.signal.listen() as announcements:
            async for announced in announcements:
                if announced is None:
                    await self._look()
                else:
                    await self._deliver(*announced)

    async def _look_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.look_every_s)
            await self._look()
            await self._look_at_records()

    async def _look(self) -> None:
        if not self._held:
            return
        try:
            raised = await self.signal.raised(list(self._held))
        except Unavailable as error:
            log.warning("cancel_flags_unreadable", reason=str(error))
            return
        for run_id, mode in raised.items():
            await self._deliver(run_id, mode)

    async def _look_at_records(self) -> None:
        """Finds the cancels whose API process was lost between the record and the announcement."""
        if not self._held:
            return
        try:
            recorded = await self.runs.cancels_among(list(self._held))
        except Unavailable as error:
            log.warning("cancel_records_unreadable", reason=str(error))
            return
        for run_id, mode in recorded.items():
            await self._deliver(run_id, mode)

    async def _deliver(self, run_id: RunId, mode: CancelMode) -> None:
        if run_id not in self._held:
            return
        run, interruption, publisher = self._held[run_id]
        if not interruption.request_cancel(mode):
            return
        now = self.clock.now()
        if run.options.status_events:
            publisher.emit(StatusChanged(unix_ms(now), "cancelling", "user"))
        log.info("cancel_reached_run", run_id=run_id, mode=mode)
        try:
            await self.runs.acknowledge_cancel(run.id, run.fence, now)
        except HoldfastError as error:
            # The run may have ended meanwhile; the cancel itself has been delivered.
            log.debug("cancel_not_acknowledged", run_id=run_id, reason=str(error))
