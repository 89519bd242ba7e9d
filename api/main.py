"""The API's composition root: the only place that constructs what it consists of."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import random

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from api.answer_headers import FinalAnswers, UnusedInputWarnings
from api.approvals import ApprovalDecisions
from api.auth import ApiKeys
from api.base_tools import BaseToolShelf
from api.callbacks.delivery import CallbackClient, CallbackDelivery, callback_client
from api.callbacks.signature import signing_key
from api.errors import SHOULD_RETRY, add_error_answers
from api.letta.models import OfferedModels
from api.middleware import BrowserGuard, LettaPaths, OpenAIErrors, RequestBodies, ShutdownAnswers
from api.routes import (
    absent_lists,
    agent_archives,
    agent_blocks,
    agent_files,
    agent_tools,
    agents,
    approvals,
    archives,
    blocks,
    chat,
    conversation_contexts,
    conversation_messages,
    conversations,
    health,
    messages,
    models,
    passages,
    project_messages,
    runs,
    steps,
    tags,
    tools,
)
from api.runs.cancel import CancelService, RunCanceller
from api.runs.chat import ChatService
from api.runs.compaction import CompactionService
from api.runs.reader import LogEnds, RunReader
from api.runs.streaming import AnswerService, StreamService
from api.runs.submission import SubmissionService
from api.runs.threads import AgentThreads
from api.runs.tool_runs import ToolRunService
from api.runs.waiting import RunWaiter
from api.services import Services
from api.stream_tokens import StreamTokens
from shared.archival.archival_memory import ArchivalMemory
from shared.archival.embedding_client import EmbeddingClient
from shared.process.context import ProcessContext
from shared.process.version import VERSION
from shared.redis.cancel_signal import CancelSignal
from shared.redis.connection import is_reachable
from shared.redis.event_log import EventFeed, EventLog
from shared.redis.queue import IntervalLock, RunQueue, WorkerPresence
from shared.runs.approvals import ApprovalService
from shared.runs.unowned import UnownedRuns
from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassageStore
from shared.sql.archival.search import PassageSearchStore
from shared.sql.archival.vectors import VectorStore
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.blocks import BlockStore
from shared.sql.definitions.brought_agents import BroughtAgentStore
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.definitions.tags import TagStore
from shared.sql.definitions.tools import ToolStore
from shared.sql.history.message_lists import MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.migrate import is_current
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.callbacks import CallbackStore
from shared.sql.runs.checkpoints import CheckpointStore, EventStore
from shared.sql.runs.decisions import DecisionStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from shared.sql.runs.steps import StepStore
from shared.sql.runs.tool_runs import ToolRunStore

ROUTES = (
    health, agents, agent_files, agent_tools, agent_blocks, agent_archives, tools, blocks, archives, passages, tags,
    models, conversations, conversation_messages, conversation_contexts, messages, project_messages, chat, runs, steps,
    approvals, absent_lists,
)  # fmt: skip


def create_app(services: Services) -> FastAPI:
    """The API over these services. Whoever made the services closes them."""
    app = FastAPI(title="Holdfast", version=VERSION, redirect_slashes=False)
    app.state.services = services
    for routes in ROUTES:
        # As they are. `include_router` would work every route out anew for this app, which takes a tenth of a second.
        app.router.routes.extend(routes.router.routes)
    add_error_answers(app)
    settings, keys = services.settings, services.keys
    origins = settings.cors_origins.replace(",", " ").split()
    # The last one that is added is the first one that a request meets.
    app.add_middleware(UnusedInputWarnings)
    app.add_middleware(RequestBodies, keys=keys, max_bytes=settings.max_body_bytes, timeout_s=settings.request_timeout)
    app.add_middleware(LettaPaths, lists=absent_lists.router.routes)
    if not keys.are_required:
        app.add_middleware(BrowserGuard, names=settings.allowed_hosts.replace(",", " ").split(), origins=origins)
    app.add_middleware(FinalAnswers)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "Warning", SHOULD_RETRY],
        )
    app.add_middleware(ShutdownAnswers)
    app.add_middleware(OpenAIErrors)
    return app


@asynccontextmanager
async def serving(process: ProcessContext) -> AsyncGenerator[FastAPI]:
    """The application, with its feed running and callbacks delivered for as long as the block lasts."""
    feed = EventFeed(process.redis)
    async with feed.running(), callback_client() as client, _callbacks(process, client).delivering():
        embeddings = EmbeddingClient(process.environment)
        try:
            yield create_app(_services(process, feed, embeddings))
        finally:
            await embeddings.aclose()


def _callbacks(process: ProcessContext, client: CallbackClient) -> CallbackDelivery:
    return CallbackDelivery(
        outbox=CallbackStore(process.database),
        runs=RunStore(process.database),
        messages=MessageStore(process.database),
        client=client,
        clock=process.clock,
        jitter=random,
        key=signing_key(process.settings.callback_secret.get_secret_value()),
        allow_private=process.settings.callback_allow_private,
        intervals=IntervalLock(process.redis),
    )


def _services(process: ProcessContext, feed: EventFeed, embeddings: EmbeddingClient) -> Services:
    settings, database, clock, ids = process.settings, process.database, process.clock, process.ids
    run_store, listing, approval_store = RunStore(database), RunListing(database), ApprovalStore(database)
    agent_store, conversation_store, message_store = (
        AgentEditor(database), ConversationStore(database), MessageStore(database)
    )  # fmt: skip
    tool_store = ToolStore(database)
    event_log, queue = EventLog(process.redis, ttl_s=settings.stream_ttl_s), RunQueue(process.redis)
    unowned = _unowned(process, run_store, event_log, queue)
    canceller = _canceller(process, unowned, feed)
    decisions = _approval_service(process, unowned, approval_store)
    reader = RunReader(
        runs=run_store, events=EventStore(database), event_log=event_log, feed=feed, log_ends=LogEnds(run_store)
    )
    ending = asyncio.Event()
    streaming = StreamService(reader=reader, clock=clock, keepalive_s=settings.keepalive_s, ending=ending)
    waiter = RunWaiter(reader=reader, runs=run_store, server_ends=ending)
    submissions = _submissions(process, canceller, decisions)
    keys = ApiKeys.parse(settings.api_keys.get_secret_value())

    return Services(
        settings=settings,
        clock=clock,
        ids=ids,
        keys=keys,
        stream_tokens=StreamTokens(keys),
        environment=process.environment,
        models=OfferedModels(process.environment, settings.builtin_models, settings.default_model),
        agents=agent_store,
        brought_agents=BroughtAgentStore(database),
        tools=tool_store,
        base_tools=BaseToolShelf(tools=tool_store, clock=clock, ids=ids),
        blocks=BlockStore(database),
        tags=TagStore(database),
        archives=ArchiveStore(database),
        passages=PassageStore(database),
        archival_memory=_archival_memory(process, embeddings),
        conversations=conversation_store,
        messages=message_store,
        message_lists=MessageLists(database),
        runs=run_store,
        listing=listing,
        steps=StepStore(database),
        approvals=approval_store,
        decisions=ApprovalDecisions(approvals=approval_store, tools=tool_store, approval_service=decisions),
        inbox=InboxStore(database),
        threads=AgentThreads(agents=agent_store, conversations=conversation_store),
        sending=AnswerService(submissions=submissions, streaming=streaming, waiter=waiter, messages=message_store),
        chat=ChatService(submissions=submissions, reader=reader, keepalive_s=settings.keepalive_s, ending=ending),
        compacting=CompactionService(
            submissions=submissions, waiter=waiter, messages=message_store, clock=clock, ids=ids
        ),
        tool_runs=_tool_runs(process, submissions, waiter, agent_store),
        streaming=streaming,
        cancels=CancelService(runs=run_store, listing=listing, canceller=canceller, clock=clock),
        readiness=_readiness(process),
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


def _submissions(process: ProcessContext, canceller: RunCanceller, decisions: ApprovalService) -> SubmissionService:
    return SubmissionService(
        runs=canceller.runs,
        listing=RunListing(process.database),
        approvals=decisions.approvals,
        decisions=decisions,
        inbox=InboxStore(process.database),
        settlements=canceller.unowned.settlements,
        queue=canceller.queue,
        canceller=canceller,
        clock=process.clock,
        ids=process.ids,
    )


def _tool_runs(
    process: ProcessContext, submissions: SubmissionService, waiter: RunWaiter, agents: AgentEditor
) -> ToolRunService:
    return ToolRunService(
        submissions=submissions,
        waiter=waiter,
        agents=agents,
        tool_runs=ToolRunStore(process.database),
        clock=process.clock,
        ids=process.ids,
    )


def _readiness(process: ProcessContext) -> Callable[[], Awaitable[Mapping[str, bool]]]:
    presence = WorkerPresence(process.redis)

    async def readiness() -> Mapping[str, bool]:
        is_there = await process.database.is_reachable()
        return {
            "database": is_there,
            "migrations": is_there and await is_current(process.database),
            "redis": await is_reachable(process.redis),
            "worker": await presence.is_any_alive(),
        }

    return readiness


def _canceller(process: ProcessContext, unowned: UnownedRuns, feed: EventFeed) -> RunCanceller:
    return RunCanceller(
        runs=unowned.runs,
        unowned=unowned,
        cancel_signal=CancelSignal(process.redis),
        queue=unowned.queue,
        feed=feed,
        event_log=unowned.event_log,
        clock=process.clock,
        wait_s=process.settings.cancel_wait_s,
        lease_s=process.settings.lease_s,
    )


def _approval_service(process: ProcessContext, unowned: UnownedRuns, approvals: ApprovalStore) -> ApprovalService:
    return ApprovalService(
        approvals=approvals,
        decisions=DecisionStore(process.database, process.ids),
        runs=unowned.runs,
        unowned=unowned,
        queue=unowned.queue,
        clock=process.clock,
    )


def _unowned(process: ProcessContext, run_store: RunStore, event_log: EventLog, queue: RunQueue) -> UnownedRuns:
    return UnownedRuns(
        runs=run_store,
        checkpoints=CheckpointStore(process.database),
        settlements=SettlementStore(process.database, process.ids),
        events=EventStore(process.database),
        event_log=event_log,
        queue=queue,
        clock=process.clock,
        ids=process.ids,
    )
