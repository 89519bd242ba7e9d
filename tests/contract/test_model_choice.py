"""Agents whose request leaves the choice of the model to the server, as Letta Code's `--new-agent` does."""

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from shared.process.settings import Settings
from shared.sql.engine import Database
from tests.kit.product import api_client
from tests.kit.services.databases import open_database

OPENAI = {"OPENAI_API_KEY": "k"}
LLAMA = "ollama/llama 3"


@pytest.fixture
async def database(sqlite_url: str):
    async with open_database(sqlite_url) as database:
        yield database


def server(
    database: Database, environment: dict[str, str] | None = None, **settings: Any
) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    return api_client(database, environment=environment or OPENAI, **settings)


@pytest.mark.parametrize("asked", ["letta/auto", "letta/auto-fast", "letta/auto-memory"])
async def test_a_program_that_left_the_choice_to_the_server_was_refused(database: Database, asked: str) -> None:
    async with server(database) as http:
        first = (await http.get("/v1/models")).json()[0]["handle"]

        made = await http.post("/v1/agents/", json={"model": asked})

        assert (made.status_code, made.json()["model"]) == (200, first)
        assert made.headers["Warning"] == f'299 holdfast "the model {asked} is {first} here"'
        shown = await http.get(f"/v1/agents/{made.json()['id']}")
        assert shown.json()["llm_config"]["handle"] == first
        assert "Warning" not in shown.headers


async def test_the_operators_model_is_chosen_and_listed_first(database: Database) -> None:
    """Letta Code's first run takes the first model of the list: with Ollama alone, that was one that echoes."""
    async with server(database, {"OLLAMA_BASE_URL": "http://127.0.0.1:1"}, default_model=LLAMA) as http:
        listed = [model["handle"] for model in (await http.get("/v1/models")).json()]
        assert listed[0] == LLAMA
        assert len(listed) == len(set(listed)) > 1
        assert (await http.post("/v1/agents", json={"model": "letta/auto"})).json()["model"] == LLAMA

        plain = await http.post("/v1/agents", json={"name": "plain"})
        assert (plain.json()["model"], "Warning" in plain.headers) == (LLAMA, False)
        named = await http.post("/v1/agents", json={"model": "openai/gpt-4o"})
        assert named.json()["model"] == "openai/gpt-4o"


async def test_a_default_that_lists_know_comes_first_and_once(database: Database) -> None:
    async with server(database, default_model="openai/gpt-5-mini") as http:
        listed = [model["handle"] for model in (await http.get("/v1/models")).json()]
    assert listed[0] == "openai/gpt-5-mini"
    assert listed.count("openai/gpt-5-mini") == 1


async def test_changes_leave_the_choice_as_well(database: Database) -> None:
    async with server(database, default_model="openai/gpt-5-mini") as http:
        agent = (await http.post("/v1/agents", json={"model": "builtin/echo"})).json()
        config = {"handle": "letta/auto", "model": "auto", "model_endpoint_type": "openai"}
        changed = await http.patch(f"/v1/agents/{agent['id']}", json={"llm_config": config})
        assert changed.json()["model"] == "openai/gpt-5-mini"

        made = await http.post("/v1/conversations", params={"agent_id": agent["id"]}, json={"model": "letta/auto"})
        assert (made.json()["model"], "Warning" in made.headers) == ("openai/gpt-5-mini", True)
        path = f"/v1/conversations/{made.json()['id']}"
        assert (await http.patch(path, json={"model": "letta/auto"})).json()["model"] == "openai/gpt-5-mini"
        assert (await http.patch(path, json={"model": None})).json()["model"] is None


async def test_where_there_is_nothing_to_choose_from_the_setting_is_named(database: Database) -> None:
    async with server(database, {"NO_KEY": "here"}, builtin_models=False) as http:
        for body in ({"model": "letta/auto"}, {}):
            refused = await http.post("/v1/agents", json=body)
            assert refused.status_code == 400
            assert "HOLDFAST_DEFAULT_MODEL" in refused.json()["detail"]


async def test_other_models_of_lettas_cloud_are_refused(database: Database) -> None:
    async with server(database) as http:
        for handle in ("letta/letta-free", "letta/automatic", "letta/auto-"):
            assert (await http.post("/v1/agents", json={"model": handle})).status_code == 422


async def test_a_file_from_lettas_cloud_became_an_agent_without_a_model(database: Database) -> None:
    """Its `letta/auto` came along as `openai/auto`, which no provider has, and every run failed."""
    config = {"handle": "letta/auto", "model": "auto", "model_endpoint_type": "openai", "max_tokens": 90_000}
    agent: dict[str, Any] = {"id": "agent-0", "name": "traveller", "llm_config": config, "messages": []}
    file = json.dumps({"agents": [agent], "blocks": [], "tools": [], "metadata": {}})
    async with server(database, default_model="openai/gpt-4o") as http:
        for form in ({}, {"model": "letta/auto"}):
            answer = await http.post("/v1/agents/import", files={"file": ("a.af", file)}, data=form)
            assert "the model letta/auto is openai/gpt-4o here" in answer.headers["Warning"]
            [agent_id] = answer.json()["agent_ids"]
            came = (await http.get(f"/v1/agents/{agent_id}")).json()
            assert (came["model"], came["llm_config"]["max_tokens"]) == ("openai/gpt-4o", 16_384)


def test_a_default_that_cannot_be_asked_is_refused_at_the_start() -> None:
    with pytest.raises(ValidationError, match="unknown model handle"):
        Settings(default_model="gpt-4o")
    with pytest.raises(ValidationError, match="is not served here"):
        Settings(default_model="letta/auto")
