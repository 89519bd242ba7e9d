"""Ending a run that no worker holds: one that never began, one that waits for a person, one whose worker is gone.

The API does it for a cancel, the worker's sweeper for what the API left behind. The same guarded settle decides: if a
worker claims the run at the same moment, one of the two is refused.
"""

from dataclasses import dataclass

import msgspec
import structlog

from shared.clock import Clock, unix_ms
from shared.domain.closing import partial_answer
from shared.domain.errors import CancelMode, Unavailable
from shared.domain.events import Event, decode
from shared.domain.ids import Seq
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.runs import Cause, Run
from shared.log_takeover import gap_after, take_over_log
from shared.redis.cancel_signal import CancelSignal
from shared.redis.event_log import EventLog
from shared.redis.run_queue import RunQueue
from shared.sql.event_rows import EventStore, LogTail
from shared.sql.run_store import RunStore
from shared.sql.settlement import Settled, Settlement, SettlementStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class UnownedRuns:
    """Cancels runs that nobody holds."""

    runs: RunStore
    settlements: SettlementStore
    events: EventStore
    event_log: EventLog
    queue: RunQueue
    cancel_signal: CancelSignal
    clock: Clock

    async def cancel(self, run: Run, *, cause: Cause, mode: CancelMode, denial_reason: str) -> Run:
        """Settles the run as cancelled and gives it as it is then.

        Raises `StaleFence` or `IllegalTransition` when somebody else was faster: look at the run again.
        """
        partial_events: list[Event] = []
        unsaved = LogTail(Seq(run.last_seq + 1), ())
        if run.status is RunStatus.RUNNING:
            run = await self.runs.take_over(run, self.clock.now())
            unsaved = await self._unsaved_entries(run)
            stored = await self.events.read(run.id, run.checkpoint_seq, limit=int(run.last_seq))
            partial_events = [decode(entry) for entry in [*(entry for _, entry in stored), *unsaved.entries]]
        now = self.clock.now()
        partial = partial_answer(partial_events, cut_by="cancel", model="", now=now)
        settled = await self.settlements.settle(
            run,
            Settlement(
                trigger=RunTrigger.CANCEL,
                stop_reason="cancelled",
                cause=cause,
                now=now,
                usage=msgspec.structs.replace(run.usage, estimated=run.usage.estimated or partial is not None),
                step_count=run.step_count,
                messages=[] if partial is None or mode is CancelMode.ROLLBACK else [partial],
                tail=unsaved,
                denial_reason=denial_reason,
                rollback=mode is CancelMode.ROLLBACK,
            ),
        )
        log.info("unowned_run_cancelled", run_id=run.id, was=run.status, cause=cause)
        await self._announce(settled)
        return settled.run

    async def _unsaved_entries(self, run: Run) -> LogTail:
        """What the lost owner has shown and SQL does not have. Shuts the owner out of the log first."""
        at = unix_ms(self.clock.now())
        try:
            return (await take_over_log(run, self.event_log, at=at)).tail
        except Unavailable:
            if run.reserved_seq <= run.last_seq:
                return LogTail(Seq(run.last_seq + 1), ())
            # Nobody can say what was shown and not stored, so none of its numbers may come again.
            return gap_after(run, at=at, shown_to=run.last_seq)

    async def _announce(self, settled: Settled) -> None:
        """Tells live readers and the next run in line. SQL has the truth, so Redis may miss it."""
        run, tail = settled.run, settled.tail
        try:
            if tail.entries:
                owned = await self.event_log.open(run.id, run.fence)
                known = max(0, owned.last - tail.first + 1)
                await owned.append(Seq(tail.first + known), tail.entries[known:], restoring=True)
            await self.event_log.expire(run.id)
            await self.cancel_signal.clear(run.id)
            if settled.next is not None:
                await self.queue.ring(settled.next.run_id, settled.next.number)
        except Unavailable as error:
            log.warning("cancel_not_announced", run_id=run.id, reason=str(error))
