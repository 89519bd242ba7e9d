"""The part of the composition root that makes what is due once per interval, for the whole fleet."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from shared.archival.archival_memory import EmbeddingClient, EmbeddingUpkeep
from shared.process.context import ProcessContext
from shared.redis.queue import IntervalLock, RunQueue
from shared.runs.retention import RecordRetention, Retention
from shared.runs.unowned import ApprovalService, UnownedRuns
from shared.sql.access.audit import AuditLog
from shared.sql.archival.passages import VectorStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.decisions import DecisionStore
from shared.sql.runs.run_store import RetentionStore, RunStore
from worker.upkeep.sweeper import Sweeper

PRUNE_EVERY_S = 60.0


@asynccontextmanager
async def upkeep(
    process: ProcessContext, sweeper: Sweeper, unowned: UnownedRuns, embeddings: EmbeddingClient
) -> AsyncGenerator[None]:
    """Does what is due once per interval for as long as the block lasts, when this worker is the first to come."""
    approvals = _approvals(process, unowned)
    intervals, every_s = IntervalLock(process.redis), process.settings.sweep_s
    embedding = EmbeddingUpkeep(vectors=VectorStore(process.database), client=embeddings, clock=process.clock)

    async def sweep() -> None:
        for reason, count in (await sweeper.sweep()).items():
            process.metrics.worker.runs_found(reason, count)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(intervals.repeating(sweep, every_s=every_s, name="sweep"))
        await stack.enter_async_context(
            intervals.repeating(approvals.expire_due, every_s=every_s, name="expire approvals")
        )
        await stack.enter_async_context(
            intervals.repeating(embedding.embed_due, every_s=every_s, name="embed passages")
        )
        for name, prune in _prunings(process):
            await stack.enter_async_context(intervals.repeating(prune, every_s=PRUNE_EVERY_S, name=name))
        yield


def _approvals(process: ProcessContext, unowned: UnownedRuns) -> ApprovalService:
    return ApprovalService(
        approvals=ApprovalStore(process.database),
        decisions=DecisionStore(process.database, process.ids),
        runs=RunStore(process.database),
        unowned=unowned,
        queue=RunQueue(process.redis),
        clock=process.clock,
    )


def _prunings(process: ProcessContext) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
    """The rounds that delete what the settings do not keep for ever, each with its name. A setting of 0 days has none.

    One worker of the fleet does a round at a time, once a minute; `holdfast prune` does all of it at once.
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
