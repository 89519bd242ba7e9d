"""Measures agents in code: what their processes, their journal and their frames cost beside what they do."""

import asyncio
import json
import time
from typing import Any, NamedTuple

import psutil

from bench.client import Client, Refused
from bench.code_agents import DEATHS
from bench.deployments import Deployment
from bench.figures import Figure, quantile

PROGRAM = "bench.code_agents"
EMPTY, STEPS, TOKENS, FRAMES = 30, 300, 20_000, 2_000
WAITING = (16, 50)
SHARED_BY = 8
KNOWN_WITHIN_S = 30.0
LOOKS_EVERY_S = 0.2


async def code_agents(deployment: Deployment) -> list[Figure]:
    """Starts a deployment with agents of a module, and measures them one after the other."""
    assert deployment.fresh is not None
    async with deployment.fresh(PROGRAM) as (client, pids):
        bench = _Bench(client, [psutil.Process(pid) for pid in pids.values()])
        figures = [
            Figure("run of one token of a model → its end", await bench.short_runs("openai/bench", tokens=1), "ms"),
            Figure("empty run of an agent in code → its end", await bench.short_runs("code/empty"), "ms"),
        ]
        floor = await bench.run("floor", FRAMES)
        figures.append(Figure("a frame and its answer, asyncio alone: CPU of both sides", floor.agent_us, "us"))
        steps, replays = await bench.run("steps", STEPS), await bench.run("replays", STEPS)
        tokens = await bench.run("tokens", TOKENS)
        # Before its replays, that run has taken the steps.
        replayed = replays._replace(server_us=(replays.server_us - steps.server_us) / DEATHS)
        for title, measured in (("step", steps), ("replayed step", replayed), ("token", tokens)):
            figures.append(Figure(f"{title} of an agent in code: CPU of the agent", measured.agent_us, "us"))
            figures.append(Figure(f"{title} of an agent in code: CPU of the server", measured.server_us, "us"))
        figures.append(Figure("step of an agent in code", steps.took_us / 1000, "ms"))
        figures.append(Figure("replayed step of an agent in code", replays.took_us / 1000, "ms"))
        figures += await bench.memory(own=True)
    async with deployment.fresh(PROGRAM, per_process=SHARED_BY) as (client, pids):
        bench = _Bench(client, [psutil.Process(pid) for pid in pids.values()])
        return [*figures, *await bench.memory(own=False)]


class _Measured(NamedTuple):
    """The cost of one of many equal things, in microseconds."""

    took_us: float
    agent_us: float
    """Processor time of the agent's process."""
    server_us: float


class _Bench:
    """The agents, and the processes that serve them."""

    def __init__(self, client: Client, server: list[psutil.Process]) -> None:
        self._client = client
        self._server = server

    async def short_runs(self, model: str, **wish: Any) -> float:
        """Returns the median of the milliseconds from the request to the end of the stream."""
        agent_id, times = await self._agent(model), list[float]()
        for _ in range(EMPTY):
            async with self._client.send(agent_id, **wish) as stream:
                await stream.until("ended_at")
                times.append((stream.ended_at - stream.opened_at) * 1000)
        return quantile(times, 0.5)

    async def run(self, agent: str, count: int) -> _Measured:
        """Does something so often, and reads what the agent says of it."""
        client, agent_id = self._client, await self._agent(f"code/{agent}")
        before = self._used_s()
        async with client.send(agent_id, count=count) as stream:
            await stream.until("ended_at")
        used_s = self._used_s() - before
        said = await client.said(agent_id)
        report = json.loads(said[said.rindex("{") :])
        return _Measured(*(seconds / count * 1e6 for seconds in (report["wall_s"], report["cpu_s"], used_s)))

    async def memory(self, *, own: bool) -> list[Figure]:
        """The memory that running agents cost: what the process of each has for itself, if each has its own, and what
        all of them have together, their host included."""
        agent_id, client, running = await self._agent("code/waits"), self._client, 0
        shared, figures = "" if own else f", {SHARED_BY} in a process", list[Figure]()
        for number in WAITING:
            conversations = [await client.conversation(agent_id) for _ in range(number - running)]
            for conversation in conversations:
                await client.submit_to(conversation)
            running = number
            processes = await self._waiting(number if own else -(-number // SHARED_BY))
            infos = [process.memory_full_info() for process in [*self._hosts(), *processes]]
            if own and number == WAITING[0]:
                alone = [info.uss / 1e6 for info in infos[-number:]]
                figures.append(Figure("memory of a running agent in code", quantile(alone, 0.5), "MB"))
            together = sum(info.pss for info in infos) / 1e6
            figures.append(Figure(f"memory of {number} running agents in code{shared}", together, "MB"))
        return figures

    async def _waiting(self, number: int) -> list[psutil.Process]:
        """The processes of agents, when there are so many of them."""
        end = time.monotonic() + KNOWN_WITHIN_S
        while len(found := self._agents()) < number and time.monotonic() < end:
            await asyncio.sleep(LOOKS_EVERY_S)
        await asyncio.sleep(1.0)  # they take their step
        return found

    def _hosts(self) -> list[psutil.Process]:
        return [child for one in self._server for child in one.children() if child.cmdline()[-1:] == [PROGRAM]]

    def _agents(self) -> list[psutil.Process]:
        return [child for host in self._hosts() for child in host.children()]

    def _used_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._server)

    async def _agent(self, model: str) -> str:
        """Makes an agent, once the API knows that a worker has it."""
        end = time.monotonic() + KNOWN_WITHIN_S
        while True:
            try:
                return await self._client.agent(model=model)
            except Refused:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(LOOKS_EVERY_S)
