"""A framework's agent loop against the product: pydantic-ai with its model of the Responses API."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.responses_client import PLAIN, responses_client

pytestmark = pytest.mark.shared_product

BY_ID = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
STORIES = pytest.mark.parametrize("how", [None, BY_ID], ids=["whole story", "previous_response_id"])


class Weather(BaseModel):
    """What an answer has to be."""

    rains: bool


@pytest_asyncio.fixture(loop_scope="session")
async def model(product: Product) -> AsyncGenerator[OpenAIResponsesModel]:
    async with responses_client(product.base_url, product.key) as client:
        yield OpenAIResponsesModel(PLAIN, provider=OpenAIProvider(openai_client=client))


def caller(model: OpenAIResponsesModel) -> Agent[None, str]:
    """An agent with a function."""
    agent = Agent(model, instructions="Be brief.")

    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    agent.tool_plain(weather)
    return agent


def two_turns(product: Product) -> None:
    """The model calls twice at once, then once more, then answers."""
    product.models.play(
        Turn(text="Let me see.", calls=[Call("weather", {"city": "Oslo"}), Call("weather", {"city": "Bergen"})]),
        Turn(calls=[Call("weather", {"city": "Rome"})]),
        Turn(text="It rains."),
    )


def told(product: Product) -> list[Any]:
    """What the functions returned, as the model was sent it last."""
    return [one["content"] for one in product.models.requests[-1].body["messages"] if one["role"] == "tool"]


@STORIES
async def test_an_agent_loop_calls_functions_over_turns(
    product: Product, model: OpenAIResponsesModel, how: OpenAIResponsesModelSettings | None
) -> None:
    two_turns(product)
    agent = caller(model)

    result = await agent.run("How is the weather?", model_settings=how)

    assert result.output == "It rains."
    assert told(product) == ["rain in Oslo", "rain in Bergen", "rain in Rome"]
    product.models.say("As I said.")
    again = await agent.run("Again?", message_history=result.all_messages(), model_settings=how)
    assert again.output == "As I said."
    assert told(product) == ["rain in Oslo", "rain in Bergen", "rain in Rome"], "each result is told once"


@STORIES
async def test_an_agent_loop_streams(
    product: Product, model: OpenAIResponsesModel, how: OpenAIResponsesModelSettings | None
) -> None:
    two_turns(product)
    events: list[Any] = []
    async with caller(model).run_stream_events("How is the weather?", model_settings=how) as stream:
        async for event in stream:
            events.append(event)
    assert events[-1].result.output == "It rains."
    assert told(product) == ["rain in Oslo", "rain in Bergen", "rain in Rome"]


async def test_an_answer_has_the_shape_that_is_asked_for(product: Product, model: OpenAIResponsesModel) -> None:
    product.models.say('{"rains": true}')
    result = await Agent(model, output_type=NativeOutput(Weather)).run("Does it rain?")
    assert result.output.rains
    assert product.models.requests[-1].body["response_format"]["json_schema"]["name"] == "Weather"
