"""The periodic work of workers. In each interval one worker of the fleet does it; each worker publishes its agents."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import structlog

from shared.archival.archival_memory import EmbeddingClient, EmbeddingMaintenance
from shared.concurrency import Clock
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.code_agents import ShownAgent
from shared.domain.errors import LifecycleError, Unavailable
from shared.domain.ids import RunId
from shared.domain.lifecycle import RunStatus
from shared.process.context import ProcessContext
from shared.redis.process_presence import VersionPresence
from shared.redis.queue import IntervalLock, RunQueue
from shared.runs.orphans import ApprovalService, OrphanedRuns
from shared.runs.started_runs import LOOK_EVERY_S, RunTrees, SleeptimeRuns, StartedRuns
from shared.sql.access.audit import AuditLog
from shared.sql.archival.passages import VectorStore
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.code_agents import CodeAgentStore
from shared.sql.definitions.due_turns import GroupTurnStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.decisions import DecisionStore
from shared.sql.runs.listing import QUIET_PAGE, QuietRun, RunListing
from shared.sql.runs.retention import RecordRetention, Retention, RetentionStore
from shared.sql.runs.run_store import RunStore

# The sweeper finds orphaned runs and dispatches them again: lost dispatches, lost workers, and unsettled cancels.


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Reason = Literal["worker_lost", "not_dispatched", "waited"]
"""Why a run is dispatched again: its worker is gone; its dispatch was lost; or it has waited until its time, which is
normal."""


@dataclass(frozen=True, kw_only=True)
class Sweeper:
    """Dispatches orphaned runs again. One process of the fleet sweeps per interval; two at once do no harm."""

    listing: RunListing
    runs: RunStore
    queue: RunQueue
    orphans: OrphanedRuns
    clock: Clock
    quiet_s: float
    """Seconds without a write of a run to SQL after which the sweeper checks it."""
    patience_s: float
    """Seconds that a run's worker may take to notice that Redis has forgotten its lease."""

    async def sweep(self) -> Counter[Reason]:
        """Sweeps once. Returns how many runs it has dispatched again, and why. Raises `Unavailable`."""
        await self._finish_cancels()
        await self.queue.recount()
        return await self._dispatch_quiet(-timedelta(seconds=self.quiet_s), self._dispatch_unqueued)

    async def restart(self) -> Counter[Reason]:
        """Dispatches all runs in flight when an embedded product starts: no worker can own one then."""
        return await self._dispatch_quiet(timedelta(days=1), self._dispatch_again)

    async def _dispatch_quiet(
        self, until: timedelta, dispatch: Callable[[Sequence[QuietRun]], Awaitable[Counter[Reason]]]
    ) -> Counter[Reason]:
        """Dispatches the runs that were last written before this time from now, page by page."""
        now, dispatched, last = self.clock.now(), Counter[Reason](), None
        while True:
            quiet = await self.listing.quiet(now + until, now, last)
            dispatched += await dispatch(quiet)
            if len(quiet) < QUIET_PAGE:
                return dispatched
            last = quiet[-1]

    async def _dispatch_unqueued(self, quiet: Sequence[QuietRun]) -> Counter[Reason]:
        unqueued = await self._not_in_queue(quiet)
        # No worker owns a run that waits.
        begun = [run for run in unqueued if run.status is RunStatus.RUNNING and not run.waits]
        dispatched = await self._dispatch_again([run for run in unqueued if run not in begun])
        if begun:
            # Redis may have lost the job of a live worker, which restores it as soon as it notices.
            await asyncio.sleep(self.patience_s)
            dispatched += await self._dispatch_again(await self._not_in_queue(begun))
        return dispatched

    async def _not_in_queue(self, found: Sequence[QuietRun]) -> list[QuietRun]:
        in_queue = await self.queue.queued_among([job for run in found for job in _jobs_of(run)])
        return [run for run in found if in_queue.isdisjoint(_jobs_of(run))]

    async def _dispatch_again(self, unqueued: Sequence[QuietRun]) -> Counter[Reason]:
        """Stores the runs' next dispatch in SQL, and queues it, unless a worker has taken its lease again meanwhile. If
        such a worker dies, another worker claims its job in vain and removes it, and the next sweep finds that the run
        has no job."""
        if not unqueued:
            return Counter()
        dispatches = await self.runs.dispatch_again(unqueued)
        # No worker can own a run that has not begun: a job that it got meanwhile is of the previous dispatch.
        begun = [run for run in unqueued if run.status is RunStatus.RUNNING]
        kept = {run.run_id for run in begun}.difference(run.run_id for run in await self._not_in_queue(begun))
        waiting = [dispatch for dispatch in dispatches if dispatch.run_id not in kept]
        if waiting:
            await self.queue.dispatch(*waiting)
        log.info(
            "runs_dispatched_again", runs=[dispatch.run_id for dispatch in waiting], kept=len(dispatches) - len(waiting)
        )
        found = {dispatch.run_id for dispatch in waiting}
        return Counter(_reason_of(run) for run in unqueued if run.run_id in found)

    async def _finish_cancels(self) -> None:
        """Settles cancels that an API process recorded for an orphaned run before it died."""
        for run in await self.listing.cancelled_but_unclaimed():
            if run.cancel is None:
                continue
            try:
                await self.orphans.cancel(run, cause="user", mode=run.cancel.mode, denial_reason=DENIED_BY_CANCEL)
            except (LifecycleError, Unavailable) as error:
                log.info("cancel_left_for_later", run_id=run.id, reason=str(error))


