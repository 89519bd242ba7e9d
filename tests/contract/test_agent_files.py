"""What an import says to a file or a form that it cannot take: where the fault is, and never a 500."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from shared.sql.engine import Database
from tests.kit.agent_files import a_file, an_agent, as_upload, block, calls, custom_tool, message, packed
from tests.kit.product import api_client
from tests.kit.services.databases import open_database

IMPORT = "/v1/agents/import"


@pytest.fixture
async def database(sqlite_url: str) -> AsyncGenerator[Database]:
    async with open_database(sqlite_url) as database:
        yield database


@pytest.fixture
async def http(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database) as client:
        yield client


def with_agent(**fields: Any) -> dict[str, Any]:
    return a_file(an_agent(**fields))


def with_message(**fields: Any) -> dict[str, Any]:
    return a_file(an_agent(message(0, "system", "Be kind."), {**message(1, "user", "Hi."), **fields}))


NO_MODEL = {"handle": "nobody/m-1", "model": "m-1", "model_endpoint_type": "nobody"}

REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "Corrupted agent file format"),
    "no text": (b"\xff\x00\xfe", "Corrupted agent file format"),
    "too deep": (b"[" * 5_000 + b"]" * 5_000, "nested deeper than 100 levels"),
    "no object": ([1], "file: an agent file is a JSON object"),
    "the format of old": ({"agent_type": "memgpt_agent", "messages": []}, "Legacy AgentSchema format"),
    "no agents": (a_file() | {"agents": []}, "file.agents: "),
    "too many agents": (a_file(*[an_agent(id=f"agent-{number}") for number in range(101)]), "file.agents: "),
    "two agents of one id": (a_file(an_agent(), an_agent()), "two entries with the id 'agent-0'"),
    "an agent without a name": (with_agent(name=""), "file.agents[0].name: "),
    "an unknown tool": (with_agent(tool_ids=["tool-7"]), "agents[0].tool_ids names 'tool-7'"),
    "an unknown block": (with_agent(block_ids=["block-7"]), "agents[0].block_ids names 'block-7'"),
    "an unknown message": (with_agent(in_context_message_ids=["message-7"]), "in_context_message_ids names"),
    "an unknown model": (with_agent(llm_config=NO_MODEL), "name another model in the form's field `model`"),
    "no model": (with_agent(llm_config=None), "name another model in the form's field `model`"),
    "an impossible setting": (with_agent(llm_config=NO_MODEL | {"handle": "openai/x", "temperature": 9}), "llm_config"),
    "an unknown rule": (with_agent(tool_rules=[{"type": "x", "tool_name": "y"}]), "agents[0].tool_rules[0].type: "),
    "tags that are no texts": (with_agent(tags=[{}]), "file.agents[0].tags[0]: "),
    "a wrong role": (with_message(role="robot"), "file.agents[0].messages[1].role: "),
    "a wrong time": (with_message(created_at="0001-01-01T00:00:00+14:00"), "file.agents[0].messages[1].created_at: "),
    "content of no kind": (with_message(content=[{"type": "smell"}]), "file.agents[0].messages[1].content[0] "),
    "a call without a name": (
        with_message(role="assistant", **calls("c1", name="")), "messages[1].tool_calls[0].function.name: ",
    ),
    "a block without a label": (a_file(blocks=[block(label="")]), "file.blocks[0].label: "),
    "a tool that is no program": (
        a_file(tools=[custom_tool(source_code="][", json_schema=None)]), "tools[0] (note): The source is not valid",
    ),
    "a tool of nothing": (a_file(tools=[custom_tool(source_code=None, json_schema=None)]), "file.tools[0] (note): "),
    "settings of ours that make no sense": (
        with_agent(metadata={"holdfast": {"approval_expires_s": "soon"}}), "file.agents[0].approval_expires_s: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("flaw", REFUSED)
async def test_a_refused_file_is_told_where_its_fault_is(http: httpx.AsyncClient, flaw: str) -> None:
    file, said = REFUSED[flaw]

    answer = await http.post(IMPORT, files=as_upload(file))

    assert answer.status_code == 400, answer.text
    assert said in answer.json()["detail"]
    assert (await http.get("/v1/agents/")).json() == []


@pytest.mark.parametrize(
    ("form", "status", "said"),
    [
        ({"strip_messages": "perhaps"}, 422, "strip_messages"),
        ({"secrets": "[1]"}, 400, "secrets must be a valid JSON string"),
        ({"env_vars_json": '{"A": 1}'}, 400, "secrets must be a valid JSON string"),
        ({"secrets": '{"A": "\\u0000"}'}, 400, "secrets must be a valid JSON string"),
        ({"model": "nobody/m-1"}, 400, "model: unknown model handle 'nobody/m-1'"),
    ],
)
async def test_a_refused_form_is_told_which_field_it_is(
    http: httpx.AsyncClient, form: dict[str, str], status: int, said: str
) -> None:
    answer = await http.post(IMPORT, files=as_upload(a_file()), data=form)

    assert (answer.status_code, said in answer.text) == (status, True), answer.text


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "application/json", "text/plain", "", ";"]
)
@pytest.mark.parametrize("unit", [b"&", b"a=&", b"%", b"=;"])
async def test_a_form_of_separators_held_the_api(http: httpx.AsyncClient, content_type: str, unit: bytes) -> None:
    answer = await http.post(IMPORT, content=unit * 300_000, headers={"Content-Type": content_type})

    assert answer.status_code == 415, answer.text
    assert "multipart/form-data" in answer.json()["detail"]


async def test_a_request_without_a_file_is_told_so(http: httpx.AsyncClient) -> None:
    for answer in (
        await http.post(IMPORT, files={"other": b"hello"}),
        await http.post(IMPORT, content=b"x", headers={"Content-Type": "multipart/form-data; boundary=b"}),
    ):
        assert answer.status_code in (400, 422), answer.text


async def test_a_field_that_nobody_knows_is_said(http: httpx.AsyncClient) -> None:
    answer = await http.post(IMPORT, files=as_upload(a_file()), data={"dry_run": "true", "project_id": "p"})

    assert answer.status_code == 200, answer.text
    assert "not acted on: dry_run" in answer.headers["warning"]
    assert "project_id is left out" in answer.headers["warning"]


async def test_a_file_may_be_a_text_of_json(http: httpx.AsyncClient) -> None:
    answer = await http.post(IMPORT, files=as_upload(json.dumps(a_file())))
    assert answer.status_code == 200, answer.text


async def test_a_name_that_another_provider_gives_a_known_model_is_understood(http: httpx.AsyncClient) -> None:
    config = {"handle": "my-own-name/gpt-4o", "model": "gpt-4o", "model_endpoint_type": "openai"}

    answer = await http.post(IMPORT, files=as_upload(with_agent(llm_config=config)))

    [agent_id] = answer.json()["agent_ids"]
    assert (await http.get(f"/v1/agents/{agent_id}")).json()["model"] == "openai/gpt-4o"
    assert "'openai/gpt-4o' takes its place" in answer.headers["warning"]


async def test_a_block_longer_than_its_limit_gets_a_higher_one(http: httpx.AsyncClient) -> None:
    answer = await http.post(IMPORT, files=as_upload(a_file(blocks=[block(value="x" * 600)])))

    [found] = (await http.get("/v1/blocks/")).json()
    assert (len(found["value"]), found["limit"]) == (600, 600)
    assert "its limit of 500 is raised" in answer.headers["warning"]


async def test_a_tool_that_only_a_client_can_run_comes_along(http: httpx.AsyncClient) -> None:
    tool = custom_tool(source_type="json", source_code="def note(-x):\n    pass")

    answer = await http.post(IMPORT, files=as_upload(a_file(tools=[tool])))

    [found] = (await http.get("/v1/tools/", params={"name": "note"})).json()
    assert found["json_schema"]["parameters"] == tool["json_schema"]["parameters"]
    assert "'note' cannot run on this server" in answer.headers["warning"]


async def test_a_result_with_an_empty_id_is_left_out(http: httpx.AsyncClient) -> None:
    said = [message(0, "assistant", **calls("c1")), message(1, "tool", "noted", tool_call_id="")]

    answer = await http.post(IMPORT, files=as_upload(a_file(an_agent(*said))))

    assert answer.status_code == 200, answer.text


async def test_what_is_hidden_in_a_result_is_not_unpacked(http: httpx.AsyncClient) -> None:
    hidden = packed("a\0b")
    said = message(1, "tool", hidden, tool_call_id="c1")
    file = a_file(an_agent(message(2, "assistant", **calls("c1")), said))

    [agent_id] = (await http.post(IMPORT, files=as_upload(file))).json()["agent_ids"]

    shown = (await http.get(f"/v1/agents/{agent_id}/messages")).json()
    [result] = [one for one in shown if one["message_type"] == "tool_return_message"]
    assert result["tool_return"] == hidden


async def test_a_file_cannot_reach_for_what_is_not_in_it(http: httpx.AsyncClient) -> None:
    made = (await http.post("/v1/blocks/", json={"label": "private", "value": "x"})).json()
    metadata = {"holdfast": {"block_ids": [made["id"]], "project_id": "another", "on_approval_expiry": "deny"}}

    [agent_id] = (await http.post(IMPORT, files=as_upload(with_agent(metadata=metadata)))).json()["agent_ids"]

    agent = (await http.get(f"/v1/agents/{agent_id}")).json()
    assert [one["label"] for one in agent["blocks"]] == ["human"]
    assert (agent["on_approval_expiry"], agent["metadata"]) == ("deny", {})


async def test_an_export_is_asked_for_skills_and_refuses_what_it_cannot_write(http: httpx.AsyncClient) -> None:
    [agent_id] = (await http.post(IMPORT, files=as_upload(a_file()))).json()["agent_ids"]
    path = f"/v1/agents/{agent_id}/export"
    skill = {"name": "tea", "files": {"SKILL.md": "Boil water."}, "source_url": None}

    assert (await http.post(path, json={"skills": [skill]})).json()["skills"] == [skill]
    assert (await http.post(path)).json()["skills"] == []
    assert (await http.post(path, json={"skills": [{"name": "tea"}]})).status_code == 422
    legacy = await http.get(path, params={"use_legacy_format": "true"})
    assert (legacy.status_code, "Legacy format is not supported" in legacy.text) == (400, True)
    assert (await http.get(path, params={"conversation_id": "conv-1"})).status_code == 404
