"""Cancels orphaned runs: runs that never began, that wait for a person, or whose worker is gone.

The API cancels them for its clients. The sweeper cancels those that no API process has ended, and the expiry of
approvals cancels parked runs. All use the same guarded settle: if a worker claims the run at the same time, one of the
two is refused.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
import structlog

from shared.concurrency import Clock, unix_ms
from shared.domain.approvals import DENIED_BY_EXPIRY, EXPIRY, Approval
from shared.domain.errors import CancelMode, Conflict, LeaseLost, LifecycleError, NotFound, StaleFence, Unavailable
from shared.domain.events import LogContinued, StopReason, decode, encode
from shared.domain.ids import Fence, IdMaker, Seq
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.log_writer import LogTail, LogWriter, first_seq_of
from shared.domain.messages import Decision, NewMessage, text_to_count
from shared.domain.runs import Cause, Run, SubmissionKeys, Usage
from shared.domain.settling import RunEnd, ShownStep, lost_usage, open_calls
from shared.redis.event_log import AdoptedLog, EventLog, adopt_log
from shared.redis.queue import RunQueue
from shared.sql.access.audit import Asker, asked_by
from shared.sql.definitions.agents import AgentStore
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.checkpoints import CheckpointStore
from shared.sql.runs.decisions import Decided, DecisionStore
from shared.sql.runs.run_store import RunStore, Submitted
from shared.sql.runs.settlement import Settled, Settlement, SettlementStore
from shared.sql.runs.steps import EventStore
from shared.telemetry.tracer import NoTracer, Tracer, of_run

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def _nothing(_: Run) -> None:
    """The default action after a run's end, where runs have no children."""


@dataclass(frozen=True, kw_only=True)
class OrphanedRuns:
    """Cancels orphaned runs."""

    runs: RunStore
    agents: AgentStore
    messages: MessageStore
    checkpoints: CheckpointStore
    settlements: SettlementStore
    events: EventStore
    event_log: EventLog
    queue: RunQueue
    clock: Clock
    ids: IdMaker
    tracer: Tracer = field(default_factory=NoTracer)
    stores_first: bool = False
    """As in `adopt_log`."""
    on_end: Callable[[Run], Awaitable[None]] = _nothing
    """Called with each settled run. It raises nothing."""

    async def cancel(self, run: Run, *, cause: Cause, mode: CancelMode, denial_reason: str) -> Run:
        """Settles the run as cancelled. Returns the settled run.

        Raises `StaleFence` or `IllegalTransition` if another process was faster. The caller must then read the run
        again.
        """
        shown, tail = ShownStep(), LogTail(first_seq_of(Fence(1)), ())
        if run.status is RunStatus.RUNNING:
            run = await self.runs.take_over(run, self.ids.claim(), self.clock.now())
            adopted = await self._adopt(run)
            shown = ShownStep(decode(entry) for _, entry in await self.events.read(run.id, run.checkpoint_seq, None))
            tail = self._opening(run, adopted)
        now = self.clock.now()
        partial = shown.partial_answer(cut_by="cancel", model="", now=now)
        settlement = Settlement(
            end=RunEnd(trigger=RunTrigger.CANCEL, stop_reason=StopReason.CANCELLED, cause=cause),
            now=now,
            usage=msgspec.structs.replace(run.usage, estimated=run.usage.estimated or partial is not None),
            lost=await self._lost_with_workers(run, shown),
            step_count=run.step_count,
            messages=[] if partial is None or mode is CancelMode.ROLLBACK else [partial],
            tail=tail,
            shown_at=shown.first_piece_at,
            denial_reason=denial_reason,
            rollback=mode is CancelMode.ROLLBACK,
        )
        settled = await self.settlements.settle(run, settlement)
        log.info("orphaned_run_cancelled", run_id=run.id, was=run.status, cause=cause)
        self._trace_end(settled.run, now)
        await self._announce(settled)
        await self.event_log.announce(settled.run)
        return settled.run

    async def _lost_with_workers(self, run: Run, shown: ShownStep) -> Usage:
        """Estimates the uncounted usage of the lost worker's call, and of earlier lost calls. If the history ends in
        tool calls, the worker was lost in one of these."""
        calls = shown.lost_calls + (run.follows_lost_owner or bool(shown.text))
        if not calls or run.options.tool_name is not None:
            return Usage()
        try:
            equipped = await self.agents.equipped(run.project_id, run.agent_id)
        except NotFound:
            return Usage()
        history = (await self.messages.context_of_run(run)).messages
        if open_calls(history) is not None:
            return Usage()
        asked = run.instructions(equipped.agent, equipped.blocks) + text_to_count(history)
        return lost_usage(calls, asked, shown.lost_text + shown.text)

    def _trace_end(self, run: Run, began_at: datetime) -> None:
        about = {**of_run(run), "holdfast.outcome": run.status.value, "holdfast.run.cause": run.cause}
        self.tracer.begin("settle", parent=run.options.traceparent, attributes=about, at_ms=unix_ms(began_at)).end()

    async def _adopt(self, run: Run) -> AdoptedLog:
        """Adopts the log. While Redis is unavailable, no process can find out which unstored events the lost worker has
        shown. These are then void, and the log continues from SQL's last event."""
        try:
            return await adopt_log(
                run, self.event_log, self.checkpoints.adopt, self.clock.now(), stores_first=self.stores_first
            )
        except LeaseLost as error:
            # The log in Redis belongs to a higher fence if the database was restored from a backup. The next fence is
            # higher.
            raise StaleFence(run.id, run.fence, None) from error
        except Unavailable as error:
            log.warning("log_continued_without_redis", run_id=run.id, reason=str(error))
            is_stored = self.stores_first or run.follows_stored_log
            return AdoptedLog((await self.runs.look_up(run.id)).last_seq, is_whole=is_stored)

    def _opening(self, run: Run, adopted: AdoptedLog) -> LogTail:
        writer = LogWriter(run.fence)
        lost_events = run.follows_lost_owner and not adopted.is_whole
        opening = LogContinued(unix_ms(self.clock.now()), adopted.follows, lost_events=lost_events)
        writer.begin(adopted.follows, encode(opening))
        return writer.to_store()

    async def _announce(self, settled: Settled) -> None:
        """Sends the end to live readers, and dispatches the thread's next run. Redis may be unavailable, because SQL
        has both."""
        try:
            await self._send_end(settled.run, settled.tail)
        except (Unavailable, LeaseLost) as error:
            log.warning("cancel_not_announced", run_id=settled.run.id, reason=str(error))
        await self.on_end(settled.run)
        # This is necessary even if another process has ended the run and sent its end: the settle gave the next run a
        # new dispatch, which only this process knows.
        if settled.next is not None:
            try:
                await self.queue.dispatch(settled.next)
            except Unavailable as error:
                log.warning("dispatch_left_to_sweeper", next_run=settled.next.run_id, reason=str(error))

    async def _send_end(self, run: Run, tail: LogTail) -> None:
        try:
            if tail.entries:
                await self.event_log.open(run.id, run.fence)
                await self.event_log.append(run.id, run.fence, tail, needs=Seq(0))
        finally:
            await self.event_log.expire(run.id)


