"""The access log and the ids of requests: every answer has one, and so has what is logged on the way to it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from shared.redis.embedded import connect_embedded
from tests.kit.log_events import LogEvents, log_events
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.services.databases import open_database
from tests.kit.wait_until import wait_until

KEY = "a-long-secret-of-24-bytes"
TEXT = "what-the-user-said"


@pytest.fixture
async def models() -> AsyncGenerator[ModelServer]:
    async with ModelServer() as models:
        yield models


@pytest.fixture
async def product(sqlite_url: str, models: ModelServer) -> AsyncGenerator[Product]:
    settings = {"api_keys": f"default={KEY}"}
    async with (
        open_database(sqlite_url) as database,
        running_product(database, connect_embedded(), models, settings=settings) as product,
    ):
        product.http.headers["Authorization"] = f"Bearer {KEY}"
        yield product


async def line_of(logged: LogEvents, answer: httpx.Response) -> dict[str, Any]:
    """The line of the access log; it is written when the answer has left."""
    said = answer.headers["x-request-id"]

    def found() -> list[dict[str, Any]]:
        return [one for one in logged.all("request_answered") if one["request_id"] == said]

    await wait_until(lambda: bool(found()), description="the line of the access log")
    (line,) = found()
    return line


async def test_each_request_is_logged_with_its_route_its_caller_and_its_ids(product: Product) -> None:
    http = product.http
    with log_events() as logged:
        agent_id = (await http.post("/v1/agents/", json={"model": "builtin/echo"})).json()["id"]
        line = await line_of(logged, await http.get(f"/v1/agents/{agent_id}", params={"name": TEXT}))
        assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/agents/{agent_id}", 200)
        assert (line["agent_id"], line["project"], line["client"]) == (agent_id, "default", "127.0.0.1")
        assert line["duration_ms"] >= 0
        assert "frames" not in line

        unknown = await line_of(logged, await http.get(f"/v1/agents/{TEXT}"))
        assert (unknown["route"], unknown["status"]) == ("/v1/agents/{agent_id}", 422)
        nothing = await line_of(logged, await http.get(f"/{TEXT}"))
        assert (nothing["route"], nothing["status"]) == ("unknown", 404)
        stranger = await http.get(f"/v1/agents/{agent_id}", headers={"Authorization": "Bearer x"})
        refused = await line_of(logged, stranger)
        assert (refused["route"], refused["status"]) == ("/v1/agents/…", 401)
        assert "project" not in refused
        assert not [one for one in logged.all("request_answered") if TEXT in repr(one)]


@pytest.mark.parametrize("given", ["4bf92f3577b34da6", "a" * 128, "https://x/y?z=1"])
async def test_a_callers_request_id_is_kept(product: Product, given: str) -> None:
    answer = await product.http.get("/v1/agents/nonsense", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given
    assert answer.json()["trace_id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "two words", "tab\there", "é"])
async def test_one_that_could_break_a_line_is_replaced(product: Product, given: str) -> None:
    answers = [await product.http.get("/healthz", headers=[(b"X-Request-Id", given.encode())]) for _ in range(2)]
    made = {answer.headers["x-request-id"] for answer in answers}
    assert len(made) == 2
    assert all(one.startswith("req-") for one in made)


async def test_the_id_is_in_the_audit_log_and_in_what_is_logged_on_the_way(product: Product) -> None:
    asked = {"X-Request-Id": "of-a-proxy"}
    with log_events() as logged:
        await product.http.post("/v1/agents/", json={"model": "builtin/echo", "max_files_open": 3}, headers=asked)
    assert [one["request_id"] for one in logged.all("input_not_acted_on")] == ["of-a-proxy"]
    made = await product.http.post("/v1/admin/keys", json={"name": "one", "scopes": ["read"]}, headers=asked)
    assert made.is_success, made.text
    events = (await product.http.get("/v1/admin/audit")).json()
    assert "of-a-proxy" in [event["request_id"] for event in events]


async def test_a_stream_logs_its_end(product: Product, models: ModelServer) -> None:
    http = product.http
    agent = await product.http.post("/v1/agents/", json={"model": "openai/gpt-4o-mini", "include_base_tools": False})
    path = f"/v1/agents/{agent.json()['id']}/messages/stream"
    with log_events() as logged:
        models.play(Turn(text="one two three"))
        whole = await http.post(path, json={"input": "Hello", "stream_tokens": True})
        line = await line_of(logged, whole)
        assert (line["stream_end"], line["status"]) == ("whole", 200)
        assert line["frames"] == whole.text.count("data: ")

        models.play(Turn(text="word " * 20_000, pace=0.01))
        async with http.stream("POST", path, json={"input": "Hello", "stream_tokens": True}) as left:
            await anext(left.aiter_lines())
        assert (await line_of(logged, left))["stream_end"] == "client_left"


async def test_probes_are_logged_when_they_fail(product: Product) -> None:
    with log_events() as logged:
        line = await line_of(logged, await product.http.get("/healthz"))
        assert line["route"] == "/healthz"
        await asyncio.gather(*[product.http.get("/healthz") for _ in range(3)])
    assert len({one["request_id"] for one in logged.all("request_answered")}) == 4


async def test_the_access_log_lost_the_trace_that_a_request_came_with(product: Product) -> None:
    """The ids of a request's lines are begun anew for each request, and that took the trace away again."""
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    with log_events() as logged:
        headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
        traced = await line_of(logged, await product.http.get("/v1/agents/", headers=headers))
        assert traced["trace_id"] == trace_id
        assert "trace_id" not in await line_of(logged, await product.http.get("/v1/agents/"))
