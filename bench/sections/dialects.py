"""The same work by Letta's API and by OpenAI's Responses, in turns: how long the first token takes, and what a token
costs. The ratio tells what a dialect costs, whatever the machine does meanwhile."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from bench.client import Client, Watched
from bench.deployments import Deployment, ProcessorTimes
from bench.figures import Figure, quantile

Send = Callable[..., AbstractAsyncContextManager[Watched]]

FIRST_TOKENS, WARM_UP = 60, 10
RUNS, TOKENS_PER_S, TURNS = 10, 30, 4
PACED_S = 6
POURED_RUNS, POURED_TOKENS = 16, 2_500


def _dialects(client: Client) -> dict[str, Send]:
    return {"Letta": client.send, "Responses": client.respond}


def _in_turn(client: Client, turn: int) -> list[tuple[str, Send]]:
    """Each is the first one as often as the second: what one leaves behind, the other may have to wait for."""
    both = list(_dialects(client).items())
    return both if turn % 2 else both[::-1]


async def dialects(deployment: Deployment) -> list[Figure]:
    """All figures of both, and their ratios."""
    figures = await _first_tokens(deployment)
    paced = f"{RUNS} runs x {TOKENS_PER_S}/s"
    wish = {"tokens": PACED_S * TOKENS_PER_S, "per_second": TOKENS_PER_S}
    figures += await _costs(deployment, f"CPU per token, {paced}", RUNS, **wish)
    return figures + await _costs(deployment, "CPU per token, without a pace", POURED_RUNS, tokens=POURED_TOKENS)


async def _first_tokens(deployment: Deployment) -> list[Figure]:
    """From sending the request to the first token at the client, one run after the other."""
    client, times = deployment.client, {name: list[float]() for name in _dialects(deployment.client)}
    for turn in range(WARM_UP + FIRST_TOKENS):
        for name, send in _in_turn(client, turn):
            agent_id = await client.agent()
            async with send(agent_id, tokens=1) as stream:
                await stream.until("ended_at")
                client.check(stream, 1)
                times[name].append(stream.first_token_at - stream.opened_at)
    medians = {name: quantile(found[WARM_UP:], 0.5) for name, found in times.items()}
    return _beside("submit → first token, p50", {name: value * 1000 for name, value in medians.items()}, "ms")


async def _costs(deployment: Deployment, title: str, runs: int, **wish: int) -> list[Figure]:
    """The processor time of a token of each process that is the product's, from the first request to the last byte."""
    used = {name: dict.fromkeys(deployment.processes, 0.0) for name in _dialects(deployment.client)}
    for turn in range(TURNS + 1):
        for name, send in _in_turn(deployment.client, turn):
            found = await _cost(deployment, send, runs, **wish)
            if turn:  # what is done once in a process is no part of a token
                used[name] = {process: used[name][process] + found[process] for process in used[name]}
    tokens = TURNS * runs * wish["tokens"]
    costs = {name: {process: cpu / tokens * 1e6 for process, cpu in one.items()} for name, one in used.items()}
    figures = _beside(title, {name: sum(one.values()) for name, one in costs.items()}, "us")
    if len(deployment.processes) > 1:
        for process in deployment.processes:
            figures += _beside(f"{title}: {process}", {name: one[process] for name, one in costs.items()}, "us")
    return figures


async def _cost(deployment: Deployment, send: Send, runs: int, **wish: int) -> dict[str, float]:
    client = deployment.client
    agents = await client.agents(runs)
    times = ProcessorTimes(deployment)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(send(agent_id, **wish)) for agent_id in agents]
        await asyncio.gather(*(stream.until("ended_at") for stream in streams))
        for stream in streams:
            client.check(stream, wish["tokens"])
    return times.used()


def _beside(title: str, values: dict[str, float], unit: str) -> list[Figure]:
    """A figure for each dialect, and how many times the first one the others are."""
    first, *others = values
    figures = [Figure(f"{title}: {name}", value, unit) for name, value in values.items()]
    return figures + [Figure(f"{title}: {name} / {first}", values[name] / values[first], "x") for name in others]
