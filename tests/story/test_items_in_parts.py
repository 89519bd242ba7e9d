"""Items of a conversation that come in several requests: calls wait for their outputs, and no model is told of them
before."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from tests.kit.product import Product
from tests.kit.product.responses_client import created, output_of, responses_client

pytestmark = pytest.mark.shared_product


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "square", "arguments": "{}"}


async def added(openai: AsyncOpenAI, conversation_id: str, *items: dict[str, Any]) -> list[dict[str, Any]]:
    create: Any = openai.conversations.items.create
    return [item.to_dict() for item in (await create(conversation_id, items=list(items))).data]


async def listed(openai: AsyncOpenAI, conversation_id: str) -> list[dict[str, Any]]:
    items = openai.conversations.items.list(conversation_id, order="asc")
    return [item.to_dict() async for item in items]


def shown(items: list[dict[str, Any]]) -> list[str]:
    """An item in a word: its call, or who speaks."""
    return [f"{item['type']} {item['call_id']}" if "call_id" in item else item["role"] for item in items]


async def answered(product: Product, openai: AsyncOpenAI, conversation_id: str) -> list[tuple[str, Any]]:
    """What the model is told when the conversation goes on."""
    product.models.say("Done.")
    await created(openai, input="On.", conversation=conversation_id)
    return [(one["role"], one["content"]) for one in product.models.requests[-1].body["messages"]]


async def test_a_call_was_refused_whose_output_comes_with_a_later_request(
    product: Product, openai: AsyncOpenAI
) -> None:
    conversation = await openai.conversations.create()
    first = await added(openai, conversation.id, said("Square."), call("a"), call("b"), output_of("b", "4"))
    assert shown(first) == ["user", "function_call a", "function_call b", "function_call_output b"]
    assert await listed(openai, conversation.id) == first

    second = await added(openai, conversation.id, output_of("a", "1"), said("Good.", "assistant"))

    assert shown(second) == ["function_call_output a", "assistant"]
    whole = await listed(openai, conversation.id)
    assert shown(whole) == [*shown(first)[:3], "function_call_output a", "function_call_output b", "assistant"]
    assert {item["id"] for item in whole} == {item["id"] for item in [*first, *second]}, "an item keeps its id"
    told = await answered(product, openai, conversation.id)
    assert told == [
        ("user", "Square."),
        ("assistant", None),
        ("tool", "1"),
        ("tool", "4"),
        ("assistant", "Good."),
        ("user", "On."),
    ]


async def test_an_output_stands_behind_its_call_whatever_came_between(product: Product, openai: AsyncOpenAI) -> None:
    conversation = await openai.conversations.create(items=[call("a")])  # pyright: ignore[reportArgumentType]
    await added(openai, conversation.id, said("And then?"), call("b"))
    await added(openai, conversation.id, output_of("b", "4"))
    await added(openai, conversation.id, output_of("a", "1"))
    whole = (
        [f"function_call{part}" for part in (" a", "_output a")],
        [f"function_call{part}" for part in (" b", "_output b")],
    )
    assert shown(await listed(openai, conversation.id)) == [*whole[0], "user", *whole[1]]
    told = await answered(product, openai, conversation.id)
    assert [content for role, content in told if role == "tool"] == ["1", "4"]


async def test_a_response_is_refused_while_a_call_of_the_conversation_is_open(
    product: Product, openai: AsyncOpenAI
) -> None:
    conversation = await openai.conversations.create()
    [asked] = await added(openai, conversation.id, call("a"))
    with pytest.raises(BadRequestError, match="No tool output found for function call a"):
        await created(openai, input="On.", conversation=conversation.id)
    await openai.conversations.items.delete(asked["id"], conversation_id=conversation.id)
    assert await answered(product, openai, conversation.id) == [("user", "On.")]


async def test_what_waits_is_deleted_from_its_end(product: Product, openai: AsyncOpenAI) -> None:
    conversation = await openai.conversations.create()
    items = await added(openai, conversation.id, call("a"), call("b"), output_of("a", "1"), said("Wait."))
    delete: Any = openai.conversations.items.delete
    with pytest.raises(BadRequestError, match="before its output is"):
        await delete(items[0]["id"], conversation_id=conversation.id)
    for item in reversed(items[1:]):
        await delete(item["id"], conversation_id=conversation.id)
    assert shown(await listed(openai, conversation.id)) == ["function_call a"]
    await added(openai, conversation.id, output_of("a", "1"))
    told = await answered(product, openai, conversation.id)
    assert [content for role, content in told if role == "tool"] == ["1"]
    assert ("user", "Wait.") not in told


async def test_what_waited_for_a_deleted_call_enters_the_context(product: Product, openai: AsyncOpenAI) -> None:
    conversation = await openai.conversations.create()
    items = await added(openai, conversation.id, call("a"), said("Never mind."))
    await openai.conversations.items.delete(items[0]["id"], conversation_id=conversation.id)
    told = await answered(product, openai, conversation.id)
    assert told == [("user", "Never mind."), ("user", "On.")]


async def test_an_output_of_no_call_is_refused(openai: AsyncOpenAI) -> None:
    conversation = await openai.conversations.create()
    with pytest.raises(BadRequestError, match="No tool call found for function call output with call_id z") as refused:
        await added(openai, conversation.id, output_of("z", "1"))
    assert refused.value.param == "items"


@pytest.mark.exhaustive
async def test_what_waits_is_bounded(openai: AsyncOpenAI) -> None:
    conversation = await openai.conversations.create()
    await added(openai, conversation.id, call("a"))
    with pytest.raises(BadRequestError, match="1000 messages would wait"):
        for _ in range(60):
            await added(openai, conversation.id, *[said("more")] * 20)


async def test_a_list_of_items_never_ended_if_two_answers_numbered_their_calls_alike(openai: AsyncOpenAI) -> None:
    conversation = await openai.conversations.create()
    for output in ("1", "4"):
        await added(openai, conversation.id, said("Square."), call("call_1"), output_of("call_1", output))

    ids: list[str] = []
    after = ""
    while after not in ids[:-1]:
        page = await openai.conversations.items.list(conversation.id, order="asc", limit=1, after=after)
        ids += [str(item.to_dict()["id"]) for item in page.data]
        if not page.has_more:
            break
        after = ids[-1]
    assert len(set(ids)) == len(ids) == 6
