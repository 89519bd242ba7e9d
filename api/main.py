"""The API's composition root, the only place that constructs the parts of the API."""

import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from random import random
from secrets import token_bytes, token_hex
from typing import NamedTuple

import structlog
from fastapi import FastAPI

from api.access.accepted_keys import FRESH_S, AcceptedKeys, FailedKeys, KeyIssuer, StreamTokens
from api.access.authentication import Access, PageTokens, project_of_request
from api.access.callers import ConfiguredKeys
from api.access.route_rules import AgentReach
from api.admission import Admission, CallerQuotas
from api.agent_answers import AgentAnswers, MessageAnswers
from api.application import create_app
from api.approvals import ApprovalDecisions
from api.callbacks.delivery import CallbackDelivery, DeliveryPlaces
from api.callbacks.endpoints import WebhookEndpoints
from api.callbacks.outboxes import CallbackOutbox, EventShape, WebhookOutbox, signing_key
from api.dialects import Kernel, dialect_services
from api.event_stream import ServerEnd
from api.input_limits import InputLimits
from api.letta.runs import wire_callback
from api.offered_models import CodeAgentNames
from api.openai.response_object import DIALECT as RESPONSES
from api.openai.response_object import own_id_of
from api.openai.webhook_endpoints import response_event
from api.operations import operations_service, showing_process
from api.request_log import networks_of
from api.runs.cancel import CancelService, RunCanceller
from api.runs.reader import LogEnds, RunReader, RunWaiter
from api.runs.single_runs import CompactionService, GenerationService, ToolRunService
from api.runs.streaming import StreamService
from api.runs.submission import QueuedRuns, SubmissionService, SubmissionTraces
from api.services import McpParts, Services, mcp_parts, mcp_services, plain_stores
from shared.archival.archival_memory import ArchivalMemory, EmbeddingClient
from shared.concurrency import repeating
from shared.domain.errors import Unavailable
from shared.network.checked_http import CallersHttp, NetworkRules
from shared.network.server_models import ServerModels
from shared.packages.environments import PackageEnvironments, package_environments
from shared.process.context import ProcessContext, measured, traced
from shared.process.importing import VERSION
from shared.process.service_answers import Readiness, ServiceAnswers
from shared.redis.connection import CancelSignal, try_writing
from shared.redis.event_log import EventFeed, EventLog
from shared.redis.process_presence import ProcessPresence
from shared.redis.queue import IntervalLock, Quotas, RunQueue, WorkerPresence
from shared.runs.orphans import ApprovalService, OrphanedRuns
from shared.runs.started_runs import RunTrees
from shared.sql.access.api_keys import ApiKeyStore, OwnerStore
from shared.sql.access.audit import AuditLog
from shared.sql.archival.passages import PassageSearchStore, PassageStore, VectorStore
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.code_agents import CodeAgentStore
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.definitions.imported_agents import ImportedAgentStore
from shared.sql.definitions.tools import ToolStore
from shared.sql.history.message_lists import MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.migrate import is_current
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.callbacks import CallbackStore
from shared.sql.runs.checkpoints import CheckpointStore, ToolRunStore
from shared.sql.runs.children import ChildStore
from shared.sql.runs.decisions import DecisionStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from shared.sql.runs.steps import EventStore
from shared.sql.runs.webhooks import WebhookDeliveryStore, WebhookEndpointStore

# The part of the composition root that constructs the services for runs: reading, submitting, deciding, cancelling.


def run_reader(
    runs: RunStore, events: EventStore, event_log: EventLog, feed: EventFeed, unscoped: ProcessContext
) -> RunReader:
    """Reads logs. `unscoped` is the process with a database that shows all projects."""
    # One query serves the silent readers of all projects.
    log_ends = LogEnds(RunStore(unscoped.database))
    on_gap = unscoped.metrics.api.reader_gaps.inc
    return RunReader(runs=runs, events=events, event_log=event_log, feed=feed, log_ends=log_ends, on_gap=on_gap)


def submission_service(
    process: ProcessContext, unscoped: ProcessContext, canceller: RunCanceller, decisions: ApprovalService
) -> SubmissionService:
    """Accepts submissions."""
    listing = RunListing(process.database)
    return SubmissionService(
        runs=canceller.runs,
        listing=listing,
        queued_runs=QueuedRuns(canceller.runs, process.settings.limits, process.clock),
        max_steps=process.settings.max_steps,
        input_limits=InputLimits(process.settings.max_message_chars, process.settings.max_tool_source_chars),
        approvals=decisions.approvals,
        decisions=decisions,
        inbox=process.patience().applied_to(InboxStore(process.database), InboxStore.inject),
        settlements=canceller.orphans.settlements,
        queue=canceller.queue,
        event_log=canceller.event_log,
        canceller=canceller,
        code_agents=CodeAgentNames(CodeAgentStore(unscoped.database), ProcessPresence(unscoped.redis)),
        traces=SubmissionTraces(tracer=process.tracer, clock=process.clock),
        clock=process.clock,
        ids=process.ids,
        on_submitted=process.metrics.api.run_submitted,
    )