def _reason_of(run: QuietRun) -> Reason:
    if run.waits:
        return "waited"
    return "worker_lost" if run.status is RunStatus.RUNNING else "not_dispatched"


def _jobs_of(run: QuietRun) -> list[tuple[RunId, int]]:
    """Returns the jobs under which a worker may own the run. It continues under the dispatch before the newest if it
    took its lease again while the sweeper stored the newest."""
    is_begun = run.status is RunStatus.RUNNING
    return [(run.run_id, run.dispatch - earlier) for earlier in range(1 + is_begun)]


# The part of the composition root that creates the periodic work.


PRUNE_EVERY_S = 60.0


@asynccontextmanager
async def maintenance(
    process: ProcessContext, sweeper: Sweeper, orphans: OrphanedRuns, embeddings: EmbeddingClient, trees: RunTrees
) -> AsyncGenerator[None]:
    """Does the periodic work within the block, in each interval in which this worker is the first."""
    approvals = _approvals(process, orphans)
    intervals, every_s = IntervalLock(process.redis), process.settings.sweep_s
    embedding = EmbeddingMaintenance(vectors=VectorStore(process.database), client=embeddings, clock=process.clock)

    async def sweep() -> None:
        for reason, count in (await sweeper.sweep()).items():
            process.metrics.worker.runs_found(reason, count)

    rounds: list[tuple[str, float, Callable[[], Awaitable[object]]]] = [
        ("sweep", every_s, sweep),
        ("look after run trees", every_s, trees.repair),
        ("expire approvals", every_s, approvals.expire_due),
        ("embed passages", every_s, embedding.embed_due),
        ("start sleep-time runs", LOOK_EVERY_S, _sleeptime(process).start_all_due),
        *((name, PRUNE_EVERY_S, prune) for name, prune in _prunings(process)),
    ]
    async with _together(*(intervals.repeating(work, every_s=pause, name=name) for name, pause, work in rounds)):
        yield


@asynccontextmanager
async def _together(*blocks: AbstractAsyncContextManager[None]) -> AsyncGenerator[None]:
    """Enters the blocks at the same time, each in a task, and leaves them at the same time: the process waits for the
    slowest round instead of for each in turn."""
    stop = asyncio.Event()

    async def within(block: AbstractAsyncContextManager[None]) -> None:
        async with block:
            await stop.wait()

    async with asyncio.TaskGroup() as group:
        for block in blocks:
            group.create_task(within(block), name="periodic work")
        try:
            yield
        finally:
            stop.set()


def _approvals(process: ProcessContext, orphans: OrphanedRuns) -> ApprovalService:
    return ApprovalService(
        approvals=ApprovalStore(process.database),
        decisions=process.patience().applied_to(DecisionStore(process.database, process.ids), DecisionStore.decide),
        runs=RunStore(process.database),
        orphans=orphans,
        queue=RunQueue(process.redis),
        clock=process.clock,
    )


def _sleeptime(process: ProcessContext) -> SleeptimeRuns:
    runs = RunStore(process.database)
    return SleeptimeRuns(
        turns=GroupTurnStore(process.database),
        agents=AgentStore(process.database),
        runs=runs,
        started=StartedRuns(runs=runs, queue=RunQueue(process.redis)),
        clock=process.clock,
        ids=process.ids,
    )


def _prunings(process: ProcessContext) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
    """The rounds that delete expired records, by name. A setting of 0 days has no round.

    One worker of the fleet does a round, once a minute; `holdfast prune` does all rounds at once.
    """
    settings, clock = process.settings, process.clock
    if settings.retain_days:
        keep = timedelta(days=settings.retain_days)
        yield "prune", Retention(store=RetentionStore(process.database), clock=clock, keep=keep).prune_some
    records = RecordRetention(
        audit=AuditLog(process.database),
        budgets=BudgetStore(process.database),
        clock=clock,
        audit_days=settings.retain_audit_days,
        budget_days=settings.retain_budget_days,
    )
    if records.is_wanted:
        yield "prune records", records.prune_some


# Information for other processes about a worker's agents of own code.


STORED_EVERY = timedelta(minutes=1)


@dataclass
class PublishedAgents:
    """Publishes the agents of one worker: in SQL once a minute for the API, and in Redis for the other workers, so that
    each run goes to a live version."""

    store: CodeAgentStore
    presence: VersionPresence
    clock: Clock
    agents: Sequence[ShownAgent]
    for_s: float
    """Seconds for which the worker counts as live."""
    _first: Mapping[str, datetime] | None = None
    """When a worker first had the version of each agent, by the agent's name."""
    _stored_at: datetime | None = None

    async def show(self) -> None:
        """Publishes the agents for `for_s` seconds."""
        now = self.clock.now()
        if self._stored_at is None or now - self._stored_at >= STORED_EVERY:
            with suppress(Unavailable):
                self._first, self._stored_at = await self.store.show(self.agents, now), now
        first = self._first or {}
        shown = [(one.name, one.version, first.get(one.name, now)) for one in self.agents]
        await self.presence.show(shown, for_s=self.for_s)
