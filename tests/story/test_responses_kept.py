"""How long responses are kept, and where: conversations, what is not to be stored, and what retention has deleted."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from shared.domain.ids import ThreadId
from shared.sql.history.messages import MessageStore
from shared.sql.runs.retention import RetentionStore
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.responses_client import (
    PLAIN,
    SQUARE,
    calls_of,
    created,
    output_of,
    responses_client,
    resumed,
    streamed,
)
from tests.kit.tools import ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


def told(product: Product) -> list[Any]:
    """What was said in the model's last request."""
    return [one["content"] for one in product.models.requests[-1].body["messages"]]


async def test_a_conversation_keeps_its_items(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text="Two."), Turn(text="Three."))
    begun = await openai.conversations.create(
        items=[{"type": "message", "role": "user", "content": "One."}], metadata={"of": "me"}
    )
    first = await created(openai, input="And then?", conversation=begun.id)
    assert first.conversation is not None
    assert first.conversation.id == begun.id
    await openai.conversations.items.create(begun.id, items=[{"role": "user", "content": "Aside."}])
    await created(openai, input="Next.", conversation=begun.id)

    assert told(product) == ["One.", "And then?", "Two.", "Aside.", "Next."]
    listed = await openai.conversations.items.list(begun.id, order="asc", limit=4)
    shown = [item.to_dict() for item in listed.data]
    assert [item["role"] for item in shown] == ["user", "user", "assistant", "user"]
    assert shown[2]["id"] == first.output[0].id, "an item has one id"
    assert len([item async for item in openai.conversations.items.list(begun.id, limit=4)]) == 6
    one = await openai.conversations.items.retrieve(str(shown[0]["id"]), conversation_id=begun.id)
    assert one.to_dict() == shown[0]
    await openai.conversations.items.delete(str(shown[3]["id"]), conversation_id=begun.id)
    product.models.say("Good.")
    await created(openai, input="Last.", conversation=begun.id)
    assert "Aside." not in told(product)
    cleared = await openai.conversations.update(begun.id, metadata=None)
    assert cleared.metadata == {}
    changed = await openai.conversations.update(begun.id, metadata={"of": "you"})
    assert (await openai.conversations.retrieve(begun.id)).metadata == changed.metadata == {"of": "you"}
    assert (await openai.conversations.delete(begun.id)).deleted
    with pytest.raises(NotFoundError):
        await openai.conversations.retrieve(begun.id)
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(first.id)


