"""The worker's composition root: the only place that constructs the parts of a worker."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec
import structlog
from structlog.contextvars import bound_contextvars

from shared.archival.archival_memory import EmbeddingClient
from shared.concurrency import background, repeating
from shared.domain.code_agents import OwnVersions
from shared.domain.operations import WorkerState
from shared.domain.runs import AttemptLimits, RunKind
from shared.domain.tools import SandboxTier
from shared.mcp.client import McpClient
from shared.mcp.commands import AllowedCommands
from shared.mcp.signed_in import AuthorizationServers
from shared.network.addresses import AllowedHosts
from shared.network.checked_http import NetworkRules
from shared.packages.environments import PackageEnvironments, package_environments
from shared.process.context import ProcessContext, measured, traced
from shared.process.importing import VERSION, without_collections
from shared.process.settings import Settings
from shared.redis.connection import CancelSignal
from shared.redis.event_log import EventLog
from shared.redis.keys import parse_job_id
from shared.redis.process_presence import ProcessPresence, ToolPresence, VersionPresence
from shared.redis.queue import InFlightLimits, RunQueue
from shared.runs.orphans import OrphanedRuns
from shared.runs.started_runs import RunTrees
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.code_agents import CodeAgentStore
from shared.sql.group_commit import GroupCommit
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.checkpoints import CheckpointStore
from shared.sql.runs.children import ChildStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from shared.sql.runs.steps import EventStore, StepStore
from worker.agents.code_body import CodeBody
from worker.agents.hosts import CodeAgents, HostPlan, plans
from worker.agents.models.endpoint import ModelEndpoint
from worker.bodies.agent_context import AgentBody, AgentServices
from worker.bodies.context_window import compact_thread
from worker.bodies.single_runs import generate, run_tool
from worker.bodies.step_loop import run_steps
from worker.health_port import health_port, health_sockets, readable_secrets
from worker.maintenance import PublishedAgents, Sweeper, maintenance
from worker.models.registry import Models, Prices
from worker.proxy.exchange import EgressDialer
from worker.queue.queue_worker import QueueWorker
from worker.run.execute_run import ActiveRuns, RunExecutor
from worker.run.progress import BudgetService
from worker.run.run_handle import Body, RunServices
from worker.run.run_traces import RunLog, RunMetrics, TracedRuns
from worker.run.settle import RunFinisher
from worker.runners.tool_runner import ToolRunners
from worker.tool_runners import servers_signed_in, tool_runners
from worker.tools.node_choice import find_node, sandbox_of
from worker.tools.outcomes import CallLimits, ToolSandbox
from worker.tools.sandbox_choice import BoundedSandbox, PlainProcess, SandboxChoice, plain_process
from worker.tools.scratch import ToolFolders, remove_left_folders, worker_folder
from worker.tools.zygote import ZygotePlan

# The part of the composition root that constructs the environment of tools: isolation, packages, folders, and the proxy
# for tools with network access.


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LEAST_CALLS = 8
"""The number of concurrent tool calls on a small machine."""

LOOK_FOR_LEFT_FOLDERS_S = 3600.0


class ToolParts(NamedTuple):
    """The environment of one worker's tools."""

    tier: SandboxTier
    runs_javascript: bool
    sandbox: ToolSandbox
    packages: PackageEnvironments


