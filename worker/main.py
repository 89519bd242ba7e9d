"""The worker's composition root: the only place that constructs what a worker consists of."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from shared.background import background
from shared.background_loop import repeating
from shared.carry_out import CarryingOut
from shared.parts import Parts
from shared.redis.cancel_signal import CancelSignal
from shared.redis.connection import is_embedded
from shared.redis.event_log import EventLog
from shared.redis.keys import parse_job_id
from shared.redis.run_queue import RunQueue
from shared.sql.agent_store import AgentStore
from shared.sql.approval_store import ApprovalStore
from shared.sql.checkpoint_store import CheckpointStore
from shared.sql.decision_store import DecisionStore
from shared.sql.event_rows import EventStore
from shared.sql.inbox_store import InboxStore
from shared.sql.message_store import MessageStore
from shared.sql.run_listing import RunListing
from shared.sql.run_store import RunStore
from shared.sql.settlement import SettlementStore
from shared.unowned_run import UnownedRuns
from worker.approval_expiry import ApprovalExpiry
from worker.cancellation import Cancellation
from worker.execute_run import RunExecution
from worker.models.registry import Models
from worker.prepare_run import RunPreparation
from worker.queue_worker import QueueWorker
from worker.recovery import Recovery
from worker.run_work import RunServices
from worker.settle_run import RunSettling
from worker.tools.process_sandbox import ProcessSandbox

BEGINNING_AT_ONCE = 4

HAND_OVER_S = 10.0
"""Seconds that runs get to store what they have shown before they are cancelled, when they are handed over."""


@asynccontextmanager
async def working(parts: Parts, *, alone: bool = False) -> AsyncGenerator[QueueWorker]:
    """A worker that takes runs for as long as the block lasts; at its end they are handed over.

    `alone`: no other process shares this Redis, so runs that are in flight at the start are taken up at once.
    """
    settings = parts.settings
    async with AsyncExitStack() as stack:
        models = Models(
            parts.environment,
            first_event_timeout=settings.first_event_timeout,
            idle_timeout=settings.idle_timeout,
            retries=settings.model_retries,
        )
        stack.push_async_callback(models.aclose)
        sandbox = ProcessSandbox(memory_mb=settings.tool_memory_mb, grace_s=settings.tool_grace)
        stack.push_async_callback(sandbox.aclose)
        runs = RunStore(parts.database)
        cancellation = Cancellation(
            signal=CancelSignal(parts.redis), runs=runs, clock=parts.clock, look_every_s=settings.lease_s / 3
        )
        execution = _execution(parts, runs, cancellation, _run_services(parts, models, sandbox))
        queue_worker = QueueWorker(
            redis=parts.redis,
            execute=execution.execute_run,
            max_runs=settings.max_runs,
            lease_s=settings.lease_s,
            on_lease_lost=lambda job_id: cancellation.lease_lost(parse_job_id(job_id)[0]),
            still_ours=lambda job_id: cancellation.still_owned(parse_job_id(job_id)[0]),
            on_shutdown=cancellation.shut_down,
        )
        unowned = _unowned(parts, runs)
        recovery, expiry = _recovery(parts, runs, unowned), _expiry(parts, runs, unowned)
        if alone:
            await recovery.restart()
        sweeping = repeating(recovery.sweep, every_s=settings.sweep_s, name="sweep")
        expiring = repeating(expiry.expire, every_s=settings.sweep_s, name="approval expiry")
        await stack.enter_async_context(background(models.warm(), name="import model clients"))
        await stack.enter_async_context(cancellation.listening())
        await stack.enter_async_context(sweeping)
        await stack.enter_async_context(expiring)
        await stack.enter_async_context(background(queue_worker.serve(), name="queue worker"))
        try:
            yield queue_worker
        finally:
            await queue_worker.drain(settings.drain_s, hand_over_s=HAND_OVER_S)


def _run_services(parts: Parts, models: Models, sandbox: ProcessSandbox) -> RunServices:
    database = parts.database
    return RunServices(
        models=models,
        sandbox=sandbox,
        messages=MessageStore(database),
        checkpoints=CheckpointStore(database),
        inbox=InboxStore(database),
        clock=parts.clock,
        ids=parts.ids,
        tool_timeout_s=parts.settings.tool_timeout,
        patience_s=parts.settings.lease_s,
        token_budget=parts.settings.run_token_budget,
    )


def _execution(parts: Parts, runs: RunStore, cancellation: Cancellation, services: RunServices) -> RunExecution:
    database = parts.database
    event_log = EventLog(parts.redis, ttl_s=parts.settings.stream_ttl_s)
    return RunExecution(
        runs=runs,
        preparation=RunPreparation(
            agents=AgentStore(database),
            checkpoints=services.checkpoints,
            events=EventStore(database),
            event_log=event_log,
            services=services,
            clock=parts.clock,
            stores_first=is_embedded(parts.redis),
        ),
        cancellation=cancellation,
        settling=RunSettling(
            settlements=SettlementStore(database, parts.ids),
            queue=RunQueue(parts.redis),
            event_log=event_log,
            cancel_signal=cancellation.signal,
            clock=parts.clock,
            patience_s=parts.settings.lease_s,
        ),
        max_stalled_claims=parts.settings.max_stalled_claims,
        run_timeout_s=parts.settings.run_timeout,
        beginning=asyncio.Semaphore(BEGINNING_AT_ONCE),
    )


def _unowned(parts: Parts, runs: RunStore) -> UnownedRuns:
    return UnownedRuns(
        runs=runs,
        settlements=SettlementStore(parts.database, parts.ids),
        events=EventStore(parts.database),
        event_log=EventLog(parts.redis, ttl_s=parts.settings.stream_ttl_s),
        queue=RunQueue(parts.redis),
        cancel_signal=CancelSignal(parts.redis),
        clock=parts.clock,
    )


def _recovery(parts: Parts, runs: RunStore, unowned: UnownedRuns) -> Recovery:
    return Recovery(
        listing=RunListing(parts.database),
        runs=runs,
        queue=RunQueue(parts.redis),
        unowned=unowned,
        clock=parts.clock,
        quiet_s=max(2.0, parts.settings.lease_s),
        patience_s=parts.settings.lease_s / 2,
    )


def _expiry(parts: Parts, runs: RunStore, unowned: UnownedRuns) -> ApprovalExpiry:
    decisions = DecisionStore(parts.database, parts.ids)
    return ApprovalExpiry(
        approvals=ApprovalStore(parts.database),
        carrying_out=CarryingOut(decisions=decisions, queue=RunQueue(parts.redis), clock=parts.clock),
        runs=runs,
        unowned=unowned,
        clock=parts.clock,
    )
