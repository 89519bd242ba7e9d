"""What goes wrong around a chat completion: lost answers, silence, a server that ends, clients with odd addresses."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from arq.connections import ArqRedis
from openai import APIError, APIStatusError

from shared.sql.engine import Database
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.chat_client import body_of, openai_client, streamed, text_of, user, whole
from tests.kit.wait_until import wait_until


class LostAnswers:
    """Loses the first answers on their way back to the client."""

    def __init__(self, number: int) -> None:
        self.left = number

    async def __call__(self, response: httpx2.Response) -> None:
        if self.left:
            self.left -= 1
            raise httpx2.ReadTimeout("lost", request=response.request)


async def runs_of(product: Product, agent_id: str) -> list[dict[str, Any]]:
    return (await product.http.get("/v1/runs/", params={"agent_id": agent_id})).json()


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_request_whose_answer_was_lost_is_sent_again_and_is_one_run(
    product: Product, is_streamed: bool
) -> None:
    product.models.play(Turn(text="Once."), Turn(text="Twice."))
    agent, losing = await product.agent(), LostAnswers(2)

    hooks: Any = {"response": [losing]}
    async with openai_client(product.base_url, max_retries=2, event_hooks=hooks) as openai:
        if is_streamed:
            text = text_of(await streamed(openai, agent.id, user("Hello")))
        else:
            text = (await whole(openai, agent.id, user("Hello"))).choices[0].message.content

    assert (text, losing.left) == ("Once.", 0)
    assert len(await runs_of(product, agent.id)) == len(product.models.requests) == 1


async def test_the_same_last_message_of_another_talk_is_no_second_try(product: Product) -> None:
    """Only the last message is submitted, but by the whole list a request is known."""
    agent = await product.agent(model="builtin/echo")
    talk: list[Any] = [user("Yes"), {"role": "assistant", "content": "Sure?"}, user("Yes")]
    body = {"model": agent.id, "messages": talk}

    for number, sent in ((0, {**body, "messages": talk[:1]}), (1, body), (1, body)):
        headers = {"X-Stainless-Retry-Count": str(number)}
        assert (await product.http.post("/v1/chat/completions", json=sent, headers=headers)).status_code == 200

    assert len(await runs_of(product, agent.id)) == 2


async def test_an_idempotency_key_gives_the_first_answer_again(product: Product) -> None:
    product.models.play(Turn(text="Once."), Turn(text="Twice."))
    agent = await product.agent()
    async with openai_client(product.base_url) as openai:
        key = {"Idempotency-Key": "k-1"}
        first = await whole(openai, agent.id, user("Hello"), extra_headers=key)
        again = await whole(openai, agent.id, user("Hello"), extra_headers=key)
        with pytest.raises(APIStatusError) as refused:
            await whole(openai, agent.id, user("Something else"), extra_headers=key)

    assert (again.id, again.choices[0].message.content) == (first.id, "Once.")
    assert (refused.value.status_code, refused.value.response.headers["x-should-retry"]) == (409, "false")
    assert body_of(refused.value)["run_id"] == first.id


@pytest.fixture
async def impatient(database: Database, redis: ArqRedis, models: ModelServer) -> AsyncIterator[Product]:
    """The product, which says after a tenth of a second of silence that it is still there."""
    async with running_product(database, redis, models, settings={"keepalive_s": 0.1}) as running:
        yield running


async def test_a_silent_stream_is_kept_open(impatient: Product) -> None:
    agent = await impatient.agent(model="builtin/scripted")
    script = '{"turns": [{"text": "At last.", "first_delay_ms": 500}]}'
    body = {"model": agent.id, "messages": [user(script)], "stream": True}

    shown = (await impatient.http.post("/v1/chat/completions", json=body)).text
    async with openai_client(impatient.base_url) as openai:
        text = text_of(await streamed(openai, agent.id, user(script)))

    assert shown.count(": keep-alive\n") > 1
    assert shown.endswith("data: [DONE]\n\n")
    assert text == "At last."


async def test_a_stream_is_not_silent_while_the_agent_thinks(product: Product) -> None:
    """Reasoning is not shown, and a voice client gives up after seconds without a byte."""
    product.models.play(Turn(reasoning="Hm, hm, hm.", text="Yes."))
    agent = await product.agent(model="anthropic/claude-haiku-4-5-20251001")
    body = {"model": agent.id, "messages": [user("Well?")], "stream": True}

    shown = (await product.http.post("/v1/chat/completions", json=body)).text

    assert shown.index(": keep-alive\n") < shown.index("Yes.")
    assert "Hm" not in shown


async def test_a_server_that_ends_says_where_the_run_goes_on(product: Product) -> None:
    """An end without a word looks to OpenAI's SDK like the end of the answer."""
    resume = asyncio.Event()
    product.models.play(*[Turn(text="one two three", silent_after=1, resume=resume)] * 2)
    streaming, waiting = await product.agent(), await product.agent()
    async with openai_client(product.base_url) as openai:
        stream: Any = await openai.chat.completions.create(model=streaming.id, messages=[user("Go")], stream=True)
        first = await anext(aiter(stream))
        asked = asyncio.ensure_future(whole(openai, waiting.id, user("Go")))
        await wait_until(lambda: len(product.models.requests) == 2, description="the model to be asked twice")

        product.services.streaming.ending.set()

        with pytest.raises(APIError) as cut:
            _ = [chunk async for chunk in stream]
        with pytest.raises(APIStatusError) as refused:
            await asked
    resume.set()
    assert cut.value.code == "server_ending"
    assert f"GET /v1/runs/{first.id}" in cut.value.message
    assert (refused.value.status_code, refused.value.code) == (503, "server_ending")
    [run] = await runs_of(product, waiting.id)
    assert f"GET /v1/runs/{run['id']}" in str(refused.value)
    assert (await product.ended(first.id))["status"] == (await product.ended(run["id"]))["status"] == "completed"


@pytest.mark.parametrize("address", ["/v1/chat/completions", "/openai/v1"])
async def test_an_address_that_has_the_path_already_or_serves_responses_works(product: Product, address: str) -> None:
    """LiveKit's `with_letta` asks for an address that ends in the path, and OpenAI's SDK adds it once more. A client
    with one address for chats and responses was refused: there was no such path."""
    agent = await product.agent(model="builtin/echo")
    async with openai_client(product.base_url) as openai:
        openai.base_url = f"{product.base_url}{address}"
        assert text_of(await streamed(openai, agent.id, user("Hi"))) == "You said: Hi"


async def test_every_frame_is_json_or_the_end(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    body = {"model": agent.id, "messages": [user("one two\n\nthree\r\n\u2028data: x")], "stream": True}

    answer = await product.http.post("/v1/chat/completions", json=body)

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *frames, end, rest = answer.text.replace(": keep-alive\n", "").split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    pieces = [json.loads(frame.removeprefix("data: "))["choices"][0]["delta"].get("content", "") for frame in frames]
    assert "".join(pieces) == "You said: one two\n\nthree\r\n\u2028data: x"