@asynccontextmanager
async def tool_parts(process: ProcessContext, network: NetworkRules) -> AsyncGenerator[ToolParts]:
    """Yields the isolation that works here, and the packages for the Python inside it.

    Raises `InvalidRequest` if no isolation works and the operator has not chosen to do without, or if packages cannot
    be stored in the folder of the settings.
    """
    settings = process.settings
    choice = SandboxChoice(settings.sandbox, settings.tool_user, settings.tool_python, settings.tool_scratch_mb)
    walls = await choice.best_isolation() or await plain_process(choice)
    tier, python = _described(walls)
    limits = CallLimits(
        memory_bytes=settings.tool_memory_mb << 20,
        processor_s=settings.tool_cpu_s,
        file_bytes=settings.tool_scratch_mb << 20,
    )
    node = await find_node(settings.tool_node, walls, limits)
    # In tier 1 the sandbox mounts the folder for the tools' user.
    other_user = walls.user is not None and tier is not SandboxTier.ONE
    packages = await package_environments(process, python, for_other_user=other_user)
    calls_at_once = settings.tool_processes or max(LEAST_CALLS, 2 * (os.cpu_count() or 1))
    async with AsyncExitStack() as stack:
        above = stack.enter_context(worker_folder())
        reach = _reach(settings, network, tier)
        if reach is not None and isinstance(walls, ZygotePlan):
            walls = with_certificates(walls, above, network)
        folders = ToolFolders(above, walls.user)
        sandbox = sandbox_of(walls, limits, node, grace_s=settings.tool_grace, folders=folders, reach=reach)
        bounded = BoundedSandbox(sandbox, calls_at_once=calls_at_once, spare_calls=settings.spare_tool_processes)
        stack.push_async_callback(bounded.aclose)
        await stack.enter_async_context(
            repeating(
                lambda: asyncio.to_thread(remove_left_folders),
                every_s=LOOK_FOR_LEFT_FOLDERS_S,
                name="remove folders of dead workers",
            )
        )
        yield ToolParts(tier, node is not None, bounded, packages)


def with_certificates(plan: ZygotePlan, above: Path, network: NetworkRules) -> ZygotePlan:
    """Returns the plan with a file of the trusted certificate authorities: the system's and the operator's."""
    trusted = network.tls().get_ca_certs(binary_form=True)
    path = above / "certificates.pem"
    path.write_text("".join(map(ssl.DER_cert_to_PEM_cert, trusted)))
    path.chmod(0o444)
    return msgspec.structs.replace(plan, certificates=str(path))


def _described(walls: ZygotePlan | PlainProcess) -> tuple[SandboxTier, str]:
    """Returns the tier, and the Python inside it. Logs both."""
    if isinstance(walls, PlainProcess):
        tier, danger = SandboxTier.PROCESS, f"tool code can do whatever {walls.acting_user} can"
        log.warning("tools_run_without_walls", sandbox=tier.value, danger=danger, user=walls.user)
        return tier, walls.python
    python = walls.interpreter.executable
    log.info("tools_run_behind_walls", sandbox=walls.tier.value, python=python, user=walls.user)
    return walls.tier, python


def _reach(settings: Settings, network: NetworkRules, tier: SandboxTier) -> EgressDialer | None:
    """Returns the dialer for tools with a network; None if such tools may connect to no host."""
    allowed = AllowedHosts.parse(settings.tool_network)
    if not allowed or tier is SandboxTier.PROCESS:
        return None
    if tier is SandboxTier.ONE:
        log.info("tools_may_connect", hosts=str(allowed))
    else:
        log.warning("tools_have_no_network", sandbox=tier.value, reason="HOLDFAST_TOOL_NETWORK needs tier 1")
    return EgressDialer(allowed, network.policy)


STARTS_AT_ONCE = 4


HAND_OVER_S = 10.0
"""Seconds for which runs may store their events during a hand-over before they are cancelled."""


