"""Measures how long a stream is silent when its worker is killed, or gets SIGTERM."""

import signal

from bench.deployments import Deployment
from bench.figures import Figure

TOKENS, PER_S = 10_000, 30


async def crash(deployment: Deployment) -> list[Figure]:
    """Measures `kill -9`. Another worker runs already; a single process is restarted at once."""
    return [Figure("silence after kill -9 of the worker", await _silence(deployment, signal.SIGKILL), "s")]


async def hand_over(deployment: Deployment) -> list[Figure]:
    """Measures SIGTERM, as a deploy sends it. The current answer goes on for up to HOLDFAST_DRAIN_S."""
    return [Figure("silence at SIGTERM of the worker", await _silence(deployment, signal.SIGTERM), "s")]


async def _silence(deployment: Deployment, end: signal.Signals) -> float:
    """Returns the seconds without a token until the run's next owner restarts its step."""
    assert deployment.replace is not None
    client = deployment.client
    async with client.send(await client.agent(), tokens=TOKENS, per_second=PER_S) as stream:
        await stream.until("first_token_at")

        def begin() -> None:
            stream.longest_silence = 0.0

        await deployment.replace(end, begin)
        if deployment.keeps_readers:
            await stream.until("disorder")  # the new answer's numbers begin at 0
            silence = stream.longest_silence
        else:
            async with client.resume(stream.run_id, stream.last_seq) as resumed:
                await resumed.until("first_token_at")
                silence = resumed.first_token_at - stream.last_token_at
        await client.cancel(stream.run_id)
    return silence
