"""Agents through the real `letta-client`."""

from collections.abc import AsyncGenerator
from typing import Any, cast

import httpx
import pytest
from letta_client import (
    AsyncLetta,
    BadRequestError,
    NotFoundError,
    UnprocessableEntityError,
)

from api.access.callers import DEFAULT_PROJECT
from shared.domain.ids import ThreadId
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.engine import Database
from tests.kit.product import api_client
from tests.kit.runs.definitions import some_agent
from tests.kit.runs.stored_runs import IDS, Stores, answer, call, checkpoint, request_of
from tests.kit.services.databases import open_database, statements
from tests.kit.tools import LAUNCH, ROLL_DICE

ENVIRONMENT = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9100/v1"}


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


async def test_an_agent_has_every_field_of_the_wire(client: AsyncLetta) -> None:
    tool = await client.tools.upsert(source_code=LAUNCH, default_requires_approval=True)
    agent = await client.agents.create(
        name="cap",
        agent_type="letta_v1_agent",
        model="openai/gpt-4o-mini",
        embedding="openai/text-embedding-3-small",
        tool_ids=[tool.id],
        tags=["cap"],
        include_base_tools=False,
        include_base_tool_rules=False,
        tool_rules=[],
        memory_blocks=[{"label": "human", "value": "Likes tea.", "limit": 500}],
        secrets={"TOKEN": "x"},
        metadata={"a": 1},
    )

    assert agent.model == agent.llm_config.handle == "openai/gpt-4o-mini"
    assert agent.llm_config.context_window == 128_000
    assert agent.llm_config.api_model_endpoint == "http://127.0.0.1:9100/v1"
    assert agent.embedding_config is not None
    assert agent.embedding_config.embedding_dim == 1536
    assert agent.tool_rules is not None
    rule = {"tool_name": "launch", "type": "requires_approval", "prompt_template": None}
    assert [rule_.to_dict() for rule_ in agent.tool_rules] == [rule]
    assert [found.name for found in agent.tools] == ["launch"]
    assert [block.label for block in agent.blocks] == [block.label for block in agent.memory.blocks] == ["human"]
    assert agent.message_ids is not None
    assert len(agent.message_ids) == 1
    assert agent.tags == ["cap"]
    assert agent.pending_approval is None

    again = await client.agents.retrieve(agent.id)
    assert again.to_dict() == agent.to_dict() | {"secrets": [], "tool_exec_environment_variables": []}
    secrets = (await client.agents.retrieve(agent.id, include=["agent.secrets"])).secrets
    assert secrets is not None
    assert [(secret.key, secret.value) for secret in secrets] == [("TOKEN", "x")]


async def test_model_settings_of_every_shape(client: AsyncLetta) -> None:
    openai = await client.agents.create(
        model="openai/gpt-5",
        model_settings={"provider_type": "openai", "max_output_tokens": 99, "reasoning": {"reasoning_effort": "low"}},
        context_window_limit=1000,
    )
    assert (openai.llm_config.max_tokens, openai.llm_config.reasoning_effort) == (99, "low")
    assert openai.llm_config.context_window == 1000
    anthropic = await client.agents.create(
        model="anthropic/claude-sonnet-4-5",
        model_settings={"provider_type": "anthropic", "thinking": {"type": "disabled"}, "effort": "high"},
    )
    assert anthropic.llm_config.enable_reasoner is False
    assert anthropic.llm_config.effort == "high"
    assert anthropic.llm_config.context_window == 200_000
    google = await client.agents.create(
        model="google_ai/gemini-2.5-pro",
        model_settings={"provider_type": "google_ai", "thinking_config": {"include_thoughts": False}},
        parallel_tool_calls=False,
    )
    assert google.llm_config.enable_reasoner is False
    assert google.llm_config.parallel_tool_calls is False
    older = await client.agents.create(
        llm_config={"model": "echo", "model_endpoint_type": "ollama", "context_window": 4096}
    )
    assert (older.model, older.llm_config.context_window) == ("ollama/echo", 4096)


async def test_a_state_that_is_sent_back_changes_nothing(http: httpx.AsyncClient) -> None:
    agent = (await http.post("/v1/agents/", json={"model": "anthropic/claude-haiku-4-5"})).json()
    fields = ("llm_config", "model_settings", "embedding_config", "tool_rules", "tags", "name", "system", "timezone")

    answer = await http.patch(f"/v1/agents/{agent['id']}", json={name: agent[name] for name in fields})

    assert answer.status_code == 200, answer.text
    assert answer.json() | {"updated_at": None} == agent | {"updated_at": None}


