"""Calls that take long, or need a person, as other programs see them: tasks and forms of the Model Context Protocol."""

from typing import Any

import mcp_types
import pytest

from tests.kit.mcp.calling_client import (
    Mode,
    Tasks,
    calling_client,
    cancel_task,
    made_task,
    said,
    task_now,
    update_task,
)
from tests.kit.model_server import Call, Failure, Turn
from tests.kit.product import Product
from tests.kit.tools import LAUNCH
from tests.kit.wait_until import wait_until
from tests.story.test_mcp_clients import MODES, only_tool

pytestmark = pytest.mark.shared_product

ACCEPT = mcp_types.ElicitResult(action="accept", content={"approve": True})
DECLINE = mcp_types.ElicitResult(action="decline")
CLOSED = mcp_types.ElicitResult(action="cancel")


async def careful_agent(product: Product) -> str:
    """An agent that has to ask before it launches."""
    return (await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])).id


async def audited(product: Product, action: str) -> list[dict[str, Any]]:
    return (await product.http.get("/v1/admin/audit", params={"action": action})).json()


async def waits_for(client: Any, task_id: str, status: str) -> Any:
    async def look() -> Any:
        now = await task_now(client, task_id)
        return now if now.status == status else None

    return await wait_until(look, description=f"{task_id} to be {status}")


async def test_a_call_that_waits_for_a_person_asks_the_clients_person(product: Product) -> None:
    """By the protocol's own way: the call is answered with a form, and comes again with what was decided."""
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="It flies."))
    agent_id = await careful_agent(product)
    asked: list[str] = []

    def approve(question: str) -> mcp_types.ElicitResult:
        asked.append(question)
        return ACCEPT

    async with calling_client(product.base_url, product.key, answer=approve) as client:
        result = await client.call_tool(await only_tool(client), {"message": "Launch"})

    assert said(result) == "It flies."
    assert asked == ['The agent wants to call launch with {"target": "moon"}']
    [decided] = (await product.http.get("/v1/approvals", params={"decided": True, "agent_id": agent_id})).json()
    assert (decided["decision"]["decision"], decided["decided_by"]) == ("approve", "mcp")
    [recorded] = await audited(product, "approval.approved")
    assert recorded["object_id"] == decided["id"]


async def test_a_denial_is_told_to_the_agent_with_its_reason(product: Product) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Then not."))
    await careful_agent(product)
    denial = mcp_types.ElicitResult(action="accept", content={"approve": False, "reason": "Not on a Friday."})

    async with calling_client(product.base_url, product.key, answer=lambda _: denial) as client:
        result = await client.call_tool(await only_tool(client), {"message": "Launch"})

    assert said(result) == "Then not."
    assert "Not on a Friday." in str(product.models.requests[-1].body)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_cannot_ask_a_person_is_told_where_to_decide(product: Product, mode: Mode) -> None:
    product.models.play(Turn(text="Ready.", calls=[Call("launch", {"target": "moon"})]), Turn(text="It flies."))
    agent_id = await careful_agent(product)

    async with calling_client(product.base_url, product.key, mode=mode) as client:
        name = await only_tool(client)
        result = await client.call_tool(name, {"message": "Launch"})
        again = await client.call_tool(name, {"message": "And now?"})

    assert not result.is_error
    assert said(result).startswith("Ready.\n\nThe agent waits for a person's approval of launch.")
    assert f"GET /v1/approvals?agent_id={agent_id}" in said(result)
    assert (result.structured_content or {})["status"] == "awaiting_approval"
    assert again.is_error, "the calling model learns why the agent does not answer"
    assert "approv" in said(again)
    [waiting] = (await product.http.get("/v1/approvals", params={"agent_id": agent_id})).json()
    decided = await product.http.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve"})
    assert (await product.ended(decided.json()["run_id"]))["status"] == "completed"


