"""Every path with every method: HEAD is as GET, `Allow` is true, and pages of the named origins alone may ask."""

import asyncio
import re
from collections.abc import AsyncGenerator

import httpx
import pytest

from tests.kit.log_events import log_events
from tests.kit.product import api_client
from tests.kit.project.documents import written_openapi
from tests.kit.services.databases import open_database
from tests.kit.wait_until import HANGS_S

ID = "00000000-0000-4000-8000-000000000000"
PAGE, STRANGER = "https://app.example.org", "https://evil.example.org"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")

PATHS = {path: {method.upper() for method in operations} for path, operations in written_openapi()["paths"].items()}


def address_of(path: str) -> str:
    """With ids of nothing, so that nothing is found, and of a stream that ends."""
    address = re.sub(r"\{(\w+)\}", lambda one: f"{one[1].removesuffix('_id')}-{ID}", path)
    return f"{address}?follow=false" if address.endswith("/events") else address


@pytest.fixture
async def http(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    # A foreign page is refused by a server without keys in any case.
    async with (
        open_database(sqlite_url) as database,
        api_client(database, cors_origins=PAGE, api_keys="default=secret") as client,
    ):
        client.headers["Authorization"] = "Bearer secret"
        yield client


async def test_every_path_takes_the_methods_that_it_names_and_no_other(http: httpx.AsyncClient) -> None:
    """HEAD was a 405 on every path, also on those that monitors ask."""
    for path, documented in PATHS.items():
        answers = {method: await http.request(method, address_of(path)) for method in METHODS}
        statuses = {method: answer.status_code for method, answer in answers.items()}
        assert 500 not in statuses.values(), (path, statuses)
        allowed = set(answers["TRACE"].headers["allow"].split(", "))
        assert documented <= allowed, path
        assert ("HEAD" in allowed) == ("GET" in allowed), path
        assert {method for method, status in statuses.items() if status not in (405, 501)} == allowed, (path, statuses)
        for answer in answers.values():
            assert answer.status_code != 405 or set(answer.headers["allow"].split(", ")) == allowed, path


async def test_head_is_answered_as_get_without_the_body(http: httpx.AsyncClient) -> None:
    for path in PATHS:
        head, get = [await http.request(method, address_of(path)) for method in ("HEAD", "GET")]
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers.get("content-type") == get.headers.get("content-type"), path
        if get.status_code != 200:  # what is there tells times
            assert head.headers.get("content-length") == get.headers.get("content-length"), path


async def test_head_of_a_stream_ends_behind_its_head(http: httpx.AsyncClient) -> None:
    agent = (await http.post("/v1/agents", json={"model": "builtin/echo"})).json()["id"]
    run = (await http.post(f"/v1/agents/{agent}/messages/async", json={"input": "nobody works on it"})).json()["id"]
    with log_events() as logged:
        async with asyncio.timeout(HANGS_S):
            answer = await http.head(f"/v1/runs/{run}/stream")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")
    [line] = logged.all("request_answered")
    assert (line["method"], line["status"]) == ("HEAD", 200)


async def test_pages_of_the_named_origins_alone_may_ask_whatever_the_path(http: httpx.AsyncClient) -> None:
    for path, documented in PATHS.items():
        for method in documented:
            asks = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": "authorization"}
            for origin, status in ((PAGE, 200), (STRANGER, 400)):
                answer = await http.options(address_of(path), headers={"Origin": origin, **asks})
                said = answer.headers.get("access-control-allow-origin")
                assert (answer.status_code, said) == (status, PAGE if origin == PAGE else None), (method, path)
                assert "Origin" in answer.headers["vary"], path
        for origin in (PAGE, STRANGER):
            answer = await http.head(address_of(path), headers={"Origin": origin})
            assert answer.headers.get("access-control-allow-origin") == (PAGE if origin == PAGE else None), path
            assert "Origin" in answer.headers["vary"], path
