"""Keeps trees of runs consistent: the end of a run wakes the parent that waits for it. If the run was cancelled or has
failed, its end also ends its children."""

from dataclasses import dataclass

import structlog

from shared.concurrency import Clock
from shared.domain.errors import CancelMode, Unavailable
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.runs import CancelRequest, Run
from shared.redis.channel_listener import CancelSignal
from shared.redis.queue import RunQueue
from shared.sql.runs.children import ChildStore
from shared.sql.runs.run_store import RunStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ACTOR = "parent"
"""The actor of a cancel that follows the end of a run's parent."""


@dataclass(frozen=True, kw_only=True)
class RunTrees:
    """Passes a run's change on to its parent and its children."""

    children: ChildStore
    runs: RunStore
    queue: RunQueue
    signal: CancelSignal
    clock: Clock

    async def changed(self, run: Run) -> None:
        """The caller calls this after a run has ended, or was parked; a parked run still has the status of its claim.
        Raises nothing: the sweeper repeats what fails here."""
        try:
            if run.options.parent is not None:
                await self._wake_parent(run)
            if run.status in (RunStatus.CANCELLED, RunStatus.FAILED):
                mode = CancelMode.INTERRUPT if run.cancel is None else run.cancel.mode
                for child in await self.children.active_of(run):
                    await self.end_child(child, mode)
        except Unavailable as error:
            log.warning("run_tree_left_to_sweeper", run_id=run.id, reason=str(error))

    async def _wake_parent(self, run: Run) -> None:
        is_parked = run.status not in TERMINAL
        dispatch = await self.children.wake(run, self.clock.now(), is_parked=is_parked)
        if dispatch is not None:
            await self.queue.dispatch(dispatch)

    async def end_child(self, child: Run, mode: CancelMode) -> None:
        """Records a cancel of a child, in the mode of its parent's, and announces it to the child's worker. The sweeper
        settles a child that no worker has. Raises `Unavailable`."""
        reason = "the run that started it has ended"
        request = CancelRequest(requested_at=self.clock.now(), actor=ACTOR, reason=reason, mode=mode)
        await self.runs.request_cancel(child, request)
        await self.signal.announce(child.id, mode)
        log.info("child_run_cancelled", child_run_id=child.id)

    async def repair(self) -> None:
        """Wakes the parents and ends the children that a dead process has not. Raises `Unavailable`."""
        woken = await self.children.wake_forgotten(self.clock.now())
        if woken:
            await self.queue.dispatch(*woken)
        for child, mode in await self.children.left_behind():
            await self.end_child(child, mode)
