"""What becomes of the fields of a response's request, as `docs/openai.md` says."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from tests.kit.product import Product
from tests.kit.product.responses_client import created, responses_client

pytestmark = pytest.mark.shared_product


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


def sent(product: Product) -> dict[str, Any]:
    """What the model was sent last."""
    return product.models.requests[-1].body


@pytest.mark.parametrize(
    "fields",
    [
        {"truncation": "auto"},
        {"safety_identifier": "user-7", "prompt_cache_key": "k", "user": "ada"},
        {"store": False},
        {"metadata": {"order": "17"}},
        {"service_tier": "default"},
        {"reasoning": {"effort": "low", "summary": "auto"}},
    ],
)
async def test_fields_are_shown_again(product: Product, openai: AsyncOpenAI, fields: dict[str, Any]) -> None:
    product.models.say("Hello.")
    response = await created(openai, model=(await product.agent()).id, input="Hi", background=False, **fields)
    shown = response.to_dict()
    assert {name: shown[name] for name in fields} == fields


async def test_the_older_name_of_a_summary_is_taken(product: Product, openai: AsyncOpenAI) -> None:
    product.models.say("Hello.")
    response = await created(openai, input="Hi", reasoning={"generate_summary": "detailed"})
    assert response.to_dict()["reasoning"] == {"effort": None, "summary": "detailed"}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"background": True, "store": False}, "unsupported_parameter", "background"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools"),
        ({"top_logprobs": 3}, "unsupported_parameter", "top_logprobs"),
        ({"service_tier": "flex"}, "unsupported_parameter", "service_tier"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "mutually_exclusive_parameters", "conversation"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"metadata": 7}, "invalid_type", "metadata"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"metadata": {str(number): "" for number in range(17)}}, "invalid_value", "metadata"),
    ],
)
async def test_a_refused_field_had_a_code_of_letta_and_no_param(
    openai: AsyncOpenAI, fields: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        await created(openai, input="Hi", **fields)
    assert (refused.value.code, refused.value.param) == (code, param)
    body: Any = refused.value.body
    assert "`param`" in body["hint"]


@pytest.mark.parametrize(
    ("fields", "because"),
    [
        ({"top_logprobs": 3}, "probabilities of tokens"),
        ({"include": ["message.output_text.logprobs"]}, "probabilities of tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"service_tier": "priority"}, "tiers are not supported"),
        ({"truncation": "sometimes"}, "truncation"),
    ],
)
async def test_fields_are_refused_with_a_reason(openai: AsyncOpenAI, fields: dict[str, Any], because: str) -> None:
    with pytest.raises(BadRequestError, match=because) as refused:
        await created(openai, input="Hi", **fields)
    assert refused.value.param == next(iter(fields))


async def test_a_conversation_without_an_agent_showed_the_hidden_agent_as_its_model(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.say("One.")
    conversation = await openai.conversations.create()
    create: Any = openai.responses.create

    response = await create(input="Hi", conversation=conversation.id)

    assert response.model.startswith("openai/")
    assert sent(product)["model"] == response.model.partition("/")[2]
