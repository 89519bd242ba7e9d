"""Decisions that name their calls wrongly, twice, or not at all: they change nothing and say what was expected."""

from typing import Any, cast

import pytest

from tests.kit.model_server.turn import Call, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import WaitingCalls, waiting, waiting_calls
from tests.kit.tools import LAUNCH

pytestmark = pytest.mark.shared_product


async def sent(asked: WaitingCalls, *messages: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer to decisions over Letta's wire."""
    answer = await asked.product.http.post(f"/v1/agents/{asked.agent_id}/messages", json={"messages": list(messages)})
    return answer.status_code, answer.json()


def older(request_id: str | None, *, approve: bool = True) -> dict[str, Any]:
    """The older form: one verdict and the id of what it decides."""
    named = {} if request_id is None else {"approval_request_id": request_id}
    return {"type": "approval", "approve": approve, **named}


def verdicts(*decisions: tuple[str, bool]) -> dict[str, Any]:
    items = [{"type": "approval", "tool_call_id": call_id, "approve": approve} for call_id, approve in decisions]
    return {"type": "approval", "approvals": items}


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("targets", [("moon",), ("moon", "mars")])
@pytest.mark.parametrize("named", ["call_of_nobody", "call_00", "CALL_0", "", None, "first of two"])
async def test_the_older_form_decided_what_it_did_not_name(
    product: Product, named: str | None, targets: tuple[str, ...], approve: bool
) -> None:
    asked = await waiting_calls(product, *targets)
    if named == "first of two":
        named = "call_0" if len(targets) == 2 else "approval-00000000-0000-4000-8000-000000000000"

    status, answer = await sent(asked, older(named, approve=approve))

    expected = [f"call_{number}" for number in range(len(targets))]
    assert (status, answer["detail"]) == (
        400, f"Invalid tool call IDs. Expected '{expected}', but received '{[named] if named else []}'.",
    )  # fmt: skip
    assert await waiting(product) == asked.approvals


@pytest.mark.parametrize("targets", [("moon",), ("moon", "mars")])
async def test_the_older_form_decides_the_message_that_it_names(product: Product, targets: tuple[str, ...]) -> None:
    asked = await waiting_calls(product, *targets)
    product.models.say("Launched.")
    status, _ = await sent(asked, older(asked.approvals[0]["message_id"]))
    assert (status, await asked.results()) == (200, list(targets))


@pytest.mark.parametrize("name", ["tool_call_id", "id"])
async def test_the_older_form_decides_the_one_call_that_it_names(product: Product, name: str) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("Launched.")
    status, _ = await sent(asked, older(asked.approvals[0][name]))
    assert (status, await asked.results()) == (200, ["moon"])


@pytest.mark.parametrize("form", ["approve", "approvals", "tool_returns"])
async def test_a_decision_without_its_type_was_a_message_without_content(product: Product, form: str) -> None:
    """`ApprovalCreate(approve=…, approval_request_id=…)` of letta-client 0.1 sends no type, so its users got a 422."""
    asked = await waiting_calls(product, "moon")
    product.models.say("Launched.")
    returned = {"type": "tool", "tool_call_id": "call_0", "tool_return": "moon", "status": "success"}
    forms = {
        "approve": older(asked.approvals[0]["message_id"]),
        "approvals": verdicts(("call_0", True)),
        "tool_returns": {"type": None, "tool_returns": [returned]},
    }
    untyped = {name: value for name, value in forms[form].items() if name != "type" or form == "tool_returns"}
    status, answer = await sent(asked, untyped)
    assert (status, await asked.results()) == (200, ["moon"]), answer


async def check_that_old_decisions_change_nothing(asked: WaitingCalls, *, approve: bool) -> None:
    """The call `call_0` was decided, and its target was the moon. Another call waits now."""
    [then] = await waiting(asked.product)
    for message in (older("call_0", approve=approve), verdicts(("call_0", approve))):
        status, answer = await sent(asked, message)
        assert (status, f"Expected '['{then['tool_call_id']}']'" in answer["detail"]) == (400, True)
    assert await waiting(asked.product) == [then]
    assert await asked.results() == ["moon"]


@pytest.mark.parametrize("approve", [True, False])
async def test_a_decision_that_came_once_more_decided_the_next_call(product: Product, approve: bool) -> None:
    asked = await waiting_calls(product, "moon")
    # The server numbers the calls of every answer anew.
    product.models.play(Turn(calls=[Call("launch", {"target": "mars"}, id="call_0")]))
    await sent(asked, older("call_0"))
    await check_that_old_decisions_change_nothing(asked, approve=approve)


@pytest.mark.parametrize("order", [(False, True), (True, False), (True, True, False)])
@pytest.mark.parametrize("apart", [True, False])
async def test_a_call_that_was_decided_twice_in_one_request_went_by_the_last(
    product: Product, order: tuple[bool, ...], apart: bool
) -> None:
    asked = await waiting_calls(product, "moon")
    decisions = [("call_0", approve) for approve in order]

    status, answer = await sent(asked, *([verdicts(one) for one in decisions] if apart else [verdicts(*decisions)]))

    assert status == 400
    assert answer["detail"].startswith("Invalid tool call IDs. Expected '['call_0']', but received '['call_0', ")
    assert await waiting(product) == asked.approvals


async def test_the_same_verdict_twice_is_one_decision(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("Launched.")
    status, _ = await sent(asked, verdicts(("call_0", True), ("call_0", True)), older("call_0"))
    assert (status, await asked.results()) == (200, ["moon"])


async def test_an_empty_list_of_decisions_is_told_what_waits(product: Product) -> None:
    asked = await waiting_calls(product, "moon", "mars")
    status, answer = await sent(asked, {"type": "approval", "approvals": []})
    assert (status, answer["detail"]) == (
        400, "Invalid tool call IDs. Expected '['call_0', 'call_1']', but received '[]'.",
    )  # fmt: skip


async def test_a_tool_of_the_client_was_approved_by_a_message(product: Product) -> None:
    agent = await product.agent()
    product.models.call("read_sensor", room="attic")
    tools: list[dict[str, Any]] = [
        {"name": "read_sensor", "description": "Reads.", "parameters": {"type": "object", "properties": {}}}
    ]
    url = f"/v1/agents/{agent.id}/messages"
    await product.http.post(url, json={"input": "How warm is it?", "client_tools": tools})
    before = await waiting(product)

    for message in (older(before[0]["tool_call_id"]), verdicts((before[0]["tool_call_id"], True))):
        answer = await product.http.post(url, json={"messages": [message]})
        assert (answer.status_code, "is run by the client" in answer.json()["detail"]) == (400, True)
    assert await waiting(product) == before


@pytest.mark.parametrize("denied", [0, 1, 2])
async def test_a_denied_call_ran_because_another_call_of_the_answer_had_its_id(product: Product, denied: int) -> None:
    asked = await waiting_calls(product, "moon", "mars", "venus", call_ids=("call_1",) * 3)
    product.models.say("Done.")
    answer: dict[str, Any] = {}
    for number in range(3):
        status, answer = await asked.decide(number, decision="deny" if number == denied else "approve")
        assert status == 200
    await product.ended(answer["run"]["id"])

    expected = ["moon", "mars", "venus"]
    refused = expected.pop(denied)
    results = await asked.results()
    assert sorted(result for result in results if not result.startswith("Error")) == sorted(expected)
    assert refused not in results


async def test_free_twins_of_one_id_both_had_the_result_of_the_second(product: Product) -> None:
    tool = await product.tool(LAUNCH)
    agent = await product.agent(tools=[tool])
    twins = [Call("launch", {"target": target}, id="call_1") for target in ("moon", "mars")]
    product.models.play(Turn(calls=twins), Turn(text="Done."))
    await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Launch."})
    assert await WaitingCalls(product, agent.id, "", []).results() == ["moon", "mars"]


@pytest.mark.parametrize("first", [0, 1, 2])
async def test_a_request_that_is_partly_decided_named_calls_that_no_longer_wait(product: Product, first: int) -> None:
    asked = await waiting_calls(product, "moon", "mars", "venus")
    await asked.decide(first)
    left = [f"call_{number}" for number in range(3) if number != first]

    agent = await product.client.agents.retrieve(agent_id=asked.agent_id, include=["agent.pending_approval"])
    assert agent.pending_approval is not None
    shown = agent.pending_approval.to_dict()
    assert [call["tool_call_id"] for call in cast("list[Any]", shown["tool_calls"])] == left
    assert cast("Any", shown["tool_call"])["tool_call_id"] == left[0]
    refused = await product.http.post(f"/v1/agents/{asked.agent_id}/messages", json={"input": "Well?"})
    assert (refused.status_code, refused.json()["detail"]["tool_call_ids"]) == (409, left)
    assert [one["tool_call_id"] for one in await waiting(product)] == left

    product.models.say("Two stay here.")
    status, _ = await sent(asked, verdicts(*[(call_id, False) for call_id in left]))
    assert status == 200


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize(
    ("status", "fields", "item", "said"),
    [
        (400, {"approve": "not"}, {}, "approve and approvals say different things"),
        (400, {"approve": "same", "approval_request_id": "message-nobody"}, {}, "but received '['message-nobody']'"),
        (400, {}, {"arguments": {"target": "mars"}}, "a message cannot change arguments"),
        (400, {}, {"edited_arguments": {"target": "mars"}}, "a message cannot change arguments"),
        (400, {}, {"args": {"target": "mars"}}, "a message cannot change arguments"),
        (409, {}, {"arguments_hash": "0" * 64}, "arguments_hash is 000"),
        (409, {}, {"tool_version": "another"}, "tool_version is another, but call call_0"),
    ],
)
async def test_what_a_message_says_beside_its_verdict_was_passed_over(
    product: Product, status: int, fields: dict[str, Any], item: dict[str, Any], said: str, approve: bool
) -> None:
    """The call ran although the message spoke of other arguments, another tool or another request, or said no too."""
    asked = await waiting_calls(product, "moon")
    beside = {**fields, **({"approve": approve is (fields["approve"] == "same")} if "approve" in fields else {})}
    message: dict[str, Any] = {**verdicts(("call_0", approve)), **beside}
    message["approvals"][0] |= item

    answered, body = await sent(asked, message)

    assert (answered, said in body["detail"]) == (status, True), body
    assert await waiting(product) == asked.approvals


async def test_a_message_that_names_what_it_decides_in_every_way_is_taken(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    [one] = asked.approvals
    message: dict[str, Any] = {
        **verdicts(("call_0", True)), "approve": True, "approval_request_id": one["message_id"],
    }  # fmt: skip
    message["approvals"][0] |= {name: one[name] for name in ("arguments_hash", "tool_version")} | {"arguments": None}
    product.models.say("Launched.")
    assert (await sent(asked, message))[0] == 200
    assert await asked.results() == ["moon"]


@pytest.mark.parametrize("word", ["yes", "true", 1, "no", 0])
async def test_a_verdict_in_another_word_was_taken_for_one(product: Product, word: object) -> None:
    asked = await waiting_calls(product, "moon")
    status, _ = await sent(asked, {"type": "approval", "approve": word, "approval_request_id": "call_0"})
    assert status == 422
    assert await waiting(product) == asked.approvals


NAMES = [("message_id", ("moon",)), ("message_id", ("moon", "mars")), ("tool_call_id", ("moon",)), ("id", ("moon",))]


@pytest.mark.parametrize(("name", "targets"), NAMES)
async def test_a_decision_in_the_older_form_that_came_once_more_was_refused(
    product: Product, name: str, targets: tuple[str, ...]
) -> None:
    asked = await waiting_calls(product, *targets)
    named = asked.approvals[0][name]
    product.models.say("Launched.")
    assert (await sent(asked, older(named)))[0] == 200
    status, answer = await sent(asked, older(named, approve=False))
    assert (status, "a decision holds once" in answer["detail"]) == (409, True)
    assert (await sent(asked, older(named)))[0] == 200
    assert await asked.results() == list(targets)


@pytest.mark.parametrize("approve", [True, False])
async def test_an_old_decision_decided_a_new_call_when_the_old_one_had_left_the_context(
    product: Product, approve: bool
) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("Launched.")
    await sent(asked, older("call_0"))
    url = f"/v1/agents/{asked.agent_id}"
    product.models.say("Summary: the moon was launched.")
    await product.http.post(f"{url}/summarize", json={"compaction_settings": {"mode": "all"}})
    # The server numbers the calls of every answer anew, and nothing in the context has this number.
    product.models.play(Turn(calls=[Call("launch", {"target": "mars"}, id="call_0")]))
    await product.http.post(f"{url}/messages", json={"input": "And now mars."})
    assert "call_0" not in str([request.body for request in product.models.requests[-1:]])
    await check_that_old_decisions_change_nothing(asked, approve=approve)
