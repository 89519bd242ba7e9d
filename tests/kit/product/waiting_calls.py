"""An agent whose tool calls wait for a person, over HTTP: the waiting calls, decisions, and their results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.kit.model_server.turn import Call, Turn
from tests.kit.product import Product
from tests.kit.tools import LAUNCH
from tests.kit.wait_until import wait_until


@dataclass(frozen=True)
class WaitingCalls:
    """A parked run and the approvals that it waits for, in the order of their calls."""

    product: Product
    agent_id: str
    run_id: str
    approvals: list[dict[str, Any]]

    @property
    def ids(self) -> list[str]:
        return [approval["id"] for approval in self.approvals]

    async def decide(self, number: int = 0, decision: str = "approve", **fields: Any) -> tuple[int, dict[str, Any]]:
        """Status and body of the answer to a decision on the call of that number."""
        answer = await self.product.http.post(
            f"/v1/approvals/{self.ids[number]}", json={"decision": decision, **fields}
        )
        return answer.status_code, answer.json()

    async def decide_in_a_message(self, **decisions: bool) -> tuple[int, dict[str, Any]]:
        """The same over Letta's own wire, with `call_0=True` for an approval."""
        items = [
            {"type": "approval", "tool_call_id": call_id, "approve": approve} for call_id, approve in decisions.items()
        ]
        answer = await self.product.http.post(
            f"/v1/agents/{self.agent_id}/messages", json={"messages": [{"type": "approval", "approvals": items}]}
        )
        return answer.status_code, answer.json()

    async def results(self) -> list[str]:
        """The result of every tool call of the agent, in order."""
        return [
            result["tool_return"]
            for message in await self.product.history(self.agent_id)
            if message["message_type"] == "tool_return_message"
            for result in message["tool_returns"]
        ]

    async def continuations(self) -> list[dict[str, Any]]:
        """The runs that continue the parked run after a decision."""
        runs = (await self.product.http.get("/v1/runs/", params={"agent_id": self.agent_id})).json()
        return [run for run in runs if run["metadata"].get("continues_run_id") == self.run_id]


async def waiting(product: Product, **filters: Any) -> list[dict[str, Any]]:
    """The approvals that wait in the project."""
    return (await product.http.get("/v1/approvals", params=filters)).json()


async def waiting_calls(
    product: Product,
    *targets: str,
    source: str = LAUNCH,
    call_ids: Sequence[str] = (),
    **fields: Any,
) -> WaitingCalls:
    """A parked run that has asked to launch the targets. `fields` are the tool's; ids of calls are `call_0`, ..., if
    the provider gives no others."""
    tool = await product.tool(source, default_requires_approval=True)
    if fields:
        await product.http.patch(f"/v1/tools/{tool}", json=fields)
    agent = await product.agent(tools=[tool])
    calls = [
        Call("launch", {"target": target}, id=call_ids[number] if call_ids else f"call_{number}")
        for number, target in enumerate(targets)
    ]
    product.models.play(Turn(calls=calls))
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Launch what is ready.")

    async def look() -> list[dict[str, Any]]:
        return await waiting(product, agent_id=agent.id)

    asked = await wait_until(look, description="the calls to wait for a person")
    return WaitingCalls(product, agent.id, run.id, asked)