def tool_run_service(
    process: ProcessContext, submissions: SubmissionService, waiter: RunWaiter, agents: AgentEditor
) -> ToolRunService:
    """Calls single tools."""
    return ToolRunService(
        submissions=submissions,
        waiter=waiter,
        agents=agents,
        tool_runs=ToolRunStore(process.database),
        audit=AuditLog(process.database),
        clock=process.clock,
        ids=process.ids,
    )


def run_canceller(process: ProcessContext, orphans: OrphanedRuns, feed: EventFeed) -> RunCanceller:
    """Cancels runs."""
    return RunCanceller(
        runs=orphans.runs,
        orphans=orphans,
        children=ChildStore(process.database),
        cancel_signal=CancelSignal(process.redis),
        queue=orphans.queue,
        feed=feed,
        event_log=orphans.event_log,
        clock=process.clock,
        wait_s=process.settings.cancel_wait_s,
        lease_s=process.settings.lease_s,
        on_cancel=process.metrics.api.cancel_asked,
    )


def approval_service(process: ProcessContext, orphans: OrphanedRuns, approvals: ApprovalStore) -> ApprovalService:
    """Decides waiting calls."""
    decision_store = DecisionStore(process.database, process.ids)
    return ApprovalService(
        approvals=approvals,
        decisions=process.patience().applied_to(decision_store, DecisionStore.decide, DecisionStore.decide_all),
        runs=orphans.runs,
        orphans=orphans,
        queue=orphans.queue,
        clock=process.clock,
    )


def approval_decisions(
    process: ProcessContext, decisions: ApprovalService, tools: ToolStore, traces: SubmissionTraces
) -> ApprovalDecisions:
    """Checks and stores decisions."""
    return ApprovalDecisions(
        approvals=decisions.approvals,
        tools=tools,
        approval_service=decisions,
        traces=traces,
        clock=decisions.clock,
        on_continued=partial(process.metrics.api.run_submitted, "decision"),
    )


def orphaned_runs(process: ProcessContext, run_store: RunStore, event_log: EventLog, queue: RunQueue) -> OrphanedRuns:
    """Ends runs that no worker holds."""
    settlements = SettlementStore(process.database, process.ids)
    trees = RunTrees(
        children=process.patience().applied_to(ChildStore(process.database), ChildStore.wake),
        runs=run_store,
        queue=queue,
        signal=CancelSignal(process.redis),
        clock=process.clock,
    )
    return OrphanedRuns(
        runs=run_store,
        agents=AgentStore(process.database),
        messages=MessageStore(process.database),
        checkpoints=CheckpointStore(process.database),
        settlements=process.patience().applied_to(settlements, SettlementStore.settle, SettlementStore.store_refused),
        events=EventStore(process.database),
        event_log=event_log,
        queue=queue,
        clock=process.clock,
        ids=process.ids,
        tracer=process.tracer,
        stores_first=process.is_embedded,
        on_end=trees.changed,
    )


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


EVENT_SHAPES: Mapping[str, EventShape] = {RESPONSES: response_event}


class _Clients(NamedTuple):
    """The API's clients of other servers: Redis for events, webhook receivers, model servers, MCP servers, and the
    package index."""

    feed: EventFeed
    http: CallersHttp
    embeddings: EmbeddingClient
    lists: ServerModels
    mcp: McpParts
    packages: PackageEnvironments


