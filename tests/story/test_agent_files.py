"""An agent leaves as a file, comes back from one, and goes on as if nothing had happened."""

import io
import json
import re
from typing import Any

import pytest

from tests.kit.agent_files import (
    SOURCE,
    a_file,
    an_agent,
    as_upload,
    block,
    calls,
    custom_tool,
    message,
    packed,
    result,
    their_tool,
)
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting_calls
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE, broken_rules
from tests.kit.tools import ROLL_DICE

pytestmark = pytest.mark.shared_product

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def brought(product: Product, file: Any, **fields: str) -> list[str]:
    """The ids of the agents that the file made."""
    answer = await product.http.post("/v1/agents/import", files=as_upload(file), data=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["agent_ids"]


async def exported(product: Product, agent_id: str, **query: str) -> dict[str, Any]:
    answer = await product.http.get(f"/v1/agents/{agent_id}/export", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def without_ids_and_times(file: dict[str, Any]) -> str:
    """The file as text. Ids in it are the file's own; the instructions tell the agent's id, and when they were made."""
    said = json.dumps(file, indent=1, sort_keys=True)
    said = re.sub(r"AGENT_ID: agent-[0-9a-f-]+", "AGENT_ID", said)
    said = re.sub(r"last recompiled: [^\\]*", "last recompiled", said)
    return re.sub(r'"created_at": "[^"]*"', '"created_at"', said)


async def tell(product: Product, agent_id: str, said: Any) -> str:
    """Sends a message; what the model was asked, as text. It must be a request that its provider takes."""
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": said})
    assert answer.status_code == 200, answer.text
    asked = product.models.requests[-1]
    assert broken_rules(asked) == []
    return json.dumps(asked.body)


async def an_agent_with_a_past(product: Product) -> str:
    """An agent with memory, a denied and an approved call, reasoning, an image and a summary."""
    asked = await waiting_calls(product, "moon", "mars")
    product.models.say("One of two.", reasoning="Only one was allowed.")
    await asked.decide_in_a_message(call_0=True, call_1=False)
    agents = product.client.agents
    await agents.messages.compact(asked.agent_id, compaction_settings={"mode": "all"})
    made = await product.client.blocks.create(label="human", value="Likes tea.", limit=500, description="The user")
    await agents.blocks.attach(made.id, agent_id=asked.agent_id)
    await agents.update(
        asked.agent_id, secrets={"TOKEN": "do-not-tell"}, metadata={"a": 1}, description="Launches", tags=["space"]
    )
    product.models.play(Turn(calls=[Call("launch", {"target": "venus"}, id="call_2")], text="Shall I?"))
    await agents.messages.create(
        asked.agent_id,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                ],
            }
        ],
    )
    [waiting] = (await product.http.get("/v1/approvals", params={"agent_id": asked.agent_id})).json()
    denied = await product.http.post(f"/v1/approvals/{waiting['id']}", json={"decision": "deny", "reason": "too hot"})
    await product.ended(denied.json()["run"]["id"])
    return asked.agent_id


async def test_settings_of_a_tool_that_letta_does_not_know_come_along(product: Product) -> None:
    ours = {"idempotent": True, "limits": {"cpu_s": 5}, "approval_expires_s": 60.0, "on_approval_expiry": "deny"}
    tool = (await product.http.post("/v1/tools/", json={"source_code": ROLL_DICE, **ours})).json()
    agent = await product.client.agents.create(model="openai/gpt-4o-mini", tool_ids=[tool["id"]])
    file = await exported(product, agent.id)
    [in_file] = [one for one in file["tools"] if one["name"] == "roll_dice"]
    assert not ours.keys() & in_file.keys()

    await product.http.delete(f"/v1/tools/{tool['id']}")
    [new_id] = await brought(product, file)
    [back] = [
        one for one in (await product.http.get(f"/v1/agents/{new_id}/tools")).json() if one["name"] == "roll_dice"
    ]
    assert {name: back[name] for name in ours} == ours


async def test_an_agent_comes_back_as_it_left_and_goes_on(product: Product) -> None:
    agent_id = await an_agent_with_a_past(product)
    client = product.client.agents
    left = await client.export_file(agent_id)

    [new_id] = (await client.import_file(file=io.BytesIO(left.encode()), append_copy_suffix=False)).agent_ids
    back = await client.export_file(new_id)

    assert new_id != agent_id
    assert "do-not-tell" not in left
    assert without_ids_and_times(json.loads(back)) == without_ids_and_times(json.loads(left))
    again = await product.http.post("/v1/agents/import", files=as_upload(left.encode()))
    assert "replaced" not in again.headers["warning"]
    before, after = await client.retrieve(agent_id), await client.retrieve(new_id)
    assert [tool.id for tool in after.tools] == [tool.id for tool in before.tools]
    assert {one.id for one in after.memory.blocks}.isdisjoint(one.id for one in before.memory.blocks)
    assert (after.name, after.tool_rules, after.metadata, after.description, after.tags) == (
        before.name, before.tool_rules, before.metadata, before.description, before.tags,
    )  # fmt: skip
    asked = await tell(product, new_id, "Go on.")
    assert all(said in asked for said in ("too hot", PIXEL, "Likes tea.", "Go on."))


