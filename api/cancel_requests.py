"""Requests to cancel, as the wire puts them: by agent, by conversation, by run."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from api.cancelling import RunCancelling
from api.letta.message_input import CancelRequestIn
from api.letta.runs import wire_receipt
from shared.clock import Clock
from shared.domain.errors import NotFound, NothingToCancel
from shared.domain.ids import AgentId, ProjectId, RunId, ThreadId, is_id
from shared.domain.lifecycle import TERMINAL
from shared.domain.runs import Run
from shared.sql.run_listing import RunListing
from shared.sql.run_store import RunStore

ACTOR = "api"
"""Who asked, as far as an API key tells."""

TOO_LATE = timedelta(seconds=5)
"""A cancel that names no run means the one that its caller saw on the screen a moment ago. If its stream ended on the
way, the answer is how it ended."""


@dataclass(frozen=True, kw_only=True)
class CancelRequests:
    """Finds the runs that are meant, cancels them and answers."""

    runs: RunStore
    listing: RunListing
    cancelling: RunCancelling
    clock: Clock

    async def cancel_runs(
        self,
        project_id: ProjectId,
        agent_id: AgentId,
        request: CancelRequestIn,
        thread_id: ThreadId | None = None,
    ) -> dict[str, str]:
        """What became of each run: its true status, `cancelling` when it has not stopped yet, `failed` when there is
        no such run of this agent, or of the one thread of it that is meant. Raises `NothingToCancel` when none is
        named, none is active and none was a moment ago.
        """
        if request.run_ids:
            named = [(run_id, await self._find(project_id, agent_id, thread_id, run_id)) for run_id in request.run_ids]
            return {run_id: "failed" if run is None else await self._cancel(run, request) for run_id, run in named}
        active = await self.listing.active_of_agent(project_id, agent_id, thread_id)
        if not active:
            since = self.clock.now() - TOO_LATE
            missed = await self.listing.just_streamed(project_id, agent_id, thread_id, since)
            if missed is not None:
                return {missed.id: missed.status.value}
            whose = f"agent {agent_id}" if thread_id in (None, agent_id) else f"conversation {thread_id}"
            raise NothingToCancel(f"No active runs to cancel for {whose}")
        return {run.id: await self._cancel(run, request) for run in active}

    async def cancel_one(self, project_id: ProjectId, run_id: RunId, request: CancelRequestIn) -> dict[str, Any]:
        """Cancels one run and gives the receipt. Raises `NotFound`."""
        run = await self.runs.get(project_id, run_id)
        return wire_receipt(await self._ask(run, request))

    async def _find(
        self, project_id: ProjectId, agent_id: AgentId, thread_id: ThreadId | None, run_id: str
    ) -> Run | None:
        if not is_id(run_id, "run"):
            return None
        try:
            run = await self.runs.get(project_id, RunId(run_id))
        except NotFound:
            return None
        return run if run.agent_id == agent_id and thread_id in (None, run.thread_id) else None

    async def _cancel(self, run: Run, request: CancelRequestIn) -> str:
        stopped = await self._ask(run, request)
        return stopped.status.value if stopped.status in TERMINAL else "cancelling"

    async def _ask(self, run: Run, request: CancelRequestIn) -> Run:
        return await self.cancelling.cancel(
            run, actor=ACTOR, reason=request.reason, mode=request.mode, wait_s=request.wait
        )
