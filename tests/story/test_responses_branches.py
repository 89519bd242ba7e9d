"""Several responses answer what one response has asked for: each in a branch of its own."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from letta_client.types import AgentState
from openai import AsyncOpenAI, BadRequestError

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.responses_client import (
    SQUARE,
    assert_sound,
    calls_of,
    created,
    output_of,
    responses_client,
    streamed,
)
from tests.kit.tools import LAUNCH, ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


async def launching(product: Product) -> AgentState:
    """An agent whose call of `launch` waits for a person."""
    return await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])


def verdict(asked: Any, *, approve: bool) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": approve}


def results_sent(product: Product) -> list[str]:
    """The results of tools that the model was sent last."""
    return [one["content"] for one in product.models.requests[-1].body["messages"] if one["role"] == "tool"]


async def test_a_request_for_approval_was_decided_in_one_branch_only(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "Mars"})]))
    agent = await launching(product)
    first = await created(openai, model=agent.id, input="Launch it.")
    [asked] = first.output

    product.models.play(Turn(text="No."))
    denied = await created(openai, input=[verdict(asked, approve=False)], previous_response_id=first.id)
    product.models.play(Turn(text="It flies."))
    approved = await created(openai, input=[verdict(asked, approve=True)], previous_response_id=first.id)

    assert (denied.output_text, approved.output_text) == ("No.", "It flies.")
    assert [item.type for item in denied.output] == ["message"]
    call = approved.output[0].to_dict()
    assert (call["type"], call["approval_request_id"]) == ("mcp_call", asked.id)
    assert "Mars" in str(call["output"])
    [result] = results_sent(product)
    assert "Mars" in result
    assert (await openai.responses.retrieve(approved.id)).to_dict() == approved.to_dict()
    items = (await openai.responses.input_items.list(approved.id, order="asc")).data
    assert [item.type for item in items] == ["message", "function_call", "mcp_approval_response"]


async def test_a_branch_behind_an_approved_call_goes_on(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "Mars"})]), Turn(text="No."), Turn(text="It flies."))
    agent = await launching(product)
    first = await created(openai, model=agent.id, input="Launch it.")
    [asked] = first.output
    await created(openai, input=[verdict(asked, approve=False)], previous_response_id=first.id)
    branch = await created(openai, input=[verdict(asked, approve=True)], previous_response_id=first.id)

    product.models.play(Turn(text="Far."))
    last = await created(openai, input="How far?", previous_response_id=branch.id)

    assert last.output_text == "Far."
    roles = [one["role"] for one in product.models.requests[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


async def test_a_client_and_a_person_answer_one_response_twice(product: Product, openai: AsyncOpenAI) -> None:
    calls = [Call("launch", {"target": "Mars"}), Call("square", {"n": 3}), Call("roll_dice", {"num_sides": 6})]
    product.models.play(Turn(calls=calls), Turn(text="One."), Turn(text="Two."))
    launch = await product.tool(LAUNCH, default_requires_approval=True)
    agent = await product.agent(tools=[launch, await product.tool(ROLL_DICE)])
    first = await created(openai, model=agent.id, input="Do all.", tools=[SQUARE])
    [asked] = [item for item in first.output if item.type == "mcp_approval_request"]
    [call] = calls_of(first)

    for output, approve, said in (("9", True, "One."), ("10", False, "Two.")):
        answers = [verdict(asked, approve=approve), output_of(call.call_id, output)]
        branch = await created(openai, input=answers, previous_response_id=first.id, tools=[SQUARE])
        assert branch.output_text == said
        results = results_sent(product)
        assert len(results) == len(calls), "every call has a result, the one that nobody waited for included"
        assert output in results


async def test_a_branch_that_leaves_a_call_open_is_refused(product: Product, openai: AsyncOpenAI) -> None:
    calls = [Call("launch", {"target": "Mars"}), Call("square", {"n": 3})]
    product.models.play(Turn(calls=calls), Turn(text="One."))
    agent = await launching(product)
    first = await created(openai, model=agent.id, input="Do both.", tools=[SQUARE])
    [asked] = [item for item in first.output if item.type == "mcp_approval_request"]
    [call] = calls_of(first)
    both = [verdict(asked, approve=True), output_of(call.call_id, "9")]
    await created(openai, input=both, previous_response_id=first.id)

    with pytest.raises(BadRequestError, match="No tool output found for function call"):
        await created(openai, input=both[:1], previous_response_id=first.id)
    with pytest.raises(BadRequestError, match="No approval response found"):
        await created(openai, input="And now?", previous_response_id=first.id)


async def test_a_call_that_was_sent_back_with_its_output_was_refused_as_one_without_it(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.play(Turn(calls=[Call("square", {"n": 3})]))
    first = await created(openai, input="Square 3.", tools=[SQUARE])
    [call] = calls_of(first)
    with pytest.raises(BadRequestError, match="send those, not earlier answers"):
        await created(openai, input=[call.to_dict(), output_of(call.call_id, "9")], previous_response_id=first.id)


async def test_what_the_clock_had_denied_was_approved_in_a_branch(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "Mars"})]), Turn(text="Too late."))
    agent = await launching(product)
    await product.http.patch(f"/v1/agents/{agent.id}", json={"approval_expires_s": 0.2, "on_approval_expiry": "deny"})
    first = await created(openai, model=agent.id, input="Launch it.")
    [asked] = first.output

    async def is_decided() -> bool:
        decided = (await product.http.get("/v1/approvals", params={"agent_id": agent.id, "decided": "true"})).json()
        return [one["decided_by"] for one in decided] == ["expiry"]

    await wait_until(is_decided, description="the clock to decide")
    with pytest.raises(BadRequestError, match="has expired"):
        await created(openai, input=[verdict(asked, approve=True)], previous_response_id=first.id)


async def test_a_branch_is_cancelled_and_its_history_stays_valid(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "Mars"})]), Turn(text="No."))
    agent = await launching(product)
    first = await created(openai, model=agent.id, input="Launch it.")
    [asked] = first.output
    await created(openai, input=[verdict(asked, approve=False)], previous_response_id=first.id)
    product.models.play(Turn(text="one two three", silent_after=1))

    fields: Any = {"input": [verdict(asked, approve=True)], "previous_response_id": first.id, "background": True}
    asked_before = len(product.models.requests)
    branch = await created(openai, **fields)
    await wait_until(lambda: len(product.models.requests) > asked_before, description="the branch to ask the model")
    cancelled = await openai.responses.cancel(branch.id)
    product.models.play(Turn(text="Again."))
    last = await created(openai, input="Well?", previous_response_id=branch.id)

    assert cancelled.status == "cancelled"
    assert last.output_text == "Again."
    assert len(results_sent(product)) == 1


async def test_a_branch_that_decides_is_in_the_audit_log(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "Mars"})]), Turn(text="No."), Turn(text="It flies."))
    agent = await launching(product)
    first = await created(openai, model=agent.id, input="Launch it.")
    [asked] = first.output
    for approve in (False, True):
        await created(openai, input=[verdict(asked, approve=approve)], previous_response_id=first.id)

    waited = (await product.http.get("/v1/approvals", params={"agent_id": agent.id, "decided": "true"})).json()
    audit = await product.http.get("/v1/admin/audit", params={"object_id": waited[0]["id"]})
    events: list[dict[str, Any]] = audit.json()
    assert sorted(event["action"] for event in events) == ["approval.approved", "approval.denied"]


CALLED = [
    {"type": "function_call", "call_id": "a", "name": "square", "arguments": '{"n": 3}'},
    {"type": "function_call", "call_id": "b", "name": "square", "arguments": '{"n": 4}'},
]


@pytest.mark.parametrize("spoken", [{"role": "assistant", "content": ""}, {"role": "user", "content": "Also 5."}])
async def test_a_message_between_a_call_and_its_output_was_refused(
    product: Product, openai: AsyncOpenAI, spoken: dict[str, Any]
) -> None:
    product.models.say("Done.")
    story = [{"role": "user", "content": "Square 3 and 4."}, *CALLED, spoken, output_of("b", "16"), output_of("a", "9")]

    response = await created(openai, input=story, tools=[SQUARE])

    assert response.output_text == "Done."
    sent = product.models.requests[-1].body["messages"]
    assert [one["role"] for one in sent][:4] == ["user", "assistant", "tool", "tool"]
    assert [one["content"] for one in sent if one["role"] == "user"][1:] == [one for one in [spoken["content"]] if one]


async def test_an_output_between_parallel_calls_was_refused(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say("Done.")
    [first, second] = CALLED
    third = {**first, "call_id": "c"}
    outputs = [output_of(call_id, "1") for call_id in "abc"]

    items = [first, second, outputs[0], third, *outputs[1:]]
    response = await created(openai, input=items, tools=[SQUARE])

    assert response.output_text == "Done."
    assert len(results_sent(product)) == 3


async def test_a_response_that_goes_on_without_input_was_refused(product: Product, openai: AsyncOpenAI) -> None:
    create: Any = openai.responses.create
    conversation = await openai.conversations.create(items=[{"role": "user", "content": "Who are you?"}])
    product.models.play(Turn(text="Ada."), Turn(text="Really."))

    first = await create(model="openai/gpt-4o-mini", conversation=conversation.id)
    assert product.models.requests[-1].body["messages"][-1]["content"] == "Who are you?"
    second = await create(model="openai/gpt-4o-mini", previous_response_id=first.id)

    assert (first.output_text, second.output_text) == ("Ada.", "Really.")
    with pytest.raises(BadRequestError, match="injected") as refused:
        await create(conversation=conversation.id, extra_headers={"X-Holdfast-If-Busy": "inject"})
    assert refused.value.param == "input"


async def test_a_call_beside_a_function_was_shown_as_failed_and_its_result_nowhere(
    product: Product, openai: AsyncOpenAI
) -> None:
    both = [Call("roll_dice", {"num_sides": 6}), Call("square", {"n": 3})]
    product.models.play(Turn(calls=both), Turn(text="Done."), Turn(text="Again."), Turn(calls=both))
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    asking: Any = {"model": agent.id, "input": "Do both.", "tools": [SQUARE]}
    told = await streamed(openai, **asking)
    assert_sound(told)
    [rolling, asked] = told[-1]["response"]["output"]
    assert (rolling["type"], rolling["status"], rolling["output"]) == ("mcp_call", "incomplete", None)
    assert "response.mcp_call.failed" not in [event["type"] for event in told]

    output = output_of(asked["call_id"], "9")
    for text in ("Done.", "Again."):
        told = await streamed(openai, input=[output], tools=[SQUARE], previous_response_id=told[0]["response"]["id"])
        assert_sound(told)
        [rolled, message] = told[-1]["response"]["output"]
        assert (rolled["name"], rolled["arguments"], rolled["status"]) == ("roll_dice", '{"num_sides": 6}', "completed")
        assert any(f'"message": "{rolled["output"]}"' in result for result in results_sent(product))
        assert message["content"][0]["text"] == text
        told = [{"response": {"id": told[0]["response"]["previous_response_id"]}}]

    output_again: Any = (await created(openai, **asking)).to_dict()["output"]
    [begun, also] = output_again
    named = [{"type": "item_reference", "id": begun["id"]}, also, output_of(also["call_id"], "9")]
    for items in ([rolling, asked, output], named):
        product.models.say("Nothing rolled.")
        await created(openai, input=[{"role": "user", "content": "Do both."}, *items], tools=[SQUARE])
        assert any("was not made" in result for result in results_sent(product)), "the model read an empty success"
