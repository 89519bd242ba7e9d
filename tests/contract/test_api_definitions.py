"""Tools, blocks, conversations and models through the real `letta-client`."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from letta_client import (
    APIStatusError,
    AsyncLetta,
    BadRequestError,
    ConflictError,
    NotFoundError,
    UnprocessableEntityError,
)

from shared.sql.engine import Database
from tests.kit.product import api_client
from tests.kit.services.databases import open_database
from tests.kit.tools import LAUNCH, ROLL_DICE

ENVIRONMENT = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9100/v1"}
UNKNOWN_AGENT = "agent-00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def database(sqlite_url: str) -> AsyncGenerator[Database]:
    async with open_database(sqlite_url) as database:
        yield database


@pytest.fixture
async def http(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database, environment=ENVIRONMENT) as client:
        yield client


@pytest.fixture
async def client(http: httpx.AsyncClient) -> AsyncLetta:
    return AsyncLetta(base_url="http://localhost", api_key="none", http_client=http, max_retries=0)


async def test_a_tool_is_made_from_its_source(client: AsyncLetta) -> None:
    tool = await client.tools.upsert(source_code=ROLL_DICE, default_requires_approval=True)

    assert tool.id.startswith("tool-")
    assert (tool.name, tool.description, tool.default_requires_approval) == ("roll_dice", "Rolls one die.", True)
    assert tool.json_schema is not None
    assert tool.json_schema["name"] == "roll_dice"
    parameters = tool.json_schema["parameters"]
    properties = {"num_sides": {"type": "integer", "description": "How many sides it has."}}
    assert parameters == {"type": "object", "properties": properties, "required": ["num_sides"]}
    assert tool.metadata is not None
    assert len(str(tool.metadata["tool_hash"])) == 12
    assert (await client.tools.retrieve(tool.id)).to_dict() == tool.to_dict()


async def test_a_tool_that_is_made_twice_is_changed(client: AsyncLetta) -> None:
    """Scripts make their tools each time they start, and the second time was a 409."""
    source = ROLL_DICE
    first = await client.tools.create(source_code=source)
    second = await client.tools.upsert(source_code=source, tags=["idempotent"], return_char_limit=100)
    third = await client.tools.create(source_code=source.replace("Rolls", "Throws"))

    assert first.id == second.id == third.id
    assert second.return_char_limit == 100
    assert second.to_dict()["idempotent"] is True
    assert third.source_code != first.source_code


async def test_limits_of_a_tool_stay_until_they_are_taken_off(client: AsyncLetta) -> None:
    limits = {"timeout_s": 2.5, "memory_mb": 128}
    made = await client.tools.create(source_code=ROLL_DICE, extra_body={"limits": limits})
    again = await client.tools.upsert(source_code=ROLL_DICE, tags=["dice"])
    freed = await client.tools.update(made.id, extra_body={"limits": None})

    assert made.to_dict()["limits"] == again.to_dict()["limits"] == limits
    assert freed.to_dict()["limits"] is None


@pytest.mark.parametrize(
    "limits", [{"timeout": 5}, {"timeout_s": 0}, {"cpu_s": 0}, {"memory_mb": 63}, {"memory_mb": "x"}]
)
async def test_limits_that_mean_nothing_are_refused_by_name(client: AsyncLetta, limits: dict[str, Any]) -> None:
    """A misspelled one would have been no limit at all."""
    [name] = limits
    with pytest.raises(UnprocessableEntityError) as refused:
        await client.tools.create(source_code=ROLL_DICE, extra_body={"limits": limits})
    assert f"limits.{name}" in str(refused.value)


@pytest.mark.parametrize("way", ["upsert", "create"])
async def test_an_upsert_keeps_what_it_leaves_out(client: AsyncLetta, way: str) -> None:
    """`tags` were lost, and an approval was switched off by the next start of a program."""
    kept: dict[str, Any] = {"tags": ["keep"], "default_requires_approval": True, "return_char_limit": 77}
    await client.tools.upsert(source_code=ROLL_DICE, **kept, pip_requirements=[{"name": "requests"}])
    again = (await getattr(client.tools, way)(source_code=ROLL_DICE)).to_dict()

    assert {name: again[name] for name in kept} == kept
    assert again["pip_requirements"]


async def test_a_tool_gets_the_name_of_its_new_schema_and_source(client: AsyncLetta) -> None:
    tool = await client.tools.create(source_code=ROLL_DICE, tags=["keep"])
    schema: dict[str, object] = {"name": "launch", "description": "Go.", "parameters": {"type": "object"}}

    renamed = await client.tools.update(tool.id, source_code=LAUNCH, json_schema=schema)

    assert (renamed.id, renamed.name, renamed.tags) == (tool.id, "launch", ["keep"])
    with pytest.raises(BadRequestError):
        await client.tools.update(tool.id, json_schema={**schema, "name": "no_such_function"})
    other = await client.tools.create(source_code=ROLL_DICE)
    with pytest.raises(ConflictError, match="launch"):
        await client.tools.update(other.id, source_code=LAUNCH, json_schema=schema)


async def test_a_tool_is_changed_listed_and_deleted(client: AsyncLetta) -> None:
    tool = await client.tools.create(source_code=ROLL_DICE)
    changed = await client.tools.update(tool.id, description="Throws it.", default_requires_approval=True)
    assert changed.description == "Throws it."
    assert changed.json_schema is not None
    assert changed.json_schema["description"] == "Throws it."
    assert changed.default_requires_approval is True

    schema: dict[str, object] = {
        "name": "launch",
        "description": "Go.",
        "parameters": {"type": "object", "properties": {"x": {}}},
    }
    other = await client.tools.create(source_code=LAUNCH, json_schema=schema)
    assert other.json_schema == schema

    mine = ["launch", "roll_dice"]
    assert [found.name for found in (await client.tools.list(limit=2)).items] == mine
    assert [found.name async for found in client.tools.list(limit=1) if found.tool_type == "custom"] == mine
    assert [found.name for found in (await client.tools.list(name="launch")).items] == ["launch"]
    await client.tools.delete(other.id)
    with pytest.raises(NotFoundError):
        await client.tools.retrieve(other.id)


async def test_a_list_of_tools_knows_their_types(client: AsyncLetta) -> None:
    """`tool_types` did nothing, so a program that asked for its own tools got everybody's."""
    await client.tools.create(source_code=ROLL_DICE)

    async def types(**wanted: Any) -> set[str | None]:
        return {tool.tool_type async for tool in client.tools.list(**wanted)}

    assert await types(tool_types=["custom", "external_mcp"]) == {"custom"}
    assert await types(tool_types=["letta_core,letta_memory_core"]) == {"letta_core", "letta_memory_core"}
    assert "custom" not in await types(exclude_tool_types=["custom"])
    assert "custom" not in await types(return_only_letta_tools=True)
    assert await types(extra_query={"exclude_letta_tools": True}) == {"custom"}
    with pytest.raises(BadRequestError, match="Invalid tool_type 'costum'"):
        await client.tools.list(tool_types=["costum"])


