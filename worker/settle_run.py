"""Ending a run that this worker owns: SQL first, the end of the stream second, then whoever waits behind it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from shared.clock import Clock
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.closing import partial_answer, shown_text
from shared.domain.errors import CancelMode, LifecycleError, MoreInput, Unavailable
from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import Step, Usage
from shared.redis.cancel_signal import CancelSignal
from shared.redis.event_log import EventLog
from shared.redis.run_queue import RunQueue
from shared.sql.event_rows import LogTail
from shared.sql.settlement import Settlement, SettlementStore
from shared.sql.thread_line import Ring
from worker.holding_on import PAUSE_S, hold_on
from worker.models.token_estimate import estimate_tokens
from worker.publisher import FLUSH_S, Publisher
from worker.run_work import Outcome, Parked, RunWork

LATE_S = 60.0
"""How long a worker waits for a lost database, to say that the run is not to blame."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunSettling:
    """Ends runs, and hands them over."""

    settlements: SettlementStore
    queue: RunQueue
    event_log: EventLog
    cancel_signal: CancelSignal
    clock: Clock
    patience_s: float
    """How long the end of a run waits for a database that is away."""

    async def conclude(self, work: RunWork, outcome: Outcome | Parked) -> None:
        """Makes the run's end true, then shows it. Raises `MoreInput` when it has to go on, by whoever claims it."""
        if isinstance(outcome, Parked):
            work.publisher.send_stored(outcome.tail)
            log.info("run_parked")
            await self._finish_stream(work.publisher)
            return
        try:
            await self._end(work.publisher, lambda tail: self._settlement(work, outcome, tail))
        except MoreInput:
            # It came after the step loop had looked. The run goes on with the answer stored, as after a crash.
            log.info("run_goes_on", reason="a message came at the last moment")
            if outcome.messages:
                await work.checkpoint(outcome.messages)
            raise

    async def fail(self, publisher: Publisher, outcome: Outcome) -> None:
        """Ends a run that could not even be prepared."""
        run = publisher.run
        await self._end(
            publisher,
            lambda tail: Settlement(
                trigger=outcome.trigger,
                stop_reason=outcome.stop_reason,
                cause=outcome.cause,
                error=outcome.error,
                now=self.clock.now(),
                usage=run.usage,
                step_count=run.step_count,
                tail=tail,
            ),
        )

    async def hand_over(self, work: RunWork) -> None:
        """Leaves the run to another worker, without blame. Its queue entry is released by the queue worker."""
        if await work.publisher.leave_behind():
            log.info("run_handed_over")

    async def hand_over_late(self, work: RunWork) -> None:
        """The same when the database has been away for too long: as soon as it is back."""
        deadline = self.clock.monotonic() + LATE_S
        while not await work.publisher.leave_behind():
            if self.clock.monotonic() > deadline:
                log.warning("run_left_to_sweeper")
                return
            await asyncio.sleep(PAUSE_S)

    async def _end(self, publisher: Publisher, settlement: Callable[[LogTail], Settlement]) -> None:
        try:
            async with publisher.saving() as tail:
                end = settlement(tail)
                settled = await hold_on(
                    lambda _: self.settlements.settle(publisher.run, end), for_s=self.patience_s, clock=self.clock
                )
        except LifecycleError as error:
            log.warning("settle_refused", reason=str(error))
            return
        publisher.send_stored(settled.tail)
        log.info("run_settled", status=settled.run.status, stop_reason=end.stop_reason, cause=end.cause)
        await self._finish_stream(publisher)
        if settled.next is not None:
            await self._ring(settled.next)

    def _settlement(self, work: RunWork, outcome: Outcome, tail: LogTail) -> Settlement:
        now = self.clock.now()
        rollback = outcome.mode is CancelMode.ROLLBACK
        messages = outcome.messages
        usage, step = work.usage, outcome.step
        if outcome.trigger is not RunTrigger.COMPLETE:
            cut_by = "cancel" if outcome.trigger is RunTrigger.CANCEL else "error"
            partial = partial_answer(work.publisher.since_checkpoint, cut_by=cut_by, model=work.model, now=now)
            messages = [] if partial is None or rollback else [partial]
            step, usage = _cut_off(work, outcome)
        return Settlement(
            trigger=outcome.trigger,
            stop_reason=outcome.stop_reason,
            cause=outcome.cause,
            error=outcome.error,
            now=now,
            usage=usage,
            step_count=work.step_count,
            messages=messages,
            step=step,
            tail=tail,
            known_returns=work.known_returns,
            denial_reason=DENIED_BY_CANCEL,
            rollback=rollback,
            compaction=outcome.compaction,
            unless_more_input=outcome.is_answer,
        )

    async def _finish_stream(self, publisher: Publisher) -> None:
        if await publisher.flushed(FLUSH_S):
            try:
                await self.event_log.expire(publisher.run.id)
                await self.cancel_signal.clear(publisher.run.id)
            except Unavailable as error:
                log.warning("stream_left_to_sql", reason=str(error))

    async def _ring(self, ring: Ring) -> None:
        try:
            await self.queue.ring(ring.run_id, ring.number)
        except Unavailable as error:
            # The sweeper rings what waits and was not heard of.
            log.warning("ring_left_to_sweeper", next_run=ring.run_id, reason=str(error))


def _cut_off(work: RunWork, outcome: Outcome) -> tuple[Step | None, Usage]:
    """The step that was in hand, as it ended; usage with what the cut-off call is estimated to have used."""
    step = work.step
    if step is None or step.status != "pending":
        return None, work.usage
    spoken = shown_text(work.publisher.since_checkpoint)
    is_cancel = outcome.trigger is RunTrigger.CANCEL
    call = Usage()
    if spoken or is_cancel:
        call = Usage(
            prompt_tokens=estimate_tokens(work.asked), completion_tokens=estimate_tokens(spoken), estimated=True
        )
    ended = msgspec.structs.replace(
        step, status="cancelled" if is_cancel else "failed", error=outcome.error, usage=call
    )
    return ended, work.usage.plus(call) if call.estimated else work.usage
