"""Lists that a client wants whole, by a limit that it takes for more than there can be."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from shared.sql.paging import MOST_ROWS
from tests.kit.product import api_client
from tests.kit.services.databases import open_database

MORE = {"limit": 10_000}


@pytest.fixture
async def http(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with open_database(sqlite_url) as database, api_client(database) as http:
        yield http


async def agent_with(http: httpx.AsyncClient, **fields: Any) -> str:
    made = await http.post("/v1/agents", json={"model": "builtin/echo", "include_base_tools": False, **fields})
    assert made.status_code == 200, made.text
    return made.json()["id"]


async def test_a_limit_above_a_thousand_was_refused_for_the_shortest_list(http: httpx.AsyncClient) -> None:
    agent = await agent_with(http, memory_blocks=[{"label": str(n), "value": "v"} for n in range(MOST_ROWS)])
    for path in (f"/v1/agents/{agent}/core-memory/blocks", "/v1/blocks", "/v1/agents", "/v1/tools"):
        assert (await http.get(path, params=MORE)).status_code == 200, path
    assert len((await http.get("/v1/blocks", params=MORE)).json()) == MOST_ROWS

    assert (await http.post("/v1/blocks", json={"label": "human", "value": "v"})).status_code == 200

    whole = await http.get("/v1/blocks", params=MORE)
    assert (whole.status_code, whole.json()["field"]) == (400, "query.limit")
    assert "more rows than a page, 1000" in whole.json()["detail"]
    pages = [(await http.get("/v1/blocks", params={"limit": MOST_ROWS})).json()]
    pages.append((await http.get("/v1/blocks", params={**MORE, "after": pages[0][-1]["id"]})).json())
    assert [len(page) for page in pages] == [MOST_ROWS, 1]


async def test_a_limit_of_runs_that_lettas_server_refuses_was_taken(
    http: httpx.AsyncClient,
) -> None:
    assert (await http.get("/v1/runs", params={"limit": MOST_ROWS})).status_code == 200
    refused = await http.get("/v1/runs/", params={"limit": MOST_ROWS + 1})
    assert (refused.status_code, refused.json()["field"]) == (422, "query.limit")


async def test_passages_beyond_a_page_are_not_left_out_in_silence(http: httpx.AsyncClient) -> None:
    agent = await agent_with(http)
    archive = (await http.post("/v1/archives", json={"name": "facts"})).json()["id"]
    assert (await http.patch(f"/v1/agents/{agent}/archives/attach/{archive}")).is_success
    for size in (500, 500, 1):
        batch = {"passages": [{"text": "a fact"}] * size}
        listed = await http.get(f"/v1/agents/{agent}/archival-memory", params=MORE)
        assert listed.status_code == 200, listed.text
        assert (await http.post(f"/v1/archives/{archive}/passages/batch", json=batch)).is_success
    assert (await http.get(f"/v1/agents/{agent}/archival-memory", params=MORE)).status_code == 400


async def test_a_history_of_more_than_a_thousand_messages_is_one_page(http: httpx.AsyncClient) -> None:
    said = [{"role": "user", "content": str(number)} for number in range(MOST_ROWS)]
    agent = await agent_with(http, initial_message_sequence=said)
    for path in (f"/v1/agents/{agent}/messages", f"/v1/conversations/{agent}/messages", "/v1/messages"):
        listed = (await http.get(path, params={**MORE, "order": "asc"})).json()
        assert [message["content"] for message in listed[1:]] == [message["content"] for message in said]