async def test_what_is_exported_is_a_file_of_the_newest_format(product: Product) -> None:
    agent_id = await an_agent_with_a_past(product)

    file = await exported(product, agent_id)

    assert list(file) == [
        "agents", "groups", "blocks", "files", "sources", "tools", "mcp_servers", "skills", "metadata", "created_at",
    ]  # fmt: skip
    [agent] = file["agents"]
    assert (agent["secrets"], agent["tool_ids"], agent["block_ids"]) == ({"TOKEN": ""}, ["tool-0"], ["block-0"])
    assert agent["in_context_message_ids"] == [one["id"] for one in agent["messages"]]
    assert [one["role"] for one in agent["messages"]] == [
        "system", "summary", "user", "approval", "approval", "tool", "assistant",
    ]  # fmt: skip
    asking, decision, returned = agent["messages"][3:6]
    assert asking["tool_calls"][0]["function"] == {"arguments": '{"target": "venus"}', "name": "launch"}
    assert decision["approvals"] == [
        {"type": "approval", "tool_call_id": "call_2", "approve": False, "reason": "too hot"}
    ]
    assert json.loads(returned["tool_returns"][0]["func_response"])["status"] == "Failed"
    assert file["tools"][0]["source_code"].startswith("def launch")


async def test_messages_can_be_left_behind(product: Product) -> None:
    agent_id = await an_agent_with_a_past(product)

    scrubbed = await exported(product, agent_id, scrub_messages="true")
    [stripped] = await brought(product, await exported(product, agent_id), strip_messages="true")

    assert (scrubbed["agents"][0]["messages"], scrubbed["agents"][0]["in_context_message_ids"]) == ([], [])
    assert [one["message_type"] for one in await product.history(stripped)] == ["system_message"]


async def test_a_conversation_is_exported_in_place_of_the_agents_own_history(product: Product) -> None:
    agent = await product.agent()
    await product.client.agents.messages.create(agent.id, input="In the default history.")
    conversation = await product.client.conversations.create(agent_id=agent.id)
    said = {"messages": [{"role": "user", "content": "Between us."}], "streaming": False}
    await product.http.post(f"/v1/conversations/{conversation.id}/messages", json=said)
    other = await product.agent()

    file = await exported(product, agent.id, conversation_id=conversation.id)
    refused = await product.http.get(f"/v1/agents/{other.id}/export", params={"conversation_id": conversation.id})

    assert [one["role"] for one in file["agents"][0]["messages"]] == ["system", "user", "assistant"]
    assert "Between us." in json.dumps(file)
    assert "In the default history." not in json.dumps(file)
    assert refused.status_code == 404


SUMMARISED = "Note: … a summary of the previous 9 messages:\n Tea was had."
HISTORY = (
    message(0, "system", "You travel. <old memory>"),
    message(1, "user", json.dumps({"type": "system_alert", "message": SUMMARISED})),
    message(2, "user", "Write tea down, twice."),
    message(
        3,
        "assistant",
        [
            {"type": "reasoning", "is_native": True, "reasoning": "Two notes.", "signature": "c2ln"},
            {"type": "redacted_reasoning", "data": "xyz"},
        ],
        **calls("c1", "c2"),
    ),
    message(4, "tool", packed("noted: tea"), tool_call_id="c1", name="note"),
    message(5, "tool", tool_returns=[result("c2", "noted: tea"), result("nobody", "asked for this")]),
    message(6, "assistant", "Both are written down."),
    message(7, "user", "And now?"),
    message(8, "assistant", "First this.", **calls("c3")),
    message(9, "approval", **calls("c4", "c5")),
)


async def test_every_provider_takes_the_history_of_a_file(product: Product) -> None:
    for model in ONE_OF_EACH_WIRE:
        [agent_id] = await brought(product, a_file(an_agent(*HISTORY)), model=model)

        asked = await tell(product, agent_id, "Go on.")

        assert "Tea was had." in asked
        assert "<old memory>" not in asked
        assert "asked for this" not in asked
        assert asked.count("noted: tea") == 2
        assert asked.count("while this call waited for a decision") == 3


