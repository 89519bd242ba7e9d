"""Sleep-time agents: while an agent rests, another one brings the memory of both in order."""

import json
from typing import Any

import pytest

from shared.domain.groups import INTRODUCTION, MOST_SLEEPERS, PERSONA_LABEL, RUN_TYPE
from shared.domain.ids import RunId
from shared.sql.runs.run_store import RunStore
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.product import Product
from tests.kit.tools import ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

HUMAN = {"label": "human", "value": "Name: unknown."}
LEARNED = "Name: Ada."


def is_asleep(request: ReceivedRequest) -> bool:
    """Whether the model is asked as a sleep-time agent."""
    return any(INTRODUCTION in str(message["content"]) for message in request.body["messages"])


def thoughts(product: Product) -> list[str]:
    """The transcripts that sleep-time agents were given, in order, each once."""
    shown = [
        message["content"].removeprefix(INTRODUCTION)
        for request in product.models.requests
        if is_asleep(request)
        for message in request.body["messages"]
        if message["role"] == "user"
    ]
    return list(dict.fromkeys(shown))


def thinks(request: ReceivedRequest) -> Turn:
    """The primary agent says yes; the other one learns the name, and stops."""
    if not is_asleep(request):
        return Turn(text="Yes.")
    asked = request.body["messages"]
    if asked[-1]["role"] == "user":
        edit = Call("memory_replace", {"label": "human", "old_string": "unknown", "new_string": "Ada"})
        rest = Call("memory_finish_edits", {})
        return Turn(calls=[edit if "unknown" in asked[0]["content"] else rest])
    return Turn(calls=[Call("memory_finish_edits", {})])


