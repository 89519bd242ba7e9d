"""Measures delays: of the first token, of each further one while many runs stream, and of a tool."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from bench.client import QUICK_TOOL, Refused, Watched
from bench.deployments import Deployment, ProcessorTimes
from bench.figures import Figure, median_and_slowest, quantile

RUNS, WARM_UP = 60, 10
AT_ONCE = (1, 10, 50, 100, 200)
"""Numbers of concurrently streaming runs."""
COUNTED_AT = 10
"""The number of runs at which the processor time per token is reported."""
TOKENS_PER_S, SECONDS = 30, 3
STARTS_PER_S = 25
"""Runs that begin per second, at least. Each streams until the last one has begun, and for `SECONDS` after that."""
TOOL_CALLS = 20


async def first_token(deployment: Deployment) -> list[Figure]:
    """Measures from the request to the first token at the client, one run after the other."""
    client = deployment.client
    times: list[float] = []
    for agent_id in await client.agents(WARM_UP + RUNS):
        async with client.send(agent_id, tokens=1) as stream:
            await stream.until("ended_at")
            client.check(stream, 1)
            times.append(stream.first_token_at - stream.opened_at)
    return median_and_slowest("submit → first token", times[WARM_UP:])


async def token_delay(deployment: Deployment) -> list[Figure]:
    """Measures from the model's write of a token to the client's read, while runs stream; and its processor time."""
    figures: list[Figure] = []
    for runs in AT_ONCE:
        try:
            figures += await _delay_at(deployment, runs)
        except Refused as error:
            deployment.client.faults.append(f"{runs} runs at once: {error}")
    return figures


async def _delay_at(deployment: Deployment, runs: int) -> list[Figure]:
    """Returns the figures of `runs` runs while all of them stream."""
    tokens = (SECONDS + runs // STARTS_PER_S) * TOKENS_PER_S
    async with streaming(deployment, runs, tokens) as streams:
        begun = [len(stream.delays) for stream in streams]
        times, began = ProcessorTimes(deployment), time.monotonic()
        await asyncio.sleep(SECONDS - 1)
        used, seconds = times.used(), time.monotonic() - began
        delays = [delay for stream, first in zip(streams, begun, strict=True) for delay in stream.delays[first:]]
        await asyncio.gather(*(stream.until("ended_at") for stream in streams))
        for stream in streams:
            deployment.client.check(stream, tokens)
    received = len(delays)
    title = f"{runs} run{'s' * (runs > 1)} x {TOKENS_PER_S}/s"
    figures = median_and_slowest(f"token delay, {title}", delays)
    if runs == COUNTED_AT and used and received:
        figures += _per_token(title, deployment, used, received)
    return figures + [Figure(f"{title}: CPU of {name}", cpu / seconds, "cores") for name, cpu in used.items()]


async def tool_call(deployment: Deployment) -> list[Figure]:
    """Measures from the model's call of a tool that returns at once to the first token of the next answer."""
    client = deployment.client
    agent_id = await client.agent(await client.tool(QUICK_TOOL))
    times: list[float] = []
    for _ in range(3 + TOOL_CALLS):
        async with client.send(agent_id, call="quick") as stream:
            await stream.until("ended_at")
            client.check(stream, 1)
            times.append(quantile(stream.delays, 1))
    return median_and_slowest("tool call → answer's first token", times[3:])


@asynccontextmanager
async def streaming(deployment: Deployment, runs: int, tokens: int) -> AsyncGenerator[list[Watched]]:
    """Runs streams at 30 tokens/s for the block, each with its own agent. Yields them when all have begun."""
    agents = await deployment.client.agents(runs)
    async with AsyncExitStack() as stack:
        wish = {"tokens": tokens, "per_second": TOKENS_PER_S}
        streams: list[Watched] = []
        for agent_id in agents:
            streams.append(await stack.enter_async_context(deployment.client.send(agent_id, **wish)))
        await asyncio.gather(*(stream.until("first_token_at") for stream in streams))
        yield streams


def _per_token(title: str, deployment: Deployment, used: dict[str, float], tokens: int) -> list[Figure]:
    ours = sum(used[name] for name in deployment.processes)
    figures = [Figure(f"CPU per token, {title}", ours / tokens * 1e6, "us")]
    return figures + [Figure(f"CPU per token, {title}: {name}", cpu / tokens * 1e6, "us") for name, cpu in used.items()]