async def test_an_image_in_a_result_stays_there(product: Product) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    seen = result("c1", "") | {"func_response": [{"type": "text", "text": "Look:"}, image]}
    file = a_file(an_agent(message(1, "user", "Show me."), message(2, "assistant", **calls("c1")),
                           message(3, "tool", tool_returns=[seen])))  # fmt: skip

    [agent_id] = await brought(product, file)

    again = await exported(product, agent_id)
    assert PIXEL in json.dumps(again["agents"][0]["messages"][3]["tool_returns"])
    assert PIXEL in await tell(product, agent_id, "What is it?")


async def test_calls_that_waited_when_the_file_was_written_are_denied_and_it_is_said(product: Product) -> None:
    answer = await product.http.post("/v1/agents/import", files=as_upload(a_file(an_agent(*HISTORY))))

    [agent_id] = answer.json()["agent_ids"]
    assert "2 calls of 'traveller' waited for a decision" in answer.headers["warning"]
    shown = [one["message_type"] for one in await product.history(agent_id)]
    assert shown == [
        "system_message", "summary_message", "user_message", "reasoning_message", "tool_call_message",
        "tool_return_message", "assistant_message", "user_message", "assistant_message", "tool_call_message",
        "approval_request_message", "approval_response_message", "tool_return_message",
    ]  # fmt: skip
    again = await exported(product, agent_id)
    assert [one["role"] for one in again["agents"][0]["messages"]] == [
        "system", "summary", "user", "assistant", "tool", "assistant", "user", "assistant", "approval", "approval",
        "tool",
    ]  # fmt: skip


async def test_what_has_left_the_context_is_listed_and_not_sent(product: Product) -> None:
    agent = an_agent(*HISTORY[:7])
    agent["in_context_message_ids"] = ["message-0", "message-6"]

    [agent_id] = await brought(product, a_file(agent))

    assert "Write tea down" in json.dumps(await product.history(agent_id))
    assert "Write tea down" not in await tell(product, agent_id, "Go on.")


async def test_a_brought_agent_can_be_compacted(product: Product) -> None:
    [agent_id] = await brought(product, a_file(an_agent(*HISTORY)))
    product.models.say("Summary: tea, twice.")

    await product.client.agents.messages.compact(agent_id, compaction_settings={"mode": "all"})

    assert "Summary: tea, twice." in await tell(product, agent_id, "Go on.")
    assert (await exported(product, agent_id))["agents"][0]["messages"][1]["role"] == "summary"


async def test_settings_come_along_and_the_agent_is_a_copy(product: Product) -> None:
    [agent_id] = await brought(product, a_file(), secrets='{"API_KEY": "k", "OTHER": "x"}')
    agent = await product.client.agents.retrieve(agent_id, include=["agent.secrets"])

    assert (agent.name, agent.system, agent.tags) == ("traveller_copy", "You travel.", ["origin:elsewhere"])
    assert (agent.llm_config.context_window, agent.llm_config.temperature) == (32_000, 0.5)
    assert agent.llm_config.enable_reasoner is True
    assert [(one.key, one.value) for one in agent.secrets or ()] == [("API_KEY", "k")]
    assert [one.name for one in agent.tools] == ["note"]
    product.models.play(Turn(calls=[Call("note", {"text": "tea"})]))
    assert "noted: tea" in await tell(product, agent_id, "Write it down.")


async def test_another_model_gets_none_of_the_settings_of_the_first(product: Product) -> None:
    [agent_id] = await brought(product, a_file(), model="openai/gpt-4o", name="pilot")
    agent = await product.client.agents.retrieve(agent_id)

    assert (agent.name, agent.model) == ("pilot", "openai/gpt-4o")
    assert (agent.llm_config.context_window, agent.llm_config.temperature) == (32_000, None)


async def test_tools_of_lettas_own_go_by_their_names_and_those_that_are_not_here_are_said(product: Product) -> None:
    own = [their_tool(1, "memory_insert", "letta_sleeptime_core"), their_tool(2, "grep_files", "letta_files_core")]
    own.append(their_tool(3, "create_draft", "external_mcp"))
    rules = [
        {"type": "run_first", "tool_name": "grep_files", "prompt_template": None},
        {"type": "requires_approval", "tool_name": "create_draft", "prompt_template": None},
    ]
    agent = an_agent(tool_ids=["tool-0", "tool-1", "tool-2", "tool-3"], tool_rules=rules)

    answer = await product.http.post("/v1/agents/import", files=as_upload(a_file(agent, tools=[custom_tool(), *own])))

    [agent_id] = answer.json()["agent_ids"]
    assert "tools that this server does not have are left out: create_draft, grep_files" in answer.headers["warning"]
    made = await product.client.agents.retrieve(agent_id)
    assert {one.name for one in made.tools} == {"note", "memory_insert"}
    # A rule that only a missing tool could follow would leave the agent nothing to call.
    assert [rule.to_dict()["tool_name"] for rule in made.tool_rules or ()] == ["create_draft"]