async def test_model_settings_that_nobody_gave_came_back_empty(http: httpx.AsyncClient) -> None:
    agent = (await http.post("/v1/agents/", json={"model": "openai/gpt-4o-mini"})).json()
    assert agent["model_settings"] == {
        "max_output_tokens": 16_384,
        "parallel_tool_calls": True,
        "strict": False,
        "provider_type": "openai",
        "temperature": 1.0,
        "reasoning": {"reasoning_effort": "minimal"},
        "response_format": None,
    }
    local = (await http.post("/v1/agents/", json={"model": "ollama/qwen3"})).json()["model_settings"]
    assert (local["max_output_tokens"], local["temperature"]) == (None, None), "only the server knows"


async def test_defaults_that_are_sent_back_are_not_taken_for_choices(http: httpx.AsyncClient) -> None:
    """The next model has other limits."""
    agent = (await http.post("/v1/agents/", json={"model": "anthropic/claude-haiku-4-5-20251001"})).json()
    path = f"/v1/agents/{agent['id']}"

    moved = await http.patch(path, json={"model": "openai/gpt-6-luna", "model_settings": agent["model_settings"]})
    assert moved.json()["llm_config"]["max_tokens"] == 128_000
    chosen = await http.patch(path, json={"model_settings": {"temperature": 0.3}})
    assert chosen.json()["model_settings"]["temperature"] == 0.3
    back = await http.patch(path, json={"model_settings": {"temperature": 1.0}})
    assert back.json()["llm_config"]["temperature"] == 1.0


async def test_defaults_of_a_claude_that_cannot_reason_were_taken_for_choices_by_the_next_model(
    http: httpx.AsyncClient,
) -> None:
    agent = (await http.post("/v1/agents/", json={"model": "anthropic/claude-3-5-haiku-20241022"})).json()
    assert agent["model_settings"]["max_output_tokens"] == 8192
    change = {"model": "openai/gpt-4.1", "model_settings": agent["model_settings"]}
    moved = await http.patch(f"/v1/agents/{agent['id']}", json=change)
    assert moved.json()["model_settings"]["max_output_tokens"] == 32_768


async def test_llm_config_showed_no_limit_of_answers_where_model_settings_did(http: httpx.AsyncClient) -> None:
    """A client that writes agents into files took the null for a number. What is shown stays no choice."""
    agent = (await http.post("/v1/agents/", json={"model": "anthropic/claude-3-5-haiku-20241022"})).json()
    config, path = agent["llm_config"], f"/v1/agents/{agent['id']}"
    assert config["max_tokens"] == agent["model_settings"]["max_output_tokens"] == 8192

    copy = (await http.post("/v1/agents/", json={"model": "openai/gpt-6-luna", "llm_config": config})).json()
    assert copy["llm_config"]["max_tokens"] == 128_000
    other = {"handle": "openai/gpt-4.1", "model": "gpt-4.1", "model_endpoint_type": "openai"}
    for limit, shown in ((8192, 32_768), (99, 99), (32_768, 32_768), (8192, 8192)):
        moved = await http.patch(path, json={"llm_config": {**config, **other, "max_tokens": limit}})
        assert moved.json()["llm_config"]["max_tokens"] == shown
    file = (await http.get(f"/v1/agents/{copy['id']}/export")).json()
    assert file["agents"][0]["llm_config"]["max_tokens"] is None, "another server may know of another limit"


@pytest.mark.parametrize(
    "null",
    [{"max_tokens": None}, {"llm_config": {"max_tokens": None}}, {"model_settings": {"max_output_tokens": None}}],
)
async def test_a_limit_of_answers_could_not_be_taken_back(http: httpx.AsyncClient, null: dict[str, Any]) -> None:
    agent = (await http.post("/v1/agents/", json={"model": "ollama/qwen3", "max_tokens": 99})).json()
    path, kept = f"/v1/agents/{agent['id']}", {"temperature": 0.5, "parallel_tool_calls": False}

    same = await http.patch(path, json={**kept, "model_settings": {"temperature": 0.5}, "llm_config": {}})
    assert same.json()["llm_config"]["max_tokens"] == 99, "a limit that a change does not name stays"
    ended = (await http.patch(path, json=null)).json()
    assert (ended["llm_config"]["max_tokens"], ended["model_settings"]["max_output_tokens"]) == (None, None)
    assert (ended["llm_config"]["temperature"], ended["llm_config"]["parallel_tool_calls"]) == (0.5, False)
    other = (await http.patch(path, json={**null, "model_settings": {"max_output_tokens": 7}})).json()
    assert other["llm_config"]["max_tokens"] == 7