@asynccontextmanager
async def working(process: ProcessContext, *, alone: bool = False) -> AsyncGenerator[QueueWorker]:
    """Runs a worker that claims runs for as long as the block lasts. At the end it hands them over.

    `alone`: no other process shares this Redis, so runs in flight continue at once.
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
        services = _run_services(process, logs)
        mcp = McpClient(network, AllowedCommands.parse(settings.mcp_commands))
        stack.push_async_callback(mcp.aclose)
        authorization = AuthorizationServers(network)
        stack.push_async_callback(authorization.aclose)
        signed_in = servers_signed_in(process, authorization)
        stack.push_async_callback(signed_in.aclose)
        active_runs = ActiveRuns(
            signal=CancelSignal(process.redis),
            runs=services.runs,
            clock=process.clock,
            look_every_s=settings.lease_s / 3,
        )
        trees = _trees(process, services, active_runs.signal)
        orphans = _orphans(process, services, trees)
        runners = tool_runners(process, tools.sandbox, tools.packages, embeddings, mcp, orphans, signed_in)
        code = await stack.enter_async_context(_code(process, models))
        code_agents, bodies = code[0], _bodies(process, models, runners, tools.sandbox, code)
        executor = _executor(process, name, active_runs, services, bodies, trees, code_agents)
        queue_worker = _queue_worker(process, name, executor, active_runs, code_agents)
        sweeper = _sweeper(process, services, orphans)
        if alone:
            await sweeper.restart()
        # Tasks that start here log the worker's name. The API of `holdfast dev` starts later, without it.
        with bound_contextvars(worker=name):
            enter = stack.enter_async_context
            await enter(active_runs.listening())
            await enter(_showing_abilities(process, tools, code_agents))
            await enter(_showing(process, name, queue_worker, tools, code_agents))
            await enter(tools.packages.tidied())
            await enter(maintenance(process, sweeper, orphans, embeddings, trees))
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


@asynccontextmanager
async def _showing_abilities(
    process: ProcessContext, tools: ToolParts, code_agents: CodeAgents
) -> AsyncGenerator[None]:
    """Publishes for the block what this worker can do."""
    process.metrics.worker.watch_bodies(code_agents.longest_silence_s)
    async with _showing_code_agents(process, code_agents), _showing_tools(process, tools):
        yield


def _showing_tools(process: ProcessContext, tools: ToolParts) -> AbstractAsyncContextManager[None]:
    """Publishes for the block the isolation of this worker's tools and their languages."""
    presence, lease_s = ToolPresence(process.redis), process.settings.lease_s
    return repeating(
        lambda: presence.show(tools.tier, runs_javascript=tools.runs_javascript, for_s=lease_s),
        every_s=lease_s / 3,
        name="show the tools' walls",
    )


def _showing_code_agents(process: ProcessContext, code_agents: CodeAgents) -> AbstractAsyncContextManager[None]:
    """Publishes for the block the agents of own code of this worker, for the API and the other workers."""
    showing = PublishedAgents(
        CodeAgentStore(process.database),
        VersionPresence(process.redis),
        process.clock,
        code_agents.shown,
        process.settings.lease_s,
    )
    every_s, name = process.settings.lease_s / 3, "show the agents of own code"
    # Clients may name them as soon as the server says that it is ready.
    return repeating(showing.show, every_s=every_s, name=name, after_first=True)


def _showing(
    process: ProcessContext, name: str, queue_worker: QueueWorker, tools: ToolParts, code_agents: CodeAgents
) -> AbstractAsyncContextManager[None]:
    """Shows this worker in the deployment's overview within the block."""
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
            code_agents=code_agents.shown,
        )

    return ProcessPresence(process.redis).showing(state)


Logs = tuple[EventLog, CheckpointStore]


@asynccontextmanager
async def _logs(process: ProcessContext) -> AsyncGenerator[Logs]:
    """Yields the logs of this worker's runs. The ready events of all runs are written together, to Redis or, embedded,
    to SQLite."""
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


def _run_services(process: ProcessContext, logs: Logs) -> RunServices:
    event_log, checkpoints = logs
    database, settings = process.database, process.settings
    patience = process.patience(settings.database_patience)
    return RunServices(
        messages=MessageStore(database),
        runs=process.patience().applied_to(RunStore(database), RunStore.claim, RunStore.take_over),
        checkpoints=checkpoints,
        settlements=patience.applied_to(SettlementStore(database, process.ids), SettlementStore.settle),
        events=EventStore(database),
        inbox=InboxStore(database),
        children=process.patience().applied_to(ChildStore(database), ChildStore.wake),
        event_log=event_log,
        budgets=BudgetService(
            budgets=settings.budgets,
            price_of=Prices.read(settings.prices_file).nano_usd,
            store=BudgetStore(database),
            clock=process.clock,
        ),
        clock=process.clock,
        ids=process.ids,
        stores_first=process.is_embedded,
        patience_s=settings.database_patience,
        observers=[RunMetrics(process.metrics.worker), TracedRuns(process.tracer), RunLog()],
    )


