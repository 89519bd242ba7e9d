"""The public SDKs of the Responses API, unmodified: for TypeScript, and for Python in each version that is in use.

Every client tells the same stories, each with its own helpers, which check what they are sent.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.clients import ClientProgram, client_program
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.responses_client import PLAIN
from tests.kit.tools import LAUNCH

pytestmark = pytest.mark.shared_product

SDKS = (
    "openai for Node.js",
    "openai 3, sync",
    pytest.param("openai 3, async", marks=pytest.mark.exhaustive),  # the other tests of responses run with it
    pytest.param("openai 2, sync", marks=pytest.mark.exhaustive),
    "openai 2, async",
    "openai 1, sync",
    pytest.param("openai 1, async", marks=pytest.mark.exhaustive),
)
WORDS = "Grüße aus Köln, 你好 and 🎉 for you."


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=SDKS)
async def program(request: pytest.FixtureRequest) -> AsyncIterator[ClientProgram]:
    async with client_program(request.param) as running:
        yield running


@pytest.fixture
def client(program: ClientProgram, product: Product) -> ClientProgram:
    """The client, calling the product."""
    program.calls(product)
    return program


async def test_a_client_reads_a_whole_answer(product: Product, client: ClientProgram) -> None:
    product.models.say(WORDS)
    told = await client.told("plain", model=PLAIN, input="Hi", instructions="Be brief.", metadata={"a": "b"})
    assert (told["status"], told["text"], told["same"]) == ("completed", WORDS, True)


async def test_a_helper_puts_a_streamed_answer_together(product: Product, client: ClientProgram) -> None:
    product.models.play(Turn(text=WORDS, reasoning="Let me think."))
    told = await client.told("followed", model=PLAIN, input="Hi")
    assert (told["status"], told["text"], told["same"]) == ("completed", WORDS, True)
    assert told["numbers"] == list(range(len(told["numbers"])))


async def test_a_stream_that_was_dropped_is_resumed_behind_its_last_event(
    product: Product, client: ClientProgram
) -> None:
    resume = asyncio.Event()
    product.models.play(Turn(text=WORDS, silent_after=2, resume=resume))
    seen = await client.told("begun", model=PLAIN, input="Hi")
    resume.set()

    rest = await client.told("resumed", response_id=seen["id"], after=seen["numbers"][-1])

    assert (rest["last"], rest["status"]) == ("response.completed", "completed")
    assert seen["text"] + rest["text"] == WORDS
    numbers = seen["numbers"] + rest["numbers"]
    assert numbers == list(range(len(numbers)))
    whole = await client.told("followed", response_id=seen["id"])
    assert (whole["text"], whole["numbers"]) == (WORDS, numbers)
    tail = await client.told("followed", response_id=seen["id"], starting_after=seen["numbers"][-1])
    assert (tail["text"], tail["numbers"]) == (WORDS, rest["numbers"])


async def test_a_response_is_cancelled_while_its_stream_is_read(product: Product, client: ClientProgram) -> None:
    product.models.play(Turn(text=WORDS, silent_after=2))
    told = await client.told("cancelled", model=PLAIN, input="Hi")
    assert told == {"statuses": ["cancelled"] * 2, "last": "response.failed", "status": "cancelled"}


async def test_functions_of_a_client_are_called_over_three_turns(product: Product, client: ClientProgram) -> None:
    product.models.play(
        Turn(text="Let me see.", calls=[Call("weather", {"city": "Oslo"}), Call("weather", {"city": "Bergen"})]),
        Turn(calls=[Call("weather", {"city": "Rome"})]),
        Turn(text="It rains."),
    )
    told = await client.told("tools", model=PLAIN, input="How is the weather?")
    assert told["text"] == "It rains."
    assert told["turns"] == [['{"city": "Oslo"}', '{"city": "Bergen"}'], ['{"city": "Rome"}'], []]
    results = [one["content"] for one in product.models.requests[-1].body["messages"] if one["role"] == "tool"]
    assert results == ["rain in Oslo", "rain in Bergen", "rain in Rome"]


async def test_an_answer_is_parsed_into_the_shape_that_was_asked_for(product: Product, client: ClientProgram) -> None:
    product.models.say('{"n": 3}')
    assert (await client.told("shaped", model=PLAIN, input="Count."))["parsed"] == 3
    asked = product.models.requests[-1].body["response_format"]
    assert (asked["type"], asked["json_schema"]["name"]) == ("json_schema", "Count")


async def test_a_call_is_approved_by_a_client(product: Product, client: ClientProgram) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Up it goes."))
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    told = await client.told("approved", model=agent.id, input="Launch.")
    assert told == {"asked": "mcp_approval_request", "output": ["mcp_call", "message"], "text": "Up it goes."}


async def test_conversations_items_and_models_are_listed(product: Product, client: ClientProgram) -> None:
    product.models.say("Hello.")
    told = await client.told("kept", model=PLAIN, input="Hi")
    assert (told["items"], told["input"]) == (["user", "assistant"], ["user"])
    assert "builtin/echo" in told["models"]


async def test_refusals_have_the_class_and_the_code_that_programs_look_at(
    product: Product, client: ClientProgram
) -> None:
    refused: dict[str, dict[str, Any]] = await client.told("refused", model=PLAIN, input="Hi")
    assert {act: tuple(error.values()) for act, error in refused.items()} == {
        "no response": ("NotFoundError", 404, None, None),
        "no previous response": ("BadRequestError", 400, "previous_response_not_found", "previous_response_id"),
        "no such tool": ("BadRequestError", 400, "unsupported_parameter", "tools"),
        "no such agent": ("BadRequestError", 400, "model_not_found", "model"),
        "no such name": ("BadRequestError", 400, "model_not_found", "model"),
        "no such model": ("NotFoundError", 404, "model_not_found", "model"),
        "no key": ("AuthenticationError", 401, "invalid_api_key", "header.Authorization"),
    }
    assert product.models.requests == [], "nothing that is refused reaches a model"
