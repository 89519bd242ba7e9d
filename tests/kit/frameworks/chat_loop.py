"""The loop of an agent that is a plain function: it asks a model and calls tools until the model calls none."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from openai import AsyncOpenAI

from holdfast.agents import Denied, OutcomeUnknown, Run, StepFailed, Usage
from tests.kit.frameworks import tools

Tools = Mapping[str, Callable[..., Any]]

Calling = Callable[[Run, str, str, dict[str, Any]], Awaitable[str]]
"""Gets the run, a tool's name, the call's id and its arguments. Returns the result."""


def messages_of(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a run, as chat completions have them."""
    return [_message_of(one) for one in entries]


def _message_of(entry: dict[str, Any]) -> dict[str, Any]:
    if entry["role"] == "tool":
        return {"role": "tool", "tool_call_id": entry["tool_call_id"], "content": entry["text"]}
    message = {"role": entry["role"], "content": entry["text"]}
    if calls := entry.get("tool_calls"):
        message["tool_calls"] = [
            {"id": one["id"], "type": "function", "function": {"name": one["name"], "arguments": one["arguments"]}}
            for one in calls
        ]
    return message


def schema_of(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The function's description for a model: every argument is a text."""
    names = list(inspect.signature(function).parameters)
    parameters = {"type": "object", "properties": {one: {"type": "string"} for one in names}, "required": names}
    return {"name": name, "description": inspect.getdoc(getattr(function, "func", function)), "parameters": parameters}


async def converse(run: Run, instructions: str, offered: list[dict[str, Any]], call: Calling, text: str = "") -> str:
    """Asks the model until it calls no tool any more. With a text, it knows nothing else."""
    is_shown, client = not text, AsyncOpenAI(max_retries=0)
    messages = [{"role": "user", "content": text}] if text else messages_of([*run.history, *run.input])
    while True:
        if is_shown:
            messages += messages_of(await run.inbox.take())
        request = [{"role": "system", "content": instructions}, *messages]
        answer = await run.model(
            "gpt-4o",
            partial(_answer, run, client, request, offered, is_shown),
            request=[messages, [one["name"] for one in offered]],
            settings=instructions,
            usage=lambda said: Usage(*said["usage"]),
            text=lambda said: said["text"],
        )
        if not answer["calls"]:
            return answer["text"]
        messages.append(_message_of({"role": "assistant", "text": answer["text"], "tool_calls": answer["calls"]}))
        results = await asyncio.gather(*(_result(run, call, one) for one in answer["calls"]))
        for made, result in zip(answer["calls"], results, strict=True):
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": result})


async def _answer(
    run: Run, client: AsyncOpenAI, messages: Any, offered: list[dict[str, Any]], is_shown: bool
) -> dict[str, Any]:
    answer: dict[str, Any] = {"text": "", "calls": [], "usage": [0, 0]}
    stream = await cast("Any", client.chat.completions).create(
        model="gpt-4o",
        messages=messages,
        tools=[{"type": "function", "function": one} for one in offered],
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.usage is not None:
            answer["usage"] = [chunk.usage.prompt_tokens, chunk.usage.completion_tokens]
        for choice in chunk.choices:
            if said := choice.delta.content:
                answer["text"] += said
                if is_shown:
                    run.emit_text(said)
            for part in choice.delta.tool_calls or ():
                if part.index == len(answer["calls"]):
                    answer["calls"].append({"id": part.id, "name": part.function.name, "arguments": ""})
                answer["calls"][part.index]["arguments"] += part.function.arguments or ""
    return answer


async def _result(run: Run, call: Calling, made: dict[str, Any]) -> str:
    """The result of a call as the model gets it."""
    try:
        return await call(run, made["name"], made["id"], json.loads(made["arguments"]))
    except StepFailed as failed:
        return f"{failed.error_type}: {failed.text}"
    except Denied as denied:
        return f"denied: {denied}"
    except OutcomeUnknown:
        return "the outcome is unknown"


async def call_of(given: Tools, run: Run, name: str, call_id: str, arguments: dict[str, Any]) -> str:
    """Calls one of these tools. One that is none of them is the client's, and a person decides about a letter."""
    function = given.get(name)
    return await run.tool(name, function, key=[call_id, arguments], needs_approval=function is tools.send, **arguments)


def offered(given: Tools) -> list[dict[str, Any]]:
    """The tools as a model sees them."""
    return [schema_of(name, function) for name, function in given.items()]
