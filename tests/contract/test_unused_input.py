"""Nothing in silence: what Holdfast does not act on is said in a header, and written down."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from letta_client.types import agent_create_params, agent_update_params, block_create_params, tool_create_params
from letta_client.types.agents import message_create_params
from pydantic import BaseModel

from api.every_answer import NOT_ACTED_ON, unused_fields
from api.letta.agents import AgentCreate, AgentUpdate
from api.letta.memory import BlockCreate
from api.letta.message_input import MessagesRequest
from api.letta.tools import ToolCreate
from tests.kit.log_events import log_events
from tests.kit.product import api_client
from tests.kit.project.documents import table_rows
from tests.kit.services.databases import open_database

SAID = "not acted on: "


@pytest.fixture
async def http(database_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with open_database(database_url) as database, api_client(database) as client:
        yield client


def warned(answer: httpx.Response) -> list[str]:
    assert answer.is_success, answer.text
    text = answer.headers.get("warning", "")
    return text.partition(SAID)[2].rstrip('"').split(", ") if text else []


def test_the_document_lists_what_is_not_acted_on() -> None:
    listed = {(row[0], name.strip("` ")) for row in table_rows("api.md", "body") for name in row[1].split(",")}
    assert listed == {(line.body, name) for line in NOT_ACTED_ON for name in line.fields}


@pytest.mark.parametrize(
    ("model", "wire"),
    [
        (AgentCreate, agent_create_params.AgentCreateParams),
        (AgentUpdate, agent_update_params.AgentUpdateParams),
        (BlockCreate, block_create_params.BlockCreateParams),
        (MessagesRequest, message_create_params.MessageCreateParamsBase),
        (ToolCreate, tool_create_params.ToolCreateParams),
    ],
)
def test_each_field_of_the_wire_is_acted_on_or_listed(model: type[BaseModel], wire: Any) -> None:
    """And nothing else is warned of."""
    listed = {name for line in NOT_ACTED_ON if issubclass(model, line.models) for name in line.fields}
    known = set(wire.__annotations__) | set(model.model_fields)
    assert set(unused_fields(model, dict.fromkeys(known, "something"))) == listed & known


async def test_an_accepted_request_is_told_what_of_it_is_not_acted_on(http: httpx.AsyncClient) -> None:
    """Ten fields were accepted and did nothing, without a word."""
    body: dict[str, Any] = {
        "model": "builtin/echo",
        "name": "quiet",
        "max_files_open": 3,
        "identity_ids": [],
        "hidden": None,
        "no such field": 1,
        "memory_blocks": [{"label": "human", "value": "x", "project_id": "p"}],
        "model_settings": {"provider_type": "openai", "strict": True},
        "tool_rules": [{"type": "max_count_per_step", "tool_name": "conversation_search", "max_count_limit": 1}],
    }
    made = await http.post("/v1/agents/", json=body, params={"colour": "red"})

    assert sorted(warned(made)) == [
        "a name that cannot be shown", "max_files_open", "memory_blocks[].project_id", "model_settings.strict",
        "query.colour",
    ]  # fmt: skip
    path = f"/v1/agents/{made.json()['id']}"
    said = {"role": "user", "content": "Hi", "group_id": "g"}
    sent = await http.post(f"{path}/messages/async", json={"messages": [said], "return_logprobs": True})
    assert warned(sent) == ["messages[].group_id", "return_logprobs"]
    assert warned(await http.get("/v1/runs/", params={"status": "failed", "limit": 1})) == ["query.status"]
    assert warned(await http.post(f"{path}/messages/async", json={"input": "Hi", "background": True})) == []
    assert warned(await http.get(path, params={"include": "agent.tools"})) == []
    assert warned(await http.patch(path, json={"name": "loud"}, params={"include": "agent.tags"})) == []
    assert warned(await http.get("/v1/blocks/", params={"order_by": "created_at"})) == []
    assert warned(await http.get("/v1/folders/", params={"limit": 5, "name": "x"})) == []
    assert warned(await http.get(f"{path}/files", params={"cursor": "x", "is_open": True})) == []


async def test_a_header_cannot_be_written_by_a_name(http: httpx.AsyncClient) -> None:
    answer = await http.post(
        "/v1/agents/", json={"model": "builtin/echo", 'x"\r\nSet-Cookie: a=b': 1, **{f"f{n}": 1 for n in range(30)}}
    )
    assert "set-cookie" not in answer.headers
    assert answer.headers["warning"].endswith(', f18 and more"')


@pytest.mark.parametrize("count", [21, 30_000])
async def test_many_unknown_fields_held_the_api_and_filled_its_log(http: httpx.AsyncClient, count: int) -> None:
    """Each was a line of its own."""
    unknown = {f"f{number}": 1 for number in range(count)}
    nested = {"memory_blocks": [{"label": f"l{number}", "value": "x", f"b{number}": 1} for number in range(30)]}
    for body in (unknown, nested):
        with log_events() as logged:
            answer = await http.post("/v1/agents/", json={"model": "builtin/echo", **body})
            assert answer.status_code == 200, answer.text
        [line] = logged.all("input_not_acted_on")
        assert line["fields"].count(",") == 19
        assert answer.headers["warning"] == f'299 holdfast "not acted on: {line["fields"]}"'
        assert line["fields"].endswith(" and more")


async def test_it_is_logged_once_for_each_agent(http: httpx.AsyncClient) -> None:
    agents = [(await http.post("/v1/agents/", json={"model": "builtin/echo"})).json()["id"] for _ in range(2)]

    with log_events() as logged:
        for agent_id in [*agents, *agents]:
            path = f"/v1/agents/{agent_id}/messages/async"
            assert warned(await http.post(path, json={"input": "Hi", "return_logprobs": True})) == ["return_logprobs"]

    assert [one["request"] for one in logged.all("input_not_acted_on")] == [
        f"POST /v1/agents/{agent_id}/messages/async" for agent_id in agents
    ]


async def test_a_refused_request_gets_no_warning(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/agents/", json={"max_files_open": 3})
    assert (answer.status_code, "warning" in answer.headers) == (400, False)


async def test_packages_are_not_acted_on_without_an_index(http: httpx.AsyncClient) -> None:
    """Whatever they are called: nothing reads them."""
    body = {"source_code": "def f() -> str:\n    return ''\n", "pip_requirements": [{"name": "-r what is this"}]}
    made = await http.put("/v1/tools/", json=body)
    assert warned(made) == ["pip_requirements"]
    assert (made.json()["pip_requirements"], made.json()["packages"]) == (body["pip_requirements"], None)
