"""What a key needs for each route: every route has its line, every line its route, and every key meets it."""

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import httpx
import pytest
from fastapi.routing import APIRoute

from api.access.authentication import SIGN_IN_RETURN
from api.access.route_rules import RULES, Reach
from api.application import ROUTERS
from api.direct_route import noun_of
from shared.domain.api_keys import Level, Scopes
from shared.sql.engine import Database
from tests.kit.keys import KeyMaker
from tests.kit.product.in_process import api_client
from tests.kit.services.databases import open_database

OTHER = "11111111-1111-4111-8111-111111111111"
CONFIGURED = "a-long-key-of-the-operator"
NO_KEY = {
    *("GET /", "GET /v1/health", "GET /healthz", "GET /readyz", "GET /console", "GET /console/{name:path}"),
    f"GET {SIGN_IN_RETURN}",
}

_EXAMPLES = {"memory_id": "passage", "conversation_id": "conv"}
_NAMES = {"block_label": "human", "tool_name": "look"}


def routes() -> set[str]:
    found = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return {f"{method} {route.path}" for route in found for method in route.methods or ()}


def example(route: str) -> tuple[str, str]:
    """The method, and a path with ids that nobody has, of a stream that ends."""

    def filled(match: re.Match[str]) -> str:
        name = match[1]
        return _NAMES.get(name) or f"{_EXAMPLES.get(name, name.removesuffix('_id'))}-{OTHER}"

    method, path = re.sub(r"\{(\w+)\}", filled, route).split(" ")
    return method, f"{path}?follow=false" if path.endswith("/events") else path


@dataclass(frozen=True)
class Setup:
    """An API, and the headers of a key of each kind."""

    http: httpx.AsyncClient
    keys: dict[Scopes, dict[str, str]]

    async def is_forbidden(self, route: str, scopes: Scopes) -> bool:
        """Whether the key is refused. Everything else that may be wrong with the request is found out later."""
        method, path = example(route)
        answer = await self.http.request(method, path, headers=self.keys[scopes])
        assert answer.status_code != 401, route
        return answer.status_code == 403


@pytest.fixture
async def setup(sqlite_url: str) -> AsyncGenerator[Setup]:
    async with open_database(sqlite_url) as database, api_client(database, api_keys=f"default={CONFIGURED}") as http:
        operator = {"Authorization": f"Bearer {CONFIGURED}"}
        agent = (await http.post("/v1/agents", json={"model": "builtin/echo"}, headers=operator)).json()["id"]
        yield Setup(http, await _keys(database, agent))


async def _keys(database: Database, agent: str) -> dict[Scopes, dict[str, str]]:
    every = [Scopes(level) for level in Level]
    every += [Scopes.parse([level, f"agent:{agent}"]) for level in (Level.READ, Level.WRITE)]
    return {scopes: await KeyMaker(database).headers(*scopes.texts()) for scopes in every}


def test_every_route_has_its_rule_and_every_rule_its_route() -> None:
    """What is not in the table is for admins alone. Somebody has decided about everything that is there."""
    assert routes() - NO_KEY == set(RULES)


def test_no_route_has_a_parameter_where_its_noun_stands() -> None:
    """The rule of a request is looked for among the routes of its noun."""
    assert [route for route in RULES if "{" in noun_of(route.partition(" ")[2])] == []


def test_a_read_changes_nothing() -> None:
    """The routes by which a key that may only read sends a body: they search, count, export or open a stream."""
    posts = {route for route, rule in RULES.items() if rule.level is Level.READ and not route.startswith("GET ")}
    assert posts == {
        # What its methods need, `tests/contract/test_mcp_scopes.py` tries.
        "POST /mcp",
        "POST /openai/v1/responses/input_tokens",
        "POST /v1/responses/input_tokens",
        "POST /v1/agents/{agent_id}/export",
        "POST /v1/conversations/{conversation_id}/stream",
        "POST /v1/messages/search",
        "POST /v1/passages/search",
        "POST /v1/runs/{run_id}/stream",
        "POST /v1/runs/{run_id}/stream-token",
        # A token to read with: one for more is refused there.
        "POST /v1/agents/{agent_id}/page-token",
        *(f"POST {base}/v1/responses/input_tokens" for base in ("", "/openai")),
        "POST /ag-ui/agent/{agent_id}/connect",
    }


NAMED_IN_THE_BODY = "POST /openai/v1/conversations"
"""Without an agent in its body it would begin a conversation of none."""


def expected(route: str, scopes: Scopes) -> bool:
    """Whether the key is refused a request that names no agent but in its path."""
    rule = RULES[route]
    if not scopes.include(rule.level):
        return True
    return bool(scopes.agents) and (route == NAMED_IN_THE_BODY or rule.reach in (Reach.PROJECT, Reach.QUERY))


async def test_every_key_meets_the_rule_of_every_route(setup: Setup) -> None:
    wrong = [
        (route, scopes.texts())
        for route in RULES
        for scopes in setup.keys
        if await setup.is_forbidden(route, scopes) is not expected(route, scopes)
    ]
    assert wrong == []


async def test_a_refusal_names_the_scope_that_is_needed(setup: Setup) -> None:
    [read] = [headers for scopes, headers in setup.keys.items() if scopes == Scopes(Level.READ)]
    refused = await setup.http.post("/v1/agents", json={"model": "builtin/echo"}, headers=read)
    assert refused.status_code == 403
    said = "POST /v1/agents needs a key with the scope write; this key has read"
    assert (refused.json()["detail"], refused.json()["message"]) == (f"FORBIDDEN: {said}", said)
    refused = await setup.http.post("/v1/chat/completions", json={}, headers=read)
    assert refused.status_code == 403
    assert "scope write" in refused.json()["error"]["message"]


async def test_what_is_nowhere_is_not_forbidden(setup: Setup) -> None:
    for headers in setup.keys.values():
        assert (await setup.http.get("/v1/nonsense", headers=headers)).status_code == 404
        assert (await setup.http.put("/v1/agents", headers=headers)).status_code == 405
