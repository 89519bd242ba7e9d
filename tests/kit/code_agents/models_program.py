"""Agents that call the worker's models with public clients. The tests import this module in a process of its own."""

import asyncio
import http.client
import json
import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai

from holdfast.agents import Run, agent
from tests.kit.wait_until import wait_until

STAGE = Path(os.environ.get("HOLDFAST_AGENTS_STAGE", "/nonexistent"))


def reach(moment: str) -> None:
    with (STAGE / "reached").open("a", encoding="utf-8") as file:
        file.write(f"{moment}\n")


def _fork_stands_still() -> None:
    stop, look = STAGE / "stop fork", threading.Event()
    while stop.exists():
        look.wait(0.01)


os.register_at_fork(after_in_child=_fork_stands_still)


async def go_on(moment: str) -> None:
    stop = STAGE / f"stop {moment}"
    await wait_until(lambda: not stop.exists(), description=moment)


@agent("posts", models="worker")
async def posts(run: Run) -> str:
    """Posts what the text says, by a client that blocks the loop of the body, and answers with what came."""
    key, base_url = run.models.api_key, run.models.base_url
    said = [post(one["path"], one.get("body"), one.get("key") or key, base_url) for one in json.loads(run.text)]
    return json.dumps({"key": key, "said": said})


def post(path: str, body: Any, key: str, base_url: str) -> tuple[int, Any]:
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    data = None if body is None else json.dumps(body).encode()
    connection.request("POST" if body else "GET", address.path + path, data, {"authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    return answer.status, _read(answer.read().decode())


def _read(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


@agent("talks", models="worker")
async def talks(run: Run) -> str:
    """Streams one answer, with a client that finds the models by itself. Says what it sees, piece by piece."""
    reach(f"pid {os.getpid()}")
    client = openai.AsyncOpenAI()
    said = ""
    stream = await client.chat.completions.create(
        model="openai/gpt-4o-mini", messages=[{"role": "user", "content": run.text}], stream=True
    )
    async for chunk in stream:
        if piece := chunk.choices[0].delta.content:
            reach(f"piece {piece.strip()}")
            said += piece
    return said


@agent("twice", models="worker")
async def twice(run: Run) -> str:
    """Asks, stands still, and asks for something else."""
    first = await _ask(run, "One?")
    reach(f"pid {os.getpid()}")
    await go_on("between")
    return f"{first} {await _ask(run, 'Two?')}"


@agent("at-once", models="worker")
async def at_once(run: Run) -> str:
    """Asks as many things together as the text says, and answers with the names of what came."""
    asked = [_ask(run, f"{number}?") for number in range(int(run.text))]
    return " ".join(sorted(type(one).__name__ for one in await asyncio.gather(*asked, return_exceptions=True)))


async def _ask(run: Run, text: str) -> str:
    client = openai.AsyncOpenAI(base_url=run.models.base_url, api_key=run.models.api_key)
    answer = await client.chat.completions.create(
        model="holdfast/openai/gpt-4o-mini", messages=[{"role": "user", "content": text}]
    )
    return answer.choices[0].message.content or ""


@agent("gives-up", models="worker")
async def gives_up(run: Run) -> str:
    """Leaves in the middle of an answer, and lives on."""
    client = openai.AsyncOpenAI()
    stream = await client.chat.completions.create(
        model="openai/gpt-4o-mini", messages=[{"role": "user", "content": run.text}], stream=True
    )
    async for _ in stream:
        break
    await stream.close()
    reach("left")
    await go_on("after")
    return "gave up"


@agent("tools", models="worker")
async def tools(run: Run) -> str:
    """The loop of an agent, over responses: items go back as they came."""
    client = openai.AsyncOpenAI()
    items: list[Any] = [{"role": "user", "content": run.text}]
    while True:
        async with client.responses.stream(
            model=os.environ.get("HOLDFAST_AGENTS_MODEL", "openai/gpt-4o-mini"),
            instructions="Be brief.",
            input=items,
            tools=[{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}],
        ) as stream:
            response = await stream.get_final_response()
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            reach(f"used {response.usage.input_tokens if response.usage else None}")
            return response.output_text
        items += [item.model_dump(exclude_none=True) for item in response.output]
        for call in calls:
            found = await run.tool(call.name, _add, call.arguments, key=[call.call_id])
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": found})


def _add(arguments: str) -> str:
    given = json.loads(arguments)
    return str(given["a"] + given["b"])


@agent("asks-much", models="worker")
async def asks_much(run: Run) -> str:
    """Asks, and then for more than a request may have."""
    return f"{await _ask(run, 'One?')} {await _ask(run, 'x' * 64_000_000)}"


@agent("secrets", models="worker")
async def secrets(run: Run) -> str:
    """Everything that the process was given, and what it and its host began with."""
    return " ".join([*os.environ.values(), *map(_began_with, ("self", os.getppid()))])


def _began_with(pid: int | str) -> str:
    return Path(f"/proc/{pid}/environ").read_bytes().decode()


@agent("steps", models="worker")
async def steps(run: Run) -> str:
    """As an adapter does it: calls of models in the journal, whose tokens the worker counts itself."""
    return await run.model("openai/gpt-4o-mini", _ask, run, run.text, request=run.text)
