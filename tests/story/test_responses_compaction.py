"""Compactions that a client of responses asks for."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from openai import APIStatusError, AsyncOpenAI, BadRequestError

from tests.kit.model_server import Call, Turn
from tests.kit.model_server.turn import Failure
from tests.kit.model_server.window import CountingModel
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
)

pytestmark = pytest.mark.shared_product

TRIGGER = {"type": "compaction_trigger"}


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


def told(product: Product) -> str:
    """What the model was told last."""
    return str(product.models.requests[-1].body["messages"])


async def test_a_trigger_puts_a_summary_in_the_place_of_what_was_said(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text="Hello, Ada."), Turn(text="Ada said hello."), Turn(text="You are Ada."))
    first = await created(openai, input="I am Ada.")
    compacted = await created(openai, input=[TRIGGER], previous_response_id=first.id)
    assert "I am Ada." in told(product)
    assert (compacted.status, [item.type for item in compacted.output]) == ("completed", ["compaction"])
    assert compacted.usage is not None
    assert compacted.usage.output_tokens > 0

    then = await created(openai, input="Who am I?", previous_response_id=compacted.id)
    assert then.output_text == "You are Ada."
    assert "Ada said hello." in told(product)
    assert "Hello, Ada." not in told(product)


async def test_what_comes_with_the_trigger_is_in_the_summary(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text="Ada likes tea."), Turn(text="Tea."))
    compacted = await created(openai, input=[{"role": "user", "content": "I am Ada and like tea."}, TRIGGER])
    assert "I am Ada and like tea." in told(product)
    await created(openai, input="What do I like?", previous_response_id=compacted.id)
    assert "Ada likes tea." in told(product)
    assert "I am Ada and like tea." not in told(product)
    items = [item async for item in openai.responses.input_items.list(compacted.id)]
    assert [item.to_dict()["type"] for item in items] == ["message"]


@pytest.mark.parametrize("store", [True, False])
async def test_a_client_that_keeps_its_own_story_sends_the_summary_back(
    product: Product, openai: AsyncOpenAI, store: bool
) -> None:
    product.models.play(Turn(text="Ada said hello. — Ünïcode"), Turn(text="You are Ada."))
    story: list[Any] = [
        {"role": "user", "content": "I am Ada."},
        {"role": "assistant", "content": "Hello, Ada."},
        TRIGGER,
    ]
    [item] = (await created(openai, input=story, store=store)).output
    assert item.type == "compaction"
    again = [item.to_dict(), {"role": "user", "content": "Who am I?"}]
    answer = await created(openai, input=again, store=store)
    assert answer.output_text == "You are Ada."
    assert "Ünïcode" in told(product)
    assert "Hello, Ada." not in told(product)
    if store:
        shown = [one.to_dict() async for one in openai.responses.input_items.list(answer.id, order="asc")]
        assert [one["type"] for one in shown] == ["compaction", "message"]
        assert shown[0]["encrypted_content"] == item.encrypted_content


async def test_a_compaction_is_streamed_and_read_again_from_every_event(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say("A summary.")
    events = await streamed(openai, input=[{"role": "user", "content": "Hi."}, TRIGGER], background=True)
    assert_sound(events)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == ["created", "queued", "in_progress", "output_item.added", "output_item.done", "completed"]
    for event in events:
        rest = await resumed(openai, events[0]["response"]["id"], event["sequence_number"])
        assert rest == events[event["sequence_number"] + 1 :]


async def test_a_conversation_is_compacted_in_its_place(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text="Hello."), Turn(text="They greeted each other."), Turn(text="Yes."))
    begun = await openai.conversations.create()
    await created(openai, input="Hi there.", conversation=begun.id)
    compacted = await created(openai, input=[TRIGGER], conversation=begun.id)
    assert compacted.conversation is not None
    kept = [item.to_dict() async for item in openai.conversations.items.list(begun.id)]
    assert kept == [compacted.output[0].to_dict()]
    then = await created(openai, input="Still there?", previous_response_id=compacted.id)
    assert then.conversation is not None
    assert then.conversation.id == begun.id, "nobody else has gone on, so it stays in the conversation"
    assert "Hi there." not in told(product)


async def test_a_response_from_before_a_compaction_goes_on_from_the_summary(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.play(Turn(text="Hello."), Turn(text="A greeting."), Turn(text="Yes."))
    first = await created(openai, input="Hi there.")
    await created(openai, input=[TRIGGER], previous_response_id=first.id)
    await created(openai, input="Still there?", previous_response_id=first.id)
    assert "A greeting." in told(product)


@pytest.mark.parametrize(
    ("items", "because"),
    [
        ([TRIGGER, {"role": "user", "content": "Hi."}], "must be the last item"),
        ([TRIGGER], "input is missing"),
        ([{"type": "compaction", "encrypted_content": "gAAAAB"}], "another server"),
        ([{"type": "compaction", "encrypted_content": "holdfast-summary-1.%"}], "another server"),
        ([{"type": "compaction"}], "encrypted_content is missing"),
    ],
)
async def test_a_compaction_that_makes_no_sense_is_refused(openai: AsyncOpenAI, items: list[Any], because: str) -> None:
    with pytest.raises(BadRequestError, match=because):
        await created(openai, input=items)


async def test_open_calls_are_answered_before_a_compaction(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("square", {"n": 3})]))
    first = await created(openai, input="Square 3.", tools=[SQUARE])
    [call] = calls_of(first)
    with pytest.raises(BadRequestError, match=call.call_id):
        await created(openai, input=[TRIGGER], previous_response_id=first.id)
    with pytest.raises(BadRequestError, match="answers to calls"):
        await created(openai, input=[output_of(call.call_id, "9"), TRIGGER], previous_response_id=first.id)
    with pytest.raises(BadRequestError, match="only a response compacts"):
        begun = await openai.conversations.create()
        items: Any = [{"role": "user", "content": "Hi."}, TRIGGER]
        await openai.conversations.items.create(begun.id, items=items)
    with pytest.raises(BadRequestError, match="injected"):
        await created(
            openai,
            input=[{"role": "user", "content": "Hi."}, TRIGGER],
            extra_headers={"X-Holdfast-If-Busy": "inject"},
        )


async def test_a_threshold_of_the_request_compacts_before_the_window_is_full(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.answer_with(CountingModel(lambda _: Turn(text="It was. " * 50)))
    manage = [{"type": "compaction", "compact_threshold": 1000}]
    first = await created(openai, input="long ago " + "and so on " * 700, context_management=manage)
    assert [item.type for item in first.output] == ["message"]
    assert "are left out" not in told(product), "a text that fits into the window is whole"

    events = await streamed(
        openai, input="And now?", previous_response_id=first.id, context_management=manage, background=True
    )
    assert_sound(events)
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["compaction", "message"]
    assert "long ago" not in told(product)
    assert "Summary: they have talked." in told(product)
    assert "And now?" in told(product)
    assert await resumed(openai, response["id"], 4) == events[5:]

    usual = await created(openai, input="Hm? " * 1000, previous_response_id=response["id"])
    assert [item.type for item in usual.output] == ["message"], "the next response has a window of its own"


async def test_a_threshold_that_makes_no_sense_is_refused(openai: AsyncOpenAI) -> None:
    for wrong in (
        [{"type": "compaction", "compact_threshold": 10}],
        [{"type": "truncation"}],
        [{"type": "compaction"}, {"type": "compaction"}],
    ):
        with pytest.raises(BadRequestError, match="context_management"):
            await created(openai, input="Hi.", context_management=wrong)


async def test_a_client_compacts_what_it_has_and_goes_on_with_that(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text="Ada said hello."), Turn(text="You are Ada."))
    story: Any = [{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hello, Ada."}]
    model: Any = PLAIN
    compacted = await openai.responses.compact(model=model, input=story)
    assert (compacted.object, [item.type for item in compacted.output]) == (
        "response.compaction",
        ["message", "compaction"],
    )
    assert compacted.usage.output_tokens > 0
    again = [*(item.to_dict(warnings=False) for item in compacted.output), {"role": "user", "content": "Who am I?"}]
    assert (await created(openai, input=again)).output_text == "You are Ada."
    said = told(product)
    assert ("I am Ada." in said, "Ada said hello." in said, "Hello, Ada." in said) == (True, True, False)


async def test_a_response_that_is_compacted_for_its_client_stays_as_it_is(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.play(Turn(text="Hello."), Turn(text="A greeting."), Turn(text="Yes."))
    first = await created(openai, input="Hi there.")
    model: Any = None
    compacted = await openai.responses.compact(model=model, previous_response_id=first.id)
    # The SDK's type of an output has no messages of users, though OpenAI puts them there.
    shown: list[Any] = [item.to_dict(warnings=False) for item in compacted.output]
    assert [item["type"] for item in shown] == ["message", "compaction"]
    assert shown[0]["content"][0]["text"] == "Hi there."
    await created(openai, input="Still there?", previous_response_id=first.id)
    assert "Hi there." in told(product)
    assert "A greeting." not in told(product)


async def test_a_compaction_that_fails_is_an_error(product: Product, openai: AsyncOpenAI) -> None:
    model: Any = None
    with pytest.raises(BadRequestError, match="model is required"):
        await openai.responses.compact(model=model, input="Hi.")
    with pytest.raises(BadRequestError, match="input is missing"):
        await openai.responses.compact(model="gpt-5-mini")
    with pytest.raises(BadRequestError, match="not found"):
        await openai.responses.compact(model="gpt-5-mini", previous_response_id="resp_" + "0" * 32)
    product.models.play(Turn(failure=Failure("auth")))
    with pytest.raises(APIStatusError):
        await openai.responses.compact(model="gpt-5-mini", input="Hi.")


@pytest.mark.parametrize("prefix", ["/openai/v1", "/v1"])
async def test_a_field_that_a_compaction_does_not_take_was_an_error_of_the_server(
    product: Product, prefix: str
) -> None:
    body = {"model": PLAIN, "input": "Hello", "service_tier": ""}
    refused = await product.http.post(f"{prefix}/responses/compact", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == "service_tier"
    assert "leave it out" in refused.json()["error"]["message"]
