"""OpenAI's SDK as a client of responses, and checks for every stream."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from openai import AsyncOpenAI
from openai.types.responses import Response

from tests.kit.wait_until import HANGS_S, wait_until

PLAIN = "openai/gpt-4o-mini"
"""A model that is asked without an agent."""

SQUARE: dict[str, Any] = {
    "type": "function",
    "name": "square",
    "description": "Squares a number.",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    "strict": False,
}


@asynccontextmanager
async def responses_client(
    base_url: str, key: str = "none", *, max_retries: int = 0, **given: Any
) -> AsyncGenerator[AsyncOpenAI]:
    """The SDK, unmodified. `given` are arguments of its HTTP client."""
    async with httpx2.AsyncClient(timeout=HANGS_S, verify=False, **given) as http:
        yield AsyncOpenAI(base_url=f"{base_url}/openai/v1", api_key=key, max_retries=max_retries, http_client=http)


async def created(openai: AsyncOpenAI, **fields: Any) -> Response:
    """A response that comes in one piece."""
    create: Any = openai.responses.create
    return await create(**{"model": PLAIN, **fields})


async def streamed(openai: AsyncOpenAI, **fields: Any) -> list[dict[str, Any]]:
    """The events of a response that is streamed from its beginning."""
    create: Any = openai.responses.create
    stream = await create(**{"model": PLAIN, **fields}, stream=True)
    return [event.to_dict() async for event in stream]


async def resumed(openai: AsyncOpenAI, response_id: str, after: int | None = None) -> list[dict[str, Any]]:
    """The events after a given one, of an existing response."""
    retrieve: Any = openai.responses.retrieve
    cursor = {} if after is None else {"starting_after": after}
    return [event.to_dict() async for event in await retrieve(response_id, stream=True, **cursor)]


async def when_over(openai: AsyncOpenAI, response_id: str) -> Response:
    """The response once it has ended."""

    async def look() -> Response | None:
        found = await openai.responses.retrieve(response_id)
        return None if found.status in ("queued", "in_progress") else found

    return await wait_until(look, description=f"{response_id} to end")


def output_of(call_id: str, output: str) -> dict[str, Any]:
    """The item that answers a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def calls_of(response: Response) -> list[Any]:
    """The calls that the client is to make."""
    return [item for item in response.output if item.type == "function_call"]


def assert_sound(events: Sequence[dict[str, Any]]) -> None:
    """Checks everything on which clients rely: numbers, one beginning, one end, items opened and closed once."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    ends = [event for event in events if event["type"].rpartition(".")[2] in ("completed", "failed", "incomplete")]
    ends = [event for event in ends if "response" in event]
    assert ends == [events[-1]]
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
    assert added == list(range(len(added)))
    assert sorted(done) == added
    closed = {event["item"]["id"]: event["item"] for event in events if event["type"] == "response.output_item.done"}
    for item in events[-1]["response"]["output"]:
        assert closed[item["id"]] == item
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}
