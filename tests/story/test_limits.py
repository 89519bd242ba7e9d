"""What a caller may ask for: a limit refuses with its name and the time to come again, and nobody else notices."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from arq.connections import ArqRedis
from letta_client import AsyncLetta, RateLimitError

from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product.in_process import Product, api_client, running_product
from tests.kit.wait_until import wait_until

SLOW = '{"turns": [{"text": "word ", "repeat": 50, "delay_ms": 400}]}'
KEYS = "acme=one,other=two"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_a_project_that_asks_too_often_is_told_when_to_come_again(database: Database) -> None:
    async with api_client(database, api_keys=KEYS, requests_per_s=0.5) as http:
        first, second = [await http.get("/v1/agents", headers=bearer("one")) for _ in range(2)]
        other = await http.get("/v1/agents", headers=bearer("two"))
    assert first.status_code == 200
    assert second.status_code == 429
    assert second.headers["Retry-After"] in ("1", "2")
    assert second.headers["x-should-retry"] == "true"
    assert second.json()["detail"].startswith(
        "RATE_LIMITED: The project 'acme' sends more than 0.5 requests per second"
    )
    assert "HOLDFAST_REQUESTS_PER_S" in second.json()["detail"]
    assert other.status_code == 200


async def test_a_caller_over_his_limit_may_still_stop_and_decide(database: Database) -> None:
    async with api_client(database, requests_per_s=0.001) as http:
        await http.get("/v1/agents")
        assert (await http.get("/v1/agents")).status_code == 429
        stopped = await http.post("/v1/runs/run-00000000-0000-4000-8000-000000000000/cancel")
    assert stopped.status_code == 404, "the run is unknown, but the request was let through"


async def test_decisions_have_a_bucket_of_their_own(database: Database) -> None:
    async with api_client(database, requests_per_s=0.001) as http:
        await http.get("/v1/agents")
        decided = await http.post("/v1/approvals/approval-1", json={"decision": "approve"})
    assert decided.status_code not in (429, 500)


async def test_openai_clients_are_refused_in_their_shape(database: Database) -> None:
    async with api_client(database, requests_per_s=0.001) as http:
        await http.get("/v1/agents")
        refused = await http.post("/v1/chat/completions", json={"model": "x", "messages": []})
    assert refused.status_code == 429
    assert "HOLDFAST_REQUESTS_PER_S" in refused.json()["error"]["message"]
    assert refused.headers["Retry-After"]


async def test_an_unmodified_client_that_is_limited_comes_through_in_the_end(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    async with running_product(database, redis, models, settings={"requests_per_s": 2.0}) as product:
        client = AsyncLetta(base_url=product.base_url, api_key="none", max_retries=5, http_client=product.http)
        answers = await asyncio.gather(*[client.agents.list() for _ in range(8)])
    assert len(answers) == 8


async def test_a_queue_that_is_full_takes_no_more_but_knows_what_it_has(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    settings = {"queued_runs": 2}
    async with running_product(database, redis, models, settings=settings, with_worker=False) as product:
        agent = await product.agent(model="builtin/echo")
        send = product.client.agents.messages.create_async
        first, _ = [await send(agent.id, input="x", extra_headers={"Idempotency-Key": name}) for name in "ab"]
        with pytest.raises(RateLimitError, match="HOLDFAST_QUEUED_RUNS"):
            await send(agent.id, input="x", extra_headers={"Idempotency-Key": "c"})
        again = await send(agent.id, input="x", extra_headers={"Idempotency-Key": "a"})
        assert again.id == first.id
        await product.client.runs.list()
        cancelled = await product.http.post(f"/v1/runs/{first.id}/cancel")
        assert cancelled.status_code == 200
        await send(agent.id, input="x", extra_headers={"Idempotency-Key": "c"})
        question = await product.http.post(f"/v1/agents/{agent.id}/generate", json={"prompt": "x"})
        assert (question.status_code, "HOLDFAST_QUEUED_RUNS" in question.text) == (429, True)


async def test_a_project_has_so_many_streams_open_and_its_runs_go_on(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    async with running_product(database, redis, models, settings={"readers": 1}) as product:
        agent = await product.agent(model="builtin/scripted")
        run = await product.client.agents.messages.create_async(agent.id, input=SLOW)
        async with AsyncExitStack() as first:
            await first.enter_async_context(product.http.stream("GET", f"/v1/runs/{run.id}/stream"))
            refused = await product.http.get(f"/v1/runs/{run.id}/stream")
            assert refused.status_code == 429
            assert "has 1 streams open (HOLDFAST_READERS)" in refused.json()["detail"]
        await wait_until(lambda: _reads(product, run.id), description="the place of the first to be free")


async def _reads(product: Product, run_id: str) -> bool:
    async with product.http.stream("GET", f"/v1/runs/{run_id}/stream") as answer:
        return answer.status_code == 200


@pytest.mark.parametrize(("priority", "status"), [("10", 200), ("-10", 200), ("11", 422), ("high", 422)])
async def test_a_submission_may_say_its_priority(database: Database, priority: str, status: int) -> None:
    async with api_client(database, builtin_models=True) as http:
        agent = (await http.post("/v1/agents", json={"name": "a", "model": "builtin/echo"})).json()
        headers = {"X-Holdfast-Priority": priority}
        sent = await http.post(f"/v1/agents/{agent['id']}/messages/async", json={"input": "x"}, headers=headers)
    assert sent.status_code == status


async def test_a_run_could_ask_for_any_number_of_steps(database: Database) -> None:
    async with api_client(database, builtin_models=True, max_steps=7) as http:
        agent = (await http.post("/v1/agents", json={"name": "a", "model": "builtin/echo"})).json()
        url = f"/v1/agents/{agent['id']}/messages/async"
        allowed = await http.post(url, json={"input": "x", "max_steps": 7})
        refused = await http.post(url, json={"input": "x", "max_steps": 8})
    assert allowed.status_code == 200
    assert refused.status_code == 400
    assert "max_steps is 8: the most is 7 (HOLDFAST_MAX_STEPS)" in refused.json()["detail"]
