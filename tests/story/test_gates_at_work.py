"""Whoever stops a tool while a run is at work is obeyed from the next call on: gates, detached tools and rules."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting
from tests.kit.tools import LAUNCH, PLAIN_TOOLS
from tests.kit.wait_until import wait_until
from tests.story.test_tool_rules import SOURCE, results_in

SITS = '''
def sits(began: str, until: str) -> str:
    """
    Waits for a file.

    Args:
        began (str): The file that says that it waits.
        until (str): The file that it waits for.
    """
    import os, time
    open(began, "w").close()
    while not os.path.exists(until):
        time.sleep(0.01)
    return "sat"
'''
SENSOR: dict[str, Any] = {"name": "sensor", "description": "Reads.", "parameters": {"type": "object", "properties": {}}}
LAUNCHES = Call("launch", {"target": "moon"})

Change = Callable[[Product, str, str], Awaitable[None]]


@pytest.fixture
def settings() -> dict[str, Any]:
    """A tool here waits for a file of the test, which no walls allow."""
    return PLAIN_TOOLS


async def gate(product: Product, agent_id: str, _tool_id: str) -> None:
    url = f"/v1/agents/{agent_id}/tools/approval/launch"
    assert (await product.http.patch(url, json={"requires_approval": True})).status_code == 200


async def gate_of_the_tool(product: Product, _agent_id: str, tool_id: str) -> None:
    changed = await product.http.patch(f"/v1/tools/{tool_id}", json={"default_requires_approval": True})
    assert changed.status_code == 200


async def detach(product: Product, agent_id: str, tool_id: str) -> None:
    assert (await product.http.patch(f"/v1/agents/{agent_id}/tools/detach/{tool_id}")).status_code == 200


async def forbid(product: Product, agent_id: str, _tool_id: str) -> None:
    rules = [{"type": "parent_last_tool", "tool_name": "look", "children": ["launch"]}]
    assert (await product.http.patch(f"/v1/agents/{agent_id}", json={"tool_rules": rules})).status_code == 200


GATES: tuple[Change, ...] = (gate, gate_of_the_tool)
CHANGES: dict[Change, str] = {
    gate: "wait for a person",
    gate_of_the_tool: "wait for a person",
    detach: "there is no tool named 'launch'",
    forbid: "do not allow a call of 'launch'",
}


class Launching:
    """An agent with the tools sits, look and launch, whose run is about to launch."""

    def __init__(self, product: Product, folder: Path, agent_id: str, tool_id: str) -> None:
        self.product, self.folder, self.agent_id, self.tool_id = product, folder, agent_id, tool_id
        self.resume = asyncio.Event()

    @property
    def sitting(self) -> Call:
        return Call("sits", {"began": str(self.folder / "began"), "until": str(self.folder / "until")})

    async def submit(self, **fields: Any) -> str:
        url = f"/v1/agents/{self.agent_id}/messages/async"
        return (await self.product.http.post(url, json={"input": "Go.", **fields})).json()["id"]

    async def in_a_tool(self, change: Change, **fields: Any) -> str:
        """Changes something while the run sits in a tool; the run."""
        run_id = await self.submit(**fields)

        async def sits() -> bool:
            return (self.folder / "began").exists()

        await wait_until(sits, description="the run to sit in a tool")
        await change(self.product, self.agent_id, self.tool_id)
        (self.folder / "until").touch()
        return run_id

    async def results(self) -> list[str]:
        return results_in(await self.product.history(self.agent_id))


@pytest.fixture
async def launching(product: Product, tmp_path: Path) -> Launching:
    tool = await product.tool(LAUNCH)
    others = [await product.tool(source) for source in (SITS, SOURCE.format(name="look"))]
    agent = await product.agent(tools=[*others, tool])
    return Launching(product, tmp_path, agent.id, tool)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("by_tokens", [True, False])
async def test_the_next_answer_called_a_tool_that_was_stopped_while_the_run_sat_in_another(
    launching: Launching, change: Change, by_tokens: bool
) -> None:
    product = launching.product
    product.models.play(Turn(calls=[launching.sitting]), Turn(calls=[LAUNCHES]), Turn(text="Done."))

    run = await product.ended(await launching.in_a_tool(change, stream_tokens=by_tokens))

    sat, *rest = await launching.results()
    assert sat == "sat"
    if change in GATES:
        [asked] = await waiting(product)
        assert (run["stop_reason"], asked["tool_name"], rest) == ("requires_approval", "launch", [])
    else:
        assert (run["stop_reason"], len(rest), CHANGES[change] in rest[0]) == ("end_turn", 1, True)


@pytest.mark.parametrize("change", CHANGES)
async def test_a_later_call_of_the_same_answer_ran_though_its_tool_was_stopped(
    launching: Launching, change: Change
) -> None:
    product = launching.product
    product.models.play(Turn(calls=[launching.sitting, LAUNCHES]), Turn(calls=[LAUNCHES]), Turn(text="Done."))

    run = await product.ended(await launching.in_a_tool(change))

    sat, launched, *rest = await launching.results()
    assert (sat, CHANGES[change] in launched) == ("sat", True)
    # The model tries again, and the person is asked then.
    assert (run["stop_reason"], len(await waiting(product))) == (
        ("requires_approval", 1) if change in GATES else ("end_turn", 0)
    )
    assert [CHANGES[change] in one for one in rest] == ([] if change in GATES else [True])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("by_tokens", [True, False])
async def test_a_tool_was_called_that_was_stopped_while_the_model_spoke(
    launching: Launching, change: Change, by_tokens: bool
) -> None:
    product = launching.product
    product.models.play(Turn(calls=[LAUNCHES], silent_after=1, resume=launching.resume), Turn(text="Done."))
    run_id = await launching.submit(stream_tokens=by_tokens)

    async def speaks() -> bool:
        return any(request.pieces_sent for request in product.models.requests)

    await wait_until(speaks, description="the model to speak")
    await change(product, launching.agent_id, launching.tool_id)
    launching.resume.set()
    run = await product.ended(run_id)

    results = await launching.results()
    if change not in GATES:
        assert (run["stop_reason"], len(results), CHANGES[change] in results[0]) == ("end_turn", 1, True)
        return
    [asked] = await waiting(product)
    assert (run["stop_reason"], results) == ("requires_approval", [])
    frames = (await product.http.post(f"/v1/runs/{run_id}/stream", json={})).text
    assert "approval_request_message" in frames
    listed = await product.history(launching.agent_id)
    [shown] = [one for one in listed if one["message_type"] == "approval_request_message"]
    assert (shown["id"], shown["tool_call"]["tool_call_id"]) == (asked["message_id"], asked["tool_call_id"])
    product.models.say("Done.")
    decided = await product.http.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
    await product.ended(decided.json()["run"]["id"])
    assert await launching.results() == ["moon"]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_call_that_waited_for_a_tool_of_the_client_ran_though_its_tool_was_stopped(
    launching: Launching, change: Change
) -> None:
    product, url = launching.product, f"/v1/agents/{launching.agent_id}/messages"
    product.models.play(Turn(calls=[Call("sensor", {}), LAUNCHES]))
    await product.ended(await launching.submit(client_tools=[SENSOR]))
    [asked] = await waiting(product)
    await change(product, launching.agent_id, launching.tool_id)

    product.models.say("Done.")
    brought = {"type": "tool", "tool_call_id": asked["tool_call_id"], "tool_return": "warm", "status": "success"}
    sent = {"messages": [{"type": "tool_return", "tool_returns": [brought]}], "client_tools": [SENSOR]}
    assert (await product.http.post(url, json=sent)).status_code == 200

    read, launched = await launching.results()
    assert (read, CHANGES[change] in launched) == ("warm", True)


async def test_an_approved_call_runs_though_its_gate_was_switched_off_meanwhile(launching: Launching) -> None:
    product = launching.product
    await gate(product, launching.agent_id, launching.tool_id)
    product.models.play(Turn(calls=[LAUNCHES]), Turn(text="Done."))
    await product.ended(await launching.submit())
    [asked] = await waiting(product)
    url = f"/v1/agents/{launching.agent_id}/tools/approval/launch"
    await product.http.patch(url, json={"requires_approval": False})
    decided = await product.http.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
    await product.ended(decided.json()["run"]["id"])
    assert await launching.results() == ["moon"]
