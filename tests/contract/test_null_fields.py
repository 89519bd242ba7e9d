"""Changes with nulls, as wrappers of Letta's SDK send them for options that their caller has not given."""

from typing import Any

import pytest

from shared.sql.engine import Database
from tests.kit.product import api_client
from tests.kit.services.databases import open_database

SOURCE = "def roll(sides: int) -> str:\n    '''Rolls.'''\n    return str(sides)\n"


@pytest.fixture
async def database(sqlite_url: str):
    async with open_database(sqlite_url) as database:
        yield database


async def test_a_null_emptied_what_an_agent_had(database: Database) -> None:
    kept: dict[str, Any] = {
        "description": "Helps.",
        "metadata": {"user": "ada"},
        "hidden": True,
        "message_buffer_autoclear": True,
        "compaction_settings": {"mode": "all", "clip_chars": 77},
        "template_id": "t",
        "identity_ids": ["identity-1"],
    }
    async with api_client(database) as http:
        made = (await http.post("/v1/agents", json={"model": "builtin/echo", **kept})).json()
        path = f"/v1/agents/{made['id']}"

        changed = (await http.patch(path, json={"name": "new", **dict.fromkeys(kept)})).json()

        assert changed["name"] == "new"
        assert {name: changed[name] for name in kept} == {name: made[name] for name in kept}
        emptied = (await http.patch(path, json={"description": "", "metadata": {}})).json()
        assert (emptied["description"], emptied["metadata"]) == ("", {})


async def test_a_null_took_a_tools_approval_away(database: Database) -> None:
    body = {"source_code": SOURCE, "default_requires_approval": True, "pip_requirements": [{"name": "tabulate"}]}
    nulls = {"description": None, "default_requires_approval": None, "pip_requirements": None, "json_schema": None}
    async with api_client(database) as http:
        made = (await http.put("/v1/tools", json=body)).json()

        changed = await http.patch(f"/v1/tools/{made['id']}", json={**nulls, "tags": ["dice"]})
        again = await http.put("/v1/tools", json={**nulls, "source_code": SOURCE})

        assert changed.json() == again.json() == {**made, "tags": ["dice"]}
        [base] = (await http.get("/v1/tools?name=memory_insert")).json()
        gated = await http.patch(f"/v1/tools/{base['id']}", json={**nulls, "default_requires_approval": True})
        assert (gated.status_code, gated.json()["default_requires_approval"]) == (200, True)


async def test_a_null_took_the_words_of_a_block_and_of_a_conversation(database: Database) -> None:
    async with api_client(database) as http:
        block = (await http.post("/v1/blocks", json={"label": "human", "value": "Ada", "description": "Who"})).json()
        same = (await http.patch(f"/v1/blocks/{block['id']}", json={"description": None, "value": "Bob"})).json()
        assert (same["description"], same["value"]) == ("Who", "Bob")

        agent = (await http.post("/v1/agents", json={"model": "builtin/echo"})).json()
        words = {"summary": "A talk", "description": "About dice", "last_message_at": "2026-01-02T03:04:05Z"}
        overrides = {"model": "builtin/slow", "context_window_limit": 5000}
        talk = (await http.post(f"/v1/conversations?agent_id={agent['id']}", json={})).json()
        path = f"/v1/conversations/{talk['id']}"
        before = (await http.patch(path, json={**words, **overrides})).json()
        after = (await http.patch(path, json={**dict.fromkeys(words), "archived": None})).json()
        assert {name: after[name] for name in {**words, **overrides}} == {
            name: before[name] for name in {**words, **overrides}
        }
        freed = (await http.patch(path, json=dict.fromkeys(overrides))).json()
        assert (freed["model"], freed["context_window_limit"], freed["summary"]) == (None, None, "A talk")
