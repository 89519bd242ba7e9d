"""Each path that a program written for Letta's server may ask for has an answer that says what it is here."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import uuid4

import httpx
import letta_client
import pytest

from tests.kit.product import api_client
from tests.kit.project.documents import ROOT
from tests.kit.services.databases import open_database

_CALL = re.compile(r'self\._(get|post|put|patch|delete|get_api_list)\(\s*(?:path_template\(\s*)?"(/v1/[^"]+)"')

OF_THE_CLIENT = sorted(
    {
        ("GET" if found[0] == "get_api_list" else found[0].upper(), found[1])
        for module in Path(letta_client.__file__).parent.rglob("resources/**/*.py")
        for found in _CALL.findall(module.read_text(encoding="utf-8"))
    }
)
"""What the published client asks for, out of its own source."""

OF_OTHERS = (
    # Of Letta 0.16.8's own routers, without a method in the client.
    ("POST", "/v1/agents/{agent_id}/messages/capture"),
    ("POST", "/v1/agents/{agent_id}/messages/preview-raw-payload"),
    ("POST", "/v1/conversations/{conversation_id}/messages/preview-raw-payload"),
    ("PATCH", "/v1/agents/{agent_id}/messages/{message_id}"),
    ("POST", "/v1/agents/messages/search"),
    ("POST", "/v1/agents/{agent_id}/system-prompt/recompile"),
    ("GET", "/v1/ready"),
    ("GET", "/v1/steps/{step_id}/transaction/{transaction_id}"),
    ("POST", "/v1/tools/generate-schema"),
    ("POST", "/v1/auth"),
    ("GET", "/v1/admin/users"),
    ("POST", "/v1/admin/orgs"),
    ("GET", "/v1/git/{agent_id}/state.git/info/refs"),
    # What Letta Code asks for.
    ("GET", "/v1/models/catalog"),
    ("GET", "/v1/repositories"),
    ("GET", "/v1/metadata/balance"),
    ("GET", "/v1/metadata/user"),
    ("POST", "/v1/conversations/ephemeral"),
    ("POST", "/v1/conversations/search"),
    ("POST", "/v1/conversations/{conversation_id}/summarize"),
    ("POST", "/v1/agents/{agent_id}/sandboxes"),
    ("GET", "/v1/sandboxes/{sandbox_id}/files"),
)

NOUNS = {"agent_id": "agent", "block_id": "block", "message_id": "message", "run_id": "run", "tool_id": "tool"}


@pytest.fixture
async def http(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with open_database(sqlite_url) as database, api_client(database) as client:
        yield client


def with_ids(path: str) -> str:
    """The path with an id for each of its parameters that nothing here has."""

    def any_id(parameter: re.Match[str]) -> str:
        return f"{NOUNS.get(parameter[1], parameter[1].removesuffix('_id'))}-{uuid4()}"

    return re.sub(r"\{(\w+)\}", any_id, path)


def without_names(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_the_clients_source_was_read() -> None:
    assert ("POST", "/v1/agents/{agent_id}/messages/async") in OF_THE_CLIENT
    assert len(OF_THE_CLIENT) > 100


async def test_a_path_of_lettas_was_a_404_like_that_of_a_mistyped_address(http: httpx.AsyncClient) -> None:
    """And was in no table of docs/api.md. What is not ours is listed there by its noun."""
    document = without_names((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    _, _, not_ours = document.partition("### Not ours: 501")
    nowhere: list[tuple[str, str, int]] = []
    undocumented: list[tuple[str, str]] = []
    for method, path in [*OF_THE_CLIENT, *OF_OTHERS]:
        answer = await http.request(method, with_ids(path), json={} if method in ("POST", "PUT", "PATCH") else None)
        is_nowhere = answer.status_code == 404 and answer.json()["code"] == "path_not_found"
        if answer.status_code == 405 or is_nowhere:
            nowhere.append((method, path, answer.status_code))
        elif answer.status_code == 501:
            names = [name for name in without_names(path).split("/")[2:] if name != "{}"]
            if not any(f"{name}`" in not_ours for name in names):
                undocumented.append((method, path))
        elif f"`{without_names(path).rstrip('/')}`" not in document:
            undocumented.append((method, path))
    assert nowhere == []
    assert undocumented == []
