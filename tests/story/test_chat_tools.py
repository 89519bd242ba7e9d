"""Tools that a program offers with its request for a chat completion: it makes the calls, and the run goes on."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, ConflictError

from api.openai.chat_service import DROPPED
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.chat_client import body_of, finish_of, openai_client, streamed, text_of, user, whole
from tests.kit.provider_rules.request import broken_rules
from tests.kit.tools import LAUNCH, ROLL_DICE

pytestmark = pytest.mark.shared_product

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says how the weather is.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
ASKED = {"place": "Köln"}


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with openai_client(product.base_url, product.key) as client:
        yield client


def result(call_id: str, content: Any) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


async def calls_of(openai: AsyncOpenAI, model: str, *messages: Any, is_streamed: bool, **fields: Any) -> list[Any]:
    """The calls that the client is asked to make, as OpenAI's SDK gives them."""
    if is_streamed:
        chunks = await streamed(openai, model, *messages, tools=[WEATHER], **fields)
        assert finish_of(chunks) == [("tool_calls", "requires_approval")]
        return [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    [choice] = (await whole(openai, model, *messages, tools=[WEATHER], **fields)).choices
    assert choice.finish_reason == "tool_calls"
    return list(choice.message.tool_calls or [])


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("content", ["Sunny, 20 °C", [{"type": "text", "text": "Sunny, 20 °C"}]])
async def test_the_client_makes_the_calls_and_sends_the_results(
    product: Product, openai: AsyncOpenAI, is_streamed: bool, content: Any
) -> None:
    asks = Turn(text="I look.", calls=[Call("weather", ASKED), Call("weather", {"place": "Bonn"})])
    product.models.play(asks, Turn(text="Sunny in both."))
    agent = await product.agent()
    question = user("How is the weather?")

    calls = await calls_of(openai, agent.id, question, is_streamed=is_streamed)
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("weather", ASKED),
        ("weather", {"place": "Bonn"}),
    ]
    shown: list[Any] = [{"id": call.id, "type": "function", "function": call.function.to_dict()} for call in calls]
    said = {"role": "assistant", "content": "I look.", "tool_calls": shown}
    results = [result(call.id, content) for call in calls]
    answer = await streamed(openai, agent.id, question, said, *results, tools=[WEATHER])

    assert (text_of(answer), finish_of(answer)) == ("Sunny in both.", [("stop", "end_turn")])
    assert [rule for request in product.models.requests for rule in broken_rules(request)] == []
    assert str(product.models.requests[-1].body).count("Sunny, 20 °C") == 2
    assert len((await product.http.get("/v1/runs/", params={"agent_id": agent.id})).json()) == 2


async def test_results_may_come_with_a_message(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("weather", ASKED)]), Turn(text="Sunny, and yes."))
    agent = await product.agent()
    [call] = await calls_of(openai, agent.id, user("Weather?"), is_streamed=False)

    answer = await whole(openai, agent.id, result(call.id, "Sunny"), user("Sure?"), tools=[WEATHER])

    assert answer.choices[0].message.content == "Sunny, and yes."
    assert "Sure?" in str(product.models.requests[-1].body)


async def test_the_agents_own_tools_run_here_beside_the_clients(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6})]), Turn(calls=[Call("weather", ASKED)]))
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])

    calls = await calls_of(openai, agent.id, user("Go"), is_streamed=True)

    assert [call.function.name for call in calls] == ["weather"]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_program_that_dropped_its_own_call_was_refused_for_good(
    product: Product, openai: AsyncOpenAI, is_streamed: bool
) -> None:
    """It asked something else, as people do, and every later request was a 409."""
    asks = Turn(text="I look.", calls=[Call("weather", ASKED), Call("weather", {"place": "Bonn"})])
    product.models.play(asks, Turn(text="Six."))
    agent = await product.agent()
    await calls_of(openai, agent.id, user("Weather?"), is_streamed=is_streamed)

    chunks = await streamed(openai, agent.id, user("Weather?"), user("What is 2 times 3?"), tools=[WEATHER])

    assert text_of(chunks) == "Six."
    sent = product.models.requests[-1]
    assert str(sent.body).count(DROPPED) == 2
    assert sent.body["messages"][-1] == {"role": "user", "content": "What is 2 times 3?"}
    assert [rule for request in product.models.requests for rule in broken_rules(request)] == []


