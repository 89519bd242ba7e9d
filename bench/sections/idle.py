"""Measures the cost of readers that wait: for a silent model, and for what comes in a conversation."""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from bench.deployments import Deployment, ProcessorTimes, program
from bench.figures import Figure
from bench.idle_readers import raise_open_files

RUNS = 100
READERS = (100, 1_000, 5_000)
CONVERSATIONS = 500
READERS_OF_CONVERSATIONS = (1_000, 10_000)
SPARE_FILES = 400
"""Open files of a server besides its readers."""
SETTLED_S, WATCHED_S = 2.0, 6.0
OPENED_S = 120.0


async def idle_readers(deployment: Deployment) -> list[Figure]:
    """Measures processor time and memory of the servers with more and more readers of silent runs."""
    client = deployment.client
    runs = [await client.submit(agent_id, silent=True) for agent_id in await client.agents(RUNS)]
    await asyncio.sleep(SETTLED_S)
    figures = [Figure(f"{RUNS} silent runs, no reader: CPU", await _cores(deployment), "cores")]
    figures += await _with_readers(deployment, READERS, runs, "idle readers")
    for run_id in runs:
        await client.cancel(run_id)
    return figures


async def idle_conversations(deployment: Deployment) -> list[Figure]:
    """Measures the same with readers of conversations in which nothing happens."""
    client = deployment.client
    [agent_id] = await client.agents(1)
    conversations = [await client.conversation(agent_id) for _ in range(CONVERSATIONS)]
    await asyncio.sleep(SETTLED_S)
    return await _with_readers(deployment, READERS_OF_CONVERSATIONS, conversations, "idle readers of conversations")


async def _with_readers(deployment: Deployment, sizes: Sequence[int], ids: Sequence[str], what: str) -> list[Figure]:
    figures, before, open_now = list[Figure](), _memory(deployment), 0
    async with AsyncExitStack() as stack:
        for readers in sizes:
            if readers + SPARE_FILES > (limit := raise_open_files()):
                print(f"{readers:,} {what} are left out: ulimit -Hn is {limit:,}", file=sys.stderr)
                continue
            more = program("bench.idle_readers", str(deployment.client.port), str(readers - open_now), *ids)
            try:
                async with asyncio.timeout(OPENED_S):
                    await stack.enter_async_context(more)
            except TimeoutError:
                print(f"{readers:,} {what} are left out: they did not open in {OPENED_S:.0f} s", file=sys.stderr)
                break
            open_now = readers
            await asyncio.sleep(SETTLED_S)
            title = f"{readers:,} {what}"
            figures.append(Figure(f"{title}: CPU", await _cores(deployment), "cores"))
            figures.append(Figure(f"{title}: memory each", (_memory(deployment) - before) / readers / 1024, "KiB"))
    return figures


async def _cores(deployment: Deployment) -> float:
    times, began = ProcessorTimes(deployment), time.monotonic()
    await asyncio.sleep(WATCHED_S)
    return times.of_product() / (time.monotonic() - began)


def _memory(deployment: Deployment) -> int:
    return sum(process.memory_info().rss for process in deployment.processes.values())
