"""OpenAI's SDK as a client of the product, and the results that it gets."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2
from openai import APIError, AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.kit.wait_until import HANGS_S


@asynccontextmanager
async def openai_client(
    base_url: str, key: str = "none", *, max_retries: int = 0, **given: Any
) -> AsyncGenerator[AsyncOpenAI]:
    """The SDK, unmodified. `given` are arguments of its HTTP client."""
    # Loading the certificates of the world takes longer than most tests; nothing here speaks TLS.
    async with httpx2.AsyncClient(timeout=HANGS_S, verify=False, **given) as http:
        yield AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=max_retries, http_client=http)


def user(content: Any) -> Any:
    """A message of the user's."""
    return {"role": "user", "content": content}


async def whole(openai: AsyncOpenAI, model: str, *messages: Any, **fields: Any) -> ChatCompletion:
    """A completion that comes in one piece."""
    # With fields given by name, the SDK's overloads do not determine the result's type.
    create: Any = openai.chat.completions.create
    return await create(model=model, messages=list(messages), **fields)


async def streamed(openai: AsyncOpenAI, model: str, *messages: Any, **fields: Any) -> list[ChatCompletionChunk]:
    """The chunks of a completion."""
    stream: Any = await openai.chat.completions.create(model=model, messages=list(messages), stream=True, **fields)
    return [chunk async for chunk in stream]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    """The joined text of the chunks."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def finish_of(chunks: list[ChatCompletionChunk]) -> list[Any]:
    """The reasons for the answer's end, in OpenAI's word and in ours, one for each time that a chunk has them."""
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return [(one.finish_reason, one.to_dict()["native_finish_reason"]) for one in choices if one.finish_reason]


def body_of(error: APIError) -> dict[str, Any]:
    """The fields of an error beside its message."""
    body: Any = error.body
    assert isinstance(body, dict)
    return cast("dict[str, Any]", body)
