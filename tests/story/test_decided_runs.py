"""A run that was decided: it says when, and which run goes on, wherever it is shown; its stream stays as it was."""

from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.callback_receiver import CallbackReceiver
from tests.kit.product.waiting_calls import WaitingCalls, waiting, waiting_calls
from tests.kit.tools import LAUNCH


async def shown(asked: WaitingCalls) -> dict[str, Any]:
    """The parked run, which is the same in the list of runs."""
    run = await asked.product.run(asked.run_id)
    listed = (await asked.product.http.get("/v1/runs/", params={"agent_id": asked.agent_id})).json()
    assert [one for one in listed if one["id"] == asked.run_id] == [run]
    return run


@pytest.mark.parametrize("way", ["list", "message", "older message"])
@pytest.mark.parametrize("approve", [True, False])
async def test_a_decided_run_looked_like_one_that_waits(product: Product, way: str, approve: bool) -> None:
    asked = await waiting_calls(product, "moon")
    before = await shown(asked)
    assert (before["metadata"]["waiting"]["for"], "decided_at" in before["metadata"]) == ("approval", False)
    stream = f"/v1/runs/{asked.run_id}/stream"
    while_parked = await product.http.post(stream, json={})
    assert "x-holdfast-continued-by" not in while_parked.headers

    product.models.say("Done.")
    if way == "list":
        await asked.decide(decision="approve" if approve else "deny")
    elif way == "message":
        await asked.decide_in_a_message(call_0=approve)
    else:
        older = {"type": "approval", "approve": approve, "approval_request_id": "call_0"}
        await product.http.post(f"/v1/agents/{asked.agent_id}/messages", json={"messages": [older]})

    [continuation] = await asked.continuations()
    after = await shown(asked)
    metadata = after["metadata"]
    [approval] = (await product.http.get("/v1/approvals", params={"decided": True})).json()
    assert metadata["continued_by_run_id"] == approval["continued_by"] == continuation["id"]
    assert metadata["decided_at"] == approval["decided_at"]
    assert "waiting" not in metadata
    assert (after["status"], after["stop_reason"]) == ("completed", "requires_approval")
    for replay in (await product.http.post(stream, json={}), await product.http.get(stream)):
        assert replay.headers["x-holdfast-continued-by"] == continuation["id"]
        assert replay.text == while_parked.text
    assert (await product.ended(continuation["id"]))["metadata"]["continues_run_id"] == asked.run_id


async def test_a_run_waits_until_its_last_call_is_decided(product: Product) -> None:
    asked = await waiting_calls(product, "moon", "mars")
    await asked.decide(1)
    metadata = (await shown(asked))["metadata"]
    assert metadata["waiting"]["tool_call_ids"] == ["call_0"]
    assert metadata["waiting"]["approval_ids"] == asked.ids[:1]
    assert "continued_by_run_id" not in metadata


async def test_a_run_that_was_cancelled_waits_for_nothing(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    await product.http.post(f"/v1/runs/{asked.run_id}/cancel", json={})
    metadata = (await shown(asked))["metadata"]
    assert not {"waiting", "continued_by_run_id", "decided_at"} & set(metadata)


@pytest.mark.parametrize("way", ["list", "message", "older message", "async", "stream", "with a message"])
@pytest.mark.parametrize("names_another", [False, True])
async def test_who_is_called_back_was_not_told_of_the_run_that_goes_on(
    product: Product, way: str, names_another: bool
) -> None:
    """A decision by a message started a run that called nobody back, unless that message named the address again."""
    if way == "list" and names_another:
        pytest.skip("a decision on an approval names no address")
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"}, id="call_0")]), Turn(text="Done."))
    url = f"/v1/agents/{agent.id}/messages"
    async with CallbackReceiver() as first, CallbackReceiver() as other:
        sent = await product.http.post(f"{url}/async", json={"input": "Go.", "callback_url": first.url})
        run = sent.json()
        parked = (await first.called()).body
        [asked] = await waiting(product)
        verdict: dict[str, Any] = {
            "type": "approval",
            "approvals": [{"type": "approval", "tool_call_id": "call_0", "approve": True}],
        }
        if way == "older message":
            verdict = {"type": "approval", "approve": True, "approval_request_id": "call_0"}
        messages = [verdict, *([{"role": "user", "content": "And hurry."}] if way == "with a message" else [])]
        body = {"messages": messages, **({"callback_url": other.url} if names_another else {})}
        if way == "list":
            await product.http.post(f"/v1/approvals/{asked['id']}", json={"decision": "approve"})
        else:
            path = f"{url}/{way}" if way in ("async", "stream") else url
            assert (await product.http.post(path, json=body)).status_code == 200
        went_on = (await (other.called() if names_another else first.called(2))).body
        [continuation] = await WaitingCalls(product, agent.id, run["id"], [asked]).continuations()
    told = parked["metadata"]["waiting"]
    assert (parked["run_id"], told["for"], told["approval_ids"]) == (run["id"], "approval", [asked["id"]])
    assert (went_on["run_id"], went_on["metadata"]["continues_run_id"]) == (continuation["id"], run["id"])
