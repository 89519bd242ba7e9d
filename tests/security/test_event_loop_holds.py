"""Whatever a caller sends, nobody else waits for it: the largest legal input of each sort, in every place of every
route and of every base tool, holds the event loop of the API and of the worker for a quarter of a second at most.

What is measured is the processor time of the loop's thread, scaled by a loop of known length that is run beside it.
"""

import gc
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx
import pytest

from shared.domain.tool_catalog import BASE_TOOLS, BaseTool
from shared.sql.engine import Database
from tests.kit.largest.loop_holds import LIMIT_S, LoopHolds, calibrate, measured_loop
from tests.kit.largest.requests import (
    Base,
    LargeRequest,
    bases,
    largest_bodies,
    largest_forms,
    largest_heads,
    odd_bodies,
)
from tests.kit.largest.values import Schemas, an_object, encoded
from tests.kit.largest.walk import LoopWalk
from tests.kit.model_server import ModelServer
from tests.kit.product import running_product
from tests.kit.product.in_process import api_app
from tests.kit.services.redis_fixtures import shared_server_url
from tests.kit.services.redis_servers import RedisService
from tests.kit.wait_until import after
from tests.kit.walls.belongings import Belongings, client_of, key_of, one_of_everything

PROJECT = "alpha"
KEY = key_of(PROJECT)
SETTINGS = {"api_keys": f"{PROJECT}={KEY}", "sweep_s": 3600.0, "requests_per_s": 0.0}
OF_EVERY_ODD_BODY = frozenset({"POST /v1/blocks", "POST /v1/chat/completions"})
ONE_OF = 50
"""So many requests are one of the sample's."""


@dataclass
class World:
    """A product on this loop, a project with one of everything, and the walk through its routes."""

    walk: LoopWalk
    client: httpx.AsyncClient
    document: Mapping[str, Any]
    belongings: Belongings

    @property
    def routes(self) -> set[str]:
        return {f"{method.upper()} {path}" for path, known in self.document["paths"].items() for method in known}

    def bases(self) -> list[Base]:
        return list(bases(self.document, self.belongings))


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    database, redis = Database(postgres_url, connections=10), RedisService(shared_server_url())
    await redis.empty()
    async with ModelServer() as models, running_product(database, redis.client(), models, settings=SETTINGS) as product:
        async with api_app(database, api_keys=SETTINGS["api_keys"]) as app:
            document = app.openapi()
        async with client_of(product.base_url, PROJECT) as client:
            belongings = await one_of_everything(client, PROJECT, "zanzibar")
            gc.collect()
            gc.freeze()  # as a server does at its start: a full collection would look through all of this
            with measured_loop() as holds:
                yield World(LoopWalk(client, KEY, holds), client, document, belongings)
            gc.unfreeze()
    await redis.close()
    await database.aclose()


def heads(world: World, one_of: int = 1) -> Iterator[LargeRequest]:
    """The largest heads of each route: all of them, or one of so many, which differ from route to route."""
    for number, base in enumerate(world.bases()):
        largest = list(largest_heads(base))
        yield from largest[number % min(one_of, len(largest)) :: one_of] if largest else ()


def bodies(world: World) -> Iterator[LargeRequest]:
    schemas = Schemas(world.document)
    for base in world.bases():
        yield from odd_bodies(base, every=base.route in OF_EVERY_ODD_BODY)
        yield from largest_bodies(base, schemas)
        yield from largest_forms(base)


def nothing_held_the_loop(walk: LoopWalk) -> None:
    assert not walk.too_long, "\n".join(walk.too_long)
    assert not walk.broken, "\n".join(walk.broken)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_sample_of_the_largest_requests_holds_the_loop_of_nobody(world: World) -> None:
    await world.walk.walk(islice(heads(world), 0, None, ONE_OF))
    await world.walk.walk(islice(bodies(world), 0, None, ONE_OF))
    assert world.walk.requests > 30
    nothing_held_the_loop(world.walk)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_no_address_and_no_header_of_any_route_holds_the_loop(world: World) -> None:
    await world.walk.walk(heads(world, one_of=4))
    nothing_held_the_loop(world.walk)
    assert world.walk.routes == world.routes


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_no_argument_of_any_base_tool_holds_the_loop_of_the_worker(world: World) -> None:
    await world.client.post("/v1/tools/add-base-tools")
    known = {tool["name"]: tool["id"] for tool in (await world.client.get("/v1/tools?limit=1000")).json()}
    agent = {
        "model": "builtin/echo",
        "tool_ids": [known[tool.name] for tool in BASE_TOOLS],
        "memory_blocks": [{"label": "human", "value": "Likes tea.\n" * 9000}],
        "include_base_tools": False,
    }
    agent_id = (await world.client.post("/v1/agents", json=agent)).json()["id"]
    walked: set[str] = set()
    for tool in BASE_TOOLS:
        for part, arguments in largest_arguments(tool):
            path = f"/v1/agents/{agent_id}/tools/{tool.name}/run"
            body = an_object({}, "args", arguments)
            await world.walk.look_at(
                LargeRequest(tool.name, part, "POST", path, {"Content-Type": "application/json"}, body)
            )
            walked.add(tool.name)
    nothing_held_the_loop(world.walk)
    assert walked == {tool.name for tool in BASE_TOOLS}


def largest_arguments(tool: BaseTool) -> Iterator[tuple[str, bytes]]:
    """Arguments of a base tool, each of them large in turn."""
    described = {"type": "object", "properties": tool.properties, "required": list(tool.required)}
    smallest = Schemas({}).smallest(described)
    base = {name: "human" if name == "label" else value for name, value in smallest.items()}
    yield "smallest", encoded(base)
    yield from Schemas({}).largest_fields(described, base)


async def test_a_loop_that_is_held_is_found_out() -> None:
    """The walk can fail; what another thread does is not held against the loop."""
    with measured_loop() as holds:
        await busy(holds, 2 * LIMIT_S)
        assert holds.longest_s >= 2 * LIMIT_S
        holds.begin()
        await busy(holds, 0.0)
        assert holds.longest_s < LIMIT_S
    assert calibrate() >= 1.0


async def busy(holds: LoopHolds, seconds: float) -> None:
    """Computes for so long in one turn of the loop."""
    await after()
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass
    await after()
    assert holds.longest_s < 60