async def test_a_call_is_a_task_for_a_client_that_takes_tasks(product: Product) -> None:
    product.models.say("At seven.")
    agent = await product.agent()
    tasks, meta = Tasks(), {"holdfast/idempotencyKey": "order-8"}

    async with calling_client(product.base_url, product.key, tasks=tasks) as client:
        name = await only_tool(client)
        result = await client.call_tool(name, {"message": "When?"}, meta=meta)  # pyright: ignore[reportArgumentType]
        [made] = tasks.made
        now = await task_now(client, made.task_id)
        again = await made_task(client, name, "When?", meta=meta)

    assert said(result) == "At seven."
    assert now.status == "completed"
    assert now.outcome is not None
    assert (now.outcome.structured_content, said(now.outcome)) == (result.structured_content, said(result))
    run = await product.run(made.task_id)
    assert (run["status"], run["agent_id"]) == ("completed", agent.id)
    assert made.created_at == run["created_at"]
    assert (made.ttl_ms, made.poll_interval_ms) == (None, 1000)
    assert again.task_id == made.task_id, "the same name is the same task"


async def test_a_task_asks_goes_on_and_ends_under_one_id(product: Product) -> None:
    calls = [Call("launch", {"target": target}) for target in ("moon", "mars")]
    product.models.play(Turn(calls=calls), Turn(text="One flies."))
    await careful_agent(product)

    async with calling_client(product.base_url, product.key, tasks=Tasks()) as client:
        made = await made_task(client, await only_tool(client), "Launch both")
        waiting = await waits_for(client, made.task_id, "input_required")
        first, second = waiting.requests
        await update_task(client, made.task_id, **{first: ACCEPT, second: CLOSED, "of-nobody": ACCEPT})
        half = await task_now(client, made.task_id)
        await update_task(client, made.task_id, **{second: DECLINE, first: DECLINE})
        ended = await waits_for(client, made.task_id, "completed")
        late = await update_task(client, made.task_id, **{second: ACCEPT})

    questions = [one.params.message for one in waiting.requests.values()]
    assert questions == [f'The agent wants to call launch with {{"target": "{one}"}}' for one in ("moon", "mars")]
    assert (half.status, list(half.requests or {})) == ("input_required", [second])
    assert said(ended.outcome) == "One flies."
    assert ended.outcome.structured_content["run_id"] != made.task_id, "the decision has begun a run of its own"
    assert late.result_type == "complete"


async def test_a_task_is_cancelled_with_a_receipt(product: Product) -> None:
    product.models.say("one two three", silent_after=1)
    await product.agent()

    async with calling_client(product.base_url, product.key, tasks=Tasks()) as client:
        made = await made_task(client, await only_tool(client), "Count")
        acknowledged = await cancel_task(client, made.task_id)
        now = await waits_for(client, made.task_id, "cancelled")
        again = await cancel_task(client, made.task_id)

    receipt: Any = (acknowledged.meta or {})["holdfast/receipt"]
    assert (receipt["status"], receipt["cause"], receipt["reason"]) == ("cancelled", "user", "tasks/cancel")
    assert receipt["requested_at"] <= receipt["stopped_at"]
    assert (again.meta or {})["holdfast/receipt"]["stopped_at"] == receipt["stopped_at"]
    assert now.outcome is None
    assert (await product.run(made.task_id))["status"] == "cancelled"
    [recorded] = await audited(product, "run.cancelled")
    assert recorded["object_id"] == made.task_id


async def test_a_task_that_waits_for_a_person_is_cancelled(product: Product) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]))
    await careful_agent(product)

    async with calling_client(product.base_url, product.key, tasks=Tasks()) as client:
        made = await made_task(client, await only_tool(client), "Launch")
        await waits_for(client, made.task_id, "input_required")
        await cancel_task(client, made.task_id)
        now = await task_now(client, made.task_id)

    assert now.status == "cancelled"


async def test_a_task_whose_run_fails_has_a_result_that_says_so(product: Product) -> None:
    """The protocol's `failed` is for calls without a result. A run that failed has one."""
    product.models.play(Turn(failure=Failure("bad_request")))
    await product.agent()

    async with calling_client(product.base_url, product.key, tasks=Tasks()) as client:
        made = await made_task(client, await only_tool(client), "Hi")
        ended = await waits_for(client, made.task_id, "completed")

    assert ended.outcome.is_error
    assert ended.outcome.structured_content["status"] == "failed"
    assert "failed" in ended.status_message
