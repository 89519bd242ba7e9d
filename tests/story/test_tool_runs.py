"""A client calls a tool of an agent: a run of its own, beside the agent's conversations."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from letta_client import BadRequestError, ConflictError, NotFoundError

from shared.concurrency import background
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.tools import PLAIN_TOOLS, ROLL_DICE, is_alive, written_pids
from tests.kit.wait_until import wait_until

HUMAN = {"label": "human", "value": "Name: unknown"}

WHERE = '''
def where() -> dict:
    """Says for whom it runs."""
    import os
    print("looking")
    return {name: os.environ.get(name) for name in ("LETTA_AGENT_ID", "LETTA_RUN_ID", "TOKEN")}
'''

RAISES = '''
def raises(word: str) -> str:
    """
    Raises.

    Args:
        word (str): What it says.
    """
    print("begun")
    raise ValueError(word)
'''

SLEEPS = '''
def sleeps(log: str) -> str:
    """
    Sleeps for an hour.

    Args:
        log (str): The file that its process id is written to.
    """
    import os, time
    with open(log, "a") as pids:
        pids.write(f"{os.getpid()}\\n")
    time.sleep(3600)
    return "slept"
'''

WAITS = '''
def waits(log: str, until: str) -> str:
    """
    Waits for a file.

    Args:
        log (str): The file that its process id is written to.
        until (str): The file that it waits for.
    """
    import os, time
    with open(log, "a") as pids:
        pids.write(f"{os.getpid()}\\n")
    while not os.path.exists(until):
        time.sleep(0.01)
    return "done"
'''

ASKS = '''
def asks(url: str) -> str:
    """
    Calls another tool of its own agent.

    Args:
        url (str): Of the server.
    """
    import json, os, urllib.request
    path = f"{url}/v1/agents/{os.environ['LETTA_AGENT_ID']}/tools/roll_dice/run"
    request = urllib.request.Request(path, b'{"args": {"num_sides": 6}}', {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=120))["func_return"]
'''


@pytest.fixture
def settings() -> dict[str, Any]:
    """Tools here leave marks in files of the test, which no walls allow."""
    return PLAIN_TOOLS


async def runs_of(product: Product, agent_id: str) -> list[dict[str, Any]]:
    return (await product.http.get("/v1/runs/", params={"agent_id": agent_id})).json()


async def agent_with_memory(product: Product, *names: str, **fields: Any) -> str:
    made: dict[str, Any] = {"tools": list(names), "memory_blocks": [HUMAN]}
    agent = await product.client.agents.create(model="openai/gpt-4o-mini", include_base_tools=False, **made, **fields)
    return agent.id


async def test_a_base_tool_edits_the_memory_and_adds_nothing_to_the_conversation(product: Product) -> None:
    agent_id = await agent_with_memory(product, "memory_insert")
    before = [message["id"] for message in await product.history(agent_id)]

    arguments: dict[str, object] = {"label": "human", "new_string": "Likes tea."}
    result = await product.client.agents.tools.run("memory_insert", agent_id=agent_id, args=arguments)

    assert (result.status, result.func_return) == ("success", "Name: unknown\nLikes tea.")
    assert (result.agent_state, result.stderr, result.sandbox_config_fingerprint) == (None, None, None)
    block = await product.client.agents.blocks.retrieve("human", agent_id=agent_id)
    assert block.value == "Name: unknown\nLikes tea."
    assert [message["id"] for message in await product.history(agent_id)] == before
    assert product.models.requests == []


async def test_a_call_of_a_tool_is_a_run_with_a_stream(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(WHERE)], secrets={"TOKEN": "t"})

    result = await product.client.agents.tools.run("where", agent_id=agent.id)

    [run] = await runs_of(product, agent.id)
    assert result.func_return == {"LETTA_AGENT_ID": agent.id, "LETTA_RUN_ID": run["id"], "TOKEN": "t"}
    assert result.stdout == ["looking"]
    assert (run["status"], run["stop_reason"], run["conversation_id"]) == ("completed", "end_turn", None)
    assert (run["metadata"]["run_type"], run["metadata"]["tool_name"]) == ("tool_run", "where")
    whole = await read_whole(product.http, run["id"])
    whole.assert_complete()
    shown = [frame["message_type"] for frame in whole.frames]
    assert shown[1:5] == ["tool_call_message", "tool_return_message", "stop_reason", "usage_statistics"]
    [called], [returned] = whole.of_type("tool_call_message"), whole.of_type("tool_return_message")
    assert called["tool_call"]["name"] == "where"
    assert returned["tool_call_id"] == called["tool_call"]["tool_call_id"]
    assert json.loads(returned["tool_return"]) == result.func_return
    metrics = (await product.http.get(f"/v1/runs/{run['id']}/metrics")).json()
    assert (metrics["tools_used"], metrics["num_steps"]) == (["where"], 0)
    assert (await product.http.get(f"/v1/runs/{run['id']}/messages")).json() == []
    assert (await product.http.get(f"/v1/runs/{run['id']}/steps")).json() == []
    assert (await product.client.agents.retrieve(agent.id)).last_stop_reason is None
    inject = {"messages": [{"role": "user", "content": "And this."}]}
    refused = await product.http.post(f"/v1/runs/{run['id']}/inject", json=inject)
    assert (refused.status_code, "makes one call of a tool" in refused.text) == (409, True)


async def test_what_goes_wrong_in_a_tool_is_an_answer(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(RAISES)])

    raised = await product.client.agents.tools.run("raises", agent_id=agent.id, args={"word": "no such word"})
    misfits = await product.client.agents.tools.run("raises", agent_id=agent.id, args={"wrod": "x"})

    assert (raised.status, raised.func_return, raised.stdout) == ("error", None, ["begun"])
    assert raised.stderr is not None
    assert "Traceback" in raised.stderr[0]
    assert raised.stderr[-1] == "Error executing function raises: ValueError: no such word"
    assert (misfits.status, misfits.func_return) == ("error", None)
    assert misfits.stderr is not None
    assert "'word' is a required property" in misfits.stderr[-1]


async def test_what_a_client_cannot_call_is_refused(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    run = product.client.agents.tools.run

    with pytest.raises(NotFoundError, match=r"no tool named 'launch'\. Its tools: roll_dice"):
        await run("launch", agent_id=agent.id)
    with pytest.raises(NotFoundError, match="agent"):
        await run("roll_dice", agent_id=agent.id.replace(agent.id[-4:], "0000"))
    answer = await product.http.post(f"/v1/agents/{agent.id}/tools/roll_dice/run", json={"args": ["six"]})
    assert (answer.status_code, "args" in answer.text) == (422, True)
    assert await runs_of(product, agent.id) == []


async def test_a_tool_that_only_a_client_can_run_is_refused(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    file = json.loads(await product.client.agents.export_file(agent.id))
    file["tools"][0]["source_code"] = "export const roll_dice = () => 6"
    [brought] = (await product.client.agents.import_file(file=json.dumps(file).encode())).agent_ids

    with pytest.raises(BadRequestError, match="'roll_dice' cannot run on this server, only at a client"):
        await product.client.agents.tools.run("roll_dice", agent_id=brought)


async def test_neither_approvals_nor_rules_hold_for_a_person_who_asks(product: Product) -> None:
    tools = [await product.tool(ROLL_DICE, default_requires_approval=True), await product.tool(WHERE)]
    rules: Any = [{"type": "run_first", "tool_name": "where"}]
    agent = await product.agent(tools=tools, tool_rules=rules)

    result = await product.client.agents.tools.run("roll_dice", agent_id=agent.id, args={"num_sides": 4})

    assert (result.status, result.func_return) == ("success", "4")


async def test_a_call_does_not_wait_for_the_agents_other_runs(product: Product) -> None:
    """The tool of a running run calls another tool of its agent, as programs that a model writes do. Queued behind the
    run it would wait for ever. The agent waits for a person next, which is no reason to refuse a call either."""
    tools = [await product.tool(ASKS), await product.tool(ROLL_DICE, default_requires_approval=True)]
    agent = await product.agent(tools=tools)
    product.models.play(
        Turn(calls=[Call("asks", {"url": product.base_url})]), Turn(calls=[Call("roll_dice", {"num_sides": 6})])
    )

    answer = await product.client.agents.messages.create(agent.id, input="Ask.")

    [returned] = [one for one in answer.messages if one.message_type == "tool_return_message"]
    assert returned.tool_return == "6"
    assert answer.stop_reason.stop_reason == "requires_approval"
    result = await product.client.agents.tools.run("roll_dice", agent_id=agent.id, args={"num_sides": 4})
    assert result.func_return == "4"


async def test_a_call_that_is_cancelled_says_so_and_its_tool_is_dead(product: Product, tmp_path: Path) -> None:
    agent = await product.agent(tools=[await product.tool(SLEEPS)])
    log, answers = tmp_path / "pids", list[httpx.Response]()

    async def call() -> None:
        path = f"/v1/agents/{agent.id}/tools/sleeps/run"
        answers.append(await product.http.post(path, json={"args": {"log": str(log)}}))

    async with background(call(), name="a call"):
        [pid] = await wait_until(lambda: written_pids(log, 1), description="the tool to begin")
        [run] = await runs_of(product, agent.id)
        receipt = (await product.http.post(f"/v1/runs/{run['id']}/cancel", json={})).json()
        assert receipt["status"] == "cancelled"
        assert not is_alive(pid)
        [answer] = await wait_until(lambda: answers, description="the answer")

    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert "cancelled the request while the tool was running" in answer.json()["detail"]
    whole = await read_whole(product.http, run["id"])
    whole.assert_complete()
    [returned] = whole.of_type("tool_return_message")
    assert returned["status"] == "error"
    assert await product.history(agent.id) == (await product.history(agent.id))[:1], "the system message alone"


async def test_the_agents_cancel_ends_its_calls_too(product: Product, tmp_path: Path) -> None:
    agent = await product.agent(tools=[await product.tool(SLEEPS)])
    log = tmp_path / "pids"
    call = product.client.agents.tools.run("sleeps", agent_id=agent.id, args={"log": str(log)})

    async def refused() -> None:
        with pytest.raises(ConflictError):
            await call

    async with background(refused(), name="a call"):
        await wait_until(lambda: written_pids(log, 1), description="the tool to begin")
        [run] = await runs_of(product, agent.id)
        outcome = await product.client.agents.messages.cancel(agent.id)

    assert outcome == {run["id"]: "cancelled"}


async def test_the_run_goes_on_when_its_client_leaves(product: Product, tmp_path: Path) -> None:
    agent = await product.agent(tools=[await product.tool(WAITS)])
    log, done = tmp_path / "pids", tmp_path / "done"

    async def call() -> None:
        args = {"log": str(log), "until": str(done)}
        await product.http.post(f"/v1/agents/{agent.id}/tools/waits/run", json={"args": args})

    async with background(call(), name="a call"):
        await wait_until(lambda: written_pids(log, 1), description="the tool to begin")
        [run] = await runs_of(product, agent.id)
    done.touch()

    assert (await product.ended(run["id"]))["status"] == "completed"
    [returned] = (await read_whole(product.http, run["id"])).of_type("tool_return_message")
    assert returned["tool_return"] == "done"
