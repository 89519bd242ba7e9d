"""An agent edits its own memory: at once, once, and never over what somebody else has written."""

import asyncio
from typing import Any

import pytest
from letta_client import APIStatusError, BadRequestError

from tests.kit.model_server import Call, Turn
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.product import Product
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

HUMAN: dict[str, Any] = {"label": "human", "value": "Name: unknown.", "limit": 60}


OWN_SEARCH = '''
def web_search(query: str) -> str:
    """
    Searches.

    Args:
        query (str): What.
    """
    return "found " + query
'''


async def agent_with_memory(product: Product, *names: str, blocks: list[dict[str, Any]] | None = None) -> str:
    """An agent with memory tools of these names; its id."""
    made: dict[str, Any] = {"tools": list(names), "memory_blocks": [HUMAN] if blocks is None else blocks}
    # Without the rule by which `memory_finish_edits` ends a turn: what the next step is shown is looked at.
    plain = {"model": "openai/gpt-4o-mini", "include_base_tools": False, "include_base_tool_rules": False}
    answer = await product.http.post("/v1/agents/", json={**plain, **made})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


async def value_of(product: Product, agent_id: str, label: str = "human") -> str:
    return (await product.client.agents.blocks.retrieve(label, agent_id=agent_id)).value


async def say(product: Product, agent_id: str, *calls: Call) -> list[dict[str, Any]]:
    """One turn in which the model makes these calls in one answer and then says "Done."; the results."""
    product.models.play(Turn(calls=list(calls)), Turn(text="Done."))
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Go on."})
    assert answer.status_code == 200, answer.text
    [returned] = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    return returned["tool_returns"]


def system_of(request: ReceivedRequest) -> str:
    return request.body["messages"][0]["content"]


async def test_an_edit_is_seen_by_the_very_next_step(product: Product) -> None:
    agent_id = await agent_with_memory(product, "memory_replace")

    [result] = await say(
        product, agent_id, Call("memory_replace", {"label": "human", "old_string": "unknown", "new_string": "Ada"})
    )

    assert (result["status"], result["tool_return"]) == ("success", "Name: Ada.")
    assert await value_of(product, agent_id) == "Name: Ada."
    first, second = product.models.requests
    assert "Name: unknown." in system_of(first)
    assert "Name: Ada." in system_of(second)


async def test_a_prompt_stays_the_same_while_the_memory_does(product: Product) -> None:
    agent_id = await agent_with_memory(product, "memory_insert", "memory_finish_edits")
    await say(product, agent_id, Call("memory_finish_edits", {}))

    first, second = product.models.requests
    assert system_of(first) == system_of(second)
    assert f"- AGENT_ID: {agent_id}" in system_of(first)
    assert second.body["tools"] == first.body["tools"]


async def test_an_agent_gets_the_base_tools_of_its_kind_unless_its_maker_says_no(product: Product) -> None:
    async def names(**fields: Any) -> set[str | None]:
        agent = await product.client.agents.create(model="openai/gpt-4o-mini", **fields)
        return {tool.name for tool in agent.tools}

    assert await names() == {"conversation_search", "memory_insert", "memory_replace"}
    assert await names(include_base_tools=False) == set()
    assert await names(include_base_tools=False, tools=["web_search"]) == {"web_search"}
    assert "send_message" in await names(agent_type="memgpt_v2_agent")


async def test_tools_that_are_not_there_are_named_in_the_words_that_programs_look_for(product: Product) -> None:
    with pytest.raises(BadRequestError, match=r"Tools not found by name: \{'no_such_tool'\}"):
        await product.client.agents.create(model="openai/gpt-4o-mini", tools=["memory", "no_such_tool"])


async def test_tools_that_only_lettas_server_has_are_refused_with_what_to_do_instead(product: Product) -> None:
    """The refusal did not tell a tool that was never written from one that cannot be had here."""
    names = ["store_memories", "grep_files", "no_such_tool"]
    with pytest.raises(BadRequestError) as refused:
        await product.client.agents.create(model="openai/gpt-4o-mini", tools=names)

    assert "Tools not found by name: {'store_memories', 'grep_files', 'no_such_tool'}" in str(refused.value)
    assert "store_memories: there are no voice agents here" in str(refused.value)
    assert "grep_files: there are no files here" in str(refused.value)


async def test_base_rules_are_those_of_the_wire(product: Product) -> None:
    """An agent with a named base tool had no rule for it, and gpt-5 had rules."""

    async def rules(**fields: Any) -> dict[str, str]:
        answer = await product.http.post("/v1/agents/", json={"model": "openai/gpt-4o-mini", **fields})
        return {rule["tool_name"]: rule["type"] for rule in answer.json()["tool_rules"]}

    assert await rules() == {}
    assert await rules(tools=["memory_finish_edits"]) == {}
    named: dict[str, Any] = {"include_base_tools": False, "tools": ["memory_finish_edits", "memory"]}
    assert await rules(**named) == {"memory_finish_edits": "exit_loop", "memory": "continue_loop"}
    assert await rules(**named, include_base_tool_rules=False) == {}
    assert await rules(**named, model="openai/gpt-5") == {}
    assert await rules(**named, model="openai/gpt-5-mini") != {}
    assert await rules(agent_type="memgpt_v2_agent", model="openai/gpt-5") == {}
    older = await rules(agent_type="memgpt_agent")
    assert (older["send_message"], older["memory_apply_patch"]) == ("exit_loop", "continue_loop")


