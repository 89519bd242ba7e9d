"""OpenAI's Agents SDK, with agents of its own: its loop asks the product for each turn of the model."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.clients import ClientProgram, client_program
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.responses_client import PLAIN

pytestmark = pytest.mark.shared_product

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
RESULTS = ["rain in Oslo", "rain in Bergen", "rain in Rome"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def program() -> AsyncIterator[ClientProgram]:
    async with client_program("openai-agents") as running:
        yield running


@pytest.fixture
def agents(program: ClientProgram, product: Product) -> ClientProgram:
    """The SDK, calling the product."""
    program.calls(product)
    return program


def sent(product: Product) -> list[dict[str, Any]]:
    """The messages that the model was sent last."""
    return product.models.requests[-1].body["messages"]


@STREAMED
@pytest.mark.parametrize("how", ["whole story", "previous_response_id", "conversation", "session"])
async def test_an_agent_calls_functions_over_turns_and_is_asked_again(
    product: Product, agents: ClientProgram, how: str, stream: bool
) -> None:
    product.models.play(
        Turn(text="Let me see.", calls=[Call("weather", {"city": "Oslo"}), Call("weather", {"city": "Bergen"})]),
        Turn(calls=[Call("weather", {"city": "Rome"})]),
        Turn(text="It rains."),
        Turn(text="As I said."),
    )
    told = await agents.told("loop", model=PLAIN, how=how, stream=stream)

    assert told["outputs"] == ["It rains.", "As I said."]
    assert [one["content"] for one in sent(product) if one["role"] == "tool"] == RESULTS, "each result is told once"
    assert [one["content"] for one in sent(product) if one["role"] == "user"] == ["How is the weather?", "Again?"]
    if stream:
        assert told["names"].count("tool_called") == told["names"].count("tool_output") == 3


async def test_a_session_lists_takes_back_and_forgets_its_items(product: Product, agents: ClientProgram) -> None:
    product.models.play(Turn(calls=[Call("weather", {"city": "Oslo"})]), Turn(text="It rains."))
    told = await agents.told("session", model=PLAIN)
    kinds = ["user", "function_call", "function_call_output", "assistant"]
    assert told == {"kinds": kinds, "newest": ["assistant"], "taken": "assistant", "left": kinds[:-1], "then": []}


@STREAMED
async def test_a_final_output_has_the_type_that_was_asked_for(
    product: Product, agents: ClientProgram, stream: bool
) -> None:
    product.models.say('{"rains": true}')
    assert (await agents.told("shaped", model=PLAIN, stream=stream))["rains"]
    assert product.models.requests[-1].body["response_format"]["json_schema"]["strict"]


@STREAMED
@pytest.mark.parametrize("how", ["whole story", "previous_response_id"])
async def test_an_agent_hands_over_to_another_one(
    product: Product, agents: ClientProgram, how: str, stream: bool
) -> None:
    product.models.play(
        Turn(calls=[Call("transfer_to_forecaster", {})]),
        Turn(calls=[Call("weather", {"city": "Oslo"})]),
        Turn(text="It rains."),
    )
    told = await agents.told("handed_over", model=PLAIN, how=how, stream=stream)

    assert (told["output"], told["last"]) == ("It rains.", "Forecaster")
    system = [one["content"] for one in sent(product) if one["role"] == "system"]
    assert system == ["Be brief."], "the first agent had no instructions, and the second one's are its own"
    assert [one["function"]["name"] for one in product.models.requests[-1].body["tools"]] == ["weather"]


@STREAMED
@pytest.mark.parametrize("how", ["whole story", "previous_response_id", "conversation", "session"])
async def test_a_person_says_yes_in_the_middle_of_the_loop(
    product: Product, agents: ClientProgram, how: str, stream: bool
) -> None:
    product.models.play(
        Turn(calls=[Call("weather", {"city": "Oslo"}), Call("launch", {"target": "moon"})]), Turn(text="Up it goes.")
    )
    told = await agents.told("interrupted", model=PLAIN, how=how, stream=stream)
    assert told == {"asked": "launch", "output": "Up it goes."}
    results = [one["content"] for one in sent(product) if one["role"] == "tool"]
    assert results == ["rain in Oslo", "launched to the moon"]


async def test_a_session_was_refused_a_turn_of_more_items_than_one_request_takes(
    product: Product, agents: ClientProgram
) -> None:
    """Calls are in one request, and outputs of some of them in the next."""
    cities = [f"City {n}" for n in range(15)]
    product.models.play(
        Turn(calls=[Call("weather", {"city": city}) for city in cities]),
        Turn(text="It rains."),
        Turn(text="As I said."),
    )
    told = await agents.told("loop", model=PLAIN, how="session", stream=False)
    assert told["outputs"] == ["It rains.", "As I said."]
    assert [one["content"] for one in sent(product) if one["role"] == "tool"] == [f"rain in {city}" for city in cities]
