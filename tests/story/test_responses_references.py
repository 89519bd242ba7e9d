"""Items that a client names by their ids instead of sending them."""

from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.responses_client import SQUARE, calls_of, created, output_of, responses_client

LAUNCH = """def launch(target: str) -> str:
    'Launches at a target.'
    return "to the " + target
"""

pytestmark = pytest.mark.shared_product


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


def named(item: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": item.id}


def told(product: Product) -> list[Any]:
    """What was said in the model's last request."""
    return [one["content"] for one in product.models.requests[-1].body["messages"]]


async def test_an_answer_is_named_by_its_id(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(reasoning="Hm.", text="Two."), Turn(text="Three."), Turn(text="Four."))
    first = await created(openai, input="One.")
    references = [named(item) for item in first.output]
    again = [{"role": "user", "content": "One."}, *references, {"role": "user", "content": "And then?"}]
    second = await created(openai, input=again)
    assert told(product) == ["One.", "Two.", "And then?"]
    [asked] = [item async for item in openai.responses.input_items.list(first.id)]
    bare = [{"id": asked.id}, *references, {"role": "user", "content": "Next."}]
    await created(openai, input=bare)
    assert told(product) == ["One.", "Two.", "Next."]
    items: list[Any] = [named(item) for item in second.output]
    begun = await openai.conversations.create(items=items)
    kept: list[Any] = [item.to_dict() async for item in openai.conversations.items.list(begun.id)]
    assert [item["content"][0]["text"] for item in kept] == ["Three."]


async def test_a_call_is_named_by_its_id_beside_its_output(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("square", {"n": 3}), Call("square", {"n": 4})]), Turn(text="9 and 16."))
    asked = {"role": "user", "content": "Square 3 and 4."}
    first = await created(openai, input=[asked], tools=[SQUARE])
    calls = calls_of(first)
    outputs = [output_of(call.call_id, str(result)) for call, result in zip(calls, (9, 16), strict=True)]
    answer = await created(openai, input=[asked, *map(named, first.output), *outputs], tools=[SQUARE])
    assert answer.output_text == "9 and 16."
    assert told(product)[-2:] == ["9", "16"]


async def test_an_output_that_a_list_shows_was_not_found(product: Product, openai: AsyncOpenAI) -> None:
    begun = await openai.conversations.create()
    product.models.play(Turn(calls=[Call("square", {"n": 3})]), Turn(text="9."), Turn(text="Again 9."))
    first = await created(openai, input="Square 3.", conversation=begun.id, tools=[SQUARE])
    [call] = calls_of(first)
    await created(openai, input=[output_of(call.call_id, "9")], conversation=begun.id, tools=[SQUARE])
    listed = [item async for item in openai.conversations.items.list(begun.id, order="asc")]
    assert [item.type for item in listed] == ["message", "function_call", "function_call_output", "message"]
    [sent] = [item async for item in openai.responses.input_items.list(first.id)]
    assert sent.id == listed[0].id
    again = [*map(named, listed), {"role": "user", "content": "Again."}]
    assert (await created(openai, input=again)).output_text == "Again 9."
    assert told(product) == ["Square 3.", None, "9", "9.", "Again."]


async def test_a_client_that_sends_all_of_its_steps_into_a_conversation_was_refused_at_the_third(
    product: Product, openai: AsyncOpenAI
) -> None:
    begun = await openai.conversations.create()
    calls = [Turn(calls=[Call("square", {"n": n})]) for n in (3, 4)]
    product.models.play(Turn(text="Hello."), *calls, Turn(text="9 and 16."), Turn(text="Again."))
    await created(openai, input="Hi", conversation=begun.id)
    asked: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "input_text", "text": "Square 3, then 4."}]}]
    sent = asked
    for result in ("9", "16"):
        [call] = calls_of(await created(openai, input=sent, conversation=begun.id, tools=[SQUARE]))
        sent = [*sent, output_of(call.call_id, result)]
    answer = await created(openai, input=sent, conversation=begun.id, tools=[SQUARE])
    assert answer.output_text == "9 and 16."
    assert told(product) == ["Hi", "Hello.", "Square 3, then 4.", None, "9", None, "16"]
    await created(openai, input=asked, conversation=begun.id, tools=[SQUARE])
    assert told(product)[-1] == "Square 3, then 4.", "a message that is said again in another turn is news"
    with pytest.raises(BadRequestError, match="No tool call found"):
        await created(openai, input=sent, conversation=begun.id, tools=[SQUARE])


async def test_a_call_of_the_agents_tool_was_not_found_beside_its_answer(product: Product, openai: AsyncOpenAI) -> None:
    agent_id = (await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])).id
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Up."), Turn(text="As I said."))
    asked = await created(openai, model=agent_id, input="Launch.")
    [request] = asked.output
    verdict: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    flown = await created(openai, model=agent_id, input=[verdict], previous_response_id=asked.id)
    user = {"role": "user", "content": "Launch."}
    then = {"role": "user", "content": "Really?"}
    story = [user, named(request), verdict, *map(named, flown.output), then]
    assert (await created(openai, input=story)).output_text == "As I said."
    assert told(product) == ["Launch.", None, "to the moon", "Up.", "Really?"]


