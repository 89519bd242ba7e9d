"""The API's composition root: the only place that constructs what it consists of."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import random

from fastapi import FastAPI

from api.approvals import ApprovalDecisions
from api.auth import ApiKeys
from api.callbacks.delivery import CallbackClient, CallbackDelivery, callback_client
from api.callbacks.signature import signing_key
from api.errors import add_error_answers
from api.middleware import BrowserGuard, LettaPaths, ShutdownAnswers
from api.request_body import RequestBodies
from api.routes import (
    agent_blocks,
    agent_tools,
    agents,
    approvals,
    blocks,
    conversation_contexts,
    conversation_messages,
    conversations,
    health,
    messages,
    models,
    runs,
    steps,
    tools,
)
from api.runs.answers import AnswerService
from api.runs.cancel import CancelService, RunCanceller
from api.runs.compaction import CompactionService
from api.runs.reader import LogEnds, RunReader
from api.runs.streaming import StreamService
from api.runs.submission import SubmissionService
from api.runs.threads import AgentThreads
from api.services import Services
from shared.process.context import ProcessContext
from shared.process.version import VERSION
from shared.redis.cancel_signal import CancelSignal
from shared.redis.connection import is_reachable
from shared.redis.event_feed import EventFeed
from shared.redis.event_log import EventLog
from shared.redis.queue import IntervalLock, RunQueue, WorkerPresence
from shared.runs.approvals import ApprovalService
from shared.runs.unowned import UnownedRuns
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.blocks import BlockStore
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.definitions.tools import ToolStore
from shared.sql.history.messages import MessageStore
from shared.sql.migrate import is_current
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.callbacks import CallbackStore
from shared.sql.runs.checkpoints import CheckpointStore
from shared.sql.runs.decisions import DecisionStore
from shared.sql.runs.events import EventStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from shared.sql.runs.steps import StepStore

ROUTES = (
    health, agents, agent_tools, agent_blocks, tools, blocks, models, conversations, conversation_messages,
    conversation_contexts, messages, runs, steps, approvals,
)  # fmt: skip


def create_app(services: Services) -> FastAPI:
    """The API over these services. Whoever made the services closes them."""
    app = FastAPI(title="Holdfast", version=VERSION, redirect_slashes=False)
    app.state.services = services
    for routes in ROUTES:
        app.include_router(routes.router)
    add_error_answers(app)
    settings, keys = services.settings, services.keys
    # The last one that is added is the first one that a request meets.
    app.add_middleware(RequestBodies, keys=keys, max_bytes=settings.max_body_bytes, timeout_s=settings.request_timeout)
    app.add_middleware(LettaPaths)
    if not keys.are_required:
        app.add_middleware(BrowserGuard, names=settings.allowed_hosts.replace(",", " ").split())
    app.add_middleware(ShutdownAnswers)
    return app


@asynccontextmanager
async def serving(parts: ProcessContext) -> AsyncGenerator[FastAPI]:
    """The application, with its feed running and callbacks delivered for as long as the block lasts."""
    feed = EventFeed(parts.redis)
    async with feed.running(), callback_client() as client, _callbacks(parts, client).delivering():
        yield create_app(_services(parts, feed))


def _callbacks(parts: ProcessContext, client: CallbackClient) -> CallbackDelivery:
    return CallbackDelivery(
        outbox=CallbackStore(parts.database),
        runs=RunStore(parts.database),
        messages=MessageStore(parts.database),
        client=client,
        clock=parts.clock,
        jitter=random,
        key=signing_key(parts.settings.callback_secret.get_secret_value()),
        allow_private=parts.settings.callback_allow_private,
        intervals=IntervalLock(parts.redis),
    )


def _services(parts: ProcessContext, feed: EventFeed) -> Services:
    settings, database, clock, ids = parts.settings, parts.database, parts.clock, parts.ids
    run_store, listing, approval_store = RunStore(database), RunListing(database), ApprovalStore(database)
    agent_store, conversation_store, message_store = (
        AgentEditor(database), ConversationStore(database), MessageStore(database)
    )  # fmt: skip
    event_log, queue = EventLog(parts.redis, ttl_s=settings.stream_ttl_s), RunQueue(parts.redis)
    unowned = _unowned(parts, run_store, event_log, queue)
    canceller = _canceller(parts, unowned, feed)
    decisions = _approval_service(parts, unowned, approval_store)
    reader = RunReader(
        runs=run_store, events=EventStore(database), event_log=event_log, feed=feed, log_ends=LogEnds(run_store)
    )
    streaming = StreamService(reader=reader, clock=clock, keepalive_s=settings.keepalive_s, ending=asyncio.Event())
    submissions = _submissions(parts, canceller, decisions)

    return Services(
        settings=settings,
        clock=clock,
        ids=ids,
        keys=ApiKeys.parse(settings.api_keys.get_secret_value()),
        environment=parts.environment,
        agents=agent_store,
        tools=ToolStore(database),
        blocks=BlockStore(database),
        conversations=conversation_store,
        messages=message_store,
        runs=run_store,
        listing=listing,
        steps=StepStore(database),
        approvals=approval_store,
        decisions=ApprovalDecisions(approvals=approval_store, tools=ToolStore(database), approval_service=decisions),
        inbox=InboxStore(database),
        threads=AgentThreads(agents=agent_store, conversations=conversation_store),
        sending=AnswerService(
            submissions=submissions, streaming=streaming, reader=reader, runs=run_store, messages=message_store
        ),
        compacting=CompactionService(
            submissions=submissions, reader=reader, runs=run_store, messages=message_store, clock=clock, ids=ids
        ),
        streaming=streaming,
        cancels=CancelService(runs=run_store, listing=listing, canceller=canceller, clock=clock),
        readiness=_readiness(parts),
    )


def _submissions(parts: ProcessContext, canceller: RunCanceller, decisions: ApprovalService) -> SubmissionService:
    return SubmissionService(
        runs=canceller.runs,
        listing=RunListing(parts.database),
        approvals=decisions.approvals,
        decisions=decisions,
        inbox=InboxStore(parts.database),
        settlements=canceller.unowned.settlements,
        queue=canceller.queue,
        canceller=canceller,
        clock=parts.clock,
        ids=parts.ids,
    )


def _readiness(parts: ProcessContext) -> Callable[[], Awaitable[Mapping[str, bool]]]:
    presence = WorkerPresence(parts.redis)

    async def readiness() -> Mapping[str, bool]:
        is_there = await parts.database.is_reachable()
        return {
            "database": is_there,
            "migrations": is_there and await is_current(parts.database),
            "redis": await is_reachable(parts.redis),
            "worker": await presence.is_any_alive(),
        }

    return readiness


def _canceller(parts: ProcessContext, unowned: UnownedRuns, feed: EventFeed) -> RunCanceller:
    return RunCanceller(
        runs=unowned.runs,
        unowned=unowned,
        cancel_signal=CancelSignal(parts.redis),
        queue=unowned.queue,
        feed=feed,
        event_log=unowned.event_log,
        clock=parts.clock,
        wait_s=parts.settings.cancel_wait_s,
        lease_s=parts.settings.lease_s,
    )


def _approval_service(parts: ProcessContext, unowned: UnownedRuns, approvals: ApprovalStore) -> ApprovalService:
    return ApprovalService(
        approvals=approvals,
        decisions=DecisionStore(parts.database, parts.ids),
        runs=unowned.runs,
        unowned=unowned,
        queue=unowned.queue,
        clock=parts.clock,
    )


def _unowned(parts: ProcessContext, run_store: RunStore, event_log: EventLog, queue: RunQueue) -> UnownedRuns:
    return UnownedRuns(
        runs=run_store,
        checkpoints=CheckpointStore(parts.database),
        settlements=SettlementStore(parts.database, parts.ids),
        events=EventStore(parts.database),
        event_log=event_log,
        queue=queue,
        clock=parts.clock,
        ids=parts.ids,
    )
