"""The messages of a run that waits for its turn: what it will begin with, as the history will have it."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from shared.domain.ids import RunId
from shared.sql.engine import Database
from tests.kit.product import api_client
from tests.kit.runs.stored_runs import Stores
from tests.kit.services.databases import open_database


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
async def http(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database) as client:
        yield client


async def submitted(http: httpx.AsyncClient, *texts: str, **fields: Any) -> str:
    """The id of a run of a new agent that waits for a worker."""
    made = await http.post("/v1/agents", json={"name": "Asked", "model": "builtin/echo", "include_base_tools": False})
    messages = [{"role": "user", "content": text} for text in texts]
    sent = await http.post(f"/v1/agents/{made.json()['id']}/messages/async", json={"messages": messages, **fields})
    assert sent.is_success, sent.text
    return sent.json()["id"]


async def messages_of(http: httpx.AsyncClient, run_id: str, **page: Any) -> list[dict[str, Any]]:
    answer = await http.get(f"/v1/runs/{run_id}/messages", params=page)
    assert answer.is_success, answer.text
    return answer.json()


async def test_the_input_of_a_run_that_waits_is_no_secret_until_it_begins(
    http: httpx.AsyncClient, database: Database
) -> None:
    run_id = await submitted(http, "One", "Two", "Three")
    waiting = await messages_of(http, run_id)
    assert [(one["message_type"], one["content"]) for one in waiting] == [
        ("user_message", "One"),
        ("user_message", "Two"),
        ("user_message", "Three"),
    ]
    stores = Stores(database)
    await stores.claim(await stores.runs.look_up(RunId(run_id)))
    assert await messages_of(http, run_id) == waiting


async def test_the_input_of_a_run_that_waits_is_listed_in_pages(http: httpx.AsyncClient) -> None:
    run_id = await submitted(http, "One", "Two", "Three")
    ids = [one["id"] for one in await messages_of(http, run_id)]

    async def page(**asked: Any) -> list[int]:
        return [ids.index(one["id"]) for one in await messages_of(http, run_id, **asked)]

    assert await page(limit=2) == [0, 1]
    assert await page(limit=2, after=ids[1]) == [2]
    assert await page(before=ids[1]) == [0]
    assert await page(limit=2, order="desc") == [2, 1]
    assert await page(after=ids[0], order="desc") == [2, 1]
    assert await page(after=ids[2]) == []


async def test_the_input_of_a_run_that_waits_is_of_the_types_that_were_asked_for(http: httpx.AsyncClient) -> None:
    run_id = await submitted(http, "One", include_return_message_types=["assistant_message"])
    assert await messages_of(http, run_id) == []
