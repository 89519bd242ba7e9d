"""Agents that call other agents: their answers, the wait without a worker, cancels, approvals, limits and circles."""

import ast
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.product import Product
from tests.kit.wait_until import wait_until

WAITS = "send_message_to_agent_and_wait_for_reply"
SEND = '''
def send(to: str) -> str:
    """
    Sends it.

    Args:
        to (str): To whom.
    """
    return "sent"
'''
TAGGED = "send_message_to_agents_matching_tags"


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"max_runs": 1, "spare_runs": 0, "child_depth": 3, "child_runs": 6, "builtin_models": True}


async def make(product: Product, name: str, *tools: str, **fields: Any) -> str:
    """Makes an agent with base tools of these names."""
    asked = {"name": name, "model": "builtin/scripted", "include_base_tools": False, "tools": list(tools), **fields}
    answer = await product.http.post("/v1/agents", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def script(*turns: dict[str, Any]) -> str:
    return json.dumps({"turns": turns})


def saying(text: str, **rest: Any) -> dict[str, Any]:
    return {"text": text, **rest}


def giving(*tasks: tuple[str, str], then: str = "Done.") -> str:
    """A script that gives tasks to agents, and says something when they are done."""
    calls = [{"name": "run_agent", "arguments": {"agent": agent, "task": task}} for agent, task in tasks]
    return script({"calls": calls}, saying(then))


async def begin(product: Product, agent_id: str, text: str) -> str:
    asked = {"messages": [{"role": "user", "content": text}]}
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages/async", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


async def done(product: Product, agent_id: str, text: str) -> dict[str, Any]:
    """Sends a message, and gives the run when it has ended."""
    return await product.ended(await begin(product, agent_id, text))


async def results(product: Product, agent_id: str) -> list[dict[str, Any]]:
    shown = [one for one in await product.history(agent_id) if one["message_type"] == "tool_return_message"]
    return [result for message in shown for result in message["tool_returns"]]


async def children_of(product: Product, run_id: str) -> list[dict[str, Any]]:
    answer = await product.http.get("/v1/runs", params={"parent_run_id": run_id})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def events_of(product: Product, run_id: str, event_type: str) -> list[dict[str, Any]]:
    shown = await product.http.post(f"/v1/runs/{run_id}/stream", json={"starting_after": 0})
    frames = [json.loads(line[6:]) for line in shown.text.splitlines() if line.startswith("data: {")]
    return [frame["event_data"] for frame in frames if frame.get("event_type") == event_type]


def by_agent(**turns: Sequence[Turn]) -> Any:
    """What each agent's model answers, by a word in its instructions."""
    left = {name: list(of) for name, of in turns.items()}

    def choose(request: ReceivedRequest) -> Turn:
        instructions = json.dumps(request.body["messages"][0])
        name = next(name for name in left if f"You are {name}." in instructions)
        return left[name].pop(0)

    return choose


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"model": "openai/gpt-4o-mini", "system": f"You are {name}.", **fields}


async def test_three_levels_of_agents_work_in_one_place_of_a_worker(product: Product) -> None:
    top = await make(product, "top", "run_agent")
    await make(product, "middle", "run_agent")
    await make(product, "leaf")
    leaves = [("leaf", script(saying(f"Leaf {number}."))) for number in (1, 2)]
    run = await done(product, top, giving(("middle", giving(*leaves, then="Both have answered.")), then="All is done."))
    assert run["status"] == "completed"
    [result] = await results(product, top)
    assert (result["status"], result["tool_return"]) == ("success", "Both have answered.")
    [middle] = await children_of(product, run["id"])
    leaf_runs = await children_of(product, middle["id"])
    assert [one["metadata"]["root_run_id"] for one in [middle, *leaf_runs]] == [run["id"]] * 3
    started = await events_of(product, run["id"], "child_run_started")
    assert [one["run_id"] for one in started] == [middle["id"]]
    assert (await events_of(product, run["id"], "step_restarted")) == []


async def test_a_task_is_a_conversation_of_its_own(product: Product) -> None:
    top, leaf = await make(product, "top", "run_agent"), await make(product, "leaf")
    await done(product, leaf, script(saying("Before.")))
    await done(product, top, giving((leaf, script(saying("I know nothing of before.")))))
    assert "I know nothing" not in json.dumps(await product.history(leaf))


async def test_a_message_to_another_agent_and_its_reply(product: Product) -> None:
    other = await make(product, "other", **named("Other"))
    asks = Turn(calls=[Call(WAITS, {"message": "The word is banana.", "other_agent_id": other})])
    product.models.answer_with(by_agent(Asker=[asks, Turn("I know it.")], Other=[Turn("Understood.")]))
    asker = await make(product, "asker", WAITS, **named("Asker"))
    await done(product, asker, "Tell it.")
    [result] = await results(product, asker)
    assert ast.literal_eval(result["tool_return"]) == {"agent_id": other, "response": ["Understood."]}
    [told] = [one for one in await product.history(other) if "banana" in json.dumps(one)]
    assert told["message_type"] == "system_message"
    assert asker in told["content"]