async def test_a_model_that_was_changed_in_llm_config_alone_was_not_taken(http: httpx.AsyncClient) -> None:
    """The config that is sent back has the handle of the model before."""
    agent = (await http.post("/v1/agents/", json={"model": "openai/gpt-5"})).json()
    config, path = agent["llm_config"], f"/v1/agents/{agent['id']}"

    moved = (await http.patch(path, json={"llm_config": {**config, "model": "gpt-4.1"}})).json()

    assert (moved["model"], moved["llm_config"]["model"]) == ("openai/gpt-4.1", "gpt-4.1")
    assert moved["llm_config"]["context_window"] != config["context_window"], "the window is the new model's"
    other = {"model": "claude-3-5-haiku-20241022", "model_endpoint_type": "anthropic"}
    elsewhere = (await http.patch(path, json={"llm_config": {**moved["llm_config"], **other}})).json()
    assert elsewhere["model"] == "anthropic/claude-3-5-haiku-20241022"
    for kept in ({**elsewhere["llm_config"], "temperature": 0.5}, {**config, "handle": "openai/gpt-4.1"}):
        same = (await http.patch(path, json={"llm_config": kept})).json()
        assert same["model"] == kept["handle"]
    copy = {**config, "model": "another"}
    assert (await http.post("/v1/agents/", json={"llm_config": copy})).json()["model"] == "openai/gpt-5"


async def test_a_setting_for_a_new_model_was_lost_when_the_old_one_had_shown_the_same(http: httpx.AsyncClient) -> None:
    """`minimal` is shown of a model that cannot reason, and is a choice for one that can."""
    agent = (await http.post("/v1/agents/", json={"model": "openai/gpt-4o-mini"})).json()
    settings = {"provider_type": "openai", "max_output_tokens": 4096, "reasoning": {"reasoning_effort": "minimal"}}

    moved = await http.patch(f"/v1/agents/{agent['id']}", json={"model": "openai/gpt-5", "model_settings": settings})

    assert moved.json()["model_settings"]["reasoning"] == {"reasoning_effort": "minimal"}
    assert moved.json()["llm_config"]["max_tokens"] == 4096


async def test_a_model_is_needed_and_must_be_of_a_known_provider(client: AsyncLetta) -> None:
    with pytest.raises(BadRequestError, match="builtin/echo"):
        await client.agents.create(name="none")
    with pytest.raises(UnprocessableEntityError, match="unknown model handle"):
        await client.agents.create(model="acme/giant")
    agent = await client.agents.create(model="builtin/echo")
    with pytest.raises(UnprocessableEntityError, match="acme"):
        await client.agents.update(agent.id, model="acme/giant")


async def test_a_built_in_model_that_there_is_not_was_an_agents_and_each_of_its_runs_failed(
    client: AsyncLetta, http: httpx.AsyncClient
) -> None:
    agent, there_is_none = await client.agents.create(model="builtin/echo"), "no built-in model 'builtin/eco'"
    message: Any = {"role": "user", "content": "Hello"}
    for refused in (
        client.agents.create(model="builtin/eco"),
        client.agents.update(agent.id, model="builtin/eco"),
        client.agents.messages.create(agent.id, messages=[message], override_model="builtin/eco"),
        client.conversations.create(agent_id=agent.id, model="builtin/eco"),
    ):
        with pytest.raises(UnprocessableEntityError, match=there_is_none) as caught:
            await refused
        assert cast("Any", caught.value.body)["field"] in ("model", "override_model")
    asked = await http.post(f"/v1/agents/{agent.id}/generate", json={"prompt": "Hi", "override_model": "builtin/eco"})
    assert (asked.status_code, asked.json()["field"]) == (404, "override_model")
    answered = await http.post("/openai/v1/responses", json={"model": "builtin/eco", "input": "Hello"})
    assert there_is_none in answered.json()["error"]["message"]


async def test_a_mistyped_type_made_an_agent_of_the_oldest_kind(http: httpx.AsyncClient) -> None:
    """It spoke by `send_message`."""
    refused = await http.post("/v1/agents/", json={"model": "builtin/echo", "agent_type": "letta_v1_agnet"})
    assert (refused.status_code, refused.json()["field"]) == (422, "agent_type")
    assert (await http.get("/v1/agents/")).json() == []


