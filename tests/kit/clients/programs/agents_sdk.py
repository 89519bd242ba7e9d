"""Stories with OpenAI's Agents SDK, whose loop runs in this process (`client_program.py` has the protocol)."""

import asyncio
import inspect
import json
import sys

from agents import (
    Agent,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    RunState,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    """What a structured answer is."""

    rains: bool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def forecaster(client, model, **fields):
    return Agent("Forecaster", model=OpenAIResponsesModel(model, client), instructions="Be brief.", **fields)


async def run(agent, given, stream=False, **fields):
    """The result, and the events of the loop if it is streamed."""
    if not stream:
        return await Runner.run(agent, given, **fields), []
    result = Runner.run_streamed(agent, given, **fields)
    events = [event async for event in result.stream_events()]
    return result, [event.name for event in events if event.type == "run_item_stream_event"]


async def loop(client, model, how, stream):
    """Functions over several turns, and a second run behind the first."""
    agent = forecaster(client, model, tools=[weather])
    if how == "whole story":
        first, names = await run(agent, "How is the weather?", stream)
        second, _ = await run(agent, [*first.to_input_list(), {"role": "user", "content": "Again?"}], stream)
    elif how == "previous_response_id":
        first, names = await run(agent, "How is the weather?", stream, auto_previous_response_id=True)
        second, _ = await run(agent, "Again?", stream, previous_response_id=first.last_response_id)
    elif how == "conversation":
        conversation = await client.conversations.create()
        first, names = await run(agent, "How is the weather?", stream, conversation_id=conversation.id)
        second, _ = await run(agent, "Again?", stream, conversation_id=conversation.id)
    else:
        session = OpenAIConversationsSession(openai_client=client)
        first, names = await run(agent, "How is the weather?", stream, session=session)
        second, _ = await run(agent, "Again?", stream, session=session)
    return {"outputs": [first.final_output, second.final_output], "names": names}


async def session(client, model):
    """What a session keeps, takes back and forgets."""
    kept = OpenAIConversationsSession(openai_client=client)
    agent = forecaster(client, model, tools=[weather])
    await run(agent, "How is the weather?", session=kept)
    kinds = [item.get("role") or item["type"] for item in await kept.get_items()]
    newest = [item.get("role") or item["type"] for item in await kept.get_items(limit=1)]
    taken = await kept.pop_item()
    left = [item.get("role") or item["type"] for item in await kept.get_items()]
    await kept.clear_session()
    return {"kinds": kinds, "newest": newest, "taken": taken["role"], "left": left, "then": await kept.get_items()}


@function_tool(needs_approval=True)
def launch(target: str) -> str:
    """Launches."""
    return f"launched to the {target}"


async def interrupted(client, model, how, stream):
    """A person says yes to one call in the middle of the loop; the other one needs nobody."""
    agent = forecaster(client, model, tools=[weather, launch])
    fields = await memory(client, how)
    first, _ = await run(agent, "Launch.", stream, **fields)
    state = RunState.from_json(agent, first.to_state().to_json())
    state = await state if inspect.isawaitable(state) else state
    [asked] = first.interruptions
    state.approve(asked)
    last, _ = await run(agent, state, stream, **({k: v for k, v in fields.items() if k == "session"}))
    return {"asked": asked.name, "output": last.final_output}


async def memory(client, how):
    """Where the loop keeps the story, as arguments of a run."""
    if how == "previous_response_id":
        return {"auto_previous_response_id": True}
    if how == "conversation":
        return {"conversation_id": (await client.conversations.create()).id}
    return {"session": OpenAIConversationsSession(openai_client=client)} if how == "session" else {}


async def shaped(client, model, stream):
    result, _ = await run(forecaster(client, model, output_type=Weather), "Does it rain?", stream)
    return {"rains": result.final_output.rains}


async def handed_over(client, model, how, stream):
    """An agent that passes the question on to another one, which calls a function."""
    specialist = forecaster(client, model, tools=[weather], handoff_description="Knows the weather.")
    desk = Agent("Desk", model=OpenAIResponsesModel(model, client), handoffs=[specialist])
    by_id = {"auto_previous_response_id": True} if how == "previous_response_id" else {}
    result, names = await run(desk, "How is the weather?", stream, **by_id)
    return {"output": result.final_output, "last": result.last_agent.name, "names": names}


STORIES = {story.__name__: story for story in (loop, session, interrupted, shaped, handed_over)}


async def main():
    set_tracing_disabled(True)
    for line in sys.stdin:
        name, base_url, key, arguments = json.loads(line)
        async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
            try:
                said = {"result": await STORIES[name](client, **arguments)}
            except Exception as error:
                said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)


asyncio.run(main())