# Decisions on waiting tool calls, and the continuation of parked runs. People, clients and the expiry all decide
# through this service.


@dataclass(frozen=True, kw_only=True)
class ApprovalService:
    """Stores decisions, and dispatches the continuation after the last decision on an answer."""

    approvals: ApprovalStore
    decisions: DecisionStore
    runs: RunStore
    orphans: OrphanedRuns
    queue: RunQueue
    clock: Clock

    async def decide(self, asked: Approval, decision: Decision, *, by: str) -> Decided:
        """Decides one call, as `DecisionStore.decide`."""
        decided = await self.decisions.decide(asked, decision, by=by, now=self.clock.now())
        if decided.run is not None:
            await self._go_on(decided.run)
        else:
            # No status changes before the last decision, but dashboards show how many calls wait.
            await self.orphans.event_log.announce_other(asked.run_id, asked)
        return decided

    async def decide_all(self, run: Run, given: Sequence[NewMessage], *, keys: SubmissionKeys, by: str) -> Submitted:
        """Decides all calls that a thread waits for, as `DecisionStore.decide_all`."""
        submitted = await self.decisions.decide_all(run, given, keys=keys, by=by)
        await self._go_on(submitted.run)
        return submitted

    async def _go_on(self, continuation: Run) -> None:
        await self.queue.dispatch_stored(continuation)
        await self.orphans.event_log.announce(continuation)
        if continuation.continues is not None:
            await self.orphans.event_log.announce_other(continuation.continues, continuation)

    async def expire_due(self) -> None:
        """Settles expired approvals as the tool or its agent specifies: denies the call, or cancels the parked run. If
        a person decides at the same time, one of the two decisions is stored, and the other is refused."""
        for asked in await self.approvals.expired(self.clock.now()):
            try:
                with asked_by(self._clock_as_asker()):
                    await self._expire(asked)
            except (Conflict, LifecycleError, NotFound) as error:
                log.info("expiry_came_late", approval_id=asked.id, reason=str(error))

    async def _expire(self, asked: Approval) -> None:
        if asked.on_expiry == "deny":
            denial = Decision(tool_call_id=asked.tool_call_id, approve=False, reason=DENIED_BY_EXPIRY)
            await self.decide(asked, denial, by=EXPIRY)
        else:
            run = await self.runs.look_up(asked.run_id)
            if run.cancel is not None:
                return  # a client has requested a cancel before, which ends the run
            await self.orphans.cancel(
                run, cause="approval_expired", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_EXPIRY
            )
        log.info("approval_expired", approval_id=asked.id, run_id=asked.run_id, on_expiry=asked.on_expiry)

    def _clock_as_asker(self) -> Asker:
        """Returns the asker of expired approvals. It has no key, so the audit log shows that the expiry decided."""
        return Asker(key_id=EXPIRY, key_name="nobody decided in time", at=self.clock.now(), ids=self.orphans.ids)
