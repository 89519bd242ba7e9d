"""Measures throughput: tokens of models without a pace, and short runs, each with its own agent."""

import asyncio
import time
from contextlib import AsyncExitStack

from bench.deployments import Deployment, ProcessorTimes
from bench.figures import Figure

RUNS, TOKENS = 16, 2_500
SHORT_TOKENS, AT_ONCE, SHORT_S = 5, 16, 4.0


async def tokens_per_s(deployment: Deployment) -> list[Figure]:
    """Measures runs whose models write as fast as they are read."""
    await _pour(deployment, RUNS, TOKENS // 10)
    times, began = ProcessorTimes(deployment), time.monotonic()
    await _pour(deployment, RUNS, TOKENS)
    seconds, used = time.monotonic() - began, times.used()
    figures = [Figure("greatest tokens/s", RUNS * TOKENS / seconds, "tokens/s")]
    if used:
        ours = sum(used[name] for name in deployment.processes)
        figures.append(Figure("greatest tokens/s: CPU per token", ours / (RUNS * TOKENS) * 1e6, "us"))
    return figures


async def short_runs(deployment: Deployment) -> list[Figure]:
    """Measures concurrent clients that make an agent, talk to it once and repeat that."""
    await asyncio.gather(*(_talk_until(deployment, time.monotonic() + 0.5) for _ in range(AT_ONCE)))
    times, began = ProcessorTimes(deployment), time.monotonic()
    runs = sum(await asyncio.gather(*(_talk_until(deployment, began + SHORT_S) for _ in range(AT_ONCE))))
    seconds, used = time.monotonic() - began, times.used()
    ours = sum(used[name] for name in deployment.processes)
    return [
        Figure("short runs/s", runs / seconds, "runs/s"),
        Figure("short runs: CPU per run", ours / runs * 1000, "ms"),
        *(Figure(f"short runs: CPU per run: {name}", used[name] / runs * 1000, "ms") for name in used),
    ]


async def _pour(deployment: Deployment, runs: int, tokens: int) -> None:
    client = deployment.client
    agents = await client.agents(runs)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(client.send(agent_id, tokens=tokens)) for agent_id in agents]
        await asyncio.gather(*(stream.until("ended_at") for stream in streams))
        for stream in streams:
            client.check(stream, tokens)


async def _talk_until(deployment: Deployment, end: float) -> int:
    """Talks until the time is over. Returns the number of runs."""
    client, runs = deployment.client, 0
    while time.monotonic() < end:
        async with client.send(await client.agent(), tokens=SHORT_TOKENS) as stream:
            await stream.until("ended_at")
            client.check(stream, SHORT_TOKENS)
        runs += 1
    return runs