async def test_a_message_without_a_reply_does_not_wait(product: Product) -> None:
    other = await make(product, "other", **named("Other"))
    told = Turn(calls=[Call("send_message_to_agent_async", {"message": "News.", "other_agent_id": other})])
    product.models.answer_with(by_agent(Asker=[told, Turn("Sent.")], Other=[Turn("Thanks.")]))
    asker = await make(product, "asker", "send_message_to_agent_async", **named("Asker"))
    run = await done(product, asker, "Tell it.")
    [result] = await results(product, asker)
    assert result["tool_return"] == "Successfully sent message"
    [child] = await children_of(product, run["id"])
    assert (await product.ended(child["id"]))["status"] == "completed"
    assert [one["awaited"] for one in await events_of(product, run["id"], "child_run_started")] == [False]


async def test_a_message_to_all_agents_with_certain_tags(product: Product) -> None:
    both = [await make(product, f"worker {n}", tags=["worker", "a"], **named("Worker")) for n in (1, 2)]
    await make(product, "another", tags=["worker", "b"], **named("Another"))
    asks = Turn(calls=[Call(TAGGED, {"message": "Report.", "match_all": ["worker"], "match_some": ["a", "c"]})])
    manager = await make(product, "manager", TAGGED, tags=["worker", "a"], **named("Manager"))
    product.models.answer_with(by_agent(Manager=[asks, Turn("Good.")], Worker=[Turn("Here."), Turn("Here.")]))
    await done(product, manager, "Ask them.")
    [result] = await results(product, manager)
    replies = ast.literal_eval(result["tool_return"])
    assert replies == [{"agent_id": agent_id, "response": ["Here."]} for agent_id in sorted(both)]


async def test_agents_with_certain_tags_beyond_the_first_page_got_no_message(product: Product) -> None:
    for n in range(60):
        await make(product, f"another {n}", tags=["worker", "b"])
    late = await make(product, "late", tags=["worker", "a"], **named("Late"))
    asks = Turn(calls=[Call(TAGGED, {"message": "Report.", "match_all": ["worker"], "match_some": ["a"]})])
    manager = await make(product, "manager", TAGGED, tags=["worker", "a"], **named("Manager"))
    product.models.answer_with(by_agent(Manager=[asks, Turn("Good.")], Late=[Turn("Here.")]))
    await done(product, manager, "Ask them.")
    [result] = await results(product, manager)
    assert ast.literal_eval(result["tool_return"]) == [{"agent_id": late, "response": ["Here."]}]


async def test_more_agents_with_a_tag_than_may_be_asked_were_asked_in_part(product: Product) -> None:
    """The agent that asks has the tag, too, and was counted among them."""
    manager = await make(product, "manager", TAGGED, tags=["worker"], **named("Manager"))
    for n in range(7):
        await make(product, f"worker {n}", tags=["worker"])
    asks = Turn(calls=[Call(TAGGED, {"message": "Report.", "match_all": ["worker"], "match_some": []})])
    product.models.answer_with(by_agent(Manager=[asks, Turn("Good.")]))
    await done(product, manager, "Ask them.")
    [result] = await results(product, manager)
    assert "HOLDFAST_CHILD_RUNS=6" in result["tool_return"]


async def test_a_cancel_ends_the_whole_tree(product: Product) -> None:
    top = await make(product, "top", "run_agent")
    await make(product, "middle", "run_agent")
    await make(product, "leaf")
    leaf = ("leaf", script(saying("Slowly. ", repeat=500, delay_ms=50)))
    run_id = await begin(product, top, giving(("middle", giving(leaf))))

    async def leaf_run() -> dict[str, Any] | None:
        for middle in await children_of(product, run_id):
            for run in await children_of(product, middle["id"]):
                return run if run["status"] == "running" else None
        return None

    leaf_id = (await wait_until(leaf_run, description="the leaf's run"))["id"]
    await wait_until(lambda: _waits(product, run_id), description="the wait of the top")
    answer = await product.http.post(f"/v1/agents/{top}/messages/cancel", json={"run_ids": [run_id]})
    assert answer.json() == {run_id: "cancelled"}
    [middle] = await children_of(product, run_id)
    assert [middle["status"], (await product.run(leaf_id))["status"]] == ["cancelled", "cancelled"]
    [result] = await results(product, top)
    assert result["status"] == "error"


async def _waits(product: Product, run_id: str) -> bool:
    return (await product.run(run_id))["metadata"].get("waiting", {}).get("for") == "runs"