async def test_a_tool_of_the_same_name_is_replaced_kept_or_shared(product: Product) -> None:
    own = SOURCE.replace("noted", "mine")
    tool_id = await product.tool(own, default_requires_approval=True)
    client = product.client

    kept = await product.http.post(
        "/v1/agents/import", files=as_upload(a_file()), data={"override_existing_tools": "false"}
    )
    assert "tools of the project stay, the file's differ: note" in kept.headers["warning"]
    assert (await client.tools.retrieve(tool_id)).source_code == own

    replaced = await product.http.post("/v1/agents/import", files=as_upload(a_file()))
    assert "tools of the project were replaced: note" in replaced.headers["warning"]
    tool = await client.tools.retrieve(tool_id)
    assert (tool.source_code, tool.default_requires_approval) == (SOURCE, True)

    shared = await product.http.post("/v1/agents/import", files=as_upload(a_file()))
    assert "note" not in shared.headers["warning"]
    assert [one.id for one in (await client.agents.retrieve(shared.json()["agent_ids"][0])).tools] == [tool_id]


@pytest.mark.parametrize("said", [False, None, True])
@pytest.mark.parametrize("source", [SOURCE, SOURCE.replace("noted", "theirs")], ids=["same source", "other source"])
async def test_a_file_took_the_gate_of_a_tool_away(product: Product, said: bool | None, source: str) -> None:
    """Agents that were made later called the file's source without asking anybody."""
    tool_id = await product.tool(SOURCE, default_requires_approval=True)
    given = custom_tool(source_code=source, default_requires_approval=said)
    answer = await product.http.post("/v1/agents/import", files=as_upload(a_file(tools=[given])))
    tool = await product.client.tools.retrieve(tool_id)
    assert (tool.source_code, tool.default_requires_approval) == (source, True)
    assert ("go on waiting for a person" in answer.headers["warning"]) == (said is False)

    for agent_id in (answer.json()["agent_ids"][0], (await product.agent(tools=[tool_id])).id):
        product.models.play(Turn(calls=[Call("note", {"text": "x"})]))
        asked = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Note x."})
        assert asked.json()["stop_reason"]["stop_reason"] == "requires_approval"


async def test_a_file_may_put_a_gate_before_a_tool(product: Product) -> None:
    tool_id = await product.tool(SOURCE)
    given = custom_tool(default_requires_approval=True)
    answer = await product.http.post("/v1/agents/import", files=as_upload(a_file(tools=[given])))
    assert "go on waiting" not in answer.headers.get("warning", "")
    assert (await product.client.tools.retrieve(tool_id)).default_requires_approval is True


async def test_a_file_cannot_replace_a_base_tool(product: Product) -> None:
    source = SOURCE.replace("def note", "def memory_insert")
    tool = custom_tool(name="memory_insert", source_code=source, json_schema={"name": "memory_insert"})

    answer = await product.http.post("/v1/agents/import", files=as_upload(a_file(tools=[tool])))

    assert "the file's differ: memory_insert" in answer.headers["warning"]
    [found] = (await product.client.tools.list(name="memory_insert")).items
    assert found.tool_type == "letta_sleeptime_core"


async def test_agents_of_one_file_share_their_blocks(product: Product) -> None:
    second = an_agent(id="agent-1", name="companion")

    one, other = await brought(product, a_file(an_agent(), second))

    agents = [await product.client.agents.retrieve(agent_id) for agent_id in (one, other)]
    assert [agent.name for agent in agents] == ["traveller_copy", "companion_copy"]
    [first_block], [second_block] = (agent.memory.blocks for agent in agents)
    assert first_block.id == second_block.id


async def test_a_file_that_cannot_be_stored_whole_leaves_nothing(product: Product) -> None:
    twice = [block(), block(id="block-1")]
    agent = an_agent(block_ids=["block-0", "block-1"])

    answer = await product.http.post(
        "/v1/agents/import", files=as_upload(a_file(an_agent(id="a"), agent, blocks=twice))
    )

    assert (answer.status_code, "labelled 'human'" in answer.text) == (409, True)
    assert (await product.client.agents.list()).items == []
    assert (await product.client.blocks.list()).items == []
    assert (await product.client.tools.list(name="note")).items == []