async def test_a_conversation_is_of_the_agent_that_it_names(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say("Hello.")
    agent = await product.agent()
    begun = await openai.conversations.create(metadata={"agent_id": agent.id})
    await created(openai, model=agent.id, input="Hi", conversation=begun.id)
    own = f"conv-{UUID(begun.id.removeprefix('conv_'))}"
    assert (await product.http.get(f"/v1/conversations/{own}")).json()["agent_id"] == agent.id
    other = await openai.conversations.create()
    with pytest.raises(BadRequestError, match="agent_id"):
        await created(openai, model=agent.id, input="Hi", conversation=other.id)


async def test_calls_of_a_conversation_are_answered_before_anything_is_added(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.play(Turn(calls=[Call("square", {"n": 3})]), Turn(text="Nine."))
    begun = await openai.conversations.create()
    first = await created(openai, input="Square 3.", conversation=begun.id, tools=[SQUARE])
    [call] = calls_of(first)
    with pytest.raises(BadRequestError, match=call.call_id):
        await openai.conversations.items.create(begun.id, items=[{"role": "user", "content": "Aside."}])
    with pytest.raises(BadRequestError, match=call.call_id):
        await created(openai, input="And 4?", conversation=begun.id)
    items = (await openai.conversations.items.list(begun.id)).data
    with pytest.raises(BadRequestError, match="calls"):
        await openai.conversations.items.delete(str(items[0].to_dict()["id"]), conversation_id=begun.id)
    answer = await created(openai, input=[output_of(call.call_id, "9")], conversation=begun.id)
    assert answer.output_text == "Nine."


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_response_that_is_not_to_be_stored_is_gone(
    product: Product, openai: AsyncOpenAI, is_streamed: bool
) -> None:
    product.models.play(Turn(text="Kept."), Turn(text="Not kept."), Turn(text="Fresh."))
    kept = await created(openai, input="one")
    asked: dict[str, Any] = {"input": "two", "store": False, "previous_response_id": kept.id}
    if is_streamed:
        response_id = (await streamed(openai, **asked))[0]["response"]["id"]
    else:
        response_id = (await created(openai, **asked)).id

    async def is_gone() -> bool:
        try:
            await openai.responses.retrieve(response_id)
        except NotFoundError:
            return True
        return False

    await wait_until(is_gone, description="the response to be deleted")
    run_id = f"run-{UUID(response_id.removeprefix('resp_'))}"
    store = MessageStore(product.context.database)
    assert await store.context(product.project_id, ThreadId(run_id)) == []
    await created(openai, input="three", previous_response_id=kept.id)
    assert told(product) == ["one", "Kept.", "three"]


async def test_a_response_is_read_when_retention_has_deleted_its_log(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text="Let me.", calls=[Call("roll_dice", {"num_sides": 6})]), Turn(text="A six."))
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    response = await created(openai, model=agent.id, input="Roll.")
    now = product.context.clock.now() + timedelta(days=1)
    while await RetentionStore(product.context.database).prune(now, now):
        pass

    after = await openai.responses.retrieve(response.id)

    assert (after.status, after.output_text) == ("completed", response.output_text)
    assert [item.type for item in after.output] == ["message", "mcp_call", "message"]
    assert after.output[1].to_dict()["output"] == "6"
    events = await resumed(openai, response.id)
    assert events[-1]["response"] == after.to_dict()
    [given] = (await openai.responses.input_items.list(response.id)).data
    assert given.to_dict()["content"] == [{"type": "input_text", "text": "Roll."}]


async def test_models_and_tokens_are_told(product: Product, openai: AsyncOpenAI) -> None:
    listed = [model.id async for model in openai.models.list()]
    assert "builtin/echo" in listed
    for named in (PLAIN, PLAIN.partition("/")[2]):
        assert (await openai.models.retrieve(named)).owned_by == "openai", "a response may name it so"
    with pytest.raises(NotFoundError, match="nobody/knows"):
        await openai.models.retrieve("nobody/knows")
    counted = await openai.responses.input_tokens.count(model=PLAIN, input="word " * 100, instructions="Be brief.")
    assert 100 <= counted.input_tokens <= 200
    assert len(product.models.requests) == 0


async def test_a_busy_conversation_is_locked(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(silent_before_headers=3600.0))
    begun = await openai.conversations.create()
    running = await created(openai, input="Hi", conversation=begun.id, background=True)
    with pytest.raises(BadRequestError) as refused:
        await created(openai, input="Hi again", conversation=begun.id)
    assert (refused.value.code, refused.value.param) == ("conversation_locked", "conversation")
    with pytest.raises(BadRequestError, match="not ended"):
        await created(openai, input="Go on", previous_response_id=running.id)
    await openai.responses.cancel(running.id)


@pytest.mark.parametrize(
    "field",
    [
        {"top_logprobs": 3},
        {"service_tier": "flex"},
        {"include": ["message.output_text.logprobs"]},
        {"input": [{"type": "compaction_trigger"}]},
    ],
)
async def test_a_wish_that_is_not_granted_is_named(openai: AsyncOpenAI, field: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError, match=next(iter(field))):
        await created(openai, **{"input": "Hi", **field})


async def test_what_a_request_says_is_said_again(product: Product, openai: AsyncOpenAI) -> None:
    said: dict[str, Any] = {
        "truncation": "auto", "safety_identifier": "s", "prompt_cache_key": "p", "service_tier": "auto", "user": "u",
        "reasoning": {"effort": "low", "generate_summary": "auto"},
    }  # fmt: skip
    product.models.say("Yes.")
    shown = (await created(openai, model="openai/gpt-5-mini", input="Hi", **said)).to_dict()
    assert {name: shown[name] for name in ("truncation", "safety_identifier", "prompt_cache_key", "user")} == {
        name: said[name] for name in ("truncation", "safety_identifier", "prompt_cache_key", "user")
    }
    assert shown["reasoning"] == {"effort": "low", "summary": "auto"}
