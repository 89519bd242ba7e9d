"""Agents for programs that speak OpenAI's dialect: the real SDK asks for chat completions, and every one is a run."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from openai import APIError, AsyncOpenAI, ConflictError
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from tests.kit.model_server import Call, Failure, Turn
from tests.kit.product import Product
from tests.kit.product.chat_client import finish_of, openai_client, streamed, text_of, user, whole
from tests.kit.tools import LAUNCH, ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

WORDS = "Grüße aus Köln, 你好 and 🎉 for you."


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with openai_client(product.base_url, product.key) as client:
        yield client


async def said_in(product: Product, agent_id: str) -> list[tuple[str, Any]]:
    kinds = ("user_message", "assistant_message")
    listed = await product.history(agent_id)
    return [(one["message_type"], one["content"]) for one in listed if one["message_type"] in kinds]


async def test_a_completion_is_a_run_and_its_text_is_what_the_agent_said(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say(WORDS)
    agent = await product.agent()

    answer = await whole(openai, agent.id, user("Grüß mich!"))

    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", WORDS, "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    run = await product.run(answer.id)
    assert (run["agent_id"], run["status"], run["stop_reason"]) == (agent.id, "completed", "end_turn")
    assert run["metadata"]["run_type"] == "openai_chat_completions"
    assert await said_in(product, agent.id) == [("user_message", "Grüß mich!"), ("assistant_message", WORDS)]


async def test_a_completion_is_streamed_word_by_word(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say(WORDS)
    agent = await product.agent()

    chunks = await streamed(openai, agent.id, user("Hi"))

    assert chunks[0].choices[0].delta.role == "assistant"
    assert len(chunks) > 5
    assert all(chunk.choices for chunk in chunks), "programs look at the first choice of each"
    assert (text_of(chunks), finish_of(chunks)) == (WORDS, [("stop", "end_turn")])
    assert {(chunk.id, chunk.model) for chunk in chunks} == {(chunks[0].id, agent.id)}
    assert (await product.run(chunks[0].id))["status"] == "completed"


class Weather(BaseModel):
    """What the agent has to answer."""

    rains: bool
    place: str | None = None


async def test_a_program_that_asked_for_json_was_refused(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(*[Turn(text='{"rains": true}')] * 2)
    agent = await product.agent()

    parsed = await openai.chat.completions.parse(
        model=agent.id, messages=[user("Does it rain?")], response_format=Weather
    )
    assert parsed.choices[0].message.parsed == Weather(rains=True)
    asked = product.models.requests[-1].body["response_format"]
    assert asked["json_schema"]["name"] == "Weather"
    assert asked["json_schema"]["strict"]
    assert asked["json_schema"]["schema"]["properties"]["place"]["anyOf"] == [{"type": "string"}, {"type": "null"}]

    any_json: Any = {"type": "json_object"}
    chunks = await streamed(openai, agent.id, user("And tomorrow?"), response_format=any_json)
    assert json.loads(text_of(chunks)) == {"rains": True}
    assert product.models.requests[-1].body["response_format"] == any_json


async def test_a_model_that_has_no_json_mode_fails_the_completion_and_says_so(
    product: Product, openai: AsyncOpenAI
) -> None:
    agent = await product.agent(model="anthropic/claude-sonnet-4-5")
    with pytest.raises(APIError, match="response_format") as failed:
        await whole(openai, agent.id, user("Hi"), response_format={"type": "json_object"})
    assert failed.value.code == "llm_bad_request"


async def test_a_stream_ends_with_its_usage_when_that_is_asked_for(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say(WORDS)
    agent = await product.agent()

    *chunks, last = await streamed(openai, agent.id, user("Hi"), stream_options={"include_usage": True})

    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0
    assert not any(chunk.usage for chunk in chunks)


async def test_only_the_last_message_of_the_user_is_sent_on(product: Product, openai: AsyncOpenAI) -> None:
    """Such clients send their whole list each time. An agent that stored it would see everything over and over."""
    agent = await product.agent()
    seen: list[Any] = [{"role": "system", "content": "You are a pirate."}]
    for word in ("one", "two"):
        product.models.say(f"{word}!")
        seen.append(user(word))
        answer = await openai.chat.completions.with_raw_response.create(model=agent.id, messages=seen, temperature=0.3)
        told = answer.headers["warning"]
        seen.append({"role": "assistant", "content": f"{word}!"})

    assert [text for _, text in await said_in(product, agent.id)] == ["one", "one!", "two", "two!"]
    assert "pirate" not in str(product.models.requests[-1].body)
    left = "temperature, messages[system], messages[user], messages[assistant]"
    assert told == f'299 holdfast "not acted on: {left}"'


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_what_the_server_calls_is_not_shown_as_a_call_of_the_clients(
    product: Product, openai: AsyncOpenAI, is_streamed: bool
) -> None:
    """A client that is shown a call tries to make it."""
    dice = Turn(text="Let me see.", calls=[Call("roll_dice", {"num_sides": 6})])
    product.models.play(dice, Turn(text="It is a six."))
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])

    if is_streamed:
        chunks = await streamed(openai, agent.id, user("Roll"))
        assert not any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)
        text = text_of(chunks)
    else:
        [choice] = (await whole(openai, agent.id, user("Roll"))).choices
        assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
        text = choice.message.content
    assert text == "Let me see.\n\nIt is a six."


async def test_what_an_agent_says_by_send_message_is_its_text(product: Product, openai: AsyncOpenAI) -> None:
    body = {"model": "openai/gpt-4o-mini", "agent_type": "memgpt_v2_agent"}
    agent_id = (await product.http.post("/v1/agents/", json=body)).json()["id"]
    product.models.play(*[Turn(calls=[Call("send_message", {"message": WORDS})])] * 2)

    chunks = await streamed(openai, agent_id, user("Speak"))
    answer = await whole(openai, agent_id, user("Again"))

    assert len(chunks) > 4
    assert (text_of(chunks), finish_of(chunks)) == (WORDS, [("stop", "end_turn")])
    assert (answer.choices[0].message.content, answer.choices[0].message.tool_calls) == (WORDS, None)


async def test_a_cancel_ends_the_stream_with_what_was_said(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say("one two three four", silent_after=2)
    agent = await product.agent()
    stream: Any = await openai.chat.completions.create(model=agent.id, messages=[user("Count")], stream=True)
    chunks: list[ChatCompletionChunk] = []

    async for chunk in stream:
        chunks.append(chunk)
        if text_of(chunks) == "one two" and not finish_of(chunks):
            await product.http.post(f"/v1/runs/{chunk.id}/cancel")

    assert (text_of(chunks), finish_of(chunks)) == ("one two", [("length", "cancelled")])
    assert (await product.run(chunks[0].id))["status"] == "cancelled"


async def test_a_run_goes_on_when_its_client_leaves(product: Product, openai: AsyncOpenAI) -> None:
    resume = asyncio.Event()
    product.models.say("one two three four", silent_after=2, resume=resume)
    agent = await product.agent()
    stream: Any = await openai.chat.completions.create(model=agent.id, messages=[user("Count")], stream=True)
    first = await anext(aiter(stream))
    await stream.close()
    resume.set()

    assert (await product.ended(first.id))["status"] == "completed"
    assert (await said_in(product, agent.id))[-1] == ("assistant_message", "one two three four")


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_conversation_has_its_own_history(product: Product, openai: AsyncOpenAI, is_streamed: bool) -> None:
    agent = await product.agent(model="builtin/echo")
    conversation = await product.client.conversations.create(agent_id=agent.id)

    if is_streamed:
        assert text_of(await streamed(openai, conversation.id, user("Aside"))) == "You said: Aside"
    else:
        assert (await whole(openai, conversation.id, user("Aside"))).choices[0].message.content == "You said: Aside"

    assert await said_in(product, agent.id) == []


async def test_two_requests_to_one_conversation_are_answered_one_after_the_other(
    product: Product, openai: AsyncOpenAI
) -> None:
    """A voice client that is interrupted asks again while the agent is still at the first answer."""
    agent = await product.agent(model="builtin/echo")
    conversation = await product.client.conversations.create(agent_id=agent.id)

    answers = await asyncio.gather(*(whole(openai, conversation.id, user(word)) for word in ("a", "b")))

    assert {answer.choices[0].message.content for answer in answers} == {"You said: a", "You said: b"}


async def test_a_request_may_interrupt_the_one_before(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say("one two three four", silent_after=2)
    agent = await product.agent()
    first = asyncio.ensure_future(streamed(openai, agent.id, user("Count")))
    await wait_until(lambda: product.models.requests, description="the model to be asked")
    product.models.say("Yes?")

    answer = await whole(openai, agent.id, user("Stop"), extra_headers={"X-Holdfast-If-Busy": "interrupt"})

    assert answer.choices[0].message.content == "Yes?"
    assert finish_of(await first) == [("length", "cancelled")]


async def test_an_image_reaches_the_model(product: Product, openai: AsyncOpenAI) -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    agent = await product.agent()

    await whole(
        openai, agent.id, user([{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": url}}])
    )

    assert url in str(product.models.requests[0].body)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_call_that_waits_for_a_person_is_said_and_the_next_request_says_how_to_go_on(
    product: Product, openai: AsyncOpenAI, is_streamed: bool
) -> None:
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    product.models.play(Turn(text="I launch it.", calls=[Call("launch", {"target": "moon"})]))

    if is_streamed:
        chunks = await streamed(openai, agent.id, user("Launch"))
        text, ending = text_of(chunks), finish_of(chunks)
        refusal = "".join(chunk.choices[0].delta.refusal or "" for chunk in chunks)
    else:
        [choice] = (await whole(openai, agent.id, user("Launch"))).choices
        text, refusal = choice.message.content, choice.message.refusal or ""
        ending = [(choice.finish_reason, choice.to_dict()["native_finish_reason"])]
    assert (text, ending) == ("I launch it.", [("stop", "requires_approval")])
    assert refusal.startswith(f"Waiting for approval of launch: GET /v1/approvals?agent_id={agent.id} ")

    with pytest.raises(ConflictError) as refused:
        await whole(openai, agent.id, user("And?"))
    assert refused.value.code == "pending_approval"
    assert "POST /v1/approvals/approval-" in str(refused.value)


@pytest.mark.parametrize("ask", [whole, streamed])
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("rate_limit", "rate_limit_exceeded"),
        ("context", "context_length_exceeded"),
        ("auth", "llm_authentication"),
        ("server", "llm_error"),
    ],
)
async def test_a_model_that_fails_is_an_error_of_the_sdk(
    product: Product, openai: AsyncOpenAI, ask: Any, kind: Any, code: str
) -> None:
    product.models.play(*[Turn(failure=Failure(kind))] * 9)
    agent = await product.agent()

    with pytest.raises(APIError) as failed:
        await ask(openai, agent.id, user("Hi"))

    assert failed.value.code == code
    assert product.models.origin in failed.value.message, "what the provider said, and who it is"


async def test_an_error_in_the_middle_of_a_stream_comes_behind_what_was_said(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.say("one two three", break_="drop", break_after=2)
    agent = await product.agent()
    stream: Any = await openai.chat.completions.create(model=agent.id, messages=[user("Count")], stream=True)
    chunks: list[ChatCompletionChunk] = []

    with pytest.raises(APIError) as failed:
        async for chunk in stream:
            chunks.append(chunk)

    assert (text_of(chunks), finish_of(chunks)) == ("one two", [])
    assert failed.value.code == "llm_error"
    assert (await product.run(chunks[0].id))["status"] == "failed"
