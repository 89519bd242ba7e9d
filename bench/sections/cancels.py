"""Measures the time from a cancel to the end of the stream at the client, in each state of a run."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from bench.client import WAIT_TOOL, Client, Watched
from bench.deployments import Deployment
from bench.figures import Figure, median_and_slowest
from bench.sections.waiting import streaming

CANCELS, CANCELS_UNDER_LOAD = 20, 10
LOAD = 100
"""Concurrently streaming runs."""
LOAD_TOKENS = 10_000


async def cancel(deployment: Deployment) -> list[Figure]:
    """Cancels one run after the other, without other load."""
    return await _in_every_state(deployment.client, CANCELS, "")


async def cancel_streaming(deployment: Deployment) -> list[Figure]:
    """Measures the relay, which has only this state."""
    times = [await _cancel_streaming(deployment.client) for _ in range(CANCELS)]
    return median_and_slowest("cancel, streaming", times)


async def cancel_under_load(deployment: Deployment) -> list[Figure]:
    """Measures the same while many other runs stream."""
    async with streaming(deployment, LOAD, LOAD_TOKENS) as streams:
        figures = await _in_every_state(deployment.client, CANCELS_UNDER_LOAD, f", beside {LOAD} runs x 30/s")
        for stream in streams:
            await deployment.client.cancel(stream.run_id)
        await asyncio.gather(*(stream.until("ended_at") for stream in streams))
        for stream in streams:
            deployment.client.check(stream, len(stream.delays))  # only the order: the cancel decides the number
    return figures


async def _in_every_state(client: Client, cancels: int, beside: str) -> list[Figure]:
    tool_id = await client.tool(WAIT_TOOL)
    states: dict[str, Callable[[], Awaitable[float]]] = {
        "streaming": lambda: _cancel_streaming(client),
        "model silent": lambda: _cancel_silent(client),
        "inside a tool": lambda: _cancel_in_tool(client, tool_id),
        "queued": lambda: _cancel_queued(client),
    }
    figures: list[Figure] = []
    for state, measure in states.items():
        figures += median_and_slowest(f"cancel, {state}{beside}", [await measure() for _ in range(cancels)])
    return figures


async def _cancel_streaming(client: Client) -> float:
    async with client.send(await client.agent(), tokens=10_000, per_second=30) as stream:
        await stream.until("first_token_at")
        await asyncio.sleep(0.1)
        return await _cancelled(client, stream)


async def _cancel_silent(client: Client) -> float:
    async with client.send(await client.agent(), silent=True) as stream:
        await stream.until("run_id")
        await asyncio.sleep(0.1)
        return await _cancelled(client, stream)


async def _cancel_in_tool(client: Client, tool_id: str) -> float:
    async with client.send(await client.agent(tool_id), call="wait") as stream:
        await stream.until_seq(3)  # the stream has the call
        await asyncio.sleep(0.25)  # the tool's process has started and sleeps
        return await _cancelled(client, stream)


async def _cancel_queued(client: Client) -> float:
    agent_id = await client.agent()
    running = await client.submit(agent_id, silent=True)
    async with client.send(agent_id, tokens=1) as stream:
        await stream.until("run_id")
        await asyncio.sleep(0.05)
        taken = await _cancelled(client, stream)
    await client.cancel(running)
    return taken


async def _cancelled(client: Client, stream: Watched) -> float:
    began = time.monotonic()
    await client.cancel(stream.run_id)
    await stream.until("ended_at")
    return stream.ended_at - began