async def test_a_child_that_waits_for_a_person_shows_in_its_parents_stream(product: Product) -> None:
    source = (
        'def send(to: str) -> str:\n    """Sends.\n\n    Args:\n        to (str): Who.\n    """\n    return "sent"\n'
    )
    tool_id = await product.tool(source, default_requires_approval=True)
    top = await make(product, "top", "run_agent")
    await make(product, "leaf", tool_ids=[tool_id])
    asks = script({"calls": [{"name": "send", "arguments": {"to": "Ann"}}]}, saying("It is sent."))
    run_id = await begin(product, top, giving(("leaf", asks)))

    async def child() -> dict[str, Any] | None:
        for run in await children_of(product, run_id):
            return run if run["stop_reason"] == "requires_approval" else None
        return None

    parked = await wait_until(child, description="the child's question")
    [asked] = (await product.http.get("/v1/approvals")).json()
    assert asked["run_id"] == parked["id"]
    await product.http.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
    assert (await product.ended(run_id))["status"] == "completed"
    [result] = await results(product, top)
    assert result["tool_return"] == "It is sent."
    waits = await events_of(product, run_id, "child_run_waits")
    assert [one["approval_ids"] for one in waits] in ([], [[asked["id"]]])


async def test_a_child_that_fails_is_an_error_result(product: Product) -> None:
    top = await make(product, "top", "run_agent")
    await make(product, "leaf")
    broken = script({"error": "auth"})
    run = await done(product, top, giving(("leaf", broken), ("nobody", "A task."), then="I see."))
    assert run["status"] == "completed"
    first, second = await results(product, top)
    assert [first["status"], second["status"]] == ["error", "error"]
    assert "has failed" in first["tool_return"]
    assert "no agent with the name or id 'nobody'" in second["tool_return"]


async def test_agents_that_would_wait_for_each_other_get_an_error(product: Product) -> None:
    first = await make(product, "first", WAITS, **named("First"))
    second = await make(product, "second", WAITS, **named("Second"))
    asks_second = Turn(calls=[Call(WAITS, {"message": "And you?", "other_agent_id": second})])
    asks_first = Turn(calls=[Call(WAITS, {"message": "No, you?", "other_agent_id": first})])
    turns = {"First": [asks_second, Turn("Good.")], "Second": [asks_first, Turn("It does not answer.")]}
    product.models.answer_with(by_agent(**turns))
    run = await done(product, first, "Ask it.")
    assert run["status"] == "completed"
    [circle] = await results(product, second)
    assert circle["status"] == "error"
    assert "cannot answer before this run has ended" in circle["tool_return"]
    assert "No, you?" not in json.dumps(await product.history(first))


async def test_a_tree_has_bounds(product: Product) -> None:
    top = await make(product, "top", "run_agent")
    deep = script(saying("Deep."))
    for _ in range(4):
        deep = giving(("top", deep))
    run = await done(product, top, deep)
    assert run["status"] == "completed"
    wide = giving(*[("top", script(saying("Wide."))) for _ in range(8)])
    await done(product, top, wide)
    statuses = [one["status"] for one in (await results(product, top))[1:]]
    assert statuses.count("error") == 2
    found = json.dumps((await product.http.get("/v1/runs", params={"limit": 100})).json())
    assert found.count('"root_run_id"') == 3 + 6


async def test_an_answer_of_openais_api_waits_for_another_agent(product: Product) -> None:
    top = await make(product, "top", "run_agent")
    await make(product, "leaf")
    sent = {"model": top, "input": giving(("leaf", script(saying("From the leaf."))), then="It has answered.")}
    response = (await product.http.post("/openai/v1/responses", json=sent)).json()
    assert response["status"] == "completed"
    [called] = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert (called["name"], called["output"], called["status"]) == ("run_agent", "From the leaf.", "completed")
    assert response["output"][-1]["content"][0]["text"] == "It has answered."


async def test_a_call_of_a_client_waits_for_another_agent(product: Product) -> None:
    top = await make(product, "top", "run_agent")
    await make(product, "leaf")
    args = {"agent": "leaf", "task": script(saying("Directly."))}
    answer = await product.http.post(f"/v1/agents/{top}/tools/run_agent/run", json={"args": args})
    assert (answer.status_code, answer.json()["func_return"]) == (200, "Directly.")


async def test_an_agent_is_made_with_the_tools_that_message_others(product: Product) -> None:
    agent_id = await make(product, "asker", include_multi_agent_tools=True)
    tools = (await product.http.get(f"/v1/agents/{agent_id}/tools")).json()
    assert {tool["name"] for tool in tools} == {WAITS, TAGGED, "send_message_to_agent_async"}
    assert {tool["tool_type"] for tool in tools} == {"letta_multi_agent_core"}
