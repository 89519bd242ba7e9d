"""Deciding what nobody decided in time, as the tool or its agent says: deny the call, or cancel the run that waits."""

from dataclasses import dataclass

import structlog

from shared.carry_out import CarryingOut
from shared.clock import Clock
from shared.domain.approvals import DENIED_BY_EXPIRY, Approval
from shared.domain.errors import CancelMode, Conflict, LifecycleError, NotFound
from shared.domain.messages import Decision
from shared.sql.approval_store import ApprovalStore
from shared.sql.run_store import RunStore
from shared.unowned_run import UnownedRuns

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ACTOR = "expiry"
"""Who is said to have decided."""


@dataclass(frozen=True, kw_only=True)
class ApprovalExpiry:
    """Looks for requests whose time is over. Every worker does; the decision and the settle are guarded."""

    approvals: ApprovalStore
    carrying_out: CarryingOut
    runs: RunStore
    unowned: UnownedRuns
    clock: Clock

    async def expire(self) -> None:
        """One look. What people decide at the same moment goes before it, or comes too late and is told so."""
        for asked in await self.approvals.expired(self.clock.now()):
            try:
                await self._expire(asked)
            except (Conflict, LifecycleError, NotFound) as error:
                log.info("expiry_came_late", approval_id=asked.id, reason=str(error))

    async def _expire(self, asked: Approval) -> None:
        if asked.on_expiry == "deny":
            denial = Decision(tool_call_id=asked.tool_call_id, approve=False, reason=DENIED_BY_EXPIRY)
            await self.carrying_out.decide(asked, denial, by=ACTOR)
        else:
            run = await self.runs.look_up(asked.run_id)
            if run.cancel is not None:
                return  # whoever asked for it was first, and it ends as theirs
            await self.unowned.cancel(
                run, cause="approval_expired", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_EXPIRY
            )
        log.info("approval_expired", approval_id=asked.id, run_id=asked.run_id, on_expiry=asked.on_expiry)
