"""Measures joining a stream in the middle: half of a long one, and a hundred events of a very long one."""

from bench.deployments import Deployment
from bench.figures import Figure, quantile

LONG, VERY_LONG, FEW = 8_000, 100_000, 100
TIMES = 15


async def half_of_a_log(deployment: Deployment) -> list[Figure]:
    """Reads the second half of an ended run."""
    run_id, last_seq = await _log(deployment, LONG)
    first: list[float] = []
    whole: list[float] = []
    for _ in range(TIMES):
        async with deployment.client.resume(run_id, last_seq // 2) as stream:
            await stream.until("ended_at")
            first.append(stream.first_token_at - stream.opened_at)
            whole.append(stream.ended_at - stream.opened_at)
            deployment.client.check_end(stream, LONG)
    title = f"half of {LONG:,} events replayed"
    return [
        Figure(f"{title}: first", quantile(first, 0.5) * 1000, "ms"),
        Figure(f"{title}: all", quantile(whole, 0.5) * 1000, "ms"),
    ]


async def few_of_many(deployment: Deployment) -> list[Figure]:
    """Reads events from the middle, and then disconnects."""
    run_id, last_seq = await _log(deployment, VERY_LONG)
    times: list[float] = []
    for _ in range(TIMES):
        async with deployment.client.resume(run_id, last_seq // 2) as stream:
            await stream.until_seq(last_seq // 2 + FEW)
            times.append(stream.last_token_at - stream.opened_at)
    return [Figure(f"{FEW} events from the middle of {VERY_LONG:,}", quantile(times, 0.5) * 1000, "ms")]


async def _log(deployment: Deployment, tokens: int) -> tuple[str, int]:
    """Makes an ended run whose log has every token. Returns its id, and its last event's number."""
    client = deployment.client
    run_id = await client.submit(await client.agent(), tokens=tokens)
    await client.ended(run_id)
    async with client.resume(run_id, 0) as stream:
        await stream.until("ended_at")
        client.check(stream, tokens)
        return run_id, stream.last_seq