async def asked(product: Product, method: str, path: str, **more: Any) -> Any:
    answer = await product.http.request(method, path, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def agent_with_sleeper(product: Product, *, frequency: int | None = None, **fields: Any) -> dict[str, Any]:
    """An agent whose turns another one thinks about, and the two model them."""
    product.models.answer_with(thinks)
    made = {"model": "openai/gpt-4o-mini", "name": "main", "memory_blocks": [HUMAN], "enable_sleeptime": True, **fields}
    agent = await asked(product, "POST", "/v1/agents/", json=made)
    if frequency is not None:
        config = {"manager_type": "sleeptime", "sleeptime_agent_frequency": frequency}
        await asked(product, "PATCH", f"/v1/groups/{agent['managed_group']['id']}", json={"manager_config": config})
    return agent


async def say(product: Product, agent_id: str, text: str) -> list[str]:
    """One turn; the runs of sleep-time agents that it has started."""
    answer = await asked(product, "POST", f"/v1/agents/{agent_id}/messages", json={"input": text})
    return answer["usage"]["run_ids"] or []


async def runs_of(product: Product, agent_id: str) -> list[dict[str, Any]]:
    return await asked(product, "GET", "/v1/runs/", params={"agent_id": agent_id})


async def value_of(product: Product, agent_id: str, label: str = "human") -> str:
    return (await asked(product, "GET", f"/v1/agents/{agent_id}/core-memory/blocks/{label}"))["value"]


def sleeper_of(agent: dict[str, Any]) -> str:
    [sleeper_id] = agent["managed_group"]["agent_ids"]
    return sleeper_id


async def test_nobody_learned_from_an_agent_that_was_made_with_enable_sleeptime(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    [run_id] = await say(product, agent["id"], "I am Ada.")
    run = await product.ended(run_id)
    assert (run["status"], run["stop_reason"], run["agent_id"]) == ("completed", "end_turn", sleeper_of(agent))
    assert run["background"]
    assert await value_of(product, agent["id"]) == LEARNED
    assert thoughts(product) == ["user: I am Ada.\nassistant: Yes."]

    await say(product, agent["id"], "Who am I?")
    assert LEARNED in product.models.requests[-1].body["messages"][0]["content"], "the agent reads what was learned"


async def test_the_two_agents_share_all_blocks_but_the_second_ones_persona(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    sleeper = await asked(product, "GET", f"/v1/agents/{sleeper_of(agent)}")
    assert (sleeper["name"], sleeper["agent_type"], sleeper["model"]) == (
        "main-sleeptime",
        "sleeptime_agent",
        agent["model"],
    )
    assert [block["label"] for block in sleeper["blocks"]] == ["human", PERSONA_LABEL]
    assert sleeper["blocks"][0]["id"] == agent["blocks"][0]["id"]
    tools = {tool["name"] for tool in sleeper["tools"]}
    assert tools == {"memory_insert", "memory_replace", "memory_rethink", "memory_finish_edits"}
    assert [rule["tool_name"] for rule in sleeper["tool_rules"] if rule["type"] == "exit_loop"] == [
        "memory_finish_edits"
    ]
    assert sleeper["managed_group"] is None
    assert {tool["name"] for tool in agent["tools"]} == {"send_message", "conversation_search"}
    assert agent["not_acted_on"] == []

    block = await asked(product, "POST", "/v1/blocks/", json={"label": "tastes", "value": "tea"})
    for _ in range(2):
        await asked(product, "PATCH", f"/v1/agents/{agent['id']}/core-memory/blocks/attach/{block['id']}")
    shared = await asked(product, "GET", f"/v1/blocks/{block['id']}/agents")
    assert {one["id"] for one in shared} == {agent["id"], sleeper["id"]}
    second = await asked(product, "POST", "/v1/blocks/", json={"label": PERSONA_LABEL, "value": "Mine."})
    await asked(product, "PATCH", f"/v1/agents/{agent['id']}/core-memory/blocks/attach/{second['id']}")
    assert [one["id"] for one in await asked(product, "GET", f"/v1/blocks/{second['id']}/agents")] == [agent["id"]]


async def test_a_block_that_the_agent_makes_itself_is_shared_as_well(product: Product) -> None:
    agent = await agent_with_sleeper(product, tools=["memory"], include_base_tool_rules=False)
    creates = Call(
        "memory", {"command": "create", "path": "/memories/plans", "description": "Plans", "file_text": "None."}
    )
    product.models.play(Turn(calls=[creates]), Turn(text="Done."))
    await say(product, agent["id"], "Make a block.")
    assert await value_of(product, sleeper_of(agent), "plans") == "None."


async def test_the_second_agent_thinks_after_the_first_turn_and_then_after_every_nth(product: Product) -> None:
    agent = await agent_with_sleeper(product, frequency=3)
    counts = [len(await say(product, agent["id"], f"Word {number}.")) for number in range(1, 8)]
    assert counts == [1, 0, 0, 1, 0, 0, 1]
    group = await asked(product, "GET", f"/v1/groups/{agent['managed_group']['id']}")
    newest = (await product.history(agent["id"]))[-1]
    assert (group["turns_counter"], group["last_processed_message_id"]) == (0, newest["id"])
    for run in await runs_of(product, sleeper_of(agent)):
        await product.ended(run["id"])
    said = [[line for line in thought.split("\n") if line.startswith("user")] for thought in thoughts(product)]
    assert said == [
        ["user: Word 1."],
        ["user: Word 2.", "user: Word 3.", "user: Word 4."],
        ["user: Word 5.", "user: Word 6.", "user: Word 7."],
    ]


async def test_a_turn_that_is_sent_in_the_background_is_thought_about_without_anybody_asking(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    conversation = await asked(product, "POST", "/v1/conversations/", params={"agent_id": agent["id"]}, json={})
    run = await asked(product, "POST", f"/v1/agents/{agent['id']}/messages/async", json={"input": "One."})
    await product.ended(run["id"])
    await wait_until(lambda: thoughts(product), description="the second agent thinks")
    streamed = await product.http.post(f"/v1/conversations/{conversation['id']}/messages", json={"input": "Two."})
    assert streamed.status_code == 200
    assert len(await runs_of(product, sleeper_of(agent))) == 1, "not yet: every fifth turn"


async def test_a_captured_turn_wakes_the_second_agent(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    body = {
        "provider": "openai",
        "model": "gpt-5",
        "request_messages": [{"role": "user", "content": "I am Ada."}],
        "response_dict": {"content": "Hello, Ada."},
    }
    answer = await asked(product, "POST", f"/v1/agents/{agent['id']}/messages/capture", json=body)
    [run_id] = answer["run_ids"]
    await product.ended(run_id)
    assert thoughts(product) == ["user: I am Ada.\nassistant: Hello, Ada."]
    assert await value_of(product, agent["id"]) == LEARNED
    assert (await asked(product, "POST", f"/v1/agents/{agent['id']}/messages/capture", json=body))["run_ids"] == []


async def test_the_transcript_has_thoughts_calls_results_and_decisions(product: Product) -> None:
    tool = await product.tool(ROLL_DICE, default_requires_approval=True)
    agent = await agent_with_sleeper(product, tool_ids=[tool])
    rolls = Turn(text="I roll.", calls=[Call("roll_dice", {"num_sides": 1}, id="call_1")])
    product.models.play(rolls)
    parked = await asked(product, "POST", f"/v1/agents/{agent['id']}/messages", json={"input": "Roll."})
    assert parked["stop_reason"]["stop_reason"] == "requires_approval"
    assert (parked["usage"]["run_ids"], await runs_of(product, sleeper_of(agent))) == (None, []), "the turn goes on"
    decision = {"type": "approval", "approvals": [{"type": "approval", "tool_call_id": "call_1", "approve": True}]}
    answer = await asked(product, "POST", f"/v1/agents/{agent['id']}/messages", json={"messages": [decision]})
    [run_id] = answer["usage"]["run_ids"]
    await product.ended(run_id)
    [thought] = thoughts(product)
    lines = thought.split("\n")
    assert lines[:4] == [
        "user: Roll.",
        "assistant: I roll.",
        "assistant: Calling tool roll_dice",
        "user: [approved a call]",
    ]
    assert lines[4].startswith("assistant: Tool roll_dice returned: ")
    assert lines[5:] == ["assistant: Yes."]


async def test_a_cancelled_turn_is_told_of_and_not_counted(product: Product) -> None:
    agent = await agent_with_sleeper(product, frequency=2)
    product.models.play(Turn(text="A long story.", silent_after=2))
    run = await asked(product, "POST", f"/v1/agents/{agent['id']}/messages/async", json={"input": "Tell."})
    await wait_until(lambda: product.models.requests, description="the model is asked")
    await asked(product, "POST", f"/v1/runs/{run['id']}/cancel")
    assert (await product.ended(run["id"]))["status"] == "cancelled"
    assert await runs_of(product, sleeper_of(agent)) == []
    [run_id] = await say(product, agent["id"], "And now?")
    await product.ended(run_id)
    assert [line for line in thoughts(product)[0].split("\n") if line.startswith("user")] == [
        "user: Tell.",
        "user: And now?",
    ]


async def test_turned_off_nobody_thinks_and_turned_on_again_the_same_one_does(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    path = f"/v1/agents/{agent['id']}"
    off = await asked(product, "PATCH", path, json={"enable_sleeptime": False})
    assert (off["enable_sleeptime"], off["managed_group"]["id"]) == (False, agent["managed_group"]["id"])
    assert await say(product, agent["id"], "I am Ada.") == []
    on = await asked(product, "PATCH", path, json={"enable_sleeptime": True})
    assert on["managed_group"]["agent_ids"] == agent["managed_group"]["agent_ids"]
    [run_id] = await say(product, agent["id"], "It is late.")
    await product.ended(run_id)
    assert thoughts(product) == ["user: It is late.\nassistant: Yes."], (
        "what was said meanwhile is none of its business"
    )


async def test_an_agent_gets_its_sleep_time_agent_later_and_once(product: Product) -> None:
    agent = await agent_with_sleeper(product, enable_sleeptime=None)
    assert (agent["enable_sleeptime"], agent["managed_group"]) == (None, None)
    path = f"/v1/agents/{agent['id']}"
    first = await asked(product, "PATCH", path, json={"enable_sleeptime": True})
    again = await asked(product, "PATCH", path, json={"enable_sleeptime": True, "description": "Twice."})
    assert first["managed_group"] == again["managed_group"]
    assert first["managed_group"]["agent_ids"]
    assert await asked(product, "GET", "/v1/agents/count") == 2
    groups = await asked(product, "GET", f"/v1/agents/{sleeper_of(first)}/groups")
    assert groups == await asked(product, "GET", f"{path}/groups") == [first["managed_group"]]


async def test_who_is_deleted_with_whom(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    await asked(product, "DELETE", f"/v1/agents/{agent['id']}")
    assert (await product.http.get(f"/v1/agents/{sleeper_of(agent)}")).status_code == 404
    assert await asked(product, "GET", "/v1/groups/") == []

    agent = await agent_with_sleeper(product)
    await asked(product, "DELETE", f"/v1/agents/{sleeper_of(agent)}")
    left = await asked(product, "GET", f"/v1/agents/{agent['id']}")
    assert (left["enable_sleeptime"], left["managed_group"]) == (None, None)
    assert await say(product, agent["id"], "Still there?") == []

    agent = await agent_with_sleeper(product)
    answer = await asked(product, "DELETE", f"/v1/groups/{agent['managed_group']['id']}")
    assert answer == {"message": f"Group id={agent['managed_group']['id']} successfully deleted"}
    left = await asked(product, "GET", f"/v1/agents/{agent['id']}")
    assert (left["enable_sleeptime"], left["managed_group"]) == (None, None)
    assert (await product.http.get(f"/v1/agents/{sleeper_of(agent)}")).status_code == 200, "agents of a group stay"


async def test_an_agent_of_another_kind_in_the_group_is_not_deleted_with_its_manager(product: Product) -> None:
    agent, helper = await agent_with_sleeper(product), (await product.agent()).id
    group_id, both = agent["managed_group"]["id"], [sleeper_of(agent), helper]
    group = await asked(product, "PATCH", f"/v1/groups/{group_id}", json={"agent_ids": both})
    assert group["agent_ids"] == both
    assert len(await say(product, agent["id"], "I am Ada.")) == 2, "each of them thinks about the turn"
    await asked(product, "DELETE", f"/v1/agents/{sleeper_of(agent)}")
    left = await asked(product, "GET", f"/v1/groups/{group_id}")
    assert left["agent_ids"] == [helper]
    await asked(product, "DELETE", f"/v1/agents/{agent['id']}")
    assert (await product.http.get(f"/v1/agents/{helper}")).status_code == 200


async def test_runs_of_sleep_time_agents_start_no_others(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    sleeper = sleeper_of(agent)
    chained = {"description": "", "agent_ids": [agent["id"]]}
    config = {"manager_type": "sleeptime", "manager_agent_id": sleeper}
    refused = await product.http.post("/v1/groups/", json={**chained, "manager_config": config})
    assert refused.status_code == 409
    assert "the turns of a sleep-time agent start no other agents" in refused.json()["detail"]
    other = (await product.agent()).id
    config = {"manager_type": "sleeptime", "manager_agent_id": other}
    refused = await product.http.post("/v1/groups/", json={**chained, "manager_config": config})
    assert refused.status_code == 409, "its members would be thought about, and manage a group themselves"


async def test_a_group_of_agents_that_there_are(product: Product) -> None:
    product.models.answer_with(thinks)
    main, sleeper = (await product.agent()).id, (await product.agent()).id
    config = {"manager_type": "sleeptime", "manager_agent_id": main, "sleeptime_agent_frequency": 1}
    body = {"description": "By hand.", "agent_ids": [sleeper], "manager_config": config}
    group = await asked(product, "POST", "/v1/groups/", json=body)
    assert (group["agent_ids"], group["description"], group["turns_counter"]) == ([sleeper], "By hand.", -1)
    assert (await asked(product, "GET", f"/v1/agents/{main}"))["managed_group"] == group
    assert (await product.http.post("/v1/groups/", json=body)).status_code == 409, "one group for each manager"
    assert await asked(product, "GET", "/v1/groups/count") == 1
    assert await asked(product, "GET", "/v1/groups/", params={"manager_type": "supervisor"}) == []
    assert await asked(product, "GET", "/v1/groups/", params={"manager_type": "sleeptime"}) == [group]
    answer = await asked(product, "POST", f"/v1/groups/{group['id']}/messages", json={"input": "Hello."})
    assert [message["content"] for message in answer["messages"]] == ["Yes."]
    assert len(answer["usage"]["run_ids"]) == 1
    listed = await asked(product, "GET", f"/v1/groups/{group['id']}/messages", params={"limit": 1})
    assert [message["content"] for message in listed] == ["Yes."], "the messages of a group are its manager's"


@pytest.mark.parametrize(
    ("change", "config", "status", "said"),
    [
        ({}, {"manager_type": "round_robin"}, 501, "agents do not chat in groups here"),
        ({}, {"manager_agent_id": None}, 400, "manager_agent_id is missing"),
        ({"agent_ids": ["MAIN"]}, {}, 400, "cannot be one of its agents"),
        ({"agent_ids": ["OTHER"]}, {}, 404, "not found"),
        ({}, {"sleeptime_agent_frequency": -1}, 422, "greater than or equal"),
        ({"agent_ids": ["MAIN"] * (MOST_SLEEPERS + 1)}, {}, 422, "at most"),
    ],
)
async def test_a_group_that_cannot_be_is_refused(
    product: Product, change: dict[str, Any], config: dict[str, Any], status: int, said: str
) -> None:
    main, nobody = (await product.agent()).id, "agent-00000000-0000-4000-8000-000000000000"
    manager = {"manager_type": "sleeptime", "manager_agent_id": main, **config}
    body = json.dumps({"description": "", "agent_ids": [], "manager_config": manager, **change})
    body = body.replace("MAIN", main).replace("OTHER", nobody)
    answer = await product.http.post("/v1/groups/", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, said in answer.text) == (status, True), answer.text


async def test_a_hidden_group_is_listed_for_who_asks_for_it(product: Product) -> None:
    main = (await product.agent()).id
    config = {"manager_type": "sleeptime", "manager_agent_id": main}
    body: dict[str, Any] = {"description": "", "agent_ids": [], "manager_config": config, "hidden": True}
    group = await asked(product, "POST", "/v1/groups/", json=body)
    assert (group["hidden"], group["sleeptime_agent_frequency"]) == (True, None)
    assert await asked(product, "GET", "/v1/groups/") == []
    assert await asked(product, "GET", "/v1/groups/", params={"show_hidden_groups": True}) == [group]
    assert await say(product, main, "Nobody is there to think about it.") == []


async def test_the_key_that_sent_the_turn_pays_for_what_is_thought_about_it(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    [run_id] = await say(product, agent["id"], "I am Ada.")
    stored = await RunStore(product.context.database).look_up(RunId(run_id))
    [caused] = await runs_of(product, agent["id"])
    cause = await RunStore(product.context.database).look_up(RunId(caused["id"]))
    assert stored.options.submitted_by == cause.options.submitted_by
    assert stored.options.submitted_by is not None
    assert stored.options.traceparent == cause.options.traceparent


async def test_a_run_of_a_sleep_time_agent_is_cancelled_like_any_other(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    product.models.play(Turn(text="Yes."), Turn(text="I think about it.", silent_after=2))
    [run_id] = await say(product, agent["id"], "I am Ada.")
    await wait_until(lambda: thoughts(product), description="the second agent thinks")
    await asked(product, "POST", f"/v1/runs/{run_id}/cancel")
    assert (await product.ended(run_id))["status"] == "cancelled"
    assert await value_of(product, agent["id"]) == HUMAN["value"]


async def test_the_pattern_of_a_group_stays(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    change = {"manager_config": {"manager_type": "dynamic", "manager_agent_id": agent["id"]}}
    refused = await product.http.patch(f"/v1/groups/{agent['managed_group']['id']}", json=change)
    assert refused.status_code == 400
    assert "stays so" in refused.json()["detail"]


async def test_a_sleep_time_agent_that_waits_for_a_person_hears_of_later_turns_afterwards(product: Product) -> None:
    """Its turns stay due, and no process asks for them all the time."""
    agent = await agent_with_sleeper(product, frequency=1)
    sleeper = sleeper_of(agent)
    await asked(
        product, "PATCH", f"/v1/agents/{sleeper}/tools/approval/memory_replace", json={"requires_approval": True}
    )
    [run_id] = await say(product, agent["id"], "I am Ada.")
    await wait_until(lambda: _waits(product, run_id), description="the sleep-time agent asks")
    assert await say(product, agent["id"], "I like tea.") == []
    run = await product.run(run_id)
    assert run["metadata"]["run_type"] == RUN_TYPE


async def _waits(product: Product, run_id: str) -> bool:
    return (await product.run(run_id))["stop_reason"] == "requires_approval"


async def test_an_agent_file_has_both_agents_and_their_group(product: Product) -> None:
    agent = await agent_with_sleeper(product, frequency=3)
    [run_id] = await say(product, agent["id"], "I am Ada.")
    await product.ended(run_id)
    file = await asked(product, "GET", f"/v1/agents/{agent['id']}/export")
    assert [one["name"] for one in file["agents"]] == ["main", "main-sleeptime"]
    [group] = file["groups"]
    config = {"manager_type": "sleeptime", "manager_agent_id": "agent-0", "sleeptime_agent_frequency": 3}
    assert (group["agent_ids"], group["manager_config"]) == (["agent-1"], config)
    shared = [block["id"] for block in file["blocks"] if block["label"] == "human"]
    assert [one["block_ids"].count(shared[0]) for one in file["agents"]] == [1, 1]

    both = await imported(product, file)
    copy = await asked(product, "GET", f"/v1/agents/{both[0]}")
    assert (copy["enable_sleeptime"], copy["managed_group"]["agent_ids"]) == (True, both[1:])
    assert copy["managed_group"]["sleeptime_agent_frequency"] == 3
    assert "user: I am Ada." in (await product.history(both[1]))[1]["content"], "it has brought its history along"
    [run_id] = await say(product, copy["id"], "I like tea.")
    await product.ended(run_id)
    assert thoughts(product)[-1].startswith("user: I like tea.")


async def test_a_file_without_the_second_agent_makes_an_agent_that_claims_none(product: Product) -> None:
    agent = await agent_with_sleeper(product)
    file = await asked(product, "GET", f"/v1/agents/{agent['id']}/export")
    chats = {"id": "group-1", "agent_ids": ["agent-0"], "manager_config": {"manager_type": "round_robin"}}
    lacking = {**file["groups"][0], "agent_ids": ["agent-1"]}
    [copied] = await imported(product, {**file, "agents": file["agents"][:1], "groups": [chats, lacking]})
    copy = await asked(product, "GET", f"/v1/agents/{copied}")
    assert (copy["enable_sleeptime"], copy["managed_group"], copy["not_acted_on"]) == (None, None, [])


async def imported(product: Product, file: dict[str, Any]) -> list[str]:
    sent = {"file": ("agent.af", json.dumps(file), "application/json")}
    return (await asked(product, "POST", "/v1/agents/import", files=sent))["agent_ids"]
