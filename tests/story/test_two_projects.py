"""A caller finds nothing of another project, changes nothing of it, and cannot tell it from what nobody has.

How long an answer takes is not looked at: that may differ.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, cast

import httpx
import pytest
from arq.connections import ArqRedis
from fastapi.routing import APIRoute

from api.dependencies import ProjectDep, RunIdPath, served
from api.letta.runs import wire_run
from shared.sql.engine import Database
from shared.sql.runs.run_store import RunStore
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.in_process import api_app, listening
from tests.kit.project.documents import written_openapi
from tests.kit.services.databases import patient_database
from tests.kit.services.redis_fixtures import shared_server_url
from tests.kit.services.redis_servers import RedisService
from tests.kit.walls.belongings import Belongings, client_of, key_of, one_of_everything, unfinished_runs
from tests.kit.walls.walk import Leak, Walker, refuse_changes, rows_of

KEYS = f"alpha={key_of('alpha')},beta={key_of('beta')}"
SETTINGS = {"api_keys": KEYS, "sweep_s": 3600.0}
"""Nobody looks for runs that no worker was told of."""
FORGETFUL = "/v1/forgetful/{run_id}"


@dataclass
class World:
    """Two projects with one of everything, and a client of the second one's."""

    product: Product
    client: httpx.AsyncClient
    alpha: Belongings
    beta: Belongings
    rows_of_alpha: dict[str, set[str]]


@pytest.fixture(
    params=[
        "sqlite_url",
        pytest.param("postgres_url", marks=pytest.mark.services),
        pytest.param("plain_owner_url", marks=pytest.mark.services),
    ]
)
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """On Postgres once with a role that the tables' policies bind, and once with one that passes them."""
    opened = patient_database(request.getfixturevalue(request.param), connections=10)
    yield opened
    await opened.aclose()


@pytest.fixture
async def redis(database: Database) -> AsyncIterator[ArqRedis]:
    service = RedisService(None if database.is_sqlite else shared_server_url())
    await service.empty()
    yield service.client()
    await service.close()


@pytest.fixture
async def world(database: Database, redis: ArqRedis, models: ModelServer) -> AsyncIterator[World]:
    async with running_product(database, redis, models, settings=SETTINGS) as product:
        async with client_of(product.base_url, "alpha") as client:
            alpha = dict(await one_of_everything(client, "alpha", "zanzibar"))
        alpha["runs"] += await unfinished_runs(database, "alpha", alpha)
        before = await rows_of(database)
        async with client_of(product.base_url, "beta") as client:
            yield World(product, client, alpha, await one_of_everything(client, "beta", "honolulu"), before)


# Where only the stores stand between the projects, and where the tables' policies bind every route.
@pytest.mark.parametrize(
    "database", ["sqlite_url", pytest.param("plain_owner_url", marks=pytest.mark.services)], indirect=True
)
@pytest.mark.timeout(900)
async def test_every_route_answers_for_another_projects_things_as_for_what_nobody_has(world: World) -> None:
    document = written_openapi()
    walker = Walker(world.client, world.beta, world.alpha)
    await walker.walk(document)
    assert walker.requests > 1000
    operations = {f"{method.upper()} {path}" for path, known in document["paths"].items() for method in known}
    assert operations <= walker.routes
    assert {f"GET /v1/admin/{what}" for what in ("keys", "audit", "status")} <= operations
    refuse_changes(world.rows_of_alpha, await rows_of(world.product.context.database), world.alpha)


async def test_a_route_that_forgets_the_project_is_found_or_comes_up_against_the_policies(world: World) -> None:
    """The walk can fail; and where policies bind, there is nothing for such a route to show."""
    database = world.product.context.database
    async with api_app(database, api_keys=KEYS) as app:

        async def show(run_id: RunIdPath, runs: Annotated[RunStore, served(RunStore)], _: ProjectDep) -> dict[str, Any]:
            return wire_run(await runs.look_up(run_id))

        app.add_api_route(FORGETFUL, show)
        document = app.openapi()
        document["paths"] = {FORGETFUL: document["paths"][FORGETFUL]}
        cast("APIRoute", app.routes[-1]).include_in_schema = False  # nobody has a type of what it answers
        async with listening(app) as base_url, client_of(base_url, "beta") as client:
            walker = Walker(client, world.beta, world.alpha)
            if database.is_sqlite or await database.passes_policies():
                with pytest.raises(Leak, match="/v1/forgetful/"):
                    await walker.walk(document)
            else:
                await walker.walk(document)


async def test_an_archive_of_another_project_was_named_to_who_stored_a_passage_for_its_agent(world: World) -> None:
    """The answer told its id, and that the agent is there."""
    agent = world.alpha["agents"][0]
    answer = await world.client.post(f"/v1/agents/{agent}/archival-memory", json={"text": "one"})
    assert (answer.status_code, answer.json()["detail"]) == (404, f"Agent with ID {agent} not found")


async def test_a_token_of_another_projects_stream_opens_that_stream_alone(world: World) -> None:
    """Whoever has it may read: pages have no key. It shows nothing else, and no other run."""
    [token], [first, second, *_] = world.alpha["tokens"], world.alpha["runs"]
    async with httpx.AsyncClient(base_url=world.product.base_url, verify=False) as page:  # noqa: S501 - no TLS here
        shown = await page.get(f"/v1/runs/{first}/stream", params={"token": token})
        assert shown.status_code == 200
        assert "zanzibar" in shown.text
        assert (await page.get(f"/v1/runs/{second}/stream", params={"token": token})).status_code == 401
        assert (await page.get(f"/v1/runs/{first}", params={"token": token})).status_code == 401
