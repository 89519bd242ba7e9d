"""The measurements, one function each. They give rows: what was measured, and the figure as text."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from bench.client import Client, Watched
from bench.deployments import Deployment

RUNS = 100
CANCELS = 20
STREAMS, TOKENS_PER_S, SECONDS = 50, 30, 6
LONG = 20_000


class Row(NamedTuple):
    name: str
    figure: str


async def first_token(deployment: Deployment) -> list[Row]:
    """From sending the request to the first token at the client, one run after the other."""
    client = deployment.client
    agents = [await client.agent() for _ in range(RUNS + 10)]
    times: list[float] = []
    for agent_id in agents:
        async with client.send(agent_id, tokens=1) as stream:
            await stream.until("first_token_at")
            times.append(stream.first_token_at - stream.opened_at)
            await stream.until("ended_at")
    return [Row(f"submit → first token ({RUNS} runs)", milliseconds(times[10:]))]


async def token_delay(deployment: Deployment) -> list[Row]:
    """From the model writing a token to the client reading it, while many runs stream; and what that costs."""
    client = deployment.client
    agents = [await client.agent() for _ in range(STREAMS)]
    await asyncio.sleep(1)
    idle = await load(deployment, asyncio.sleep(3))
    async with AsyncExitStack() as stack:
        streams: list[Watched] = []
        for agent_id in agents:
            wish = {"tokens": TOKENS_PER_S * SECONDS, "per_second": TOKENS_PER_S}
            streams.append(await stack.enter_async_context(client.send(agent_id, **wish)))
        await asyncio.gather(*(stream.until("first_token_at") for stream in streams))
        begun = [len(stream.delays) for stream in streams]
        loaded = await load(deployment, asyncio.sleep(SECONDS - 2))
        await asyncio.gather(*(stream.until("ended_at") for stream in streams))
    # All runs begin at once, which is not what is measured here.
    delays = [delay for stream, first in zip(streams, begun, strict=True) for delay in stream.delays[first:]]
    wanted = STREAMS * TOKENS_PER_S * SECONDS
    received = sum(len(stream.delays) for stream in streams)
    lost = "" if received == wanted else f", {wanted - received} MISSING"
    title = f"{STREAMS} runs at {TOKENS_PER_S} tokens/s"
    return [
        Row(f"token, model → client, {title}", milliseconds(delays) + lost),
        *(Row(f"idle: {name}", figure) for name, figure in idle),
        *(Row(f"{title}: {name}", figure) for name, figure in loaded),
    ]


async def cancel(deployment: Deployment) -> list[Row]:
    """From sending the cancel to the end of the stream at the client, in each state that a run can be in."""
    client = deployment.client
    tool_id = await client.tool()
    states: dict[str, Callable[[], Awaitable[float]]] = {
        "streaming": lambda: _cancel_streaming(client),
        "model silent": lambda: _cancel_silent(client),
        "inside a tool (time.sleep(600))": lambda: _cancel_in_tool(client, tool_id),
        "queued": lambda: _cancel_queued(client),
    }
    rows: list[Row] = []
    for state, measure in states.items():
        times = [await measure() for _ in range(CANCELS)]
        rows.append(Row(f"cancel → stream end, {state} ({CANCELS} runs)", milliseconds(times)))
    return rows


async def resume(deployment: Deployment) -> list[Row]:
    """Joining in the middle of a long stream that has ended."""
    client = deployment.client
    run_id = await client.submit(await client.agent(), tokens=LONG)
    while await client.status(run_id) not in ("completed", "failed"):
        await asyncio.sleep(0.1)
    first: list[float] = []
    whole: list[float] = []
    for _ in range(10):
        async with client.resume(run_id, LONG // 2) as stream:
            await stream.until("first_token_at")
            await stream.until("ended_at")
            first.append(stream.first_token_at - stream.opened_at)
            whole.append(stream.ended_at - stream.opened_at)
    return [
        Row(f"resume in the middle of {LONG:,} tokens → first frame", milliseconds(first)),
        Row(f"… → all {LONG // 2:,} frames", milliseconds(whole)),
    ]


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
        while stream.last_seq < 3:  # the call has been shown
            stream.changed.clear()
            await stream.changed.wait()
        await asyncio.sleep(0.25)  # the tool's process is up and sleeps
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


async def load(deployment: Deployment, meanwhile: Awaitable[None]) -> list[tuple[str, str]]:
    """Processor time and memory of each process over a while."""
    before = {name: sum(process.cpu_times()[:2]) for name, process in deployment.processes.items()}
    began = time.monotonic()
    await meanwhile
    passed = time.monotonic() - began
    figures: list[tuple[str, str]] = []
    for name, process in deployment.processes.items():
        share = (sum(process.cpu_times()[:2]) - before[name]) / passed
        figures.append((name, f"{share:.1%} of a core, {process.memory_info().rss / 2**20:.0f} MiB"))
    return figures


def milliseconds(times: list[float]) -> str:
    """Median and 99th percentile."""
    ordered = sorted(times)
    last = len(ordered) - 1
    return f"p50 {ordered[last // 2] * 1000:.1f} ms, p99 {ordered[round(last * 0.99)] * 1000:.1f} ms"


SECTIONS: dict[str, Callable[[Deployment], Awaitable[list[Row]]]] = {
    "first-token": first_token,
    "token-delay": token_delay,
    "cancel": cancel,
    "resume": resume,
}
