"""Cancels runs: records the cancel in SQL, announces it to the worker, and answers with the run's true status."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

import structlog

from shared.concurrency import Clock
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.errors import CancelMode, LifecycleError, NotFound, NothingToCancel, Unavailable
from shared.domain.events import is_end
from shared.domain.ids import AgentId, ProjectId, RunId, Seq, ThreadId, is_id
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.runs import CancelRequest, Run
from shared.redis.connection import CancelSignal
from shared.redis.event_log import EventFeed, EventLog, Subscription
from shared.redis.queue import RunQueue
from shared.runs.orphans import OrphanedRuns
from shared.sql.runs.children import ChildStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_S = 0.5
"""Seconds of silence after which the API asks SQL whether the run has stopped, and Redis whether a worker holds it."""


class _Holder(Enum):
    """The holder of a run, according to Redis."""

    WORKER = "worker"
    NONE = "none"
    FORGOTTEN = "forgotten"
    """Redis does not know the run. It may have lost data, and then a living worker takes its lease again."""


@dataclass(frozen=True, kw_only=True)
class RunCanceller:
    """Cancels runs for clients."""

    runs: RunStore
    orphans: OrphanedRuns
    children: ChildStore
    cancel_signal: CancelSignal
    queue: RunQueue
    feed: EventFeed
    event_log: EventLog
    clock: Clock
    wait_s: float
    lease_s: float
    """Seconds of a lease. A worker renews its lease three times in this time, and takes it again if Redis lost it."""
    on_cancel: Callable[[RunStatus], None] = lambda _: None
    """Called for each cancel with the run's status at that time."""

    async def cancel(
        self,
        run: Run,
        *,
        actor: str,
        reason: str | None = None,
        mode: CancelMode = CancelMode.INTERRUPT,
        wait_s: float | None = None,
    ) -> Run:
        """Records a cancel, waits at most `wait_s` for the run to stop, and returns the run as it is then.

        A run that has ended is returned unchanged. This process settles a run that no worker holds. The runs that it
        has started through agents are cancelled with it.
        """
        if run.status in TERMINAL:
            return run
        request = CancelRequest(requested_at=self.clock.now(), actor=actor, reason=reason, mode=mode)
        async with self.feed.subscribe(run.id) as subscription:
            run = await self.runs.request_cancel(run, request)
            self.on_cancel(run.status)
            try:
                children = await self.children.active_of(run)
                also = (self.cancel(child, actor=actor, reason=reason, mode=mode, wait_s=wait_s) for child in children)
                stop = self._stop(run, mode, subscription, self.wait_s if wait_s is None else wait_s)
                return (await asyncio.gather(stop, *also))[0]
            except Unavailable as error:
                # The cancel is recorded, so the run will stop; only its status now is unknown.
                log.warning("cancel_outcome_unknown", run_id=run.id, reason=str(error))
                return run

    async def _stop(self, run: Run, mode: CancelMode, subscription: Subscription, wait_s: float) -> Run:
        if run.status in (RunStatus.CREATED, RunStatus.AWAITING_APPROVAL):
            run = await self._settle_orphaned(run, mode)
        if run.status is RunStatus.RUNNING:
            run = await self._stop_running(run, mode, subscription, wait_s)
        return run

    async def _settle_orphaned(self, run: Run, mode: CancelMode) -> Run:
        try:
            return await self.orphans.cancel(run, cause="user", mode=mode, denial_reason=DENIED_BY_CANCEL)
        except LifecycleError:
            # Meanwhile a worker has claimed the run, or another process has settled it.
            return await self.runs.get(run.project_id, run.id)

    async def _stop_running(self, run: Run, mode: CancelMode, subscription: Subscription, wait_s: float) -> Run:
        deadline = self.clock.monotonic() + wait_s
        announced, forgotten_at = False, math.inf
        while run.status is RunStatus.RUNNING:
            announced = announced or await self._announce(run, mode)
            holder, now = await self._holder(run), self.clock.monotonic()
            # Redis may lose data at any time of the cancel, and each time the worker may take so long to notice.
            forgotten_at = min(forgotten_at, now) if holder is _Holder.FORGOTTEN else math.inf
            if holder is _Holder.NONE or now - forgotten_at >= self.lease_s / 2:
                run = await self._settle_orphaned(run, mode)
                continue
            left = deadline - now
            if left <= 0:
                return run
            await self._wait_for_end(run, subscription, min(left, LOOK_S))
            run = await self.runs.get(run.project_id, run.id)
        if run.status in (RunStatus.CREATED, RunStatus.AWAITING_APPROVAL):
            return await self._settle_orphaned(run, mode)
        return run

    async def _announce(self, run: Run, mode: CancelMode) -> bool:
        try:
            await self.cancel_signal.announce(run.id, mode)
        except Unavailable as error:
            log.warning("cancel_not_announced", run_id=run.id, reason=str(error))
            return False
        return True

    async def _holder(self, run: Run) -> "_Holder":
        """Returns whether a worker holds the run. If Redis does not answer, the API waits rather than take the run from
        its worker."""
        try:
            if await self.queue.is_leased(run.id, run.dispatch):
                return _Holder.WORKER
            # No worker holds a waiting run, so no lease of it can be lost.
            is_known = run.waits_until is not None or await self.queue.queued_among([(run.id, run.dispatch)])
        except Unavailable:
            return _Holder.WORKER
        return _Holder.NONE if is_known else _Holder.FORGOTTEN

    async def _wait_for_end(self, run: Run, subscription: Subscription, within_s: float) -> None:
        """Waits until the run's stream ends, at most `within_s`."""
        deadline = self.clock.monotonic() + within_s
        last = Seq(run.last_seq)
        while (left := deadline - self.clock.monotonic()) > 0:
            try:
                entries = await subscription.read(self.event_log, last)
            except Unavailable:
                entries = []
            if entries and is_end(entries[-1][1]):
                return
            if entries:
                last = entries[-1][0]
            elif not await subscription.wait(left):
                return


