"""The API in this process, reached over ASGI: no port, no network, the real application on an embedded Redis."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI
from pydantic import SecretStr

from api.main import Parts, serving
from shared.clock import SystemClock
from shared.domain.ids import IdMaker
from shared.redis.connection import connect_embedded
from shared.settings import Settings
from shared.sql.engine import Database


@asynccontextmanager
async def asgi_client(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the application. Errors that it does not answer arrive as the 500 that a client would see."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://holdfast") as client:
        yield client


@asynccontextmanager
async def api_client(
    database: Database, *, api_keys: str = "", environment: Mapping[str, str] | None = None
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the whole API over a database. No worker runs."""
    redis = connect_embedded()
    parts = Parts(
        settings=Settings(api_keys=SecretStr(api_keys)),
        database=database,
        redis=redis,
        clock=SystemClock(),
        ids=IdMaker(),
        environment=environment or {},
    )
    try:
        async with serving(parts) as app, asgi_client(app) as client:
            yield client
    finally:
        await redis.aclose(close_connection_pool=True)
