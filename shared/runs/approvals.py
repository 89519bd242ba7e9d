"""Decisions on waiting tool calls, and the continuation of the runs that waited. People, clients and the clock decide
through this one service."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog

from shared.clock import Clock
from shared.concurrency import PATIENCE_S, retry_while_unavailable
from shared.domain.approvals import DENIED_BY_EXPIRY, EXPIRY, Approval
from shared.domain.errors import CancelMode, Conflict, LifecycleError, NotFound
from shared.domain.messages import Decision, NewMessage
from shared.domain.runs import Run
from shared.domain.submission_keys import SubmissionKeys
from shared.redis.queue import RunQueue
from shared.runs.unowned import UnownedRuns
from shared.sql.access.audit import Asker, asked_by
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.decisions import Decided, DecisionStore
from shared.sql.runs.run_store import RunStore, Submitted

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class ApprovalService:
    """Stores decisions, and dispatches the run that the last one of an answer starts."""

    approvals: ApprovalStore
    decisions: DecisionStore
    runs: RunStore
    unowned: UnownedRuns
    queue: RunQueue
    clock: Clock

    async def decide(self, asked: Approval, decision: Decision, *, by: str) -> Decided:
        """Decides one call, as `DecisionStore.decide`."""
        now = self.clock.now()
        decided = await self._persist(lambda _: self.decisions.decide(asked, decision, by=by, now=now))
        if decided.run is not None:
            await self.queue.dispatch_stored(decided.run)
        return decided

    async def decide_all(self, run: Run, given: Sequence[NewMessage], *, keys: SubmissionKeys, by: str) -> Submitted:
        """Decides all calls that a thread waits for, as `DecisionStore.decide_all`."""
        decide_all = self.decisions.decide_all
        submitted = await self._persist(lambda again: decide_all(run, given, keys=keys, by=by, again=again))
        await self.queue.dispatch_stored(submitted.run)
        return submitted

    async def expire_due(self) -> None:
        """Decides what nobody decided in time, as the tool or its agent says: denies the call, or cancels the run that
        waits. When a person decides at the same time, one of the two decisions is stored, and the other is refused."""
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
                return  # a client has asked for a cancel before, and the run ends by that
            await self.unowned.cancel(
                run, cause="approval_expired", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_EXPIRY
            )
        log.info("approval_expired", approval_id=asked.id, run_id=asked.run_id, on_expiry=asked.on_expiry)

    def _clock_as_asker(self) -> Asker:
        """Nobody's key decides, and the audit log says so."""
        return Asker(key_id=EXPIRY, key_name="nobody decided in time", at=self.clock.now(), ids=self.unowned.ids)

    async def _persist(self, write: Callable[[bool], Awaitable[Result]]) -> Result:
        return await retry_while_unavailable(write, for_s=PATIENCE_S, clock=self.clock)
