"""The operations API: what an operator sees of a deployment, of a project's runs, and of callbacks that wait."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.operations import percentiles
from shared.domain.runs import RunOptions
from shared.sql.run_tables import runs
from shared.sql.runs.webhooks import WebhookDeliveryStore, WebhookEndpointStore
from tests.kit.model_server import ModelServer
from tests.kit.product.in_process import api_client, running_product
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import IDS, Stores, call, callback_of, some_endpoint, stored_runs
from tests.kit.services.databases import open_database
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.services.tcp_proxy import TcpProxy
from tests.kit.wait_until import wait_until

CONFIGURED, OTHER = "a-long-key-of-the-operator", "the-long-key-of-another-project"
OPERATOR = {"Authorization": f"Bearer {CONFIGURED}"}
STRANGER = {"Authorization": f"Bearer {OTHER}"}
WAITS = call("a", needs_approval=True)
URL = "http://127.0.0.1/called"


@dataclass
class FixedClock:
    """The moment of the stored runs, a little later."""

    def now(self) -> datetime:
        return NOW + timedelta(seconds=20)

    def monotonic(self) -> float:
        return 1000.0


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@asynccontextmanager
async def operators_api(stores: Stores) -> AsyncGenerator[httpx.AsyncClient]:
    """It looks for callbacks that are due from now on, so a test may want to have stored its own before."""
    keys = f"{PROJECT}={CONFIGURED},two={OTHER}"
    async with api_client(stores.database, api_keys=keys, clock=FixedClock()) as http:
        http.headers.update(OPERATOR)
        yield http


@pytest.fixture
async def http(stores: Stores) -> AsyncGenerator[httpx.AsyncClient]:
    async with operators_api(stores) as http:
        yield http


async def look(http: httpx.AsyncClient, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = await http.get("/v1/admin/operations", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentiles([]).p50 is None
    assert (percentiles([7]).p50, percentiles([7]).p99) == (7, 7)
    hundred = percentiles(range(1, 101))
    assert (hundred.p50, hundred.p95, hundred.p99) == (50, 95, 99)


async def test_a_projects_runs_are_counted_by_minute(stores: Stores, http: httpx.AsyncClient) -> None:
    await stores.ended()
    await stores.ended(RunTrigger.FAIL)
    await stores.ended(RunTrigger.CANCEL)
    slow = await stores.ended()
    old = await stores.ended()
    await stores.parked(WAITS)
    await stores.submitted(thread_id=ThreadId("conv-2"))
    async with stores.database.write() as connection:
        waited = {"started_at": NOW + timedelta(seconds=2), "first_token_at": NOW + timedelta(seconds=3)}
        await connection.execute(sa.update(runs).where(runs.c.id == slow.id).values(waited))
        times = {"created_at": NOW - timedelta(minutes=61), "completed_at": NOW - timedelta(minutes=61)}
        await connection.execute(sa.update(runs).where(runs.c.id == old.id).values(times))

    seen = await look(http)

    assert seen["runs"] == {"created": 1, "running": 0, "awaiting_approval": 1}
    assert seen["ended_last_hour"] == {"completed": 2, "failed": 1, "cancelled": 1}
    assert (seen["queue_wait_ms"]["p50"], seen["queue_wait_ms"]["p99"]) == (0, 2000)
    assert seen["first_token_ms"] == {"p50": 3000, "p95": 3000, "p99": 3000}
    assert len(seen["last_hour"]) == 60
    last = seen["last_hour"][-1]
    counted = {name: last[name] for name in ("submitted", "completed", "failed", "cancelled")}
    assert counted == {"submitted": 6, "completed": 2, "failed": 1, "cancelled": 1}
    assert last["at"] == NOW.replace(second=0, microsecond=0).isoformat().replace("+00:00", "Z")
    assert seen["last_hour"][0]["submitted"] == 0


async def test_another_project_sees_the_deployment_and_none_of_the_runs(
    stores: Stores, http: httpx.AsyncClient
) -> None:
    run = await stores.ended(callback_url=URL)
    seen = await look(http, STRANGER)
    assert seen["ended_last_hour"] == {"completed": 0, "failed": 0, "cancelled": 0}
    assert seen["callbacks"] == {"waiting": 0, "failing": 0}
    assert (await http.get("/v1/admin/callbacks", headers=STRANGER)).json() == []
    assert (await http.post(f"/v1/admin/callbacks/{run.id}/retry", headers=STRANGER)).status_code == 404
    assert (await http.get("/v1/admin/webhooks", headers=STRANGER)).json() == []


async def test_the_processes_and_the_services_are_shown(http: httpx.AsyncClient) -> None:
    seen = await look(http)
    assert seen["services"]["database"] and seen["services"]["migrations"] and seen["services"]["redis"]
    assert seen["redis"]["embedded"]
    [process] = seen["api_processes"]
    assert process["readers"] == 0
    assert seen["workers"] == []
    assert seen["queue"] == {"waiting": 0, "oldest_wait_s": None, "in_flight": 0}
    assert seen["database"]["kind"] in ("sqlite", "postgresql")
    assert seen["database"]["answers_ms"] is not None


async def test_what_redis_knows_is_null_while_it_is_away(sqlite_url: str, private_redis: PrivateRedis) -> None:
    redis = private_redis.client()
    async with (
        ModelServer() as models,
        open_database(sqlite_url) as database,
        running_product(database, redis, models) as product,
    ):

        async def sees_worker() -> bool:
            return [one["max_runs"] for one in (await look(product.http))["workers"]] == [
                product.context.settings.max_runs
            ]

        await wait_until(sees_worker, description="the worker to be seen")
        seen = await look(product.http)
        assert seen["redis"]["used_memory_bytes"] > 0
        assert seen["workers"][0]["runs"] == 0
        await private_redis.kill()

        async def is_away() -> bool:
            return not (await look(product.http))["services"]["redis"]

        await wait_until(is_away, description="Redis to be missed")
        seen = await look(product.http)
        assert (seen["workers"], seen["api_processes"]) == (None, None)
        assert seen["queue"] == {"waiting": None, "oldest_wait_s": None, "in_flight": None}
        assert seen["redis"]["answers_ms"] is None
        assert seen["runs"] == {"created": 0, "running": 0, "awaiting_approval": 0}


async def test_what_the_database_knows_is_null_while_it_is_away(postgres_url: str) -> None:
    url = make_url(postgres_url)
    proxy = TcpProxy(url.port or 5432)
    way = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    async with (
        proxy.serving(),
        open_database(way) as database,
        api_client(database, api_keys=f"ours={CONFIGURED}") as http,
    ):
        http.headers.update(OPERATOR)
        assert (await look(http))["runs"] is not None
        proxy.refuse()

        async def is_away() -> bool:
            return not (await look(http))["services"]["database"]

        await wait_until(is_away, description="the database to be missed")
        seen = await look(http)
        of_the_database = ("runs", "ended_last_hour", "queue_wait_ms", "first_token_ms", "callbacks", "last_hour")
        assert [seen[name] for name in of_the_database] == [None] * len(of_the_database)
        assert seen["database"] == {"kind": "postgresql", "answers_ms": None}
        assert len(seen["api_processes"]) == 1


async def test_a_callback_that_waits_is_listed_and_tried_at_once(stores: Stores) -> None:
    first = await stores.ended(callback_url=URL)
    second = await stores.ended(callback_url=URL)
    delivered = await stores.ended(callback_url=URL)
    later = NOW + timedelta(hours=1)
    await stores.callbacks.claim_due(NOW)
    await stores.callbacks.record_attempt(callback_of(first), now=NOW, status_code=503, error="busy", next_at=later)
    await stores.callbacks.record_attempt(callback_of(second), now=NOW, status_code=410, error="gone", next_at=None)
    await stores.callbacks.record_attempt(callback_of(delivered), now=NOW, status_code=200, error=None, next_at=None)

    async with operators_api(stores) as http:
        shown = (await http.get("/v1/admin/callbacks")).json()

        assert [one["run_id"] for one in shown] == [second.id, first.id]
        assert (await look(http))["callbacks"] == {"waiting": 1, "failing": 2}
        assert shown[0] == {
            "run_id": second.id,
            "url": URL,
            "attempts": 1,
            "next_attempt_at": None,
            "last_status_code": 410,
            "last_error": "gone",
            "created_at": NOW.isoformat().replace("+00:00", "Z"),
        }
        page = await http.get("/v1/admin/callbacks", params={"limit": 1, "after": second.id})
        assert [one["run_id"] for one in page.json()] == [first.id]

        for run in (first, second):
            retried = await http.post(f"/v1/admin/callbacks/{run.id}/retry")
            assert retried.status_code == 200, retried.text
            assert retried.json()["next_attempt_at"] == FixedClock().now().isoformat().replace("+00:00", "Z")
        refused = await http.post(f"/v1/admin/callbacks/{delivered.id}/retry")
        assert (refused.status_code, "delivered" in refused.text) == (409, True)
        assert (await http.post(f"/v1/admin/callbacks/{IDS.run()}/retry")).status_code == 404
        events = (await http.get("/v1/admin/audit", params={"action": "callback.retried"})).json()
        assert {event["object_id"] for event in events} == {first.id, second.id}

        async def are_tried() -> bool:
            listed = (await http.get("/v1/admin/callbacks")).json()
            return {one["run_id"]: one["attempts"] for one in listed} == {first.id: 2, second.id: 2}

        await wait_until(are_tried, description="both to be tried again")


async def test_what_webhook_endpoints_had_not_heard_of_was_in_no_list(stores: Stores) -> None:
    endpoints, webhooks = WebhookEndpointStore(stores.database), WebhookDeliveryStore(stores.database)
    endpoint, deleted = [await endpoints.create(some_endpoint(url=URL)) for _ in range(2)]
    options = RunOptions(dialect=endpoint.dialect, background=True)
    waits, given_up, delivered = [await stores.ended(options=options) for _ in range(3)]
    outcomes = {waits.id: (503, "busy", NOW + timedelta(hours=1)), given_up.id: (410, "gone", None)}
    for one in await webhooks.claim_due(NOW):
        status, error, next_at = outcomes.get(one.run_id, (200, None, None))
        await webhooks.record_attempt(one, now=NOW, status_code=status, error=error, next_at=next_at)
    await endpoints.delete(deleted.project_id, deleted.id)

    async with operators_api(stores) as http:
        shown = (await http.get("/v1/admin/webhooks")).json()

        found = {(one["run_id"], one["webhook_id"]) for one in shown}
        assert found == {(run.id, at.id) for run in (waits, given_up) for at in (endpoint, deleted)}
        [of_given_up] = [one for one in shown if (one["run_id"], one["webhook_id"]) == (given_up.id, endpoint.id)]
        assert of_given_up == {
            "id": f"{given_up.id}.{endpoint.id}",
            "run_id": given_up.id,
            "webhook_id": endpoint.id,
            "url": URL,
            "outcome": "completed",
            "attempts": 1,
            "next_attempt_at": None,
            "last_status_code": 410,
            "last_error": "gone",
            "created_at": NOW.isoformat().replace("+00:00", "Z"),
        }
        assert {one["url"] for one in shown if one["webhook_id"] == deleted.id} == {None}
        for place in range(4):  # two deliveries have the run of the cursor
            page = await http.get("/v1/admin/webhooks", params={"after": shown[place]["id"]})
            assert page.json() == shown[place + 1 :]
        first = await http.get("/v1/admin/webhooks", params={"limit": 1, "order": "asc"})
        assert first.json() == shown[-1:]

        async def retried(run_id: str, endpoint_id: str) -> httpx.Response:
            return await http.post(f"/v1/admin/webhooks/{run_id}/{endpoint_id}/retry")

        for run in (waits, given_up):
            answer = await retried(run.id, endpoint.id)
            assert answer.status_code == 200, answer.text
            assert answer.json()["next_attempt_at"] == FixedClock().now().isoformat().replace("+00:00", "Z")
        refused = await retried(delivered.id, endpoint.id)
        assert (refused.status_code, "has the event" in refused.text) == (409, True)
        for run_id, endpoint_id in ((waits.id, deleted.id), (IDS.run(), endpoint.id), (waits.id, IDS.webhook())):
            assert (await retried(run_id, endpoint_id)).status_code == 404
        events = (await http.get("/v1/admin/audit", params={"action": "webhook.retried"})).json()
        assert {event["object_id"] for event in events} >= {waits.id, given_up.id}

        async def are_tried() -> bool:
            listed = (await http.get("/v1/admin/webhooks")).json()
            return {one["attempts"] for one in listed if one["webhook_id"] == endpoint.id} == {2}

        await wait_until(are_tried, description="both to be tried again")
