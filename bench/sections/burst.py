"""Measures many simultaneous submissions, and how long a cancel takes meanwhile."""

import asyncio
import time
from contextlib import AsyncExitStack

from bench.client import Client, Refused, Watched
from bench.deployments import Deployment
from bench.figures import Figure, quantile

SIZES = (400, 1_000)
CANCELS = 20
CANCELS_APART_S = 0.05
PATIENCE_S = 60.0


async def burst(deployment: Deployment) -> list[Figure]:
    """Measures submissions with one token each. The cancels are of earlier runs, one after the other."""
    client = deployment.client
    figures: list[Figure] = []
    for size in SIZES:
        agents = await client.agents(size)
        await _connect(client, size)
        async with AsyncExitStack() as stack:
            silent = [
                await stack.enter_async_context(client.send(agent_id, silent=True))
                for agent_id in await client.agents(CANCELS)
            ]
            await asyncio.gather(*(stream.until("run_id") for stream in silent))
            cancelling = asyncio.create_task(_cancel_all(client, silent))
            waits = await asyncio.gather(*(_submit(client, agent_id) for agent_id in agents))
            cancels = await cancelling
        served = [seconds for seconds in waits if seconds is not None]
        title = f"{size:,} submissions at once"
        figures.append(Figure(f"{title}: refused", len(waits) - len(served), "runs"))
        if served:
            figures.append(Figure(f"{title}: first token, p50", quantile(served, 0.5), "s"))
            figures.append(Figure(f"{title}: all first tokens", max(served), "s"))
        figures.append(Figure(f"{title}: cancel meanwhile, p99", quantile(cancels, 0.99) * 1000, "ms"))
        while (await _submit(client, await client.agent())) in (None, PATIENCE_S):
            pass  # abandoned runs are still in the queue before this one
    return figures


async def _connect(client: Client, size: int) -> None:
    """Opens the connections before the measurement, because the kernel delays some of many by a second."""
    opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", client.port) for _ in range(size)))
    for _, writer in opened:
        writer.close()


async def _submit(client: Client, agent_id: str) -> float | None:
    """Returns the seconds until the first token, at most `PATIENCE_S`; None if the submission was refused."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_S), client.send(agent_id, tokens=1) as stream:
            await stream.until("ended_at")
            client.check(stream, 1)
            return stream.first_token_at - began
    except TimeoutError:
        return PATIENCE_S
    except (Refused, OSError):
        return None


async def _cancel_all(client: Client, streams: list[Watched]) -> list[float]:
    taken: list[float] = []
    for stream in streams:
        await asyncio.sleep(CANCELS_APART_S)
        began = time.monotonic()
        await client.cancel(stream.run_id)
        await stream.until("ended_at")
        taken.append(stream.ended_at - began)
    return taken