@asynccontextmanager
async def serving(process: ProcessContext) -> AsyncGenerator[FastAPI]:
    """The application. Its event feed runs and it delivers callbacks for as long as the block lasts."""
    feed, settings = EventFeed(process.log_servers), process.settings
    network = NetworkRules.of(
        settings.reachable_networks, settings.ca_file, allow_private=settings.callback_allow_private
    )
    quotas = CallerQuotas(Quotas(process.redis), settings.limits, process.clock, process.ids)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(measured(process, "api"))
        name = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        process = await stack.enter_async_context(traced(process, service="holdfast-api", instance=name))
        http = CallersHttp(network)
        stack.push_async_callback(http.aclose)
        embeddings = EmbeddingClient(process.environment, network)
        stack.push_async_callback(embeddings.aclose)
        server_models = ServerModels(process.environment, network, process.clock)
        stack.push_async_callback(server_models.aclose)
        # The workers reach MCP servers by the same rules. The restrictions on callbacks do not apply.
        reachable = NetworkRules.of(settings.reachable_networks, settings.ca_file)
        callers = await _for_callers(process)
        mcp = await stack.enter_async_context(mcp_parts(callers, reachable))
        await stack.enter_async_context(feed.running())
        await stack.enter_async_context(quotas.counting())
        await stack.enter_async_context(_callbacks(process, http).delivering())
        packages = await stack.enter_async_context(_packages(process))
        await stack.enter_async_context(showing_process(process, name, quotas))
        process.metrics.api.watch_readers(lambda: quotas.open_streams)
        clients = _Clients(feed, http, embeddings, server_models, mcp, packages)
        services = _services(callers, process, clients, quotas)
        await stack.enter_async_context(services.streaming.reader.log_ends.watching())
        await stack.enter_async_context(services.dialects.thread_streams.watches.watching())
        await stack.enter_async_context(services.dialects.run_changes.watching())
        await stack.enter_async_context(services.dialects.code_agents.watching())
        keys, ending = services.access.keys, services.streaming.ending
        of_ended_keys = partial(ending.of_ended_keys, keys.still_hold)
        await stack.enter_async_context(repeating(of_ended_keys, every_s=FRESH_S, name="streams of ended keys"))
        log.info("api_started", version=VERSION)
        has_keys = await _is_true(services.access.keys.are_required(), unless_away=True)
        yield create_app(services, admission=_admission(process), has_keys=has_keys)


@asynccontextmanager
async def _packages(process: ProcessContext) -> AsyncGenerator[PackageEnvironments]:
    """The packages of tools. The API resolves them itself, so that the author of a tool sees errors at once. Deletes
    unused packages for as long as the block lasts."""
    settings = process.settings
    packages = await package_environments(process, settings.tool_python if settings.package_index else "")
    async with packages.tidied():
        yield packages


async def _is_true(answer: Awaitable[bool], *, unless_away: bool) -> bool:
    """The database's answer; the safe assumption if the database is away."""
    try:
        return await answer
    except Unavailable:
        return unless_away


async def _for_callers(process: ProcessContext) -> ProcessContext:
    """The same process, with a database that limits each request to the rows of its caller's project."""
    wants_policies = process.settings.row_level_security
    can_bind = wants_policies and not process.database.is_sqlite
    if can_bind and await _is_true(process.database.passes_policies(), unless_away=False):
        log.warning("row_level_security_is_void", fix="give Holdfast a role that is no superuser and lacks BYPASSRLS")
    return replace(process, database=process.database.scoped_to(project_of_request, policies=wants_policies))


def _callbacks(process: ProcessContext, http: CallersHttp) -> CallbackDelivery:
    callbacks = CallbackOutbox(
        store=CallbackStore(process.database),
        messages=MessageStore(process.database),
        approvals=ApprovalStore(process.database),
        shapes={"letta": wire_callback},
        key=signing_key(process.settings.callback_secret.get_secret_value()),
    )
    webhooks = WebhookOutbox(
        store=WebhookDeliveryStore(process.database), shapes=EVENT_SHAPES, secret_keys=process.secret_keys
    )
    return CallbackDelivery(
        outboxes=[callbacks, webhooks],
        runs=RunStore(process.database),
        http=http,
        clock=process.clock,
        jitter=random,
        intervals=IntervalLock(process.redis),
        places=DeliveryPlaces(process.clock),
        on_attempt=process.metrics.api.callback_attempted,
        tracer=process.tracer,
    )


def _webhooks(process: ProcessContext, http: CallersHttp) -> WebhookEndpoints:
    return WebhookEndpoints(
        store=WebhookEndpointStore(process.database),
        shapes=EVENT_SHAPES,
        secret_keys=process.secret_keys,
        http=http,
        clock=process.clock,
        ids=process.ids,
        random=token_bytes,
    )


