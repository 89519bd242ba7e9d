"""OpenAI's Responses: the real SDK asks models and agents, and every response is a run."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from tests.kit.model_server import Call, Failure, Turn
from tests.kit.product import Product
from tests.kit.product.responses_client import (
    PLAIN,
    SQUARE,
    assert_sound,
    calls_of,
    created,
    output_of,
    responses_client,
    resumed,
    streamed,
    when_over,
)
from tests.kit.tools import LAUNCH, ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

WORDS = "Grüße aus Köln, 你好 and 🎉 for you."


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


def sent(product: Product) -> dict[str, Any]:
    """What the model was sent last."""
    return product.models.requests[-1].body


async def test_a_plain_model_answers(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say(WORDS)

    response = await created(openai, input="Hi", instructions="Be brief.", metadata={"a": "b"})

    assert (response.status, response.output_text, response.model) == ("completed", WORDS, PLAIN)
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens > 0
    roles = [(one["role"], one["content"]) for one in sent(product)["messages"]]
    assert roles == [("system", "Be brief."), ("user", "Hi")], "nothing else is told to the model"
    assert "tools" not in sent(product)
    assert (await openai.responses.retrieve(response.id)).to_dict() == response.to_dict()


async def test_a_response_is_streamed_and_read_again_from_every_event(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say(WORDS)

    events = await streamed(openai, input="Hi")

    assert_sound(events)
    assert "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta") == WORDS
    response_id = events[0]["response"]["id"]
    assert await resumed(openai, response_id) == events
    for cut in range(len(events)):
        assert await resumed(openai, response_id, cut) == events[cut + 1 :]
    assert (await openai.responses.retrieve(response_id)).to_dict() == events[-1]["response"]


async def test_a_response_in_the_background_outlives_its_client(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text=WORDS, silent_before_headers=0.3))
    stream: Any = await openai.responses.create(model=PLAIN, input="Hi", background=True, stream=True)
    first = await anext(aiter(stream))
    assert first.response.status == "queued"
    await stream.close()

    assert (await when_over(openai, first.response.id)).output_text == WORDS
    assert_sound(await resumed(openai, first.response.id))


async def test_a_response_in_the_foreground_ends_when_its_client_hangs_up(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.play(Turn(text="one two three", silent_after=2))
    stream: Any = await openai.responses.create(model=PLAIN, input="Hi", stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()

    over = await when_over(openai, seen[0].response.id)

    assert over.status == "cancelled"
    assert over.error is None
    events = await resumed(openai, over.id)
    assert_sound(events)
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "cancelled")
    assert over.output[0].to_dict()["status"] == "incomplete"


async def test_a_client_that_waits_for_the_whole_answer_and_hangs_up_ends_it(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.play(Turn(silent_before_headers=3600.0))
    asked = asyncio.create_task(created(openai, input="Hi"))
    [request] = await wait_until(lambda: product.models.requests, description="the model to be asked")
    asked.cancel()
    await wait_until(lambda: request.client_left, description="the model's answer to be given up")


async def test_cancel_is_answered_with_the_end_and_may_be_repeated(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(silent_before_headers=3600.0))
    response = await created(openai, input="Hi", background=True)
    await wait_until(lambda: product.models.requests, description="the model to be asked")

    for _ in range(2):
        assert (await openai.responses.cancel(response.id)).status == "cancelled"
    events = await resumed(openai, response.id)
    assert_sound(events)
    assert events[-1]["type"] == "response.failed"


async def test_functions_are_called_over_three_turns(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(
        Turn(text="Let me see.", calls=[Call("square", {"n": 3}), Call("square", {"n": 4})]),
        Turn(calls=[Call("square", {"n": 5})]),
        Turn(text="9, 16 and 25."),
    )
    first = await created(openai, input="Square 3, 4 and 5.", tools=[SQUARE])
    assert first.status == "completed"
    assert [call.arguments for call in calls_of(first)] == ['{"n": 3}', '{"n": 4}']

    outputs = [output_of(call.call_id, result) for call, result in zip(calls_of(first), ("9", "16"), strict=True)]
    second = await created(openai, input=outputs, tools=[SQUARE], previous_response_id=first.id)
    [call] = calls_of(second)
    third = await created(openai, input=[output_of(call.call_id, "25")], tools=[SQUARE], previous_response_id=second.id)

    assert third.output_text == "9, 16 and 25."
    results = [one["content"] for one in sent(product)["messages"] if one["role"] == "tool"]
    assert results == ["9", "16", "25"]
    assert_sound(await resumed(openai, first.id))
    assert (await openai.responses.retrieve(first.id)).to_dict() == first.to_dict(), "a response never changes"


async def test_two_branches_go_on_from_one_response(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(*[Turn(text=word) for word in ("One.", "Two.", "Other.", "Third.")])
    first = await created(openai, input="first")
    second = await created(openai, input="second", previous_response_id=first.id)
    other = await created(openai, input="other", previous_response_id=first.id)
    said = [one["content"] for one in sent(product)["messages"]]
    assert said == ["first", "One.", "other"], "a branch knows nothing of the other one"
    await created(openai, input="third", previous_response_id=second.id)
    assert [one["content"] for one in sent(product)["messages"]] == ["first", "One.", "second", "Two.", "third"]
    assert other.previous_response_id == first.id


async def test_outputs_of_one_call_are_sent_in_two_branches(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("square", {"n": 3})]), Turn(text="Nine."), Turn(text="Ten?"))
    first = await created(openai, input="Square 3.", tools=[SQUARE])
    [call] = calls_of(first)
    for result, answer in (("9", "Nine."), ("10", "Ten?")):
        branch = await created(openai, input=[output_of(call.call_id, result)], previous_response_id=first.id)
        assert branch.output_text == answer
        assert [one["content"] for one in sent(product)["messages"] if one["role"] == "tool"] == [result]


async def test_a_client_tells_its_whole_story_each_time(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("square", {"n": 3})]), Turn(text="Nine."))
    story: list[Any] = [{"role": "user", "content": "Square 3."}]
    first = await created(openai, input=story, tools=[SQUARE], store=True)
    story += [item.to_dict() for item in first.output]
    story += [output_of(calls_of(first)[0].call_id, "9")]

    second = await created(openai, input=story, tools=[SQUARE])

    assert second.output_text == "Nine."
    assert [one["role"] for one in sent(product)["messages"]] == ["user", "assistant", "tool"]
    items = (await openai.responses.input_items.list(second.id, order="asc")).data
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]


async def test_an_agents_own_tools_are_shown_as_calls_of_a_server(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6})]), Turn(text="A six."))
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])

    events = await streamed(openai, model=agent.id, input="Roll.", instructions="Be lucky.")

    assert_sound(events)
    call, message = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["output"], call["status"]) == ("mcp_call", "roll_dice", "6", "completed")
    assert message["content"][0]["text"] == "A six."
    assert "Be lucky." in sent(product)["messages"][0]["content"]
    kinds = [event["type"] for event in events]
    assert kinds.index("response.mcp_call_arguments.done") < kinds.index("response.mcp_call.completed")


@pytest.mark.parametrize("approve", [True, False])
async def test_a_person_approves_by_the_next_response(product: Product, openai: AsyncOpenAI, approve: bool) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Done."))
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    first = await created(openai, model=agent.id, input="Launch.")
    [asked] = first.output
    assert (first.status, asked.type) == ("completed", "mcp_approval_request")
    with pytest.raises(BadRequestError, match=asked.id):
        await created(openai, input="And now?", model=agent.id, previous_response_id=first.id)

    verdict: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": approve}
    events = await streamed(openai, model=agent.id, input=[verdict], previous_response_id=first.id)

    assert_sound(events)
    output = events[-1]["response"]["output"]
    assert output[-1]["content"][0]["text"] == "Done."
    if approve:
        assert (output[0]["type"], output[0]["output"]) == ("mcp_call", "moon")
        assert output[0]["approval_request_id"] == asked.id
    else:
        assert len(output) == 1


async def test_the_same_request_under_one_key_is_one_response(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text="One."), Turn(text="Two."))
    headers = {"Idempotency-Key": "same"}
    first = await created(openai, input="Hi", extra_headers=headers)
    again = await created(openai, input="Hi", extra_headers=headers)
    assert (first.id, again.output_text) == (again.id, "One.")
    nexts = [
        await created(openai, input="on", previous_response_id=first.id, extra_headers={"Idempotency-Key": "next"})
        for _ in range(2)
    ]
    assert nexts[0].id == nexts[1].id
    with pytest.raises(BadRequestError, match="Idempotency-Key"):
        await created(openai, input="Something else", extra_headers=headers)


async def test_a_failed_model_is_told_in_the_response(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(failure=Failure("bad_request")))
    events = await streamed(openai, input="Hi", background=True)
    assert_sound(events)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "invalid_prompt"


async def test_structured_output_is_asked_for(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say('{"n": 3}')
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form: Any = {"format": {"type": "json_schema", "name": "count", "schema": schema, "strict": True}}
    response = await created(openai, input="Count.", text=form, temperature=0.5, max_output_tokens=100)
    asked = sent(product)
    assert asked["response_format"]["json_schema"] == {"name": "count", "schema": schema, "strict": True}
    assert asked["temperature"] == 0.5
    assert (response.temperature, response.max_output_tokens) == (0.5, 100)
    assert response.text is not None
    assert response.text.to_dict()["format"]["name"] == "count"  # pyright: ignore[reportIndexIssue]


async def test_a_deleted_response_is_gone(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text="One."), Turn(text="Two."))
    first = await created(openai, input="Hi")
    second = await created(openai, input="on", previous_response_id=first.id)
    await openai.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(first.id)
    with pytest.raises(BadRequestError, match="not found") as refused:
        await created(openai, input="on", previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"
    assert (await openai.responses.retrieve(second.id)).output_text == "Two."


async def test_a_response_is_a_run_of_lettas_api(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say(WORDS)
    agent = await product.agent()
    response = await created(openai, model=agent.id, input="Hi", background=True, metadata={"a": "b"})
    run_id = f"run-{UUID(response.id.removeprefix('resp_'))}"
    run = await product.ended(run_id)
    assert (run["status"], run["metadata"]["dialect"], run["background"]) == ("completed", "openai.responses", True)
    assert set(run["request_config"]) == set((await letta_run(product, agent.id))["request_config"])
    said = (await product.http.get(f"/v1/runs/{run_id}/messages")).json()
    assert [one["content"] for one in said if one["message_type"] == "assistant_message"] == [WORDS]


async def letta_run(product: Product, agent_id: str) -> dict[str, Any]:
    run = await product.client.agents.messages.create_async(agent_id, input="Hi")
    return await product.ended(run.id)


async def test_a_run_of_letta_is_read_and_cancelled_as_a_response(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say(WORDS)
    agent = await product.agent()
    run = await product.client.agents.messages.create_async(agent.id, input="Hi")
    await product.ended(run.id)
    shown = await openai.responses.retrieve(run.id)
    assert (shown.status, shown.output_text) == ("completed", WORDS)
    product.models.play(Turn(silent_before_headers=3600.0))
    run = await product.client.agents.messages.create_async(agent.id, input="Hi")
    await wait_until(lambda: len(product.models.requests) == 2, description="the model to be asked")
    assert (await openai.responses.cancel(run.id)).status == "cancelled"
    assert (await product.run(run.id))["status"] == "cancelled"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "file_search", "vector_store_ids": ["a"]}]}, "file_search"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "code_interpreter"),
        ({"input": [{"type": "item_reference"}]}, "needs the id"),
        ({"input": [output_of("call_9", "9")]}, "call_9"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}]}, "function call c"),
        ({"model": "nobody/knows"}, "nobody/knows"),
        ({"model": "nix"}, "nix"),
        ({"background": True, "store": False}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_response_id": "resp_0", "conversation": "conv_0"}, "exclude"),
        ({"input": []}, "input"),
    ],
)
async def test_what_is_not_there_is_refused_by_its_name(
    openai: AsyncOpenAI, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequestError, match=named) as refused:
        await created(openai, **{"input": "Hi", **fields})
    assert refused.value.type == "invalid_request_error"
