"""Approvals: a tool call waits for a person, for as long as it takes, and then goes as the person decided."""

import asyncio
import json
from typing import Any

import pytest
from arq.connections import ArqRedis

from shared.domain.approvals import hash_of
from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.waiting_calls import waiting, waiting_calls

pytestmark = pytest.mark.shared_product


def result_told(models: ModelServer, call_id: str) -> str:
    """The result of a call, as the model's latest request has it."""
    messages = models.requests[-1].body["messages"]
    [result] = [message for message in messages if message.get("tool_call_id") == call_id]
    return json.loads(result["content"])["message"]


async def test_what_waits_is_listed_across_agents_with_what_a_person_must_know(product: Product) -> None:
    first = await waiting_calls(product, "moon")
    second = await waiting_calls(product, "mars", approval_expires_s=3600, on_approval_expiry="deny")

    assert [approval["id"] for approval in await waiting(product)] == [*first.ids, *second.ids]
    assert [approval["id"] for approval in await waiting(product, limit=1)] == first.ids
    assert await waiting(product, conversation_id="conv-unknown") == []
    own = await waiting(product, conversation_id="default", agent_id=first.agent_id)
    assert [approval["id"] for approval in own] == first.ids
    unnamed = await product.http.get("/v1/approvals", params={"conversation_id": "default"})
    assert (unnamed.status_code, "agent_id is missing" in unnamed.text) == (400, True)
    [shown] = await waiting(product, agent_id=second.agent_id)
    assert shown == (await product.http.get(f"/v1/approvals/{shown['id']}")).json()
    assert (shown["status"], shown["run_id"], shown["tool_name"]) == ("waiting", second.run_id, "launch")
    assert shown["arguments_object"] == {"target": "mars"}
    assert shown["arguments_hash"] == hash_of(shown["arguments"])
    assert (shown["on_expiry"], shown["client_side"], shown["conversation_id"]) == ("deny", False, None)
    assert shown["asked_at"] < shown["expires_at"]
    assert shown["decide"]["path"] == f"/v1/approvals/{shown['id']}"
    agent = await product.client.agents.retrieve(agent_id=second.agent_id, include=["agent.pending_approval"])
    assert agent.pending_approval is not None
    assert agent.pending_approval.id == shown["message_id"]


async def test_an_approved_call_runs_and_the_model_goes_on(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("Launched.")

    status, answer = await asked.decide(reason="all set", decided_by="ada")

    assert (status, answer["status"], answer["decided_by"]) == (200, "approved", "ada")
    run = await product.ended(answer["run"]["id"])
    assert (run["status"], run["stop_reason"], run["metadata"]["continues_run_id"]) == (
        "completed", "end_turn", asked.run_id,
    )  # fmt: skip
    assert await asked.results() == ["moon"]
    assert result_told(product.models, "call_0") == "moon"
    assert (await product.history(asked.agent_id))[-1]["content"] == "Launched."
    assert await waiting(product) == []


async def test_a_denied_call_never_runs_and_the_model_is_told_why(product: Product) -> None:
    asked = await waiting_calls(product, "moon")

    _, answer = await asked.decide(decision="deny", reason="too windy")

    assert answer["status"] == "denied"
    assert (await product.ended(answer["run"]["id"]))["status"] == "completed"
    assert await asked.results() == ["Error: request to call tool denied. User reason: too windy"]
    assert "too windy" in result_told(product.models, "call_0")


async def test_edited_arguments_are_run_and_the_model_is_told(product: Product) -> None:
    asked = await waiting_calls(product, "moon")

    status, answer = await asked.decide(
        arguments={"target": "mars"}, arguments_hash=asked.approvals[0]["arguments_hash"]
    )

    assert (status, answer["decision"]["arguments"]) == (200, {"target": "mars"})
    assert answer["arguments_object"] == {"target": "moon"}
    await product.ended(answer["run"]["id"])
    [result] = await asked.results()
    assert result == result_told(product.models, "call_0")
    [shown] = [
        one for one in await product.history(asked.agent_id) if one["message_type"] == "approval_response_message"
    ]
    assert json.loads(shown["approvals"][0]["edited_arguments"]) == {"target": "mars"}
    assert result.splitlines() == ['[The user changed the arguments to {"target": "mars"}]', "mars"]


@pytest.mark.parametrize("arguments", [{"target": 7}, {}])
async def test_edited_arguments_must_fit_the_tool(product: Product, arguments: dict[str, Any]) -> None:
    asked = await waiting_calls(product, "moon")

    status, answer = await asked.decide(arguments=arguments)

    assert (status, answer["detail"][:27]) == (400, "INVALID_ARGUMENT: arguments")
    assert await waiting(product) == asked.approvals


async def test_a_decision_holds_for_the_arguments_that_were_shown(product: Product) -> None:
    asked = await waiting_calls(product, "moon")

    status, answer = await asked.decide(arguments_hash=hash_of('{"target": "mars"}'))

    assert status == 409
    assert "look at them again" in answer["detail"]
    assert await waiting(product) == asked.approvals


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"decision": "maybe"},
        {"decision": "approve", "argument": {"target": "mars"}},
        {"decision": "deny", "arguments": {"target": "mars"}},
        {"decision": "approve", "tool_return": "done"},
        {"decision": "tool_return"},
    ],
)
async def test_a_decision_that_is_not_understood_decides_nothing(product: Product, body: dict[str, Any]) -> None:
    asked = await waiting_calls(product, "moon")

    assert (await product.http.post(f"/v1/approvals/{asked.ids[0]}", json=body)).status_code == 422

    assert await waiting(product) == asked.approvals


