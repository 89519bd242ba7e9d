"""The worker's composition root: the only place that constructs what a worker consists of."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from uuid import uuid4

import structlog
from structlog.contextvars import bound_contextvars

from shared.archival.archival_memory import ArchivalMemory, EmbeddingClient
from shared.concurrency import background, repeating
from shared.domain.operations import WorkerState
from shared.domain.runs import AttemptLimits
from shared.network.checked_http import NetworkRules
from shared.process.context import ProcessContext
from shared.process.importing import without_collections
from shared.process.measurements import measured
from shared.process.traces import traced
from shared.process.version import VERSION
from shared.redis.channel_listener import CancelSignal
from shared.redis.event_log import EventLog
from shared.redis.keys import parse_job_id
from shared.redis.process_presence import ProcessPresence, ToolPresence
from shared.redis.queue import InFlightLimits, RunQueue
from shared.runs.unowned import UnownedRuns
from shared.sql.archival.passages import PassageSearchStore, PassageStore, VectorStore
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.blocks import MemoryStore
from shared.sql.group_commit import GroupCommit
from shared.sql.history.message_lists import MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.checkpoints import CheckpointStore
from shared.sql.runs.event_blocks import EventStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from shared.sql.runs.steps import StepStore
from worker.health_port import health_port, health_sockets
from worker.models.prices import Prices
from worker.models.registry import Models
from worker.queue.queue_worker import QueueWorker
from worker.readable_secrets import readable_secrets
from worker.run.active_runs import ActiveRuns
from worker.run.budgets import BudgetService
from worker.run.execute_run import RunExecutor
from worker.run.run_log import RunLog
from worker.run.run_metrics import RunMetrics
from worker.run.run_traces import RunTraces
from worker.run.services import RunServices
from worker.run.settle import RunFinisher
from worker.tool_parts import ToolParts, tool_parts
from worker.upkeep.sweeper import Sweeper
from worker.upkeep_parts import upkeep

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

STARTS_AT_ONCE = 4

HAND_OVER_S = 10.0
"""Seconds that runs get to store what they have shown before they are cancelled, when they are handed over."""


@asynccontextmanager
async def working(process: ProcessContext, *, alone: bool = False) -> AsyncGenerator[QueueWorker]:
    """A worker that takes runs for as long as the block lasts; at its end they are handed over.

    `alone`: nobody shares this Redis, so runs in flight are taken up at once.
    """
    settings = process.settings
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    network = NetworkRules.of(settings.reachable_networks, settings.ca_file)
    async with AsyncExitStack() as stack:
        sockets = stack.enter_context(health_sockets(settings))
        await stack.enter_async_context(measured(process, "worker"))
        process = await stack.enter_async_context(traced(process, service="holdfast-worker", instance=name))
        models = _models(process, network)
        stack.push_async_callback(models.aclose)
        embeddings = EmbeddingClient(process.environment, network)
        stack.push_async_callback(embeddings.aclose)
        tools = await stack.enter_async_context(tool_parts(process, network))
        logs = await stack.enter_async_context(_logs(process))
        services = _run_services(process, models, tools, embeddings, logs)
        active_runs = ActiveRuns(
            signal=CancelSignal(process.redis),
            runs=services.runs,
            clock=process.clock,
            look_every_s=settings.lease_s / 3,
        )
        executor = _executor(process, name, active_runs, services)
        queue_worker = _queue_worker(process, name, executor, active_runs)
        unowned = _unowned(process, services)
        sweeper = _sweeper(process, services, unowned)
        if alone:
            await sweeper.restart()
        # What is started here logs the worker's name. The API of `holdfast dev` is started behind it, without.
        with bound_contextvars(worker=name):
            enter = stack.enter_async_context
            await enter(active_runs.listening())
            await enter(_showing_tools(process, tools))
            await enter(_showing(process, name, queue_worker, tools))
            await enter(tools.packages.tidied())
            await enter(upkeep(process, sweeper, unowned, embeddings))
            await enter(background(queue_worker.serve(), name="queue worker"))
            await enter(health_port(process, queue_worker, await enter(readable_secrets(process)), sockets))
            log.info("worker_started", version=VERSION, max_runs=settings.max_runs, port=settings.worker_port or None)
        try:
            yield queue_worker
        finally:
            with bound_contextvars(worker=name):
                log.info("worker_draining", runs=queue_worker.run_count, drain_s=settings.drain_s)
                await queue_worker.drain(settings.drain_s, hand_over_s=HAND_OVER_S)
                log.info("worker_ended", runs=queue_worker.run_count)


def _showing_tools(process: ProcessContext, tools: ToolParts) -> AbstractAsyncContextManager[None]:
    """Says for as long as the block lasts which walls this worker's tools have, and in which languages they are."""
    presence, lease_s = ToolPresence(process.redis), process.settings.lease_s
    return repeating(
        lambda: presence.show(tools.tier, runs_javascript=tools.runs_javascript, for_s=lease_s),
        every_s=lease_s / 3,
        name="show the tools' walls",
    )


