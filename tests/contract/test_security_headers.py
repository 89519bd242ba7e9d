"""What answers tell browsers, and what a server with keys shows to those who have none."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from shared.sql.engine import Database
from tests.kit.product.in_process import api_client
from tests.kit.services.databases import open_database, statements

DOCUMENTATION = ("/docs", "/openapi.json")


@pytest.fixture
async def database(sqlite_url: str) -> AsyncGenerator[Database]:
    async with open_database(sqlite_url) as database:
        yield database


async def statuses(http: httpx.AsyncClient) -> list[int]:
    return [(await http.get(path)).status_code for path in DOCUMENTATION]


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, 200),
        ({"docs": "off"}, 404),
        ({"api_keys": "default=secret"}, 404),
        ({"api_keys": "default=secret", "docs": "on"}, 200),
    ],
)
async def test_a_server_with_keys_shows_its_paths_when_told_to(
    database: Database, settings: dict[str, Any], status: int
) -> None:
    async with api_client(database, **settings) as http:
        assert await statuses(http) == [status] * 2
        assert ("/docs" in (await http.get("/")).json().values()) == (status == 200)


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/agents", "/v1/agents/unknown", "/nothing", "/docs"])
async def test_every_answer_says_what_a_browser_may_do_with_it(database: Database, path: str) -> None:
    async with api_client(database) as http:
        headers = (await http.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert ("script-src 'self'" in headers["content-security-policy"]) == (path == "/docs")
    assert (headers.get("cache-control") == "no-store") == path.startswith("/v1/")


async def test_readiness_asks_the_services_once_a_second_at_most(database: Database) -> None:
    """Anybody may ask, without a key, and each question cost the database and Redis several."""
    async with api_client(database) as http:
        with statements() as asked:
            answers = await asyncio.gather(*[http.get("/readyz?full") for _ in range(20)])
    assert len({answer.text for answer in answers}) == 1
    assert 1 <= asked.count("SELECT 1") < 5
