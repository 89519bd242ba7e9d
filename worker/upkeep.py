"""The part of the composition root that creates the periodic work, which one worker of the fleet does per interval."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from shared.archival.archival_memory import EmbeddingClient, EmbeddingUpkeep
from shared.process.context import ProcessContext
from shared.redis.queue import IntervalLock, RunQueue
from shared.runs.orphans import ApprovalService, OrphanedRuns
from shared.runs.retention import RecordRetention, Retention
from shared.runs.run_trees import RunTrees
from shared.runs.started_runs import LOOK_EVERY_S, SleeptimeRuns, StartedRuns
from shared.sql.access.audit import AuditLog
from shared.sql.archival.passages import VectorStore
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.due_turns import GroupTurnStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.decisions import DecisionStore
from shared.sql.runs.retention import RetentionStore
from shared.sql.runs.run_store import RunStore
from worker.sweeper import Sweeper

PRUNE_EVERY_S = 60.0


@asynccontextmanager
async def upkeep(
    process: ProcessContext, sweeper: Sweeper, orphans: OrphanedRuns, embeddings: EmbeddingClient, trees: RunTrees
) -> AsyncGenerator[None]:
    """Does the periodic work within the block, in each interval in which this worker is the first."""
    approvals = _approvals(process, orphans)
    intervals, every_s = IntervalLock(process.redis), process.settings.sweep_s
    embedding = EmbeddingUpkeep(vectors=VectorStore(process.database), client=embeddings, clock=process.clock)

    async def sweep() -> None:
        for reason, count in (await sweeper.sweep()).items():
            process.metrics.worker.runs_found(reason, count)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(intervals.repeating(sweep, every_s=every_s, name="sweep"))
        await stack.enter_async_context(intervals.repeating(trees.repair, every_s=every_s, name="look after run trees"))
        await stack.enter_async_context(
            intervals.repeating(approvals.expire_due, every_s=every_s, name="expire approvals")
        )
        await stack.enter_async_context(
            intervals.repeating(embedding.embed_due, every_s=every_s, name="embed passages")
        )
        await stack.enter_async_context(
            intervals.repeating(_sleeptime(process).start_all_due, every_s=LOOK_EVERY_S, name="start sleep-time runs")
        )
        for name, prune in _prunings(process):
            await stack.enter_async_context(intervals.repeating(prune, every_s=PRUNE_EVERY_S, name=name))
        yield


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
