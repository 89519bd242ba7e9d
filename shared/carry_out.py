"""Deciding a tool call and having the decision carried out: for a person in the API, for the clock in the worker."""

from dataclasses import dataclass

import structlog

from shared.clock import Clock
from shared.domain.approvals import Approval
from shared.domain.errors import Unavailable
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision
from shared.domain.runs import Run
from shared.redis.run_queue import RunQueue
from shared.sql.decision_store import Decided, DecisionStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class CarryingOut:
    """Stores decisions and rings for the run that the last one of an answer starts."""

    decisions: DecisionStore
    queue: RunQueue
    clock: Clock

    async def decide(self, asked: Approval, decision: Decision, *, by: str) -> Decided:
        """As `DecisionStore.decide`, with the ring for what it started."""
        decided = await self.decisions.decide(asked, decision, by=by, now=self.clock.now())
        if decided.run is not None:
            await ring_for(self.queue, decided.run)
        return decided


async def ring_for(queue: RunQueue, run: Run) -> None:
    """Rings for a run that was stored, unless it is in somebody's hands or over. Ringing twice does no harm."""
    if run.status is not RunStatus.CREATED:
        return
    try:
        await queue.ring(run.id, run.ring)
    except Unavailable as error:
        # The run is stored, and that is what was promised: the sweeper rings for it when Redis is back.
        log.warning("ring_left_to_sweeper", run_id=run.id, reason=str(error))
