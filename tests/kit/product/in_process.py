"""The whole product in this process, behind a real port: API, worker, database, Redis and a local model server.

    async with running_product(database, redis, models) as product:
        agent = await product.agent(model="openai/gpt-4o-mini")
        models.say("Good morning.")
        answer = await product.client.agents.messages.create(agent_id=agent.id, input="Hello")

`product.client` is the public SDK, unmodified. `product.http` is the same without the SDK. None of our code is
replaced, only the model provider.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from uuid import uuid4

import httpx
import uvicorn
from arq.connections import ArqRedis
from fastapi import FastAPI
from letta_client import AsyncLetta
from letta_client.types import AgentState
from redis.asyncio.connection import BlockingConnectionPool

from api.access.callers import DEFAULT_PROJECT
from api.connection_rules import ConnectionRules
from api.http_server import IDLE_S, server_config
from api.main import serving
from api.services import Services
from shared.concurrency import Clock, SystemClock, background
from shared.domain.ids import IdMaker, ProjectId
from shared.process.context import ProcessContext
from shared.process.data_directory import keys_of
from shared.process.settings import Settings
from shared.redis.embedded import connect_embedded
from shared.redis.log_servers import LogServers, OneLogServer
from shared.sql.engine import Database
from shared.sql.migrate import migrate
from tests.kit.model_server import ModelServer
from tests.kit.product.described_answers import described
from tests.kit.product.without_server import WithoutServer
from tests.kit.wait_until import HANGS_S, LONG_LEASE_S, wait_until
from worker.main import working

import_module("tests.kit.model_clients")

HEADERS = {"X-Stainless-Package-Version": "1.12.1"}

CANCELLED_S = 90.0
"""How long a cancel waits for its run to stop, which takes milliseconds while the machine does not stand still."""

NO_PINGS_S = 3600.0
"""A paused machine is silent, and tests compare the frames of readers, which would differ by a ping."""


@dataclass
class Product:
    """A running product and its clients."""

    base_url: str
    context: ProcessContext
    models: ModelServer
    client: AsyncLetta
    http: httpx.AsyncClient
    services: Services
    """The API's parts, for tests that look behind its HTTP interface."""
    project_id: ProjectId = DEFAULT_PROJECT
    """The project of the clients' key."""
    key: str = "none"
    """The clients' key, which the API requires only if there is one."""

    async def tool(self, source: str, **fields: Any) -> str:
        """Makes a tool from source; gives its id."""
        tool = await self.client.tools.upsert(source_code=source, **fields)
        return tool.id

    async def agent(self, *, model: str = "openai/gpt-4o-mini", tools: Sequence[str] = (), **fields: Any) -> AgentState:
        """Makes an agent; `tools` are the ids of its tools."""
        return await self.client.agents.create(
            name=f"test-{uuid4().hex[:8]}", model=model, tool_ids=list(tools), include_base_tools=False, **fields
        )

    async def run(self, run_id: str) -> dict[str, Any]:
        """A run as the API shows it now."""
        return (await self.http.get(f"/v1/runs/{run_id}")).json()

    async def ended(self, run_id: str) -> dict[str, Any]:
        """Waits until the run's status is a terminal one."""

        async def look() -> dict[str, Any] | None:
            run = await self.run(run_id)
            return run if run["status"] in ("completed", "failed", "cancelled") else None

        return await wait_until(look, description=f"run {run_id} to end")

    async def history(self, agent_id: str) -> list[dict[str, Any]]:
        """The agent's default history as the API lists it, oldest first."""
        params = {"limit": 1000, "order": "asc", "conversation_id": "default"}
        answer = await self.http.get(f"/v1/agents/{agent_id}/messages", params=params)
        return answer.json()