def _showing(
    process: ProcessContext, name: str, queue_worker: QueueWorker, tools: ToolParts
) -> AbstractAsyncContextManager[None]:
    """Shows this worker to who looks at the deployment, for as long as the block lasts."""
    started_at = process.clock.now()

    def state() -> WorkerState:
        return WorkerState(
            name=name,
            version=VERSION,
            started_at=started_at,
            seen_at=process.clock.now(),
            runs=queue_worker.run_count,
            max_runs=process.settings.max_runs,
            sandbox=tools.tier,
            javascript=tools.runs_javascript,
            secret_keys=process.secret_keys.fingerprints,
        )

    return ProcessPresence(process.redis).showing(state)


Logs = tuple[EventLog, CheckpointStore]


@asynccontextmanager
async def _logs(process: ProcessContext) -> AsyncGenerator[Logs]:
    """The logs of this worker's runs. What all runs have ready goes together, to Redis or, embedded, to SQLite."""
    database, servers = process.database, process.log_servers
    event_log = partial(EventLog, process.redis, ttl_s=process.settings.stream_ttl_s, servers=servers)
    if process.is_embedded:
        async with GroupCommit(database).running() as together:
            yield event_log(), CheckpointStore(database, together if database.is_sqlite else None)
    else:
        async with servers.appending() as appends:
            yield event_log(appends=appends), CheckpointStore(database)


def _models(process: ProcessContext, network: NetworkRules) -> Models:
    settings = process.settings
    return Models(
        process.environment,
        first_event_timeout=settings.first_event_timeout,
        idle_timeout=settings.idle_timeout,
        retries=settings.model_retries,
        builtin_models=settings.builtin_models,
        network=network,
        importing=without_collections,
        now=process.clock.now,
    )


def _run_services(
    process: ProcessContext, models: Models, tools: ToolParts, embeddings: EmbeddingClient, logs: Logs
) -> RunServices:
    event_log, checkpoints = logs
    database, settings, run_metrics = process.database, process.settings, RunMetrics(process.metrics.worker)
    return RunServices(
        models=models,
        sandbox=tools.sandbox,
        packages=tools.packages,
        memory=MemoryStore(database),
        archival=ArchivalMemory(
            passages=PassageStore(database),
            vectors=VectorStore(database),
            finder=PassageSearchStore(database),
            client=embeddings,
            clock=process.clock,
            ids=process.ids,
        ),
        message_lists=MessageLists(database),
        agents=AgentStore(database),
        secret_keys=process.secret_keys,
        messages=MessageStore(database),
        runs=RunStore(database),
        approvals=ApprovalStore(database),
        checkpoints=checkpoints,
        settlements=SettlementStore(database, process.ids),
        events=EventStore(database),
        inbox=InboxStore(database),
        steps=StepStore(database),
        event_log=event_log,
        clock=process.clock,
        ids=process.ids,
        stores_first=process.is_embedded,
        tool_timeout_s=settings.tool_timeout,
        patience_s=settings.database_patience,
        budgets=_budgets(process),
        observers=[lambda _: run_metrics, partial(RunTraces, process.tracer), lambda _: RunLog()],
    )


def _budgets(process: ProcessContext) -> BudgetService:
    settings = process.settings
    return BudgetService(
        budgets=settings.budgets,
        prices=Prices.read(settings.prices_file),
        store=BudgetStore(process.database),
        clock=process.clock,
    )


def _executor(process: ProcessContext, name: str, active_runs: ActiveRuns, services: RunServices) -> RunExecutor:
    return RunExecutor(
        worker=name,
        services=services,
        active_runs=active_runs,
        finisher=RunFinisher(
            settlements=services.settlements,
            queue=RunQueue(process.redis),
            event_log=services.event_log,
            clock=process.clock,
            patience_s=services.patience_s,
        ),
        limits=AttemptLimits.of(process.settings.max_attempts),
        run_timeout_s=process.settings.run_timeout,
        start_slots=asyncio.Semaphore(STARTS_AT_ONCE),
    )


def _queue_worker(process: ProcessContext, name: str, executor: RunExecutor, active_runs: ActiveRuns) -> QueueWorker:
    settings = process.settings
    return QueueWorker(
        redis=process.redis,
        is_embedded=process.is_embedded,
        name=name,
        execute=executor.execute_run,
        max_runs=settings.max_runs,
        spare_runs=settings.spare_runs,
        in_flight=InFlightLimits(settings.runs_in_flight, settings.limits.own_in_flight()),
        takes_more=active_runs.takes_more,
        lease_s=settings.lease_s,
        on_lease_lost=lambda job_id: active_runs.lease_lost(*parse_job_id(job_id)),
        still_ours=lambda job_id: active_runs.still_owned(*parse_job_id(job_id)),
        on_drain=active_runs.end_after_steps,
        on_shutdown=active_runs.shut_down,
    )


def _unowned(process: ProcessContext, services: RunServices) -> UnownedRuns:
    return UnownedRuns(
        runs=services.runs,
        agents=services.agents,
        messages=services.messages,
        checkpoints=services.checkpoints,
        settlements=services.settlements,
        events=services.events,
        event_log=services.event_log,
        queue=RunQueue(process.redis),
        clock=process.clock,
        ids=process.ids,
        tracer=process.tracer,
    )


def _sweeper(process: ProcessContext, services: RunServices, unowned: UnownedRuns) -> Sweeper:
    return Sweeper(
        listing=RunListing(process.database),
        runs=services.runs,
        queue=RunQueue(process.redis),
        unowned=unowned,
        clock=process.clock,
        quiet_s=max(2.0, process.settings.lease_s),
        patience_s=process.settings.lease_s / 2,
    )
