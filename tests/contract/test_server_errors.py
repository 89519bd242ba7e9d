"""An error that nobody foresaw is an answer, and what the server does behind it is said before."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from tests.kit.exposition import scraped
from tests.kit.log_events import log_events
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


@asynccontextmanager
async def asking(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the app, behind a real port."""
    async with (
        listening(app) as base_url,
        httpx.AsyncClient(base_url=base_url, verify=False) as http,  # noqa: S501 - no TLS here
    ):
        yield http


async def test_options_of_the_whole_server_were_a_500(app: FastAPI) -> None:
    """`*` is no path, so no dialect had its refusal."""
    async with listening(app) as base_url, raw_connection(int(base_url.rpartition(":")[2])) as raw:
        await raw.send(head("OPTIONS", "*"))
        answer = await raw.answer()
        assert (answer.status, b'"path_not_found"' in answer.body) == (404, True)


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


async def test_a_500_that_nobody_foresaw_was_not_counted(app: FastAPI) -> None:
    """Its answer is made outside of every middleware: the alert on errors of the API saw none of them."""
    async with asking(app) as http:
        with log_events() as logged:
            answer = await http.get("/v1/broken")

        figures = await scraped(http)
        assert figures.of("http_requests_total", method="GET", route="/v1/broken", status="500") == 1
        assert figures.of("http_request_seconds_count", route="/v1/broken") == 1
        [line] = logged.all("request_answered")
        assert (line["route"], line["status"]) == ("/v1/broken", 500)
        assert line["request_id"] == answer.headers["x-request-id"] == logged.all("request_failed")[0]["request_id"]


async def test_an_answer_that_breaks_off_counts_once(app: FastAPI) -> None:
    """As it began: the status was sent before anything went wrong."""

    async def part() -> AsyncGenerator[bytes]:
        yield b"the beginning"
        raise ZeroDivisionError("what nobody foresaw")

    async def begin() -> StreamingResponse:
        return StreamingResponse(part())

    app.add_api_route("/v1/breaks-off", begin)
    async with asking(app) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get("/v1/breaks-off")

        figures = await scraped(http)
        assert figures.of("http_requests_total", method="GET", route="/v1/breaks-off", status="200") == 1
        assert figures.of("http_requests_total", method="GET", route="/v1/breaks-off", status="500") == 0
