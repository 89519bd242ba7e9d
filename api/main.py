"""The API's composition root: the only place that constructs what it consists of."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import random

from fastapi import FastAPI

from api.agent_threads import AgentThreads
from api.approval_decisions import ApprovalDecisions
from api.auth import ApiKeys
from api.callback_signature import signing_key
from api.callbacks import CallbackClient, Callbacks, callback_client
from api.cancel_requests import CancelRequests
from api.cancelling import RunCancelling
from api.compacting import Compacting
from api.ending import Ending
from api.errors import add_error_answers
from api.paths import LettaPaths
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
from api.run_reader import RunReader
from api.sending import Sending
from api.services import Services
from api.streaming import RunStreaming
from api.submission import Submission
from api.waiting_approval import WaitingApproval
from shared.carry_out import CarryingOut
from shared.parts import Parts
from shared.redis.cancel_signal import CancelSignal
from shared.redis.connection import is_reachable
from shared.redis.event_feed import EventFeed
from shared.redis.event_log import EventLog
from shared.redis.run_queue import RunQueue
from shared.redis.worker_presence import WorkerPresence
from shared.sql.agent_store import AgentStore
from shared.sql.approval_store import ApprovalStore
from shared.sql.block_store import BlockStore
from shared.sql.callback_rows import CallbackStore
from shared.sql.conversation_store import ConversationStore
from shared.sql.decision_store import DecisionStore
from shared.sql.event_rows import EventStore
from shared.sql.inbox_store import InboxStore
from shared.sql.message_store import MessageStore
from shared.sql.migrate import is_current
from shared.sql.run_listing import RunListing
from shared.sql.run_store import RunStore
from shared.sql.settlement import SettlementStore
from shared.sql.step_rows import StepStore
from shared.sql.tool_store import ToolStore
from shared.unowned_run import UnownedRuns
from shared.version import VERSION

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
    app.add_middleware(LettaPaths)
    app.add_middleware(Ending)
    return app


@asynccontextmanager
async def serving(parts: Parts) -> AsyncGenerator[FastAPI]:
    """The application, with its feed running and callbacks delivered for as long as the block lasts."""
    feed = EventFeed(parts.redis)
    async with feed.running(), callback_client() as client, _callbacks(parts, client).delivering():
        yield create_app(_services(parts, feed))


def _callbacks(parts: Parts, client: CallbackClient) -> Callbacks:
    return Callbacks(
        outbox=CallbackStore(parts.database),
        runs=RunStore(parts.database),
        messages=MessageStore(parts.database),
        client=client,
        clock=parts.clock,
        jitter=random,
        key=signing_key(parts.settings.callback_secret.get_secret_value()),
        allow_private=parts.settings.callback_allow_private,
    )


def _services(parts: Parts, feed: EventFeed) -> Services:
    settings, database, clock, ids = parts.settings, parts.database, parts.clock, parts.ids
    run_store, listing, approval_store = RunStore(database), RunListing(database), ApprovalStore(database)
    agent_store, conversation_store = AgentStore(database), ConversationStore(database)
    message_store, inbox = MessageStore(database), InboxStore(database)
    event_log, queue = EventLog(parts.redis, ttl_s=settings.stream_ttl_s), RunQueue(parts.redis)
    cancelling = _cancelling(parts, run_store, event_log, queue, feed)
    reader = RunReader(runs=run_store, events=EventStore(database), event_log=event_log, feed=feed)
    streaming = RunStreaming(reader=reader, clock=clock, keepalive_s=settings.keepalive_s, ending=asyncio.Event())
    submission = Submission(
        runs=run_store,
        listing=listing,
        approvals=approval_store,
        inbox=inbox,
        settlements=SettlementStore(database, ids),
        queue=queue,
        cancelling=cancelling,
        clock=clock,
        ids=ids,
    )

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
        decisions=_decisions(parts, approval_store, queue),
        inbox=inbox,
        threads=AgentThreads(agents=agent_store, conversations=conversation_store),
        sending=Sending(
            submission=submission, streaming=streaming, reader=reader, runs=run_store, messages=message_store
        ),
        compacting=Compacting(
            submission=submission, reader=reader, runs=run_store, messages=message_store, clock=clock, ids=ids
        ),
        streaming=streaming,
        cancels=CancelRequests(runs=run_store, listing=listing, cancelling=cancelling, clock=clock),
        pending_approval=WaitingApproval(approvals=approval_store, messages=message_store).of_agent,
        readiness=_readiness(parts),
    )


def _readiness(parts: Parts) -> Callable[[], Awaitable[Mapping[str, bool]]]:
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


def _decisions(parts: Parts, approval_store: ApprovalStore, queue: RunQueue) -> ApprovalDecisions:
    decisions = DecisionStore(parts.database, parts.ids)
    return ApprovalDecisions(
        approvals=approval_store,
        tools=ToolStore(parts.database),
        carrying_out=CarryingOut(decisions=decisions, queue=queue, clock=parts.clock),
    )


def _cancelling(
    parts: Parts, run_store: RunStore, event_log: EventLog, queue: RunQueue, feed: EventFeed
) -> RunCancelling:
    cancel_signal = CancelSignal(parts.redis)
    return RunCancelling(
        runs=run_store,
        unowned=UnownedRuns(
            runs=run_store,
            settlements=SettlementStore(parts.database, parts.ids),
            events=EventStore(parts.database),
            event_log=event_log,
            queue=queue,
            cancel_signal=cancel_signal,
            clock=parts.clock,
        ),
        cancel_signal=cancel_signal,
        lease_s=parts.settings.lease_s,
        queue=queue,
        feed=feed,
        event_log=event_log,
        clock=parts.clock,
        wait_s=parts.settings.cancel_wait_s,
    )