async def test_a_call_that_a_person_decides_is_not_the_clients(product: Product, openai: AsyncOpenAI) -> None:
    """It is told of both, but may not take the answer for one that it can go on from alone."""
    both = Turn(calls=[Call("weather", ASKED), Call("launch", {"target": "moon"})])
    product.models.play(both, Turn(text="Done."))
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])

    [choice] = (await whole(openai, agent.id, user("Go"), tools=[WEATHER])).choices
    [call] = choice.message.tool_calls or []
    assert (choice.finish_reason, call.type) == ("stop", "function")
    assert str(choice.message.refusal).startswith("Waiting for approval of launch: ")
    with pytest.raises(BadRequestError, match="Invalid tool call IDs"):
        await whole(openai, agent.id, result(call.id, "Sunny"), tools=[WEATHER])

    listed = (await product.http.get("/v1/approvals")).json()
    [waiting] = [one for one in listed if one["tool_name"] == "launch"]
    await product.http.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve"})
    answer = await whole(openai, agent.id, result(call.id, "Sunny"), tools=[WEATHER])
    assert answer.choices[0].message.content == "Done."


async def test_a_message_is_refused_while_a_person_has_to_decide(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]))
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    await whole(openai, agent.id, user("Go"), tools=[WEATHER])
    [call] = (await product.http.get("/v1/approvals")).json()

    with pytest.raises(ConflictError) as refused:
        await whole(openai, agent.id, user("Well?"), tools=[WEATHER])

    assert refused.value.code == "pending_approval"
    assert body_of(refused.value)["tool_call_ids"] == [call["tool_call_id"]]


async def test_tool_choice_none_offers_no_tools(product: Product, openai: AsyncOpenAI) -> None:
    agent = await product.agent()

    await whole(openai, agent.id, user("Hi"), tools=[WEATHER], tool_choice="none")
    await whole(openai, agent.id, user("Hi"), tools=[WEATHER], tool_choice="auto")

    assert ["weather" in str(request.body.get("tools")) for request in product.models.requests] == [False, True]


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_a_program_was_told_to_make_a_call_of_an_answer_that_was_cut_off(
    product: Product, openai: AsyncOpenAI, is_streamed: bool, finish: Any
) -> None:
    """It made the call and brought its result, which nobody waited for: a 400."""
    product.models.play(Turn(text="I look.", calls=[Call("weather", ASKED)], finish=finish), Turn(text="Here."))
    agent = await product.agent()

    if is_streamed:
        chunks = await streamed(openai, agent.id, user("Weather?"), tools=[WEATHER])
        made = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        reason = finish_of(chunks)[0][0]
    else:
        [choice] = (await whole(openai, agent.id, user("Weather?"), tools=[WEATHER])).choices
        made, reason = choice.message.tool_calls or [], choice.finish_reason

    assert (made, reason) == ([], "length" if finish == "length" else "stop")
    assert text_of(await streamed(openai, agent.id, user("And now?"), tools=[WEATHER])) == "Here."


async def test_one_of_two_results_is_refused_as_it_is_at_openai(product: Product, openai: AsyncOpenAI) -> None:
    """With a question beside it or not, it says which results are expected, changes nothing, and all of them are
    taken afterwards; the question by itself drops the calls."""
    asks = Turn(calls=[Call("weather", ASKED), Call("weather", {"place": "Bonn"})])
    product.models.play(asks, Turn(text="Sunny in both."))
    agent = await product.agent()
    first, second = await calls_of(openai, agent.id, user("Weather?"), is_streamed=False)

    for more in ([], [user("And tomorrow?")]):
        with pytest.raises(BadRequestError, match="Invalid tool call IDs") as refused:
            await whole(openai, agent.id, result(first.id, "Sunny"), *more, tools=[WEATHER])
        assert second.id in str(refused.value)

    both = [result(one.id, "Sunny") for one in (first, second)]
    answer = await whole(openai, agent.id, *both, user("And tomorrow?"), tools=[WEATHER])
    assert answer.choices[0].message.content == "Sunny in both."
    assert "And tomorrow?" in str(product.models.requests[-1].body)
