"""A message to an agent that waits for a person: refused in each shape with the same names, and nothing is changed."""

import json
from typing import Any

import pytest

from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting, waiting_calls


def names_in(said: dict[str, Any], *, waiting_run: str) -> tuple[Any, ...]:
    """The names of what waits in a refusal, or in the error of a run that was refused."""
    return (
        said["code"], said["pending_request_id"], said[waiting_run], said["tool_call_ids"], said["approval_ids"],
        said["resolve"],
    )  # fmt: skip


@pytest.mark.parametrize("decided", [None, 0, 1])
async def test_a_message_sent_by_async_was_refused_with_an_error_that_names_nothing(
    product: Product, decided: int | None
) -> None:
    asked = await waiting_calls(product, "moon", "mars")
    if decided is not None:
        await asked.decide(decided)
    url = f"/v1/agents/{asked.agent_id}/messages"
    plain = await product.http.post(url, json={"input": "Well?"})
    streamed = await product.http.post(f"{url}/stream", json={"input": "Well?"})
    late = await product.http.post(f"{url}/async", json={"input": "Well?"})

    assert (plain.status_code, streamed.status_code, late.status_code) == (409, 409, 200)
    expected = names_in(plain.json()["detail"], waiting_run="run_id")
    left = [f"call_{number}" for number in range(2) if number != decided]
    assert expected[:4] == ("PENDING_APPROVAL", asked.approvals[0]["message_id"], asked.run_id, left)
    assert names_in(streamed.json()["detail"], waiting_run="run_id") == expected
    run = late.json()
    assert (run["status"], run["stop_reason"]) == ("failed", "error")
    for shown in (run, (await product.http.get(f"/v1/runs/{run['id']}")).json()):
        error = shown["metadata"]["error"]
        assert (error["error_type"], error["run_id"]) == ("pending_approval", run["id"])
        assert error["message"] == plain.json()["detail"]["message"]
        assert names_in(error, waiting_run="waiting_run_id") == expected
    replay = await product.http.post(f"/v1/runs/{run['id']}/stream", json={})
    [frame] = [json.loads(line[6:]) for line in replay.text.splitlines() if "error_message" in line]
    assert names_in(frame, waiting_run="waiting_run_id") == expected
    parked = (await product.http.get(f"/v1/runs/{asked.run_id}")).json()
    assert names_in({"code": None, **parked["metadata"]["waiting"]}, waiting_run="run_id")[1:] == expected[1:]
    [listed] = [one for one in (await product.http.get("/v1/runs/")).json() if one["id"] == asked.run_id]
    assert listed == parked
    assert [one["id"] for one in await waiting(product)] == expected[4]


async def test_a_refused_message_changed_how_its_agent_had_stopped(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    before = (await product.http.get(f"/v1/agents/{asked.agent_id}")).json()
    sent = await product.http.post(f"/v1/agents/{asked.agent_id}/messages/async", json={"input": "Well?"})
    assert sent.json()["status"] == "failed"
    after = (await product.http.get(f"/v1/agents/{asked.agent_id}")).json()
    assert (before["last_stop_reason"], after["last_stop_reason"]) == ("requires_approval", "requires_approval")
    assert await product.history(asked.agent_id) != []
    assert await waiting(product) == asked.approvals


async def test_a_refused_run_had_ended_before_it_was_made(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    run = (await product.http.post(f"/v1/agents/{asked.agent_id}/messages/async", json={"input": "Well?"})).json()
    assert (run["completed_at"], run["total_duration_ns"]) == (run["created_at"], 0)