@pytest.mark.parametrize(
    "error",
    [
        {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "The dice are gone."}]},
        {"type": "mcp_tool_execution_error", "content": "The dice are gone."},
        {"type": "http_error", "code": 502, "message": "The dice are gone."},
        {"type": "mcp_protocol_error", "code": -32603, "message": "The dice are gone."},
        "The dice are gone.",
    ],
)
async def test_an_error_of_the_agents_tool_came_back_to_the_model_as_the_dict_around_it(
    product: Product, openai: AsyncOpenAI, error: Any
) -> None:
    agent_id = (await product.agent()).id
    product.models.say("As I said.")
    failed = {"type": "mcp_call", "server_label": "holdfast", "name": "roll_dice", "arguments": "{}", "error": error}
    story = [{"role": "user", "content": "Roll."}, failed, {"role": "user", "content": "Well?"}]
    await created(openai, model=agent_id, input=story)
    assert "The dice are gone." in told(product)


async def test_a_decision_that_was_repeated_with_its_answer_was_asked_for_once_more(
    product: Product, openai: AsyncOpenAI
) -> None:
    agent_id = (await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])).id
    product.models.play(
        *(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Up."), Turn(text="As I said.")),
        *(Turn(calls=[Call("launch", {"target": "sun"})]), Turn(text="No."), Turn(text="As you said.")),
    )
    for approve, last in ((True, "As I said."), (False, "As you said.")):
        asked = await created(openai, model=agent_id, input="Launch.")
        [request] = asked.output
        verdict: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
        done = await created(openai, model=agent_id, input=[verdict], previous_response_id=asked.id)
        repeated = [request.to_dict(), verdict, *(item.to_dict() for item in done.output)]
        said = [{"role": "user", "content": "Launch."}, *repeated, {"role": "user", "content": "Really?"}]
        assert (await created(openai, input=said)).output_text == last
        with pytest.raises(BadRequestError, match="previous_response_id"):
            await created(openai, model=agent_id, input=[request.to_dict(), verdict])


@pytest.mark.parametrize("repeats", ["item", "reference"])
async def test_clients_that_keep_the_story_could_not_decide_an_approval(
    product: Product, openai: AsyncOpenAI, repeats: str
) -> None:
    """The AI SDK and agents' frameworks send the question again, and do not name its response."""
    agent_id = (await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])).id
    product.models.play(
        *(Turn(text="Hello."), Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Up.")),
        Turn(text="As I said."),
    )
    hello = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    await created(openai, model=agent_id, input="Hi.")
    story: list[Any] = [*hello, {"role": "user", "content": "Launch."}]
    asked = await created(openai, model=agent_id, input=story)
    [request] = asked.output
    verdict: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    question = request.to_dict() if repeats == "item" else named(request)
    whole = [*story, question, verdict]
    other = (await product.agent()).id
    for fields in ({"model": other, "input": whole}, {"input": whole}, {"model": agent_id, "input": [*story, verdict]}):
        with pytest.raises(BadRequestError, match="No approval request found"):
            await created(openai, **fields)

    key = {"Idempotency-Key": f"decided-{uuid4()}"}
    flown = await created(openai, model=agent_id, input=whole, extra_headers=key)
    assert (flown.output_text, flown.previous_response_id) == ("Up.", asked.id)
    assert (await created(openai, model=agent_id, input=whole, extra_headers=key)).id == flown.id
    with pytest.raises(BadRequestError, match="No approval request found"):
        await created(openai, model=agent_id, input=whole)
    then = [*whole, *(item.to_dict() for item in flown.output), {"role": "user", "content": "Really?"}]
    assert (await created(openai, model=agent_id, input=then)).output_text == "As I said."
    assert told(product)[1:5] == ["Hi.", "Hello.", "Launch.", None]
    assert [len(request.body["messages"]) for request in product.models.requests] == [2, 4, 6, 8]


@pytest.mark.parametrize("repeats", ["item", "reference"])
async def test_a_decision_beside_the_output_of_a_function_lacked_the_output(
    product: Product, openai: AsyncOpenAI, repeats: str
) -> None:
    agent_id = (await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])).id
    calls = [Call("launch", {"target": "moon"}), Call("square", {"n": 3})]
    product.models.play(Turn(text="Well.", calls=calls), Turn(text="Up."))
    said = {"role": "user", "content": "Launch."}
    asked = await created(openai, model=agent_id, input=[said], tools=[SQUARE])
    [request] = [item for item in asked.output if item.type == "mcp_approval_request"]
    verdict = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    repeated = [item.to_dict() if repeats == "item" else named(item) for item in asked.output]
    whole = [said, *repeated, verdict, output_of(calls_of(asked)[0].call_id, "9")]
    flown = await created(openai, model=agent_id, input=whole, tools=[SQUARE])
    assert (flown.output_text, flown.previous_response_id) == ("Up.", asked.id)
    assert "9" in told(product)
    assert any("to the moon" in str(content) for content in told(product))