async def test_an_agent_is_changed_listed_and_deleted(client: AsyncLetta, http: httpx.AsyncClient) -> None:
    tool = await client.tools.upsert(source_code=ROLL_DICE)
    agents = [await client.agents.create(model="builtin/echo", name=f"a{number}") for number in range(3)]
    changed = await client.agents.update(
        agents[0].id, system="Be kind.", parallel_tool_calls=True, tool_ids=[tool.id], tags=["x"], description="d"
    )
    assert (changed.system, changed.description, changed.tags) == ("Be kind.", "d", ["x"])
    assert changed.llm_config.parallel_tool_calls is True
    assert [found.name for found in changed.tools] == ["roll_dice"]

    assert [agent.name async for agent in client.agents.list(limit=2)] == ["a2", "a1", "a0"]
    assert [agent.name for agent in (await client.agents.list(tags=["x"])).items] == ["a0"]
    assert [agent.name for agent in (await client.agents.list(query_text="A1")).items] == ["a1"]
    assert (await http.get("/v1/agents/count")).json() == 3
    await client.agents.delete(agents[1].id)
    with pytest.raises(NotFoundError, match=f"Agent with ID {agents[1].id} not found"):
        await client.agents.retrieve(agents[1].id)


async def test_tools_of_an_agent(client: AsyncLetta) -> None:
    tool = await client.tools.upsert(source_code=ROLL_DICE)
    agent = await client.agents.create(model="builtin/echo", tools=["roll_dice"], include_base_tools=False)
    assert [found.id for found in (await client.agents.tools.list(agent.id)).items] == [tool.id]

    detached = await client.agents.tools.detach(tool.id, agent_id=agent.id)
    assert detached is not None
    assert detached.tools == []
    attached = await client.agents.tools.attach(tool.id, agent_id=agent.id)
    assert attached is not None
    assert [found.id for found in attached.tools] == [tool.id]

    answer = await client.agents.tools.update_approval("roll_dice", agent_id=agent.id, body_requires_approval=True)
    assert answer is None
    rules = (await client.agents.retrieve(agent.id)).tool_rules
    assert rules is not None
    assert [rule.tool_name for rule in rules] == ["roll_dice"]
    with pytest.raises(BadRequestError, match=r"Tools not found by name: \{'no_such_tool'\}"):
        await client.agents.create(model="builtin/echo", tools=["no_such_tool"])


async def test_the_context_of_a_new_agent(client: AsyncLetta, http: httpx.AsyncClient) -> None:
    await client.tools.upsert(source_code=ROLL_DICE)
    agent = await client.agents.create(
        model="builtin/echo",
        system="Be brief.",
        tools=["roll_dice"],
        include_base_tools=False,
        memory_blocks=[{"label": "human", "value": "Likes tea."}],
    )

    context = (await http.get(f"/v1/agents/{agent.id}/context")).json()

    assert context["context_window_size_max"] == 32_000
    assert context["num_messages"] == 1
    assert "Likes tea." in context["core_memory"]
    assert [message["role"] for message in context["messages"]] == ["system"]
    assert [function["function"]["name"] for function in context["functions_definitions"]] == ["roll_dice"]
    parts = ("system", "core_memory", "external_memory_summary", "functions_definitions", "messages")
    assert f"- AGENT_ID: {agent.id}" in context["external_memory_summary"]
    assert context["context_window_size_current"] == sum(context[f"num_tokens_{part}"] for part in parts)


async def test_a_list_of_waiting_agents_costs_the_same_queries_as_one(
    http: httpx.AsyncClient, database: Database
) -> None:
    """It was two more for each agent, and a page may have a thousand."""
    stores, asked = Stores(database), dict[str, str]()
    for _ in range(4):
        agent = some_agent(project_id=DEFAULT_PROJECT)
        await AgentEditor(database).create(agent, system_message_id=IDS.message())
        run = await stores.claimed(project_id=DEFAULT_PROJECT, agent_id=agent.id, thread_id=ThreadId(agent.id))
        calls = [call("a", needs_approval=True), call("b", needs_approval=True)]
        asking = answer("may I?", *calls)
        await stores.settlements.park(run, checkpoint(run, asking), [request_of(run, asking, one) for one in calls])
        asked[agent.id] = asking.id

    async def queries(limit: int) -> int:
        with statements() as found:
            shown = await http.get("/v1/agents", params={"include": "agent.pending_approval", "limit": limit})
        pending = {agent["id"]: agent["pending_approval"] for agent in shown.json()}
        assert len(pending) == limit
        assert {agent_id: message["id"] for agent_id, message in pending.items()}.items() <= asked.items()
        assert all(len(message["tool_calls"]) == 2 for message in pending.values())
        return len(found)

    assert await queries(4) == await queries(1)
