"""An error that nobody foresaw is an answer, and what the server does behind it is said before."""

from collections.abc import AsyncGenerator

import httpx
import pytest
from fastapi import FastAPI

from tests.kit.product.in_process import api_app, listening
from tests.kit.raw_http import head, raw_connection
from tests.kit.services.databases import open_database


@pytest.fixture
async def app(sqlite_url: str) -> AsyncGenerator[FastAPI]:
    async def break_down() -> None:
        raise ZeroDivisionError("what nobody foresaw")

    async with open_database(sqlite_url) as database, api_app(database) as app:
        app.add_api_route("/v1/broken", break_down)
        yield app


async def test_a_500_closed_its_connection_without_saying_so(app: FastAPI) -> None:
    """The next request on it, a POST as well, was reset."""
    async with listening(app) as base_url:
        async with raw_connection(int(base_url.rpartition(":")[2])) as raw:
            await raw.send(head("GET", "/v1/broken"))
            answer = await raw.answer()
            assert (answer.status, answer.headers["connection"]) == (500, "close")
            assert b"nobody foresaw" not in answer.body
            await raw.is_closed()
        async with httpx.AsyncClient(base_url=base_url, verify=False) as http:  # noqa: S501 - no TLS here
            for _ in range(3):
                assert (await http.get("/v1/broken")).status_code == 500
                assert (await http.post("/v1/agents", json={"model": "builtin/echo"})).status_code == 200