async def test_a_message_behind_a_decision_is_new(product: Product, openai: AsyncOpenAI) -> None:
    agent_id = (await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])).id
    product.models.play(Turn(text="Well.", calls=[Call("launch", {"target": "moon"})]), Turn(text="No."))
    said = {"role": "user", "content": "Launch."}
    asked = await created(openai, model=agent_id, input=[said])
    verdict: Any = {"type": "mcp_approval_response", "approval_request_id": asked.output[-1].id, "approve": False}
    whole = [said, *map(named, asked.output), verdict, {"role": "user", "content": "Wait."}]
    assert (await created(openai, model=agent_id, input=whole)).output_text == "No."
    assert [text for text in told(product) if text in ("Launch.", "Well.", "Wait.")] == ["Launch.", "Well.", "Wait."]


async def test_frameworks_that_look_tools_up_by_their_server_found_none(product: Product, openai: AsyncOpenAI) -> None:
    """They end a run with a call of a server that is not among the tools of the request."""
    agent_id = (await product.agent(tools=[await product.tool(LAUNCH)])).id
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Up."))
    server: Any = {
        "type": "mcp",
        "server_label": "holdfast",
        "server_url": "http://127.0.0.1/mcp",
        "authorization": "x",
    }
    flown = await created(openai, model=agent_id, input="Launch.", tools=[server, SQUARE])
    assert [tool.type for tool in flown.tools] == ["function"], "the server's is not shown again, nor its secret"
    assert [item.type for item in flown.output] == ["mcp_call", "message"]
    with pytest.raises(BadRequestError, match="'mcp' is not there"):
        await created(openai, model=agent_id, input="Launch.", tools=[{**server, "server_label": "other"}])

    decided: Any = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    call: Any = {name: value for name, value in flown.output[0].to_dict().items() if name != "id"}
    conversation = await openai.conversations.create()
    batches: list[Any] = [[decided], [decided, call, {"role": "assistant", "content": "Up."}]]
    for kept in batches:
        await openai.conversations.items.create(conversation.id, items=kept)
    product.models.play(Turn(text="So it is."))
    assert (await created(openai, input="And?", conversation=conversation.id)).output_text == "So it is."
    assert told(product)[-4:] == [None, "to the moon", "Up.", "And?"]


@pytest.mark.parametrize("item_id", ["msg_a", f"msg_{uuid4().hex}", "fc_" + "0" * 48, "rs_", f"fco_{uuid4().hex}_0"])
async def test_an_item_that_nobody_knows_is_not_found(openai: AsyncOpenAI, item_id: str) -> None:
    with pytest.raises(NotFoundError, match=f"Item with id '{item_id}' not found"):
        await created(openai, input=[{"type": "item_reference", "id": item_id}])


async def test_items_of_what_is_deleted_are_not_found(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(text="Two."))
    first = await created(openai, input="One.", store=False)
    with pytest.raises(NotFoundError, match="not found"):
        await created(openai, input=[named(first.output[0]), {"role": "user", "content": "Next."}])


async def test_images_in_an_output_were_lost_in_lists_and_references(product: Product, openai: AsyncOpenAI) -> None:
    """A client that keeps its story in a conversation reads it there, and sends it all."""
    model, pixel = "anthropic/claude-haiku-4-5-20251001", "iVBORw0KGgo="
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{pixel}"}
    product.models.play(Turn(calls=[Call("square", {"n": 3})]), Turn(text="A square."))
    conversation = await openai.conversations.create()
    first = await created(openai, model=model, input="Draw.", tools=[SQUARE], conversation=conversation.id)
    output = {**output_of(calls_of(first)[0].call_id, ""), "output": [{"type": "input_text", "text": "So:"}, image]}
    second = await created(openai, model=model, input=[output], tools=[SQUARE], conversation=conversation.id)

    [listed] = [item.to_dict() async for item in openai.responses.input_items.list(second.id)]
    items = [item.to_dict() async for item in openai.conversations.items.list(conversation.id, order="asc")]

    assert items[2] == listed
    shown: Any = listed["output"]
    assert [(part["type"], part.get("text") or part.get("image_url")) for part in shown] == [
        ("input_text", "So:"),
        ("input_image", image["image_url"]),
    ]
    reference = {"type": "item_reference", "id": listed["id"]}
    for story in (items, [*items[:2], reference]):
        product.models.say("As I said.")
        await created(openai, model=model, input=[*story, {"role": "user", "content": "What was it?"}], tools=[SQUARE])
        assert pixel in str(product.models.requests[-1].body["messages"])
