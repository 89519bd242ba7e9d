"""Fields that hold much have a bound, and what a refusal repeats of a request has one, too."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.errors import LONGEST_DETAIL, MOST_FLAWS
from api.input_limits import LONGEST_METADATA, LONGEST_SETTINGS, MOST_ENTRIES
from shared.domain.agents import LARGEST_PART, SEALED, zone_of
from tests.kit.product.in_process import api_client
from tests.kit.services.databases import open_database

AGENT = "/v1/agents", {"model": "builtin/echo"}
BLOCK = "/v1/blocks", {"label": "human", "value": ""}
TOOL = "/v1/tools", {"source_code": 'def f(x: str) -> str:\n    """Says."""\n    return x\n'}
RULE = {"type": "continue_loop", "tool_name": "a"}
MANY = {str(number): "" for number in range(MOST_ENTRIES + 1)}
LONG = "a" * LARGEST_PART
"""Of parts of an agent that are bounded as a whole, not entry by entry."""
LARGE: dict[str, Any] = {
    "tool_rules": [RULE | {"tool_name": "memory_insert", "prompt_template": LONG}],
    "secrets": {"KEY": LONG},
    "identity_ids": [LONG],
    "template_id": LONG,
    "embedding": LONG,
    "agent_type": LONG,
    "model_settings": {"unknown": LONG},
    "compaction_settings": {"prompt": LONG},
}
BOUNDS: list[tuple[tuple[str, dict[str, Any]], str, Any]] = [
    (AGENT, "timezone", "Europe/" * 20),
    (AGENT, "name", "a" * 1001),
    (AGENT, "system", "a" * 1_000_001),
    (AGENT, "description", "a" * 100_001),
    (AGENT, "metadata", {"a": "a" * LONGEST_METADATA}),
    (AGENT, "response_format", {"a": "a" * LONGEST_SETTINGS}),
    (AGENT, "tool_rules", [RULE] * (MOST_ENTRIES + 1)),
    (AGENT, "secrets", MANY),
    (AGENT, "tool_exec_environment_variables", MANY),
    (AGENT, "memory_variables", MANY),
    (AGENT, "identity_ids", list(MANY)),
    *((AGENT, field, value) for field, value in LARGE.items()),
    (BLOCK, "tags", list(MANY)),
    (BLOCK, "label", "a" * 1001),
    (BLOCK, "metadata", {"a": "a" * LONGEST_METADATA}),
    (TOOL, "tags", list(MANY)),
    (TOOL, "description", "a" * 100_001),
    (TOOL, "npm_requirements", [{}] * (MOST_ENTRIES + 1)),
]


@pytest.fixture
async def http(sqlite_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with open_database(sqlite_url) as database, api_client(database) as client:
        yield client


@pytest.mark.parametrize(("thing", "field", "value"), BOUNDS, ids=[f"{thing[0]} {field}" for thing, field, _ in BOUNDS])
async def test_a_field_without_a_bound_held_the_loop_with_sixteen_megabytes(
    http: httpx.AsyncClient, thing: tuple[str, dict[str, Any]], field: str, value: Any
) -> None:
    path, body = thing
    refused = await http.post(path, json=body | {field: value})
    assert refused.status_code in (400, 422), refused.text[:500]
    assert str(refused.json()["field"]).startswith(field)
    assert len(refused.content) < 5000
    assert (await http.post(path, json=body)).status_code == 200


@pytest.mark.parametrize("field", sorted(LARGE.keys() - {"agent_type"}))
async def test_a_part_of_an_agent_without_a_bound_was_read_again_for_each_of_its_requests(
    http: httpx.AsyncClient, field: str
) -> None:
    agent = (await http.post("/v1/agents", json=AGENT[1])).json()
    path = f"/v1/agents/{agent['id']}"
    refused = await http.patch(path, json={field: LARGE[field]})
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert (await http.get(path)).json() == agent


async def test_an_imported_agent_had_no_bound(http: httpx.AsyncClient) -> None:
    agent = (await http.post("/v1/agents", json=AGENT[1])).json()
    file = (await http.get(f"/v1/agents/{agent['id']}/export")).json()
    file["agents"][0]["tool_rules"] = LARGE["tool_rules"]
    sent = {"file": ("agent.af", json.dumps(file), "application/json")}
    refused = await http.post("/v1/agents/import", files=sent)
    assert (refused.status_code, refused.json()["field"]) == (400, "tool_rules")
    assert len((await http.get("/v1/agents")).json()) == 1


async def test_settings_that_are_kept_added_up_over_many_changes(http: httpx.AsyncClient) -> None:
    """Each of them is small, and what an earlier one left stays."""
    agent_id = (await http.post("/v1/agents", json=AGENT[1])).json()["id"]
    answers = [
        await http.patch(f"/v1/agents/{agent_id}", json={"model_settings": {f"mine_{number}": "a" * 90_000}})
        for number in range(7)
    ]
    assert [answer.status_code for answer in answers] == [200] * 5 + [400] * 2
    assert answers[-1].json()["field"] == "model_settings"


async def test_each_of_ninety_thousand_errors_was_shown(http: httpx.AsyncClient) -> None:
    """An answer of 26 MB held the loop for a second."""
    wrong = [{"role": 1, "content": ["a" * 1000] * 10}] * 500
    answer = await http.post("/v1/chat/completions", json={"model": "a", "messages": wrong})
    assert len(answer.content) < 50_000
    body = {"model": "builtin/echo", "tool_rules": [{"type": "wrong" * 1000}] * 900}
    said = (await http.post("/v1/agents", json=body)).json()
    assert said["detail"].count('"type":') <= 2 * MOST_FLAWS
    assert said["more_errors"] == 2 * 900 - MOST_FLAWS


async def test_a_body_was_repeated_in_whole_for_each_field_that_was_missing(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/blocks", json={"k" * 1_000_000: {"a": ["b" * 100] * 50_000}})
    assert answer.status_code == 422
    assert len(answer.content) < 5000


async def test_a_long_id_was_repeated_in_whole(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/agents", json=AGENT[1] | {"tool_ids": ["a" * 1_000_000]})
    assert answer.status_code == 404
    assert LONGEST_DETAIL <= len(answer.json()["detail"]) <= LONGEST_DETAIL + 1


def test_a_time_zone_of_many_parts_was_looked_for_until_the_stack_was_full() -> None:
    assert str(zone_of("a/" * 500_000)) == "UTC"


NAMED: list[tuple[str, str, dict[str, Any]]] = [
    ("tool_rules", "/v1/agents", AGENT[1] | {"tool_rules": [RULE]}),
    ("secrets", "/v1/agents", AGENT[1] | {"secrets": {"KEY": f"{SEALED}x"}}),
    ("query", "/v1/messages/search", {"query": "tea " * 1000}),
    ("text", "/v1/agents/{agent_id}/archival-memory", {"text": " "}),
    ("tags", "/v1/agents/{agent_id}/archival-memory", {"text": "Tea.", "tags": ["a" * 501]}),
]


@pytest.mark.parametrize(("field", "path", "body"), NAMED, ids=[field for field, _, _ in NAMED])
async def test_a_field_was_named_in_the_sentence_of_its_refusal_alone(
    http: httpx.AsyncClient, field: str, path: str, body: dict[str, Any]
) -> None:
    agent_id = (await http.post("/v1/agents", json=AGENT[1])).json()["id"]
    refused = await http.post(path.format(agent_id=agent_id), json=body)
    assert (refused.status_code in (400, 422), refused.json().get("field")) == (True, field), refused.text


async def test_an_otid_as_long_as_a_body_was_looked_for_in_the_database(http: httpx.AsyncClient) -> None:
    agent_id = (await http.post("/v1/agents", json=AGENT[1])).json()["id"]
    conversation = (await http.post("/v1/conversations", params={"agent_id": agent_id})).json()
    asked = {"otid": "a" * 5_000_000}
    answer = await http.post(f"/v1/conversations/{conversation['id']}/stream", json=asked)
    assert (answer.status_code, "5000000 characters" in answer.text) == (404, True)
