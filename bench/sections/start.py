"""Measures the processor time of a start, and how soon the first submissions after it are answered."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.client import Client
from bench.deployments import Deployment
from bench.figures import Figure, quantile
from bench.starting import calibrating_s, pace, used_s, used_until_its_end_s

SUBMISSIONS, FIRST, LAST = 100, 30, 20

SAID: dict[str, tuple[list[str], dict[str, str]]] = {
    "start of holdfast --help": (["--help"], {}),
    "a wrong setting": (["dev"], {"HOLDFAST_DRAIN_S": "soon"}),
}


async def start(deployment: Deployment) -> list[Figure]:
    """Starts new processes, and then a hundred runs, one after the other."""
    assert deployment.fresh is not None
    figures: list[Figure] = []
    async with deployment.fresh():
        pass  # a first start, in which Python compiles
    before = calibrating_s()
    async with deployment.fresh() as (client, pids):
        used = {name: used_s(pid) for name, pid in pids.items()}
        scale = pace(before, calibrating_s())
        figures += [Figure(f"start of {name}: CPU", seconds * scale, "s") for name, seconds in used.items()]
        figures += await _first_tokens(client)
    if len(pids) == 1:  # commands without a server are the same in both set-ups
        figures += await _said()
    return figures


async def _first_tokens(client: Client) -> list[Figure]:
    agent_id, times = await client.agent(), list[float]()
    for _ in range(SUBMISSIONS):
        async with client.send(agent_id, tokens=1) as stream:
            await stream.until("ended_at")
            client.check(stream, 1)
            times.append((stream.first_token_at - stream.opened_at) * 1000)
    return [
        Figure("submission 1 after the start → first token", times[0], "ms"),
        Figure("submission 3 after the start → first token", times[2], "ms"),
        Figure(f"slowest of submissions 3 to {FIRST} → first token", max(times[2:FIRST]), "ms"),
        Figure(f"submission {SUBMISSIONS} → first token", quantile(times[-LAST:], 0.5), "ms"),
    ]


async def _said() -> list[Figure]:
    figures: list[Figure] = []
    with TemporaryDirectory(prefix="holdfast-bench-") as directory:
        for name, (arguments, environment) in SAID.items():
            before = calibrating_s()
            used = await asyncio.to_thread(used_until_its_end_s, arguments, environment, Path(directory))
            figures.append(Figure(f"{name}: CPU", used * pace(before, calibrating_s()), "s"))
    return figures
