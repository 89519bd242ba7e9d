"""Measures agents in code: the cost of their processes, their journal and their frames, apart from their own work.

The floor is the least possible agent with a journal (`bench.bare_agents`). Its figures have the names of the product's,
so that the table shows them side by side.
"""

import asyncio
import json
import time
from typing import Any, NamedTuple

import psutil

from bench.bare_agents import measured as measured_floor
from bench.client import Client, Refused
from bench.code_agents import DEATHS
from bench.deployments import Deployment
from bench.figures import Figure, quantile
from worker.agents.hosts import AgentHost, plans

PROGRAM = "bench.code_agents"
EMPTY, STEPS, TOOLS, TOKENS, FRAMES = 30, 300, 100, 20_000, 2_000
WAITING = (16, 50)
SHARED_BY = 8
MEMORY = "memory of a running agent in code"
KNOWN_WITHIN_S = 30.0
LOOKS_EVERY_S = 0.2


SCRIPT = {"turns": [{"text": "word"}]}
"""A model that answers in this process and at once: `builtin/echo` makes pauses."""

HELLO: dict[str, Any] = {
    "t": "hello",
    "id": "run-1",
    "journal": "run-1",
    "attempt": 1,
    "at": 0.0,
    "text": "",
    "input": [],
    "history": [],
    "client_tools": [],
    "state": {},
    "models": {"socket": "", "token": ""},
}
"""The first frame of an empty run."""


async def code_agents(deployment: Deployment) -> list[Figure]:
    """Starts a deployment with agents of a module, and measures them one after the other. Measures the floor where the
    product does not run."""
    if deployment.fresh is None:
        return await _floor()
    async with deployment.fresh(PROGRAM) as (client, pids):
        bench = _Bench(client, [psutil.Process(pid) for pid in pids.values()])
        figures = [
            Figure("run of one token of a model → its end", await bench.short_runs("openai/bench", tokens=1), "ms"),
            Figure(
                "run of one word of builtin/scripted → its end",
                await bench.short_runs("builtin/scripted", **SCRIPT),
                "ms",
            ),
            Figure("empty run of an agent in code → its end", await bench.short_runs("code/empty"), "ms"),
            *_of_processes(await _empty_processes()),
        ]
        floor = await bench.run("floor", FRAMES)
        figures.append(Figure("a frame and its answer, asyncio alone: CPU of both sides", floor.agent_us, "us"))
        steps, replays = await bench.run("steps", STEPS), await bench.run("replays", STEPS)
        tools, tokens = await bench.run("tools", TOOLS), await bench.run("tokens", TOKENS)
        # Before its replays, that run has taken the steps.
        replayed = replays._replace(server_us=(replays.server_us - steps.server_us) / DEATHS)
        figures += _of_work(step=steps, tool=tools, replayed_step=replayed, token=tokens)
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


async def _floor() -> list[Figure]:
    bare = await measured_floor()
    step, tool, replayed, token = (_Measured(*one) for one in (bare.step, bare.tool, bare.replayed, bare.token))
    return [
        *_of_processes(bare.empty_s),
        *_of_work(step=step, tool=tool, replayed_step=replayed, token=token),
        Figure(MEMORY, bare.memory_mb, "MB"),
    ]


def _of_work(**measured: _Measured) -> list[Figure]:
    """Returns the figures of an agent's work, by its names."""
    titled = [(f"{name.replace('_', ' ')} of an agent in code", one) for name, one in measured.items()]
    return [
        *(Figure(f"{title}: CPU of the agent", one.agent_us, "us") for title, one in titled),
        *(Figure(f"{title}: CPU of the server", one.server_us, "us") for title, one in titled),
        *(Figure(title, one.took_us / 1000, "ms") for title, one in titled if not title.startswith("token")),
    ]


def _of_processes(times: list[float]) -> list[Figure]:
    """`times`: seconds."""
    title = "process of an empty run: fork, first frame, end"
    return [
        Figure(f"{title}, best", min(times) * 1000, "ms"),
        Figure(f"{title}, p50", quantile(times, 0.5) * 1000, "ms"),
    ]


async def _empty_processes() -> list[float]:
    """Returns the seconds from the request for a process to its end, for runs that do nothing: the additional cost of
    an agent in code. It measures the product's own host, without a server around it."""
    times = list[float]()
    async with AgentHost.running(plans([PROGRAM], "", "")[0]) as host:
        for _ in range(EMPTY):
            began = time.monotonic()
            process = await host.fork("empty")
            process.send(HELLO)
            ended = await process.receive()
            assert ended is not None and ended["t"] == "returned", f"an empty agent said {ended}"
            await process.kill()
            times.append(time.monotonic() - began)
    return times


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
        """Runs an agent that does its work `count` times. Returns the figures that the agent and the server report."""
        client, agent_id = self._client, await self._agent(f"code/{agent}")
        before = self._used_s()
        async with client.send(agent_id, count=count) as stream:
            await stream.until("ended_at")
        used_s = self._used_s() - before
        said = await client.said(agent_id)
        report = json.loads(said[said.rindex("{") :])
        return _Measured(*(seconds / count * 1e6 for seconds in (report["wall_s"], report["cpu_s"], used_s)))

    async def memory(self, *, own: bool) -> list[Figure]:
        """Measures the memory that running agents cost: the memory of each agent's process for itself, if each has its
        own, and the memory of all processes together, including their host."""
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
                figures.append(Figure(MEMORY, quantile(alone, 0.5), "MB"))
            together = sum(info.pss for info in infos) / 1e6
            figures.append(Figure(f"memory of {number} running agents in code{shared}", together, "MB"))
        return figures

    async def _waiting(self, number: int) -> list[psutil.Process]:
        """Returns the processes of agents, once there are `number` of them."""
        end = time.monotonic() + KNOWN_WITHIN_S
        while len(found := self._agents()) < number and time.monotonic() < end:
            await asyncio.sleep(LOOKS_EVERY_S)
        await asyncio.sleep(1.0)  # the agents take their step
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