async def test_a_message_with_a_decision_that_is_not_understood_ran_the_call(product: Product) -> None:
    """A mistyped kind was taken for an approval, and a result under another name for an empty one."""
    asked = await waiting_calls(product, "moon")
    call = {"tool_call_id": asked.approvals[0]["tool_call_id"]}
    for kind, given in (("approvel", {"approve": True}), ("tool", {"status": "success", "result": "done"})):
        message = {"type": "approval", "approvals": [call | {"type": kind} | given]}
        refused = await product.http.post(f"/v1/agents/{asked.agent_id}/messages", json={"messages": [message]})
        assert refused.status_code == 400, refused.text
        assert await waiting(product) == asked.approvals
    result = call | {"type": "tool", "tool_return": {"to": "møøn"}}
    body = {"messages": [{"type": "approval", "approvals": [result]}]}
    assert (await product.http.post(f"/v1/agents/{asked.agent_id}/messages", json=body)).status_code == 200
    assert await asked.results() == ['{"to": "møøn"}'], "the model gets an object as JSON"


async def test_a_decision_is_used_once(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    _, first = await asked.decide(decided_by="ada")
    await product.ended(first["run"]["id"])

    status, repeated = await asked.decide(decided_by="ada")
    assert (status, repeated["run"]["id"], repeated["decided_at"]) == (200, first["run"]["id"], first["decided_at"])
    status, other = await asked.decide(decision="deny", decided_by="bob")
    assert status == 409
    assert f"was approved by ada at {first['decided_at'][:19]}" in other["detail"]

    assert len(await asked.continuations()) == 1
    assert await asked.results() == ["moon"]


async def test_the_calls_of_one_answer_are_decided_one_by_one_and_go_on_together(product: Product) -> None:
    asked = await waiting_calls(product, "moon", "mars")

    status, first = await asked.decide(1, "deny", reason="too far")
    assert (status, first["status"], first["run"]) == (200, "denied", None)
    assert (await asked.decide(1, "deny", reason="too far"))[1] == first
    assert [approval["id"] for approval in await waiting(product)] == asked.ids[:1]
    refused = await product.http.post(f"/v1/agents/{asked.agent_id}/messages", json={"input": "And?"})
    assert (refused.status_code, refused.json()["detail"]["approval_ids"]) == (409, asked.ids[:1])
    assert f"POST /v1/approvals/{asked.ids[0]}" in refused.json()["detail"]["resolve"]

    _, last = await asked.decide(0)
    await product.ended(last["run"]["id"])
    assert sorted(await asked.results()) == ["Error: request to call tool denied. User reason: too far", "moon"]
    assert (await product.http.get(f"/v1/approvals/{asked.ids[1]}")).json()["continued_by"] == last["run"]["id"]


async def test_two_people_who_decide_the_last_two_calls_at_once_start_one_run(product: Product) -> None:
    asked = await waiting_calls(product, "moon", "mars")

    answers = await asyncio.gather(asked.decide(0), asked.decide(1))

    assert [status for status, _ in answers] == [200, 200]
    [run] = [answer["run"] for _, answer in answers if answer["run"] is not None]
    await product.ended(run["id"])
    assert [one["id"] for one in await asked.continuations()] == [run["id"]]
    assert sorted(await asked.results()) == ["mars", "moon"]


async def test_a_message_covers_the_calls_that_are_not_decided_yet(product: Product) -> None:
    asked = await waiting_calls(product, "moon", "mars")
    await asked.decide(0, "deny", reason="too windy")

    status, _ = await asked.decide_in_a_message(call_0=True, call_1=True)
    assert status == 400
    status, answer = await asked.decide_in_a_message(call_1=True)

    assert (status, answer["stop_reason"]["stop_reason"]) == (200, "end_turn")
    assert sorted(await asked.results()) == ["Error: request to call tool denied. User reason: too windy", "mars"]
    assert len(await asked.continuations()) == 1


async def test_a_message_and_a_person_who_decide_otherwise_at_once_have_one_winner(product: Product) -> None:
    asked = await waiting_calls(product, "moon")

    (by_person, _), (by_message, _) = await asyncio.gather(
        asked.decide(decision="deny", reason="no"), asked.decide_in_a_message(call_0=True)
    )

    assert sorted([by_person, by_message]) == [200, 409]
    [run] = await asked.continuations()
    await product.ended(run["id"])
    denied = "Error: request to call tool denied. User reason: no"
    assert await asked.results() == [denied if by_person == 200 else "moon"]


async def test_parallel_calls_are_decided_differently_in_one_message(product: Product) -> None:
    asked = await waiting_calls(product, "moon", "mars")

    status, _ = await asked.decide_in_a_message(call_0=True, call_1=False)

    assert status == 200
    assert sorted(await asked.results()) == [
        "Error: request to call tool denied. User reason: no reason was given", "moon",
    ]  # fmt: skip
    shown = [(await product.http.get(f"/v1/approvals/{one}")).json()["status"] for one in asked.ids]
    assert shown == ["approved", "denied"]


async def test_a_tool_of_the_client_waits_for_its_result(product: Product) -> None:
    agent = await product.agent()
    product.models.call("read_sensor", room="attic")
    tools: list[dict[str, Any]] = [
        {"name": "read_sensor", "description": "Reads.", "parameters": {"type": "object", "properties": {}}}
    ]
    await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "How warm is it?", "client_tools": tools})
    [shown] = await waiting(product)
    assert (shown["client_side"], shown["decide"]["decisions"]) == (True, ["tool_return", "deny"])

    url = f"/v1/approvals/{shown['id']}"
    assert (await product.http.post(url, json={"decision": "approve"})).status_code == 400
    product.models.call("read_sensor", room="cellar")
    answer = await product.http.post(url, json={"decision": "tool_return", "tool_return": "31 degrees"})
    assert (answer.status_code, answer.json()["status"]) == (200, "returned")
    assert (await product.ended(answer.json()["run"]["id"]))["stop_reason"] == "requires_approval"
    assert result_told(product.models, shown["tool_call_id"]) == "31 degrees"

    [again] = await waiting(product)
    result = {"type": "tool", "tool_call_id": again["tool_call_id"], "tool_return": "9 degrees", "status": "success"}
    product.models.say("Warm above, cold below.")
    message = {"type": "tool_return", "tool_returns": [result]}
    over = await product.http.post(f"/v1/agents/{agent.id}/messages", json={"messages": [message]})
    assert over.json()["stop_reason"]["stop_reason"] == "end_turn"
    assert result_told(product.models, again["tool_call_id"]) == "9 degrees"


