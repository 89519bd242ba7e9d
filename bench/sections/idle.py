"""Measures the cost of readers that wait for a silent model, or for the next run of a conversation."""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import sqlalchemy as sa
from redis.asyncio import Redis

from bench.deployments import Deployment, ProcessorTimes, program
from bench.figures import Figure
from bench.idle_readers import raise_open_files
from shared.sql.engine import Database

RUNS = 100
READERS = (100, 1_000, 5_000)
CONVERSATIONS = 500
READERS_OF_CONVERSATIONS = (1_000, 10_000)
SPARE_FILES = 400
"""The number of open files of a server without readers."""
SETTLED_S, WATCHED_S = 2.0, 6.0
COUNTED_S = 30.0
"""Servers count statements over this time: many times as long as a process waits between two looks for all readers."""
COUNTS_SETTLE_S = 12.0
"""Seconds after which a server process of Postgres without work has reported what it did."""
OPENED_S = 500.0


async def idle_readers(deployment: Deployment) -> list[Figure]:
    """Measures processor time and memory of the servers with more and more readers of silent runs."""
    client = deployment.client
    runs = [await client.submit(agent_id, silent=True) for agent_id in await client.agents(RUNS)]
    await asyncio.sleep(SETTLED_S)
    figures = await _watched(deployment, f"{RUNS} silent runs, no reader")
    figures += await _with_readers(deployment, READERS, runs, "idle readers")
    for run_id in runs:
        await client.cancel(run_id)
    return figures


async def idle_conversations(deployment: Deployment) -> list[Figure]:
    """Measures the same with readers of conversations in which nothing happens. Also counts the requests to services,
    if the deployment has services."""
    client = deployment.client
    [agent_id] = await client.agents(1)
    conversations = [await client.conversation(agent_id) for _ in range(CONVERSATIONS)]
    await asyncio.sleep(SETTLED_S)
    what = "idle readers of conversations"
    figures = await _watched(deployment, f"no {what}", counts=True)
    return figures + await _with_readers(deployment, READERS_OF_CONVERSATIONS, conversations, what, counts=True)


async def _with_readers(
    deployment: Deployment, sizes: Sequence[int], ids: Sequence[str], what: str, *, counts: bool = False
) -> list[Figure]:
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
            figures += await _watched(deployment, title, counts=counts)
            figures.append(Figure(f"{title}: memory each", (_memory(deployment) - before) / readers / 1024, "KiB"))
    return figures


async def _watched(deployment: Deployment, title: str, *, counts: bool = False) -> list[Figure]:
    """Watches the deployment at rest. `counts`: also the requests to its services per second, if it has services."""
    if not counts or not deployment.keeps_readers:
        return [Figure(f"{title}: CPU", await _cores(deployment, WATCHED_S), "cores")]
    await asyncio.sleep(COUNTS_SETTLE_S)
    before = await _asked(deployment)
    cores = await _cores(deployment, COUNTED_S)
    after = await _asked(deployment)
    asked = [Figure(f"{title}: {name}", (after[name] - before[name]) / COUNTED_S, "per s") for name in before]
    return [Figure(f"{title}: CPU", cores, "cores"), *asked]


async def _cores(deployment: Deployment, watched_s: float) -> float:
    times, began = ProcessorTimes(deployment), time.monotonic()
    await asyncio.sleep(watched_s)
    return times.of_product() / (time.monotonic() - began)


async def _asked(deployment: Deployment) -> dict[str, int]:
    """Returns the requests that the deployment's services have counted. A read is a transaction of one statement."""
    database, redis = Database(deployment.database_url), cast("Any", Redis).from_url(deployment.redis_url)
    try:
        async with database.read() as connection:
            transactions: int = (await connection.execute(_TRANSACTIONS)).scalar_one()
        commands = int((await redis.info("stats"))["total_commands_processed"])
    finally:
        await redis.aclose()
        await database.aclose()
    return {"transactions of Postgres": transactions, "commands of Redis": commands}


_TRANSACTIONS = sa.text("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")


def _memory(deployment: Deployment) -> int:
    return sum(process.memory_info().rss for process in deployment.processes.values())
