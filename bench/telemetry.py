"""Measures the cost of telemetry: `python -m bench.telemetry`.

It measures the time to the first token, and the servers' processor time per token, of a deployment without telemetry,
of the same one scraped every second (API and worker), and, if `--otlp` names a receiver, of another one with traces. A
twin of the first shows how far equal deployments differ on this machine. Rounds of each kind alternate, so that other
load affects all of them. Quantiles are of all rounds' runs; the processor time is the median of the rounds, and its
change that of the ratios within each round.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.deployments import Deployment, machine, model, services
from tests.kit.free_ports import free_port

STREAMS, TOKENS, TOKENS_PER_S = 20, 90, 30
"""Concurrent runs of a round, the tokens of each, and their rate."""

RUNS = 40
"""Runs of a round whose time to the first token is measured, one after the other."""

SCRAPE_S = 1.0


@dataclass(frozen=True)
class Round:
    """The figures of one round, in seconds."""

    first_tokens: list[float]
    cpu_per_token: float


@dataclass(frozen=True)
class Watched:
    """A deployment, and the addresses at which it is scraped."""

    deployment: Deployment
    targets: list[str]


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description=__doc__)
    parser.add_argument("--postgres", default="postgresql://127.0.0.1/test", help="a server to make databases on")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each kind")
    parser.add_argument("--otlp", help="the address of an OTLP receiver, for rounds with traces and a scrape")
    options = parser.parse_args()
    print(machine())
    rounds = defaultdict[str, list[Round]](list)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-telemetry-")))
        environment = await stack.enter_async_context(model())
        plain = await stack.enter_async_context(_watched(directory / "plain", environment, options.postgres))
        twin = await stack.enter_async_context(_watched(directory / "twin", environment, options.postgres))
        kinds = {"alone": (plain, False), "alone, a twin": (twin, False), "scraped every second": (plain, True)}
        if options.otlp:
            traced = {**environment, "HOLDFAST_OTLP_ENDPOINT": options.otlp}
            second = await stack.enter_async_context(_watched(directory / "traced", traced, options.postgres))
            kinds["scraped, with traces"] = (second, True)
        for number in range(options.rounds + 1):
            order = list(kinds.items())
            turned = number % len(order)  # each kind is first equally often, because caches are cold then
            for name, (watched, is_scraped) in order[turned:] + order[:turned]:
                found = await _round(watched, is_scraped=is_scraped)
                token_us = found.cpu_per_token * 1e6
                print(f"round {number}, {name}: {token_us:.0f} us of CPU per token", file=sys.stderr, flush=True)
                if number:  # the first round of each is a warm-up
                    rounds[name].append(found)
    _show(rounds)


@asynccontextmanager
async def _watched(directory: Path, environment: dict[str, str], postgres_url: str) -> AsyncGenerator[Watched]:
    directory.mkdir()
    port = free_port()
    variables = {**environment, "HOLDFAST_WORKER_PORT": str(port)}
    async with services(directory, variables, postgres_url) as deployment:
        api = deployment.client.url
        yield Watched(deployment, [f"{api}/metrics", f"http://127.0.0.1:{port}/metrics"])


async def _round(watched: Watched, *, is_scraped: bool) -> Round:
    async with AsyncExitStack() as stack:
        if is_scraped:
            await stack.enter_async_context(_scraping(watched.targets))
        return Round(await _first_tokens(watched.deployment), await _cpu_per_token(watched.deployment))


async def _first_tokens(deployment: Deployment) -> list[float]:
    """Measures from each request to its first token at the client."""
    times: list[float] = []
    for agent_id in [await deployment.client.agent() for _ in range(RUNS)]:
        async with deployment.client.send(agent_id, tokens=1) as stream:
            await stream.until("first_token_at")
            times.append(stream.first_token_at - stream.opened_at)
            await stream.until("ended_at")
    return times


async def _cpu_per_token(deployment: Deployment) -> float:
    """Measures all servers' processor time while runs stream, divided by their tokens."""
    client = deployment.client
    agents = [await client.agent() for _ in range(STREAMS)]
    async with AsyncExitStack() as stack:
        before = _cpu(deployment)
        streams = [
            await stack.enter_async_context(client.send(agent_id, tokens=TOKENS, per_second=TOKENS_PER_S))
            for agent_id in agents
        ]
        await asyncio.gather(*(stream.until("ended_at") for stream in streams))
        used = _cpu(deployment) - before
        received = sum(len(stream.delays) for stream in streams)
    if received != STREAMS * TOKENS:
        raise SystemExit(f"{STREAMS * TOKENS - received} tokens are missing")
    return used / received


def _cpu(deployment: Deployment) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in deployment.processes.values())


@asynccontextmanager
async def _scraping(targets: list[str]) -> AsyncGenerator[None]:
    """Scrapes every second for the block, as Prometheus would."""

    async def scrape() -> None:
        async with httpx.AsyncClient() as http:
            while True:
                began = time.monotonic()
                for target in targets:
                    answer = await http.get(target)
                    answer.raise_for_status()
                await asyncio.sleep(max(0.0, began + SCRAPE_S - time.monotonic()))

    scraping = asyncio.create_task(scrape())
    try:
        yield
        if scraping.done():
            scraping.result()  # raises its error
    finally:
        scraping.cancel()


def _show(rounds: dict[str, list[Round]]) -> None:
    alone = rounds["alone"]
    print("| | first token p50 | p99 | CPU per token |")
    print("|---|---|---|---|")
    for name, found in rounds.items():
        p50, p99 = (
            _cell(_quantile(found, share), _quantile(found, share) / _quantile(alone, share)) for share in (0.5, 0.99)
        )
        pairs = zip(found, alone, strict=True)
        cpu = _cell(
            statistics.median(one.cpu_per_token for one in found),
            statistics.median(one.cpu_per_token / other.cpu_per_token for one, other in pairs),
        )
        print(f"| {name} | {p50} | {p99} | {cpu} |")


def _cell(seconds: float, ratio: float) -> str:
    """Renders a figure, and its difference from the rounds without telemetry."""
    return f"{seconds * 1000:.2f} ms ({ratio - 1:+.1%})"


def _quantile(rounds: list[Round], share: float) -> float:
    """Returns a quantile of all rounds' times, because one round has too few for the slowest in a hundred."""
    ordered = sorted(seconds for one in rounds for seconds in one.first_tokens)
    return ordered[round((len(ordered) - 1) * share)]


if __name__ == "__main__":
    asyncio.run(main())