async def test_a_model_that_fails_after_the_decision_leaves_the_conversation_usable(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.fail("auth")

    _, answer = await asked.decide()
    run = await product.ended(answer["run"]["id"])
    assert (run["status"], run["metadata"]["error"]["error_type"]) == ("failed", "llm_authentication")

    product.models.say("The moon it is.")
    again = await product.client.agents.messages.create(agent_id=asked.agent_id, input="So?")
    assert again.stop_reason.stop_reason == "end_turn"
    assert result_told(product.models, "call_0") == "moon"


async def test_a_cancelled_question_is_no_longer_decided(product: Product) -> None:
    asked = await waiting_calls(product, "moon", "mars")
    await asked.decide(0)

    cancelled = await product.http.post(f"/v1/runs/{asked.run_id}/cancel")
    assert cancelled.json()["status"] == "cancelled"

    status, answer = await asked.decide(1)
    assert status == 409
    assert "was denied by user" in answer["detail"]
    assert await waiting(product) == []
    assert await asked.continuations() == []


async def test_an_unknown_approval_is_not_found(product: Product) -> None:
    missing = "approval-123e4567-e89b-42d3-8456-426614174000"
    assert (await product.http.get(f"/v1/approvals/{missing}")).status_code == 404
    assert (await product.http.post(f"/v1/approvals/{missing}", json={"decision": "deny"})).status_code == 404
    assert (await product.http.get("/v1/approvals/nonsense")).status_code == 422


@pytest.mark.own_product
async def test_a_run_that_waits_for_a_person_holds_no_worker(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    async with running_product(database, redis, models, settings={"max_runs": 1}) as product:
        asked = await waiting_calls(product, "moon")
        other = await product.agent()
        models.say("Meanwhile.")

        await product.client.agents.messages.create(agent_id=other.id, input="Hello")

        assert (await product.history(other.id))[-1]["content"] == "Meanwhile."
        assert await waiting(product) == asked.approvals


@pytest.mark.own_product
async def test_a_decision_comes_after_a_restart(database: Database, redis: ArqRedis, models: ModelServer) -> None:
    async with running_product(database, redis, models) as product:
        asked = await waiting_calls(product, "moon")
    async with running_product(database, redis, models) as restarted:
        assert await waiting(restarted) == asked.approvals
        answer = await restarted.http.post(f"/v1/approvals/{asked.ids[0]}", json={"decision": "approve"})
        run = await restarted.ended(answer.json()["run"]["id"])
        assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
        assert result_told(models, "call_0") == "moon"
