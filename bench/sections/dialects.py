"""Measures the same work over each dialect with a stream, in turns: the time to the first token, and the cost of a
token. The ratios show a dialect's cost, independently of other load on the machine."""

import asyncio
import time
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
    return {"Letta": client.send, "Responses": client.respond, "AG-UI": client.run_ag_ui, "AI SDK": client.chat}


def _in_turn(client: Client, turn: int) -> list[tuple[str, Send]]:
    """Returns the dialects, reversed in every second turn, because a later one may wait for an earlier one's work."""
    both = list(_dialects(client).items())
    return both if turn % 2 else both[::-1]


async def dialects(deployment: Deployment) -> list[Figure]:
    """Measures all figures of each dialect, and their ratios."""
    figures = await _first_tokens(deployment)
    figures += await _first_tokens_in_conversations(deployment)
    paced = f"{RUNS} runs x {TOKENS_PER_S}/s"
    wish = {"tokens": PACED_S * TOKENS_PER_S, "per_second": TOKENS_PER_S}
    figures += await _costs(deployment, f"CPU per token, {paced}", RUNS, **wish)
    return figures + await _costs(deployment, "CPU per token, without a pace", POURED_RUNS, tokens=POURED_TOKENS)


async def _first_tokens(deployment: Deployment) -> list[Figure]:
    """Measures from sending the request to the first token at the client, one run after the other. The requests name
    the agent over Letta's API and Responses; a page's request makes a conversation."""
    client, times = deployment.client, {name: list[float]() for name in _dialects(deployment.client)}
    for turn in range(WARM_UP + FIRST_TOKENS):
        for name, send in _in_turn(client, turn):
            times[name].append(await _first_token(client, send, await client.agent()))
    return _medians("submit → first token, p50", times)


async def _first_tokens_in_conversations(deployment: Deployment) -> list[Figure]:
    """Measures the same in existing conversations, and over Letta's API together with the request that makes one."""
    client, letta, made = deployment.client, "Letta", "Letta, and making it"
    times = {name: list[float]() for name in (letta, "AG-UI", "AI SDK", made)}
    for turn in range(WARM_UP + FIRST_TOKENS):
        agent_id = await client.agent()
        began = time.monotonic()
        conversation_id = await client.conversation(agent_id)
        took = time.monotonic() - began
        times[made].append(took + await _first_token(client, client.send_to, conversation_id))
        times[letta].append(await _first_token(client, client.send_to, conversation_id))
        for name, send in _in_turn(client, turn):
            if name in ("AG-UI", "AI SDK"):
                agent_id = await client.agent()
                await _first_token(client, send, agent_id)
                times[name].append(await _first_token(client, send, agent_id))
    return _medians("submit to a conversation → first token, p50", times)


async def _first_token(client: Client, send: Send, to: str) -> float:
    """Sends a request, and reads its stream to the end. Returns the seconds until the first token."""
    async with send(to, tokens=1) as stream:
        await stream.until("ended_at")
        client.check(stream, 1)
        return stream.first_token_at - stream.opened_at


def _medians(title: str, times: dict[str, list[float]]) -> list[Figure]:
    medians = {name: quantile(found[WARM_UP:], 0.5) * 1000 for name, found in times.items()}
    return _beside(title, medians, "ms")


async def _costs(deployment: Deployment, title: str, runs: int, **wish: int) -> list[Figure]:
    """Measures the processor time per token of each of the product's processes, from first request to last byte."""
    used = {name: dict.fromkeys(deployment.processes, 0.0) for name in _dialects(deployment.client)}
    for turn in range(TURNS + 1):
        for name, send in _in_turn(deployment.client, turn):
            found = await _cost(deployment, send, runs, **wish)
            if turn:  # one-time work of a process is not part of a token's cost
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
    """Returns a figure for each dialect, and the ratios of the others to the first one."""
    first, *others = values
    figures = [Figure(f"{title}: {name}", value, unit) for name, value in values.items()]
    return figures + [Figure(f"{title}: {name} / {first}", values[name] / values[first], "x") for name in others]
