"""Measures what earlier runs cost later ones: many in a thread, and a million in a project.

It inserts them as rows, which takes minutes and much disk, so it needs `--section age`.
"""

import sys
import time

from api.access.callers import DEFAULT_PROJECT
from bench.client import Client
from bench.deployments import Deployment, ProcessorTimes
from bench.earlier_runs import EarlierRuns
from bench.figures import Figure, quantile
from shared.sql.engine import Database

OF_THREAD = (10, 10_000, 100_000)
OF_PROJECT = 1_000_000
RUNS, WARM_UP = 40, 5


async def age(deployment: Deployment) -> list[Figure]:
    """Measures runs of one thread, one after the other, with a growing number of earlier runs."""
    database = Database(deployment.database_url, answer_s=None)
    figures: list[Figure] = []
    try:
        for earlier in OF_THREAD:
            agent_id = await _agent(deployment.client, database, earlier, earlier)
            figures += await _runs(deployment, agent_id, f"{earlier:,} earlier runs in the thread")
        agent_id = await _agent(deployment.client, database, OF_THREAD[0], OF_PROJECT)
        figures += await _runs(deployment, agent_id, f"{OF_PROJECT:,} runs in the project")
    finally:
        await database.aclose()
    return figures


async def _agent(client: Client, database: Database, of_thread: int, earlier: int) -> str:
    """Makes an agent with `earlier` runs, `of_thread` of which are in its thread."""
    agent_id, began = await client.agent(), time.monotonic()
    runs = EarlierRuns(DEFAULT_PROJECT, agent_id, agent_id, f"of-{agent_id}")
    await runs.insert(database, 1, earlier, of_thread=of_thread)
    print(f"inserted {earlier:,} runs in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return agent_id


async def _runs(deployment: Deployment, agent_id: str, title: str) -> list[Figure]:
    client, times = deployment.client, list[float]()
    for _ in range(WARM_UP):
        await _run(client, agent_id)
    used = ProcessorTimes(deployment)
    for _ in range(RUNS):
        times.append(await _run(client, agent_id))
    return [
        Figure(f"{title}: submit → first token, p50", quantile(times, 0.5) * 1000, "ms"),
        Figure(f"{title}: CPU per run", used.of_product() / RUNS * 1000, "ms"),
    ]


async def _run(client: Client, agent_id: str) -> float:
    async with client.send(agent_id, tokens=1) as stream:
        await stream.until("ended_at")
        client.check(stream, 1)
        return stream.first_token_at - stream.opened_at