@asynccontextmanager
async def running_product(
    database: Database,
    redis: ArqRedis,
    models: ModelServer,
    *,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    servers: LogServers | None = None,
    with_worker: bool = True,
) -> AsyncGenerator[Product]:
    """The product for the block. `settings` are fields of `Settings`. `servers` keep the logs, if `redis` does not."""
    given: dict[str, Any] = {
        "sweep_s": 2.0,
        "lease_s": LONG_LEASE_S,
        "cancel_wait_s": CANCELLED_S,
        "request_timeout": HANGS_S,
        "keepalive_s": NO_PINGS_S,
        "model_retries": 0,
        "drain_s": 0.0,
        "builtin_models": True,
        "callback_allow_private": True,
        **(settings or {}),
    }
    chosen = Settings(**given)
    context = ProcessContext(
        settings=chosen,
        secret_keys=keys_of(chosen),
        database=database,
        redis=redis,
        log_servers=servers or OneLogServer(redis),
        is_embedded=not isinstance(redis.connection_pool, BlockingConnectionPool),
        clock=clock or SystemClock(),
        ids=IdMaker(),
        environment=models.base_urls() if environment is None else environment,
    )
    await migrate(database)
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(serving(context))
        stack.enter_context(described(app))
        base_url = await stack.enter_async_context(
            listening(app, timeout_s=chosen.request_timeout, reader_timeout_s=chosen.reader_timeout)
        )
        if with_worker:
            await stack.enter_async_context(working(context))
        client, http = await stack.enter_async_context(clients_of(base_url))
        yield Product(base_url, context, models, client, http, app.state.services)


@asynccontextmanager
async def clients_of(base_url: str, key: str = "") -> AsyncGenerator[tuple[AsyncLetta, httpx.AsyncClient]]:
    """The public SDK, and a client that sends the same key, if there is one."""
    headers = {**HEADERS, "Authorization": f"Bearer {key}"} if key else HEADERS
    async with (
        _http_client(base_url, headers) as http,
        AsyncLetta(
            base_url=base_url, api_key=key or "none", max_retries=0, http_client=_http_client(base_url, HEADERS)
        ) as client,
    ):
        yield client, http


def _http_client(base_url: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    # Loading the certificates of the world takes longer than most tests; nothing here speaks TLS.
    return httpx.AsyncClient(base_url=base_url, headers=headers, timeout=HANGS_S, verify=False)  # noqa: S501 - as said


@asynccontextmanager
async def listening(
    app: FastAPI, *, timeout_s: float = 30, reader_timeout_s: float = 300, idle_s: int = IDLE_S
) -> AsyncGenerator[str]:
    """Serves an application on a free port of loopback; gives its address."""
    with loopback_listener() as listener:
        rules = ConnectionRules(timeout_s, reader_timeout_s)
        server = uvicorn.Server(server_config(app, rules, idle_s=idle_s, timeout_graceful_shutdown=1))
        async with background(served(server, listener), name="test API"):
            await wait_until(lambda: server.started, description="the API to listen")
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                for listening in server.servers:
                    # The loop must forget the socket before it is closed: the next one may get its number.
                    listening.close()


def loopback_listener() -> socket.socket:
    """A socket on a free port of loopback. It says its protocol, as do those that it accepts then: else asyncio leaves
    Nagle's algorithm on for them, and each answer in two writes waits 40 ms for an acknowledgement."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    return listener


async def served(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serves until it is cancelled. Then no request goes on: one whose client has left still asks the database and
    Redis, and would open connections to them after its test has closed all."""
    try:
        await server.serve(sockets=[listener])
    finally:
        requests = list(server.server_state.tasks)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)


async def as_text(stream: Any) -> str:
    """All assistant text of a stream of the SDK."""
    return "".join([chunk.content async for chunk in stream if chunk.message_type == "assistant_message"])


@asynccontextmanager
async def asgi_client(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the application. Errors that it does not answer arrive as the 500 that a client would see."""
    transport = httpx.ASGITransport(WithoutServer(app), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@asynccontextmanager
async def api_client(
    database: Database,
    *,
    environment: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the whole API over a database. No worker runs. `settings` are fields of `Settings`."""
    async with api_app(database, environment=environment, clock=clock, **settings) as app, asgi_client(app) as client:
        yield client


@asynccontextmanager
async def api_app(
    database: Database,
    *,
    environment: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncGenerator[FastAPI]:
    """The whole API over a database, as an application. No worker runs."""
    redis = connect_embedded()
    given: dict[str, Any] = {"builtin_models": True, **settings}
    chosen = Settings(**given)
    context = ProcessContext(
        settings=chosen,
        secret_keys=keys_of(chosen),
        database=database,
        redis=redis,
        log_servers=OneLogServer(redis),
        is_embedded=True,
        clock=clock or SystemClock(),
        ids=IdMaker(),
        environment=environment or {},
    )
    try:
        async with serving(context) as app:
            with described(app):
                yield app
    finally:
        await redis.aclose(close_connection_pool=True)