CANCELS_AT_ONCE = 50
"""Runs of one request that are cancelled concurrently."""

ACTOR = "api"
"""The actor of a cancel; an API key does not identify a person."""

TOO_LATE = timedelta(seconds=5)
"""A cancel that names no run means the run on its caller's screen. If that run's stream ended so recently, the answer
reports its end."""


@dataclass(frozen=True)
class Cancel:
    """How a client wants runs to stop."""

    reason: str | None = None
    mode: CancelMode = CancelMode.INTERRUPT
    wait_s: float | None = None
    """Seconds to wait for a run to stop. None: the server's default."""


@dataclass(frozen=True, kw_only=True)
class CancelService:
    """Finds the runs that a client means, and cancels them."""

    runs: RunStore
    listing: RunListing
    canceller: RunCanceller
    clock: Clock

    async def cancel_runs(
        self,
        project_id: ProjectId,
        agent_id: AgentId,
        cancel: Cancel,
        *,
        run_ids: Sequence[str] = (),
        thread_id: ThreadId | None = None,
    ) -> dict[str, str]:
        """Cancels the runs with these ids; without ids, all that are active or wait for approval.

        Returns the outcome of each: its true status, `cancelling` if it has not stopped yet, `failed` if the agent, or
        the given thread of it, has no such run. Raises `NothingToCancel` if no run is named, active or just ended."""
        if run_ids:
            named = {
                run_id: await self._find(project_id, agent_id, thread_id, run_id) for run_id in dict.fromkeys(run_ids)
            }
            outcomes = await self._cancel_all([run for run in named.values() if run is not None], cancel)
            return {run_id: "failed" if run is None else outcomes[run.id] for run_id, run in named.items()}
        active = await self.listing.active_of_agent(project_id, agent_id, thread_id)
        if not active:
            since = self.clock.now() - TOO_LATE
            missed = await self.listing.just_streamed(project_id, agent_id, thread_id, since)
            if missed is not None:
                return {missed.id: missed.status.value}
            whose = f"agent {agent_id}" if thread_id in (None, agent_id) else f"conversation {thread_id}"
            raise NothingToCancel(f"No active runs to cancel for {whose}")
        return await self._cancel_all(active, cancel)

    async def cancel_before_deletion(
        self, project_id: ProjectId, agent_id: AgentId, thread_id: ThreadId | None = None
    ) -> None:
        """Cancels all runs of an agent, or of one of its threads, before they are deleted: else a model call or a tool
        of a deleted run would go on."""
        active = await self.listing.active_of_agent(project_id, agent_id, thread_id)
        await self._cancel_all(active, Cancel(reason="its history was deleted"))

    async def cancel_before_reset(self, project_id: ProjectId, agent_id: AgentId) -> None:
        """Cancels the runs of an agent's own thread that wait for approval: clients see them as completed."""
        active = await self.listing.active_of_agent(project_id, agent_id, ThreadId(agent_id))
        parked = [run for run in active if run.status is RunStatus.AWAITING_APPROVAL]
        await self._cancel_all(parked, Cancel(reason="its history was reset"))

    async def cancel_one(self, project_id: ProjectId, run_id: RunId, cancel: Cancel) -> Run:
        """Cancels one run, and returns it as it is then. Raises `NotFound`."""
        return await self._ask(await self.runs.get(project_id, run_id), cancel)

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

    async def _cancel_all(self, runs: Sequence[Run], cancel: Cancel) -> dict[str, str]:
        """Cancels runs concurrently, so that a client does not wait for one slow run after the other."""
        places = asyncio.Semaphore(CANCELS_AT_ONCE)

        async def stop(run: Run) -> str:
            async with places:
                stopped = await self._ask(run, cancel)
            return stopped.status.value if stopped.status in TERMINAL else "cancelling"

        # If the database does not answer for one run, `gather` still cancels the others.
        outcomes = await asyncio.gather(*map(stop, runs))
        return {run.id: outcome for run, outcome in zip(runs, outcomes, strict=True)}

    async def _ask(self, run: Run, cancel: Cancel) -> Run:
        return await self.canceller.cancel(
            run, actor=ACTOR, reason=cancel.reason, mode=cancel.mode, wait_s=cancel.wait_s
        )
