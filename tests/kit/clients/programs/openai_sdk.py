"""Stories with OpenAI's SDK for Python, the sync or the async client (`client_program.py` has the protocol).

Runs with the SDK's versions 1 to 3, so its types are not looked at.
"""

import asyncio
import inspect
import json
import sys

from openai import APIStatusError, AsyncOpenAI, OpenAI
from pydantic import BaseModel

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
NO_RESPONSE, NO_AGENT = "resp_" + "0" * 32, "agent-00000000-0000-4000-8000-000000000000"


class Count(BaseModel):
    """What a structured answer is."""

    n: int


async def settled(value):
    """What a call gives: of the async client once it is awaited."""
    return await value if inspect.isawaitable(value) else value


async def each(iterable):
    """The elements, whichever client they come from."""
    if hasattr(iterable, "__aiter__"):
        async for one in iterable:
            yield one
    else:
        for one in iterable:
            yield one


def note(value):
    print(json.dumps({"note": value}), flush=True)


def output_of(call, output):
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


async def plain(client, **fields):
    response = await settled(client.responses.create(**fields))
    again = await settled(client.responses.retrieve(response.id))
    same = again.to_dict() == response.to_dict()
    return {"id": response.id, "status": response.status, "text": response.output_text, "same": same}


async def followed(client, **fields):
    """Reads with the SDK's helper, which puts the response together from the events and checks them."""
    manager, events = client.responses.stream(**fields), []
    if hasattr(manager, "__aenter__"):
        async with manager as stream:
            events = [event async for event in stream]
            response = await stream.get_final_response()
    else:
        with manager as stream:
            events = list(stream)
            response = stream.get_final_response()
    kept = await settled(client.responses.retrieve(response.id))
    return {
        "id": response.id,
        "text": response.output_text,
        "status": response.status,
        "numbers": [event.sequence_number for event in events],
        "same": (kept.output_text, len(kept.output)) == (response.output_text, len(response.output)),
    }


async def begun(client, **fields):
    """Begins in the background, and drops the connection behind the second piece of text."""
    stream = await settled(client.responses.create(**fields, background=True, stream=True))
    seen, deltas = [], 0
    async for event in each(stream):
        seen.append(event)
        deltas += event.type == "response.output_text.delta"
        if deltas == 2:
            break
    await settled(stream.close())
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    return {"id": seen[0].response.id, "text": text, "numbers": [event.sequence_number for event in seen]}


async def resumed(client, response_id, after):
    stream = await settled(client.responses.retrieve(response_id, stream=True, starting_after=after))
    return await summary(stream)


async def summary(stream):
    events = []
    async for event in each(stream):
        events.append(event)
        if event.type == "response.output_text.delta":
            note(event.delta)
    last = events[-1]
    return {
        "id": last.response.id,
        "text": "".join(event.delta for event in events if event.type == "response.output_text.delta"),
        "numbers": [event.sequence_number for event in events],
        "last": last.type,
        "status": last.response.status,
    }


async def watched(client, **fields):
    """Reads a response in the background from its beginning to its end."""
    return await summary(await settled(client.responses.create(**fields, background=True, stream=True)))


async def cancelled(client, **fields):
    """Cancels in the middle of the stream, and reads on."""
    stream = await settled(client.responses.create(**fields, background=True, stream=True))
    seen, statuses = [], []
    async for event in each(stream):
        seen.append(event)
        if event.type == "response.output_text.delta" and not statuses:
            for _ in range(2):
                statuses.append((await settled(client.responses.cancel(seen[0].response.id))).status)
    return {"statuses": statuses, "last": seen[-1].type, "status": seen[-1].response.status}


async def tools(client, **fields):
    """Functions over three turns, each streamed with the helper."""
    response = await final(client, tools=[WEATHER], **fields)
    turns = [[call.arguments for call in calls_of(response)]]
    while calls_of(response):
        told = [output_of(call, "rain in " + json.loads(call.arguments)["city"]) for call in calls_of(response)]
        response = await final(
            client, model=fields["model"], tools=[WEATHER], input=told, previous_response_id=response.id
        )
        turns.append([call.arguments for call in calls_of(response)])
    return {"text": response.output_text, "turns": turns}


async def final(client, **fields):
    manager = client.responses.stream(**fields)
    if hasattr(manager, "__aenter__"):
        async with manager as stream:
            return await stream.get_final_response()
    with manager as stream:
        return stream.get_final_response()


def calls_of(response):
    return [item for item in response.output if item.type == "function_call"]


async def shaped(client, **fields):
    parsed = await settled(client.responses.parse(text_format=Count, **fields))
    return {"parsed": parsed.output_parsed.n, "text": parsed.output_text}


async def approved(client, **fields):
    """A person's decision about a call of the agent's own tool."""
    asked = await settled(client.responses.create(**fields))
    [request] = asked.output
    verdict = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    done = await final(client, model=fields["model"], input=[verdict], previous_response_id=asked.id)
    return {"asked": request.type, "output": [item.type for item in done.output], "text": done.output_text}


async def kept(client, **fields):
    """What is there besides responses: a conversation, its items, the items of a request, models, a deletion."""
    conversation = await settled(client.conversations.create(metadata={"user": "ada"}))
    response = await settled(client.responses.create(conversation=conversation.id, **fields))
    items = [item async for item in each(client.conversations.items.list(conversation.id, order="asc"))]
    given = [item async for item in each(client.responses.input_items.list(response.id))]
    models = [model.id async for model in each(client.models.list())]
    await settled(client.responses.delete(response.id))
    return {"items": [item.role for item in items], "input": [item.role for item in given], "models": models}


async def refused(client, **fields):
    """Shows how the SDK reports refusals of the server."""
    stranger = type(client)(base_url=client.base_url, api_key="wrong", max_retries=0)
    acts = {
        "no response": lambda: client.responses.retrieve(NO_RESPONSE),
        "no previous response": lambda: client.responses.create(**fields, previous_response_id=NO_RESPONSE),
        "no such tool": lambda: client.responses.create(**fields, tools=[{"type": "file_search"}]),
        "no such agent": lambda: client.responses.create(model=NO_AGENT, input="Hi"),
        "no such name": lambda: client.responses.create(model="nothing", input="Hi"),
        "no such model": lambda: client.models.retrieve("nothing"),
        "no key": lambda: stranger.responses.create(**fields),
    }
    return {name: await refusal(act) for name, act in acts.items()}


async def refusal(act):
    try:
        await settled(act())
    except APIStatusError as error:
        return {"class": type(error).__name__, "status": error.status_code, "code": error.code, "param": error.param}
    return None


STORIES = {
    story.__name__: story
    for story in (*(plain, followed, begun, resumed, watched, cancelled, tools, shaped, approved, kept, refused),)
}


async def main(make):
    for line in sys.stdin:
        name, base_url, key, arguments = json.loads(line)
        client = make(base_url=base_url, api_key=key)
        try:
            said = {"result": await STORIES[name](client, **arguments)}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        await settled(client.close())
        print(json.dumps(said), flush=True)


asyncio.run(main({"sync": OpenAI, "async": AsyncOpenAI}[sys.argv[1]]))