@asynccontextmanager
async def _code(process: ProcessContext, models: Models) -> AsyncGenerator[tuple[CodeAgents, ModelEndpoint]]:
    """Yields the agents of own code, and the endpoint at which they call this worker's models."""
    with worker_folder() as folder:
        async with (
            CodeAgents.running(_host_plans(process), process.settings.agents_per_process) as agents,
            ModelEndpoint.serving(models, str(folder / "models")) as endpoint,
        ):
            yield agents, endpoint


def _host_plans(process: ProcessContext) -> list[HostPlan]:
    settings = process.settings
    modules = [name.strip() for name in settings.agents.split(",") if name.strip()]
    return plans(
        modules,
        settings.agents_python,
        settings.agents_env_file,
        process.environment,
        settings.agents_models,
        settings.agents_max_mb,
    )


def _bodies(
    process: ProcessContext,
    models: Models,
    runners: ToolRunners,
    sandbox: ToolSandbox,
    code: tuple[CodeAgents, ModelEndpoint],
) -> dict[RunKind, Body]:
    """Returns the body of each kind of run."""
    database = process.database
    agents = AgentServices(
        models=models,
        sandbox=sandbox,
        runners=runners,
        agents=AgentStore(database),
        secret_keys=process.secret_keys,
        approvals=ApprovalStore(database),
        steps=StepStore(database),
    )
    return {
        "message": AgentBody(agents, run_steps),
        "code": CodeBody(code[0], agents, process.settings.agents_grace_s, code[1]),
        "compaction": AgentBody(agents, compact_thread),
        "generation": AgentBody(agents, generate),
        "tool": AgentBody(agents, run_tool),
    }


def _executor(
    process: ProcessContext,
    name: str,
    active_runs: ActiveRuns,
    services: RunServices,
    bodies: Mapping[RunKind, Body],
    trees: RunTrees,
    code_agents: CodeAgents,
) -> RunExecutor:
    return RunExecutor(
        worker=name,
        services=services,
        bodies=bodies,
        active_runs=active_runs,
        finisher=RunFinisher(services=services, queue=RunQueue(process.redis), on_change=trees.changed),
        limits=AttemptLimits.of(process.settings.max_attempts),
        run_timeout_s=process.settings.run_timeout,
        start_slots=asyncio.Semaphore(STARTS_AT_ONCE),
        code=OwnVersions(code_agents.versions),
        taker_of=VersionPresence(process.redis).taker_of,
    )


def _queue_worker(
    process: ProcessContext, name: str, executor: RunExecutor, active_runs: ActiveRuns, code_agents: CodeAgents
) -> QueueWorker:
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
        code_agents=code_agents.versions,
    )


def _trees(process: ProcessContext, services: RunServices, signal: CancelSignal) -> RunTrees:
    queue = RunQueue(process.redis)
    return RunTrees(children=services.children, runs=services.runs, queue=queue, signal=signal, clock=process.clock)


def _orphans(process: ProcessContext, services: RunServices, trees: RunTrees) -> OrphanedRuns:
    settlements = SettlementStore(process.database, process.ids)
    return OrphanedRuns(
        runs=services.runs,
        agents=AgentStore(process.database),
        messages=services.messages,
        checkpoints=services.checkpoints,
        settlements=process.patience().applied_to(settlements, SettlementStore.settle),
        events=services.events,
        event_log=services.event_log,
        queue=RunQueue(process.redis),
        clock=process.clock,
        ids=process.ids,
        tracer=process.tracer,
        stores_first=process.is_embedded,
        on_end=trees.changed,
    )


def _sweeper(process: ProcessContext, services: RunServices, orphans: OrphanedRuns) -> Sweeper:
    return Sweeper(
        listing=RunListing(process.database),
        runs=services.runs,
        queue=RunQueue(process.redis),
        orphans=orphans,
        clock=process.clock,
        quiet_s=max(2.0, process.settings.lease_s),
        patience_s=process.settings.lease_s / 2,
    )