def _services(process: ProcessContext, unscoped: ProcessContext, clients: _Clients, quotas: CallerQuotas) -> Services:
    """`process` acts for callers. `unscoped` is the same process for work across all projects."""
    settings, database, clock, ids = process.settings, process.database, process.clock, process.ids
    run_store, listing, approvals = _run_store(process), RunListing(database), ApprovalStore(database)
    agent_store, message_store = AgentEditor(database, process.secret_keys), MessageStore(database)
    conversation_store, tool_store, access = ConversationStore(database), ToolStore(database), _access(unscoped)
    event_log, queue = _event_log(process), RunQueue(process.redis)
    orphans = orphaned_runs(process, run_store, event_log, queue)
    canceller, decisions = run_canceller(process, orphans, clients.feed), approval_service(process, orphans, approvals)
    reader = run_reader(run_store, EventStore(database), event_log, clients.feed, unscoped)
    ending, submissions = ServerEnd(), submission_service(process, unscoped, canceller, decisions)
    streaming = StreamService(
        reader=reader, clock=clock, keepalive_s=settings.keepalive_s, quotas=quotas, ending=ending
    )
    waiter = RunWaiter(reader=reader, runs=run_store, server_ends=ending)
    cancels = CancelService(runs=run_store, listing=listing, canceller=canceller, clock=clock)
    dialects = dialect_services(Kernel(process, unscoped, submissions, streaming, waiter, cancels))
    return Services(
        settings=settings,
        clock=clock,
        ids=ids,
        access=access,
        issuer=KeyIssuer(keys=ApiKeyStore(database), clock=clock, ids=ids, random=token_bytes),
        quotas=quotas,
        environment=process.environment,
        server_models=clients.lists,
        secret_keys=process.secret_keys,
        agents=agent_store,
        imported_agents=ImportedAgentStore(database, process.secret_keys),
        tools=tool_store,
        packages=clients.packages,
        base_tools=dialects.sleepers.base_tools,
        archival_memory=_archival_memory(process, clients.embeddings),
        conversations=conversation_store,
        messages=message_store,
        runs=run_store,
        listing=listing,
        approvals=approvals,
        decisions=approval_decisions(process, decisions, tool_store, submissions.traces),
        dialects=dialects,
        stores=plain_stores(database),
        webhooks=_webhooks(process, clients.http),
        mcp_servers=mcp_services(process, unscoped, clients.mcp),
        compacting=CompactionService(
            submissions=submissions, waiter=waiter, messages=message_store, clock=clock, ids=ids
        ),
        tool_runs=tool_run_service(process, submissions, waiter, agent_store),
        generation=GenerationService(submissions=submissions, waiter=waiter, clock=clock, ids=ids),
        streaming=streaming,
        cancels=cancels,
        readiness=_readiness(unscoped),
        agent_answers=_agent_answers(process, agent_store, approvals, message_store, access.audit),
        message_answers=MessageAnswers(lists=MessageLists(database), runs=run_store),
        input_limits=submissions.input_limits,
        operations=operations_service(process, unscoped, queue, event_log),
    )


def _run_store(process: ProcessContext) -> RunStore:
    run_store = RunStore(process.database)
    return process.patience().applied_to(run_store, RunStore.submit, RunStore.request_cancel, RunStore.take_over)


def _agent_answers(
    process: ProcessContext, editor: AgentEditor, approvals: ApprovalStore, messages: MessageStore, audit: AuditLog
) -> AgentAnswers:
    return AgentAnswers(
        editor=editor,
        environment=process.environment,
        audit=audit,
        secret_keys=process.secret_keys,
        approvals=approvals,
        messages=messages,
    )


def _admission(process: ProcessContext) -> Admission:
    settings, metrics = process.settings, process.metrics.api
    admission = Admission(
        # Readers and cancels keep the other half of the connections.
        at_once=min(settings.submissions_at_once, max(1, settings.database_connections // 2)),
        most_waiting=settings.waiting_submissions,
        wait_s=settings.submission_wait,
        on_refused=metrics.submission_refused,
    )
    metrics.watch_submissions(lambda: admission.waiting)
    return admission


def _access(process: ProcessContext) -> Access:
    configured = ConfiguredKeys.parse(process.settings.api_keys.get_secret_value(), process.settings.api_keys_file)
    for warning in configured.warnings():
        log.warning("api_key_may_be_guessed", reason=warning)
    keys = AcceptedKeys(configured, ApiKeyStore(process.database), process.clock)
    return Access(
        keys=keys,
        tokens=StreamTokens(keys),
        page_tokens=PageTokens(keys),
        failed=FailedKeys(process.clock),
        reach=AgentReach(OwnerStore(process.database), own_id_of),
        audit=AuditLog(process.database),
        clock=process.clock,
        ids=process.ids,
        proxies=networks_of(process.settings.trusted_proxies),
    )


def _archival_memory(process: ProcessContext, embeddings: EmbeddingClient) -> ArchivalMemory:
    return ArchivalMemory(
        passages=PassageStore(process.database),
        vectors=VectorStore(process.database),
        finder=PassageSearchStore(process.database),
        client=embeddings,
        clock=process.clock,
        ids=process.ids,
    )


def _event_log(process: ProcessContext) -> EventLog:
    return EventLog(process.redis, ttl_s=process.settings.stream_ttl_s, servers=process.log_servers)


def _readiness(process: ProcessContext) -> Readiness:
    database, writes = process.database, partial(try_writing, process.redis)
    return Readiness(
        itself=ServiceAnswers({"database": database.greet}, clock=process.clock),
        everything=ServiceAnswers(
            {"database": database.greet, "database_writes": database.try_writing}
            | {"redis": process.has_redis, "redis_writes": writes},
            {"migrations": partial(is_current, database), "worker": WorkerPresence(process.redis).is_any_alive},
            clock=process.clock,
        ),
    )
