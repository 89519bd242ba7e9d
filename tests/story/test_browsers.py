"""A web page reads a stream: from another origin, without a key of its own, until there is no more."""

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from arq.connections import ArqRedis

from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product

PAGE = "https://app.example.org"
KEY = {"Authorization": "Bearer k1"}
OTHER_KEY = {"Authorization": "Bearer k2"}


@pytest.fixture
async def guarded(database: Database, redis: ArqRedis, models: ModelServer) -> AsyncIterator[Product]:
    """The product with keys, and with a page that may ask it."""
    settings = {"api_keys": "one=k1,two=k2", "cors_origins": f"{PAGE}, https://else.example.org"}
    async with running_product(database, redis, models, settings=settings) as running:
        yield running


async def ended_run(product: Product) -> str:
    agent = (await product.http.post("/v1/agents/", json={"model": "builtin/echo"}, headers=KEY)).json()
    sent = await product.http.post(f"/v1/agents/{agent['id']}/messages", json={"input": "Hello"}, headers=KEY)
    return sent.json()["messages"][0]["run_id"]


async def token_of(product: Product, run_id: str, **body: Any) -> str:
    answer = await product.http.post(f"/v1/runs/{run_id}/stream-token", json=body, headers=KEY)
    assert answer.status_code == 200, answer.text
    assert datetime.fromisoformat(answer.json()["expires_at"]) > datetime.now(UTC)
    return answer.json()["token"]


async def test_a_token_opens_the_stream_of_its_run_and_nothing_else(
    guarded: Product, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    run_id, other = await ended_run(guarded), await ended_run(guarded)
    query = {"token": await token_of(guarded, run_id)}
    http = guarded.http

    shown = await http.get(f"/v1/runs/{run_id}/stream", params=query)

    assert shown.status_code == 200
    assert "Hello" in shown.text
    assert "warning" not in shown.headers
    for method, path in (
        ("GET", f"/v1/runs/{other}/stream"),
        ("GET", f"/v1/runs/{run_id}"),
        ("POST", f"/v1/runs/{run_id}/stream"),
        ("POST", f"/v1/runs/{run_id}/cancel"),
        ("GET", "/v1/runs/"),
    ):
        assert (await http.request(method, path, params=query)).status_code == 401, path
    assert (await http.post(f"/v1/runs/{run_id}/stream-token")).status_code == 401
    assert (await http.post(f"/v1/runs/{run_id}/stream-token", headers=OTHER_KEY)).status_code == 404
    # httpx, the test's own client, logs addresses.
    assert not [one for one in caplog.records if query["token"] in one.getMessage() and one.name != "httpx"]


@pytest.mark.parametrize("token", ["", "x", "1.x", "99999999999.x", "999999999999.x.y", "²", "9" * 400, "1.é"])
async def test_a_made_up_token_is_refused(guarded: Product, token: str) -> None:
    run_id = await ended_run(guarded)
    answer = await guarded.http.get(f"/v1/runs/{run_id}/stream", params={"token": token})
    assert (answer.status_code, "stream-token" in answer.text) == (401, True)


async def test_a_token_cannot_be_stretched(guarded: Product) -> None:
    run_id = await ended_run(guarded)
    expires, _, signature = (await token_of(guarded, run_id)).partition(".")
    answer = await guarded.http.get(f"/v1/runs/{run_id}/stream", params={"token": f"{int(expires) + 3600}.{signature}"})
    assert answer.status_code == 401


async def test_a_page_of_an_allowed_origin_may_read_and_another_may_not(guarded: Product) -> None:
    run_id = await ended_run(guarded)
    path, query = f"/v1/runs/{run_id}/stream", {"token": await token_of(guarded, run_id)}

    async def origin_of_answer(origin: str, method: str, path: str, **rest: Any) -> str | None:
        answer = await guarded.http.request(method, path, headers={"Origin": origin} | rest.pop("headers", {}), **rest)
        return answer.headers.get("access-control-allow-origin")

    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    assert await origin_of_answer(PAGE, "GET", path, params=query) == PAGE
    assert await origin_of_answer(PAGE, "OPTIONS", "/v1/agents/", headers=asks) == PAGE
    assert await origin_of_answer(PAGE, "GET", "/v1/agents/") == PAGE, "a refusal can be read, too"
    assert await origin_of_answer("https://evil.example.org", "GET", path, params=query) is None


async def test_without_the_setting_no_page_may_read(product: Product) -> None:
    answer = await product.http.get("/v1/agents/", headers={"Origin": "http://localhost:3000"})
    assert "access-control-allow-origin" not in answer.headers


async def test_a_server_without_keys_answers_the_pages_that_it_knows(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    async with running_product(database, redis, models, settings={"cors_origins": PAGE}) as running:
        assert (await running.http.get("/v1/agents/", headers={"Origin": PAGE})).status_code == 200
        assert (await running.http.get("/v1/agents/", headers={"Origin": "https://evil.org"})).status_code == 403


async def test_an_event_source_that_has_seen_the_end_is_told_that_there_is_no_more(product: Product) -> None:
    """It came back every three seconds for ever."""
    agent = await product.agent(model="builtin/echo")
    run_id = (await product.client.agents.messages.create_async(agent.id, input="Hello")).id
    await product.ended(run_id)
    path = f"/v1/runs/{run_id}/stream"
    numbers = [line[4:] for line in (await product.http.get(path)).text.splitlines() if line.startswith("id: ")]

    async def again(last: str, **query: Any) -> httpx.Response:
        return await product.http.get(path, headers={"Last-Event-ID": last}, params=query)

    assert (await again(numbers[-1])).status_code == 204
    assert (await again(str(int(numbers[-1]) + 1))).status_code == 204
    rest = await again(numbers[-2])
    assert (rest.status_code, rest.text.count("id: ")) == (200, 1)
    # The page's address names where it began; the header knows better.
    assert (await again(numbers[-1], starting_after=0)).status_code == 204
    assert (await product.http.post(path, headers={"Last-Event-ID": numbers[-1]})).status_code == 200


async def test_an_event_source_of_a_run_at_work_is_never_told_so(product: Product) -> None:
    agent = await product.agent(model="builtin/slow")
    run_id = (await product.client.agents.messages.create_async(agent.id, input="Hello")).id
    async with product.http.stream("GET", f"/v1/runs/{run_id}/stream", headers={"Last-Event-ID": "900000"}) as answer:
        assert answer.status_code == 200
    assert (await product.http.post(f"/v1/runs/{run_id}/cancel")).status_code == 200