async def test_an_agent_of_an_older_kind_is_made_without_a_base_tool_that_was_deleted(product: Product) -> None:
    """The rule of the missing tool was refused, and so was the agent."""
    [found] = (await product.client.tools.list(name="send_message")).items
    await product.client.tools.delete(found.id)

    agent = await product.client.agents.create(model="openai/gpt-4o-mini", agent_type="memgpt_v2_agent")

    assert "send_message" not in {rule.tool_name for rule in agent.tool_rules or ()}


async def test_a_patch_edits_several_blocks_or_none(product: Product) -> None:
    agent_id = await agent_with_memory(product, "memory_apply_patch", blocks=[HUMAN, {"label": "old", "value": "x"}])
    good = "*** Update Block: human\n-Name: unknown.\n+Name: Ada.\n*** Add Block: notes\n+Likes tea.\n"
    bad = good + "*** Update Block: old\n-y\n"

    [refused] = await say(product, agent_id, Call("memory_apply_patch", {"label": "", "patch": bad}))
    assert (refused["status"], await value_of(product, agent_id)) == ("error", "Name: unknown.")
    [result] = await say(
        product, agent_id, Call("memory_apply_patch", {"label": "", "patch": good + "*** Delete Block: old"})
    )

    assert result["status"] == "success"
    blocks = (await product.client.agents.blocks.list(agent_id)).items
    assert {block.label: block.value for block in blocks} == {"human": "Name: Ada.", "notes": "Likes tea."}
    assert "Likes tea." in system_of(product.models.requests[-1])


async def test_base_tools_are_listed_added_again_and_keep_their_ids(product: Product) -> None:
    [found] = (await product.client.tools.list(name="send_message")).items
    await product.client.tools.delete(found.id)
    assert (await product.client.tools.list(name="send_message")).items == []

    added = (await product.http.post("/v1/tools/add-base-tools")).json()
    again = (await product.http.post("/v1/tools/add-base-tools")).json()

    assert "send_message" in {tool["name"] for tool in added}
    assert added == again
    assert {tool["tool_type"] for tool in added} >= {"letta_core", "letta_sleeptime_core", "letta_memory_core"}


async def test_a_tool_of_ones_own_may_take_the_name_of_a_base_tool(product: Product) -> None:
    await product.client.tools.upsert(source_code=OWN_SEARCH)
    await product.http.post("/v1/tools/add-base-tools")
    agent_id = await agent_with_memory(product, "web_search")

    [result] = await say(product, agent_id, Call("web_search", {"query": "tea"}))

    assert result["tool_return"] == "found tea"