async def test_a_list_of_blocks_knows_their_tags_and_agents(client: AsyncLetta) -> None:
    """These filters did nothing: who asked for the blocks of one tag, or for those without an agent, got all."""
    mine = await client.blocks.create(label="human", value="x", tags=["mine"])
    free = await client.blocks.create(label="persona", value="x", tags=["free", "mine"])
    await client.agents.create(model="builtin/echo", block_ids=[mine.id])

    async def found(**wanted: Any) -> list[str]:
        return [block.id async for block in client.blocks.list(**wanted)]

    assert await found(tags=["free", "mine"]) == [mine.id, free.id]
    assert await found(tags=["free", "mine"], match_all_tags=True) == [free.id]
    assert await found(connected_to_agents_count_eq=[0]) == [free.id]
    assert await found(connected_to_agents_count_gt=0, connected_to_agents_count_lt=2) == [mine.id]
    assert await found(templates_only=True) == await found(identity_id="identity-1") == []
    assert await found(identifier_keys=["ada"]) == []


@pytest.mark.parametrize("name", ["requires_approval", "body_requires_approval"])
async def test_an_approval_is_set_by_the_name_that_the_sdk_for_typescript_sends(
    http: httpx.AsyncClient, client: AsyncLetta, name: str
) -> None:
    tool = await client.tools.create(source_code=ROLL_DICE)
    agent = await client.agents.create(model="builtin/echo", tool_ids=[tool.id])

    path = f"/v1/agents/{agent.id}/tools/approval/roll_dice"
    answer = await http.patch(path, json={name: True})

    assert (answer.status_code, answer.headers.get("warning")) == (200, None)
    [rule] = (await client.agents.retrieve(agent.id)).tool_rules or []
    assert (rule.type, rule.tool_name) == ("requires_approval", "roll_dice")
    assert (await http.patch(path, json={})).status_code == 400


