"""What a run has done to the world: each tool call with its key, and a person's word about one whose end nobody saw."""

from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

PAY = '''
def pay(amount: int, idempotency_key: str = "") -> dict:
    """Pay.

    Args:
        amount: how much
    """
    import os, time
    time.sleep(amount)
    return {"argument": idempotency_key, "variable": os.environ["HOLDFAST_IDEMPOTENCY_KEY"]}
'''


async def effects_of(product: Product, run_id: str) -> list[dict[str, Any]]:
    answer = await product.http.get(f"/v1/runs/{run_id}/effects")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def paying(product: Product, amount: int) -> str:
    """A run that makes two calls of the tool, the second one with an argument that does not fit."""
    product.models.play(
        Turn(calls=[Call("pay", {"amount": amount})]), Turn(calls=[Call("gone", {})]), Turn(text="It is paid.")
    )
    tool = await product.tool(PAY)
    agent = await product.agent(tools=[tool])
    shown = (await product.http.get(f"/v1/tools/{tool}")).json()
    assert list(shown["json_schema"]["parameters"]["properties"]) == ["amount"]
    answer = await product.http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": "Pay."})
    return answer.json()["id"]


async def test_each_tool_call_is_listed_with_the_key_that_its_tool_got(product: Product) -> None:
    run_id = await paying(product, 0)
    await product.ended(run_id)
    paid, refused = await effects_of(product, run_id)
    assert (paid["name"], paid["state"], paid["attempt"]) == ("pay", "done", 1)
    assert paid["started_at"] <= paid["ended_at"]
    assert (refused["name"], refused["state"], refused["attempt"]) == ("gone", "not_started", 0)
    assert (refused["started_at"], refused["ended_at"]) == (None, None)
    key = paid["idempotency_key"]
    assert key.startswith(f"hf-{run_id}-") and key != refused["idempotency_key"]
    messages = (await product.http.get(f"/v1/runs/{run_id}/messages")).json()
    returned = next(one for one in messages if one["message_type"] == "tool_return_message")
    assert returned["tool_return"] == f'{{"argument": "{key}", "variable": "{key}"}}'


async def test_a_person_settles_what_nobody_else_knows(product: Product) -> None:
    run_id = await paying(product, 600)

    async def has_started() -> bool:
        return [one["state"] for one in await effects_of(product, run_id)] == ["started"]

    await wait_until(has_started, description="the tool to have started")
    await product.http.post(f"/v1/runs/{run_id}/cancel", json={"wait": 30})
    [lost] = await effects_of(product, run_id)
    assert (lost["state"], lost["settled_by"]) == ("unknown", None)
    before = (await product.http.get(f"/v1/runs/{run_id}/messages")).json()

    path = f"/v1/runs/{run_id}/effects/{lost['call_id']}"
    word = {"outcome": "happened", "result": "Invoice 7", "settled_by": "ada"}
    settled = (await product.http.post(path, json=word)).json()
    assert (settled["state"], settled["settled_by"], settled["settled_by_name"]) == ("settled", "person", "ada")
    assert (settled["outcome"], settled["result"]) == ("happened", "Invoice 7")
    assert await effects_of(product, run_id) == [settled]
    assert (await product.http.post(path, json=word)).json() == settled
    assert (await product.http.get(f"/v1/runs/{run_id}/messages")).json() == before

    other = await product.http.post(path, json={"outcome": "did_not_happen"})
    assert (other.status_code, "by ada" in other.text) == (409, True)
    senseless = await product.http.post(path, json={"outcome": "did_not_happen", "result": "Invoice 7"})
    assert senseless.status_code == 422
    assert (await product.http.post(f"/v1/runs/{run_id}/effects/call-0", json=word)).status_code == 404


async def test_what_is_known_cannot_be_settled(product: Product) -> None:
    run_id = await paying(product, 0)
    await product.ended(run_id)
    for effect, state in zip(await effects_of(product, run_id), ("done", "not_started"), strict=True):
        path = f"/v1/runs/{run_id}/effects/{effect['call_id']}"
        answer = await product.http.post(path, json={"outcome": "happened"})
        assert (answer.status_code, f"it is {state}" in answer.text) == (409, True)


async def test_a_call_that_a_person_allowed_is_an_effect_of_the_continuation(product: Product) -> None:
    product.models.play(Turn(calls=[Call("pay", {"amount": 0})]), Turn(text="It is paid."))
    agent = await product.agent(tools=[await product.tool(PAY, default_requires_approval=True)])
    answer = await product.http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": "Pay."})
    asked = answer.json()["id"]

    async def waiting() -> list[Any]:
        return (await product.http.get("/v1/approvals", params={"agent_id": agent.id})).json()

    [approval] = await wait_until(waiting, description="the approval")
    assert [one["state"] for one in await effects_of(product, asked)] == ["not_started"]
    decided = await product.http.post(f"/v1/approvals/{approval['id']}", json={"decision": "approve"})
    continuation = decided.json()["run"]["id"]
    await product.ended(continuation)
    [made] = await effects_of(product, continuation)
    assert (made["state"], made["attempt"], made["call_id"]) == ("done", 1, approval["tool_call_id"])