async def test_what_this_server_has_not_is_said_to_the_model(product: Product) -> None:
    agent_id = await agent_with_memory(product, "web_search", "run_code")

    [result] = await say(product, agent_id, Call("web_search", {"query": "tea"}))

    assert result["status"] == "error"
    assert "has no web search" in result["tool_return"]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no such block": ("memory_insert", {"label": "humna", "new_string": "x"}, "Available: human"),
    "over the limit": ("core_memory_append", {"label": "human", "content": "x" * 60}, "60 character limit"),
    "not there": ("memory_replace", {"label": "human", "old_string": "Bob", "new_string": "x"}, "did not appear"),
    "more than once": ("memory_replace", {"label": "human", "old_string": "n", "new_string": "x"}, "Multiple"),
    "no such line": ("memory_insert", {"label": "human", "new_string": "x", "insert_line": 7}, "insert_line"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_an_edit_that_cannot_be_made_is_an_error_that_the_model_can_act_on(product: Product, case: str) -> None:
    name, arguments, expected = REFUSED[case]
    agent_id = await agent_with_memory(product, name)

    [result] = await say(product, agent_id, Call(name, arguments))

    assert result["status"] == "error"
    assert expected in result["tool_return"]
    assert await value_of(product, agent_id) == "Name: unknown."


async def test_a_read_only_block_stays_as_it_is(product: Product) -> None:
    agent_id = await agent_with_memory(product, "memory_rethink", "memory", blocks=[{**HUMAN, "read_only": True}])

    results = await say(
        product,
        agent_id,
        Call("memory_rethink", {"label": "human", "new_memory": "Bob"}),
        Call("memory", {"command": "delete", "path": "/memories/human"}),
        Call("memory", {"command": "rename", "old_path": "/memories/human", "new_path": "/memories/other"}),
    )

    assert [result["status"] for result in results] == ["error"] * 3
    assert all("read-only" in result["tool_return"] for result in results)
    assert await value_of(product, agent_id) == "Name: unknown."


async def test_the_memory_tool_makes_fills_renames_and_takes_away_blocks(product: Product) -> None:
    agent_id = await agent_with_memory(product, "memory", blocks=[])
    path = "/memories/notes"

    results = await say(
        product,
        agent_id,
        Call("memory", {"command": "create", "path": path, "description": "Notes.", "insert_line": None}),
        Call("memory", {"command": "create", "path": path, "description": "Again."}),
        Call("memory", {"command": "insert", "path": path, "insert_text": "two"}),
        Call("memory", {"command": "insert", "path": path, "insert_text": "one", "insert_line": 0}),
        Call("memory", {"command": "str_replace", "path": path, "old_string": "two", "new_string": "three"}),
        Call("memory", {"command": "rename", "old_path": path, "new_path": "/memories/list"}),
    )

    assert [result["status"] for result in results] == ["success", "error", *["success"] * 4]
    assert await value_of(product, agent_id, "list") == "one\nthree"
    assert "<list>" in system_of(product.models.requests[-1])

    await say(product, agent_id, Call("memory", {"command": "delete", "path": "/memories/list"}))
    assert (await product.client.agents.blocks.list(agent_id)).items == []
    assert "<list>" not in system_of(product.models.requests[-1])


async def test_two_agents_that_share_a_block_both_get_their_line(product: Product) -> None:
    block = await product.client.blocks.create(label="shared", value="begin")
    ids = [await agent_with_memory(product, "core_memory_append", blocks=[]) for _ in range(4)]
    for agent_id in ids:
        await product.client.agents.blocks.attach(block.id, agent_id=agent_id)
    all_ask = asyncio.Event()

    def answer(request: ReceivedRequest) -> Turn:
        if request.body["messages"][-1]["role"] == "tool":
            return Turn(text="Done.")
        line = f"line {request.body['messages'][-1]['content']}"
        call = Call("core_memory_append", {"label": "shared", "content": line})
        return Turn(calls=[call], silent_after_headers=60, resume=all_ask)

    product.models.answer_with(answer)
    runs = [
        (await product.http.post(f"/v1/agents/{agent_id}/messages/async", json={"input": str(number)})).json()["id"]
        for number, agent_id in enumerate(ids)
    ]
    await wait_until(lambda: len(product.models.requests) == len(ids), description="every agent to ask its model")
    all_ask.set()
    for run_id in runs:
        await product.ended(run_id)

    value = (await product.client.blocks.retrieve(block.id)).value
    assert sorted(value.split("\n")) == ["begin", *(f"line {number}" for number in range(len(ids)))]


async def test_a_block_is_not_written_anew_over_what_the_model_has_not_seen(product: Product) -> None:
    agent_id = await agent_with_memory(product, "memory_rethink")
    changed = asyncio.Event()
    rewriting = Call("memory_rethink", {"label": "human", "new_memory": "Name: Ada."})
    product.models.play(Turn(calls=[rewriting], silent_after_headers=60, resume=changed), Turn(text="Done."))

    sending = asyncio.ensure_future(product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "I am Ada."}))
    await wait_until(lambda: len(product.models.requests) == 1, description="the model to be asked")
    await product.client.agents.blocks.update("human", agent_id=agent_id, value="Name: Bob.")
    changed.set()
    messages = (await sending).json()["messages"]

    [returned] = [one for one in messages if one["message_type"] == "tool_return_message"]
    assert returned["status"] == "error"
    assert "It now reads:\nName: Bob." in returned["tool_return"]
    assert await value_of(product, agent_id) == "Name: Bob."
    [result] = await say(product, agent_id, rewriting)
    assert (result["status"], await value_of(product, agent_id)) == ("success", "Name: Ada.")


async def test_an_edit_that_waits_for_a_person_is_made_when_it_is_allowed(product: Product) -> None:
    agent_id = await agent_with_memory(product, "core_memory_append")
    await product.client.agents.tools.update_approval(
        "core_memory_append", agent_id=agent_id, body_requires_approval=True
    )
    product.models.play(Turn(calls=[Call("core_memory_append", {"label": "human", "content": "Ada"}, id="c1")]))
    await product.client.agents.messages.create(agent_id, input="I am Ada.")
    assert await value_of(product, agent_id) == "Name: unknown."

    product.models.say("Done.")
    decision: Any = {
        "type": "approval",
        "approvals": [{"type": "approval", "tool_call_id": "c1", "approve": True}],
    }
    await product.client.agents.messages.create(agent_id, messages=[decision])

    assert await value_of(product, agent_id) == "Name: unknown.\nAda"


async def test_the_schema_of_a_base_tool_is_the_servers_own(product: Product) -> None:
    [tool] = (await product.client.tools.list(name="memory_insert")).items
    with pytest.raises(APIStatusError, match="comes with the server"):
        await product.client.tools.update(tool.id, description="Mine.")
    changed = await product.client.tools.update(tool.id, default_requires_approval=True)
    assert changed.default_requires_approval is True