async def test_a_source_that_is_no_tool_is_refused(client: AsyncLetta) -> None:
    with pytest.raises(BadRequestError, match="INVALID_ARGUMENT"):
        await client.tools.upsert(source_code="def (:")


async def test_blocks_and_their_agents(client: AsyncLetta) -> None:
    block = await client.blocks.create(label="human", value="Likes tea.", limit=50)
    agent = await client.agents.create(model="builtin/echo", system="Be brief.", block_ids=[block.id])

    assert [found.id for found in (await client.blocks.agents.list(block.id)).items] == [agent.id]
    assert [found.id for found in (await client.agents.blocks.list(agent.id)).items] == [block.id]
    changed = await client.agents.blocks.update("human", agent_id=agent.id, value="Likes coffee.")
    assert (changed.id, changed.value) == (block.id, "Likes coffee.")
    assert (await client.agents.blocks.retrieve("human", agent_id=agent.id)).value == "Likes coffee."
    assert "Likes coffee." in await client.agents.recompile(agent.id)
    with pytest.raises(UnprocessableEntityError, match="limit of 50"):
        await client.blocks.update(block.id, value="x" * 51)
    with pytest.raises(UnprocessableEntityError, match="limit of 5"):
        await client.blocks.create(label="human", value="x" * 6, limit=5)

    assert (await client.agents.blocks.detach(block.id, agent_id=agent.id)).blocks == []
    assert [found.label for found in (await client.agents.blocks.attach(block.id, agent_id=agent.id)).blocks] == [
        "human"
    ]
    await client.blocks.delete(block.id)
    assert (await client.agents.retrieve(agent.id)).blocks == []
    assert (await client.blocks.list()).items == []


async def test_conversations(client: AsyncLetta) -> None:
    agent = await client.agents.create(model="builtin/echo")
    one = await client.conversations.create(agent_id=agent.id, summary="Tea")
    assert (one.agent_id, one.summary, len(one.in_context_message_ids or [])) == (agent.id, "Tea", 1)
    changed = await client.conversations.update(one.id, summary="Coffee", archived=True)
    assert changed.summary == "Coffee"
    assert changed.archived is True
    assert await client.conversations.list(agent_id=agent.id) == []
    [listed] = await client.conversations.list(agent_id=agent.id, archive_status="all")
    assert listed.to_dict() == changed.to_dict()
    await client.conversations.delete(one.id)
    with pytest.raises(NotFoundError, match=one.id):
        await client.conversations.retrieve(one.id)
    with pytest.raises(NotFoundError):
        await client.conversations.create(agent_id=UNKNOWN_AGENT)


async def test_models_of_the_configured_providers(client: AsyncLetta) -> None:
    handles = [model.handle for model in await client.models.list()]
    assert "builtin/echo" in handles
    assert "openai/gpt-4o-mini" in handles
    assert not any(str(handle).startswith("anthropic/") for handle in handles)
    [small] = [model for model in await client.models.embeddings.list() if model.name == "text-embedding-3-small"]
    assert (small.handle, small.embedding_dim) == ("openai/text-embedding-3-small", 1536)


async def test_health_says_the_version(client: AsyncLetta) -> None:
    health = await client.health()
    assert health.status == "ok"
    assert health.version


async def test_what_is_not_served_says_so(client: AsyncLetta) -> None:
    with pytest.raises(APIStatusError, match=r"docs/api\.md") as refused:
        await client.folders.create(name="x")
    assert refused.value.status_code == 501


async def test_a_schema_that_no_arguments_could_be_checked_against_is_refused(http: httpx.AsyncClient) -> None:
    """It was stored, and each call of the tool held up everybody of the worker that ran it."""
    schema: dict[str, Any] = {"type": "object", "properties": {f"p{number}": {} for number in range(20_000)}}
    for fields in ({"json_schema": {"parameters": schema}}, {"args_json_schema": schema}):
        answer = await http.post("/v1/tools", json={"source_code": ROLL_DICE, **fields})
        assert answer.status_code == 400
        assert "json_schema.parameters: Schema has more than 3000 values" in answer.json()["detail"]
    assert (await http.get("/v1/tools/count?search=roll")).json() == 0

    body = {"input": "Hi", "client_tools": [{"name": "mine", "parameters": schema}]}
    answer = await http.post(f"/v1/agents/{UNKNOWN_AGENT}/messages", json=body)
    assert answer.status_code == 422
    assert answer.json()["field"] == "client_tools[0].parameters"
