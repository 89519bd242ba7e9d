"""Whatever a caller sends, asks for or has stored, and whatever a model answers, nobody else waits for it: the largest
legal input of each sort, in every place of every route and of every base tool, and the largest answers, hold the event
loop of the API and of the worker for a quarter of a second at most.

What is measured is the processor time of the loop's thread, scaled by a loop of known length that is run beside it.
"""

import gc
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx
import pytest

from api.letta.agents import PENDING_APPROVAL, SECRETS
from shared.domain.tool_catalog import BASE_TOOLS, BaseTool
from shared.sql.engine import Database
from tests.kit.largest.loop_holds import LIMIT_S, LoopHolds, calibrate, measured_loop
from tests.kit.largest.plenty import much_of_everything
from tests.kit.largest.requests import (
    JSON_TYPE,
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
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import running_product
from tests.kit.project.documents import written_openapi
from tests.kit.services.redis_fixtures import shared_server_url
from tests.kit.services.redis_servers import RedisService
from tests.kit.wait_until import after
from tests.kit.walls.belongings import Belongings, client_of, is_idle, key_of, one_of_everything

PROJECT = "alpha"
KEY = key_of(PROJECT)
SETTINGS = {"api_keys": f"{PROJECT}={KEY}", "sweep_s": 3600.0, "requests_per_s": 0.0}
OF_EVERY_ODD_BODY = frozenset({"POST /v1/blocks", "POST /v1/chat/completions"})
ONE_OF = 50
"""So many requests are one of the sample's."""

PARTS = 2
"""So many runs of the test walk through all bodies: each takes another part, in some 80 s of processor time."""

PART = "HOLDFAST_TEST_WALK"
"""The variable that says which part: a number, or `all`. Without it, the sample of bodies is all that is walked."""


@dataclass
class World:
    """A product on this loop, a project with one of everything, and the walk through its routes."""

    walk: LoopWalk
    client: httpx.AsyncClient
    document: Mapping[str, Any]
    belongings: Belongings
    models: ModelServer
    database: Database

    @property
    def routes(self) -> set[str]:
        return {f"{method.upper()} {path}" for path, known in self.document["paths"].items() for method in known}

    def bases(self) -> list[Base]:
        return list(bases(self.document, self.belongings))


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    database, redis = Database(postgres_url, connections=10), RedisService(shared_server_url())
    await redis.empty()
    async with (
        ModelServer() as models,
        running_product(database, redis.client(), models, settings=SETTINGS) as product,
        client_of(product.base_url, PROJECT) as client,
    ):
        belongings = await one_of_everything(client, PROJECT, "zanzibar")
        gc.collect()
        gc.freeze()  # as a server does at its start: a full collection would look through all of this
        with measured_loop() as holds:
            yield World(LoopWalk(client, KEY, holds), client, written_openapi(), belongings, models, database)
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


def part_of(requests: Iterable[LargeRequest], part: int, parts: int) -> Iterator[LargeRequest]:
    """Some of the requests: one in so many of each route, others each time, and one of each sort and of each route in
    any case."""
    places: Counter[str] = Counter()
    met: set[str] = set()
    for request in requests:
        place, sort = places[request.route], request.part.rpartition(": ")[2]
        places[request.route] += 1
        if place % parts == part % parts or place == 0 or sort not in met:
            met.add(sort)
            yield request


def ordinary_requests(base: Base) -> Iterator[LargeRequest]:
    """As a client sends them: with nothing but what the route needs, with the longest page, and with all that may be
    included."""
    request = base.request
    known = {parameter["name"] for parameter in base.operation.get("parameters", []) if parameter["in"] == "query"}
    pages = {"limit": "limit=10000" if request.template.endswith("/trace") else "limit=1000"}
    asked = [pages["limit"]] if "limit" in known else []
    included = [*asked, *(f"include={one}" for one in (SECRETS, PENDING_APPROVAL))] if "include" in known else []
    body = None if request.body is None else json.dumps(request.body).encode()
    for query in ([], asked, included):
        if request.file is None and (query or query is not asked):
            target = f"{request.path}?{'&'.join(filter(None, (base.needed, *query)))}"
            headers = {**request.headers, **(JSON_TYPE if body else {})}
            yield LargeRequest(base.route, "&".join(query), request.method, target, headers, body)


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
@pytest.mark.skipif(PART not in os.environ, reason=f"{PART}=0, 1 or all walks through bodies of 16 MB")
async def test_no_body_of_any_route_holds_the_loop(world: World) -> None:
    part = os.environ[PART]
    chosen = bodies(world) if part == "all" else part_of(bodies(world), int(part), PARTS)
    await world.walk.walk(chosen)
    nothing_held_the_loop(world.walk)
    takes_bodies = {base.route for base in world.bases() if "requestBody" in base.operation}
    assert world.walk.routes == takes_bodies


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_no_answer_holds_the_loop_however_much_is_stored(world: World) -> None:
    await much_of_everything(world.database, world.belongings)
    for base in world.bases():
        await world.walk.walk(ordinary_requests(base))
    nothing_held_the_loop(world.walk)
    assert world.walk.routes == {base.route for base in world.bases() if base.request.file is None}


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_page_of_much_was_made_json_in_one_go(world: World) -> None:
    """One list of each kind that was too long, in the tests of every day."""
    await much_of_everything(world.database, world.belongings)
    agent = world.belongings["agents"][0]
    for path in (f"/v1/agents/{agent}/export", f"/v1/agents/{agent}/messages?limit=1000", "/v1/approvals?limit=1000"):
        await world.walk.look_at(LargeRequest(path, "", "GET", path, {}))
    nothing_held_the_loop(world.walk)


@pytest.mark.slow
async def test_each_item_that_a_request_refers_to_was_compared_with_every_other(world: World) -> None:
    """Ten thousand references, of a key that may only read, held the loop for two and a half seconds."""
    agent, ids = world.belongings["agents"][0], list[str]()
    said = [{"role": "user", "content": str(number)} for number in range(1000)]
    turn = {"provider": "x", "model": "y", "request_messages": said, "response_dict": {"content": "seen"}}
    path, params = f"/v1/agents/{agent}/messages", {"limit": "1000", "order": "asc"}
    for _ in range(6):
        assert (await world.client.post(f"{path}/capture", json=turn)).is_success
        listed = (await world.client.get(path, params=params)).json()
        own = [one["id"] for one in listed if one["message_type"] == "user_message"]
        ids += [f"msg_{one.removeprefix('message-').replace('-', '')}" for one in own]
        params["after"] = listed[-1]["id"]
    named = [{"type": "item_reference", "id": one} for one in dict.fromkeys(ids)]
    assert len(named) > 5000

    for last in ([], [{"type": "item_reference", "id": "mcp_of_nothing"}]):
        body = {"model": agent, "input": [*named, *last]}

        async def ask(body: Mapping[str, Any] = body, wanted: int = 404 if last else 200) -> None:
            answer = await world.client.post("/openai/v1/responses/input_tokens", json=body)
            assert answer.status_code == wanted, answer.text[:300]

        await world.walk.watch(f"{len(named)} references, and {len(last)} to nothing", ask)
    nothing_held_the_loop(world.walk)


LONG_HISTORIES = {
    "texts of one answer": [{"role": "assistant", "content": "x" * 1500}] * 9999,
    "calls and then their results": [
        *({"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(4999)),
        *({"type": "function_call_output", "call_id": f"c{n}", "output": "y"} for n in reversed(range(4999))),
    ],
    "calls with results": [
        {"type": "mcp_call", "id": f"c{n}", "name": "f", "arguments": "{}", "output": "y"} for n in range(9999)
    ],
    "verdicts between texts": [
        item
        for n in range(3333)
        for item in (
            {"type": "mcp_approval_request", "id": f"of another {n}"},
            {"type": "mcp_approval_response", "approval_request_id": f"m{n}", "approve": True},
            {"role": "assistant", "content": "a"},
        )
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("history", LONG_HISTORIES)
async def test_each_item_of_a_history_copied_those_before_it(world: World, history: str) -> None:
    """The texts of one answer, with a key that may only read, held the loop for three seconds."""
    body = {
        "model": world.belongings["agents"][0],
        "input": [*LONG_HISTORIES[history], {"role": "user", "content": "and?"}],
    }

    async def ask() -> None:
        answer = await world.client.post("/openai/v1/responses/input_tokens", json=body)
        assert answer.status_code in (200, 400), answer.text[:300]

    await world.walk.watch(history, ask)
    nothing_held_the_loop(world.walk)


def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    """One event of a model's stream, with OpenAI's names."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()


def largest_model_answers() -> Iterator[tuple[str, Turn]]:
    """Answers that a server gives as fast as it can."""
    calls = [{"index": n, "id": f"call_{n}", "function": {"name": "no", "arguments": "{}"}} for n in range(1000)]
    long_arguments = json.dumps({"of": "a" * 900_000})
    asked = [{"index": n, "id": f"call_{n}", "function": {"name": "b", "arguments": long_arguments}} for n in range(3)]
    for name, pieces, reason in (
        ("many pieces", [chunk({"content": "word "})] * 30_000, "stop"),
        ("many long pieces", [chunk({"content": "word " * 20_000})] * 200, "stop"),
        ("one piece", [chunk({"content": "word " * 4_000_000})], "stop"),
        ("many calls at once", [chunk({"tool_calls": calls})], "tool_calls"),
        ("many calls", [chunk({"tool_calls": [call]}) for call in calls], "tool_calls"),
        ("long arguments", [chunk({"tool_calls": [call]}) for call in asked], "tool_calls"),
    ):
        yield name, Turn(raw=(b"".join([*pieces, chunk({}, reason), b"data: [DONE]\n\n"]),))


MUCH = '''
def much(of: str) -> str:
    """Says much.

    Args:
        of: what
    """
    return "0123456789" * 100_000
'''


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_answer_of_a_model_and_no_result_of_a_tool_holds_the_loop_of_the_worker(world: World) -> None:
    tool = {"source_code": MUCH, "return_char_limit": 1_000_000, "enable_parallel_execution": True}
    tool_id = (await world.client.post("/v1/tools", json=tool)).json()["id"]
    answers = [*largest_model_answers(), ("long results", Turn(calls=[Call("much", {"of": "a"})] * 20))]
    rules = [{"type": "max_count_per_step", "tool_name": "much", "max_count_limit": 1000}] * 1000
    for name, turn in answers:
        for by_tokens in (True, False):

            async def run(turn: Turn = turn, by_tokens: bool = by_tokens) -> None:
                agent_id = await agent_of(world, tool_ids=[tool_id], tool_rules=rules)
                world.models.play(turn)
                run_id = await run_of(world, agent_id, stream_tokens=by_tokens)
                assert (await world.client.get(f"/v1/runs/{run_id}")).json()["status"] == "completed"
                assert len((await world.client.post(f"/v1/runs/{run_id}/stream", json={})).content) > 1000

            await world.walk.watch(f"{name}, {'by tokens' if by_tokens else 'by steps'}", run)
    nothing_held_the_loop(world.walk)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_history_of_many_megabytes_held_the_loop_while_it_was_prepared_for_the_model(world: World) -> None:
    said = {"role": "user", "content": "word " * 700_000}
    captured = {"provider": "openai", "model": "x", "request_messages": [said] * 4, "response_dict": {"content": "Yes"}}

    async def run() -> None:
        agent_id = await agent_of(world, memory_blocks=[{"label": "a", "value": "Likes tea. " * 9000}])
        for _ in range(6):
            await world.client.post(f"/v1/agents/{agent_id}/messages/capture", json=captured)
        run_id = await run_of(world, agent_id)
        assert (await world.client.get(f"/v1/runs/{run_id}")).json()["status"] == "completed"

    await world.walk.watch("a long history", run)
    nothing_held_the_loop(world.walk)


async def agent_of(world: World, **fields: Any) -> str:
    agent = {"model": "openai/gpt-4o-mini", "include_base_tools": False, **fields}
    return (await world.client.post("/v1/agents", json=agent)).json()["id"]


async def run_of(world: World, agent_id: str, **fields: Any) -> str:
    """A run that has ended."""
    path = f"/v1/agents/{agent_id}/messages/async"
    run_id = (await world.client.post(path, json={"input": "Go", **fields})).json()["id"]
    await is_idle(world.client)
    return run_id


def test_each_part_of_the_walk_has_every_route_and_every_sort() -> None:
    sorts = ("words", "deep", "many keys")
    all_of_them = [
        LargeRequest(f"POST /{route}", f"{field}: {sort}", "POST", "/", {})
        for route in range(5)
        for field in range(20)
        for sort in sorts
    ]
    walked: set[str] = set()
    for part in range(PARTS):
        chosen = list(part_of(all_of_them, part, PARTS))
        assert {request.route for request in chosen} == {request.route for request in all_of_them}
        assert {request.part.rpartition(": ")[2] for request in chosen} == set(sorts)
        assert len(chosen) < len(all_of_them) * 0.7
        walked |= {str(request) for request in chosen}
    assert walked == {str(request) for request in all_of_them}


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
