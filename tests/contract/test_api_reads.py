"""What agents, conversations and tags show of themselves, and in which order, through the real `letta-client`."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, get_args

import httpx
import pytest
from letta_client import AsyncLetta, UnprocessableEntityError
from letta_client.types import StopReasonType

from api.access.callers import DEFAULT_PROJECT
from shared.domain.ids import AgentId, ConversationId, ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.sql.engine import Database
from tests.kit.product import api_client
from tests.kit.runs.definitions import NOW
from tests.kit.runs.stored_runs import Stores, ending, some_run
from tests.kit.services.databases import open_database
from tests.kit.tools import ROLL_DICE


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
async def http(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database) as client:
        yield client


@pytest.fixture
async def client(http: httpx.AsyncClient) -> AsyncLetta:
    return AsyncLetta(base_url="http://localhost", api_key="none", http_client=http, max_retries=0)


async def agent(client: AsyncLetta, **fields: Any) -> str:
    return (await client.agents.create(model="builtin/echo", include_base_tools=False, **fields)).id


async def a_run(database: Database, agent_id: str, minute: int, conversation_id: str | None = None) -> None:
    """A run that took a minute."""
    stores = Stores(database)
    begun = NOW + timedelta(minutes=minute)
    run = some_run(
        project_id=DEFAULT_PROJECT,
        agent_id=AgentId(agent_id),
        thread_id=ThreadId(conversation_id or agent_id),
        conversation_id=None if conversation_id is None else ConversationId(conversation_id),
        created_at=begun,
    )
    claimed = await stores.claim((await stores.runs.submit(run, [])).run)
    end = ending(RunTrigger.COMPLETE, claimed, now=begun + timedelta(minutes=1))
    await stores.settlements.settle(claimed, end)


async def test_an_agents_last_run_was_never(client: AsyncLetta, database: Database) -> None:
    idle, busy = await agent(client), await agent(client)
    for minute in (0, 5):
        await a_run(database, busy, minute)

    shown = await client.agents.retrieve(busy)

    assert (shown.last_run_completion, shown.last_run_duration_ms) == (NOW + timedelta(minutes=6), 60_000)
    assert (await client.agents.retrieve(idle)).last_run_completion is None


@pytest.mark.parametrize("limit", [1, 10])
async def test_order_by_last_run_completion_was_ignored(client: AsyncLetta, database: Database, limit: int) -> None:
    idle, late, early, other = [await agent(client) for _ in range(4)]
    await a_run(database, early, 0)
    await a_run(database, late, 5)

    async def listed(**order: Any) -> list[str]:
        return [found.id async for found in client.agents.list(limit=limit, **order)]

    assert await listed(order_by="last_run_completion") == [late, early, other, idle]
    assert await listed(order_by="last_run_completion", order="asc") == [early, late, idle, other]
    assert await listed(sort_by="last_run_completion") == [late, early, other, idle]
    assert await listed() == [other, early, late, idle]
    await client.agents.update(idle, name="Ada")
    assert (await listed(order_by="updated_at"))[0] == idle
    before = (await client.agents.list(order_by="last_run_completion", before=other, limit=1)).items
    assert [found.id for found in before] == [early]


async def test_conversations_are_ordered_by_their_runs(client: AsyncLetta, database: Database) -> None:
    of = await agent(client)
    idle, late, early = [(await client.conversations.create(agent_id=of)).id for _ in range(3)]
    await a_run(database, of, 0, early)
    await a_run(database, of, 5, late)

    orders: list[Any] = ["last_run_completion", "last_message_at"]
    for order_by in orders:
        for ascending, wanted in ((False, [late, early, idle]), (True, [early, late, idle])):
            order: Any = "asc" if ascending else "desc"
            found = await client.conversations.list(agent_id=of, order_by=order_by, order=order)
            assert [conversation.id for conversation in found] == wanted
            second = await client.conversations.list(order_by=order_by, after=wanted[0], limit=1, order=order)
            assert [conversation.id for conversation in second] == wanted[1:2]


async def test_filters_of_agents_were_ignored(client: AsyncLetta, http: httpx.AsyncClient) -> None:
    mine = await agent(client, identity_ids=["identity-1"], template_id="template-1")
    await agent(client, identity_ids=["identity-10"], base_template_id="base-1")
    hidden = await agent(client, hidden=True)

    async def listed(**wanted: Any) -> list[str]:
        return [found["id"] for found in (await http.get("/v1/agents/", params=wanted)).json()]

    assert await listed(identity_id="identity-1") == await listed(template_id="template-1") == [mine]
    assert len(await listed(base_template_id="base-1")) == 1
    assert await listed(identity_id="identity-2") == []
    # A program that looks for a user's agent by the user's key got the agents of all users, and took the first one.
    assert await listed(identifier_keys=["ada"]) == []
    assert (await client.get("/v1/agents/count", cast_to=int, options={"params": {"identifier_keys": "ada"}})) == 0
    assert hidden not in await listed()
    assert hidden in await listed(show_hidden_agents=True)
    assert (await http.get("/v1/agents/count")).json() == len(await listed()) == 2


async def test_tags_were_a_501(client: AsyncLetta, database: Database) -> None:
    await agent(client, tags=["tea", "Coffee"])
    await agent(client, tags=["tea", "water"])
    await client.blocks.create(label="a", value="x", tags=["milk"])

    assert await client.tags.list() == ["Coffee", "milk", "tea", "water"]
    assert await client.tags.list(order="desc", limit=2) == ["water", "tea"]
    assert await client.tags.list(after="milk", limit=1) == ["tea"]
    assert await client.tags.list(order="desc", before="milk") == ["water", "tea"]
    assert await client.tags.list(name="COF") == await client.tags.list(query_text="cof") == ["Coffee"]


async def test_core_memory_was_a_501_though_all_below_it_worked(client: AsyncLetta, http: httpx.AsyncClient) -> None:
    agent_id = await agent(client, memory_blocks=[{"label": "human", "value": "Likes tea."}])
    memory = (await http.get(f"/v1/agents/{agent_id}/core-memory")).json()
    assert [(block["label"], block["value"]) for block in memory["blocks"]] == [("human", "Likes tea.")]


async def test_a_tool_rule_that_came_twice_was_kept_twice(client: AsyncLetta) -> None:
    rule: Any = {"tool_name": "roll_dice", "type": "exit_loop"}
    other: Any = {"tool_name": "roll_dice", "type": "run_first"}
    tool = await client.tools.upsert(source_code=ROLL_DICE)
    made = await client.agents.create(
        model="builtin/echo", include_base_tools=False, tool_ids=[tool.id], tool_rules=[rule, other, rule]
    )
    assert [found.to_dict()["type"] for found in made.tool_rules or []] == ["exit_loop", "run_first"]


async def test_an_include_that_is_null_in_typescript_was_refused(client: AsyncLetta) -> None:
    """The SDK sends it as an empty text."""
    agent_id, empty = await agent(client), {"include": "", "last_stop_reason": ""}
    assert [one.id for one in (await client.agents.list(extra_query=empty)).items] == [agent_id]
    assert (await client.agents.retrieve(agent_id, extra_query={"include": ""})).id == agent_id


@pytest.mark.parametrize("reason", get_args(StopReasonType))
async def test_a_stop_reason_of_the_sdk_with_which_no_run_ends_here_was_refused(
    client: AsyncLetta, reason: Any
) -> None:
    await agent(client)
    assert (await client.runs.list(stop_reason=reason)).items == []
    assert (await client.agents.list(last_stop_reason=reason)).items == []


async def test_a_misspelt_part_of_an_agent_was_a_null_and_a_misspelt_stop_reason_an_empty_list(
    client: AsyncLetta,
) -> None:
    """A program that asked for `agent.pending_aproval` read in the null that no call waits."""
    agent_id, wrong = await agent(client), ["agent.pending_aproval"]
    block = await client.blocks.create(label="x", value="x")
    for call in (
        client.agents.retrieve(agent_id, extra_query={"include": wrong}),
        client.agents.list(extra_query={"include": wrong}),
        client.blocks.agents.list(block.id, extra_query={"include": wrong}),
        client.agents.list(extra_query={"last_stop_reason": "end_trun"}),
    ):
        with pytest.raises(UnprocessableEntityError, match="query"):
            await call
