"""The agents of a worker, over all modules that it was started with."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog

from shared.domain.code_agents import ShownAgent
from shared.domain.errors import InvalidRequest
from shared.domain.models import PROVIDERS
from worker.agents.body_process import AgentHost, BodyProcess, HostedAgent, HostGone, HostPlan

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


OF_AGENTS = "HOLDFAST_AGENTS"

OF_PROVIDERS = frozenset(
    name
    for provider in PROVIDERS.values()
    for address in provider.addresses
    for name in (address.url_variable, *address.key_variables)
)
"""Variables with keys, and with addresses, which may have some."""


def environment_of_agents(environment: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """The environment of agents: the worker's, without the deployment's own settings, and what a file has added."""
    own = {
        name: value
        for name, value in environment.items()
        if not name.startswith("HOLDFAST_") or name.startswith(OF_AGENTS)
    }
    return {**own, **added}


def plans(
    modules: Sequence[str],
    python: str,
    env_file: str,
    environment: Mapping[str, str] = os.environ,
    models: str = "own",
    max_mb: int = 0,
) -> list[HostPlan]:
    """How the hosts of these modules are started. `env_file` has lines `NAME=value`; empty: there is none. `models`:
    whose models an agent asks that does not say it. `max_mb`: MiB that a process of an agent may have for itself; 0:
    any number. Raises `InvalidRequest` if the file cannot be read."""
    added = _added(env_file)
    all_of_it = {**environment_of_agents(environment, added), f"{OF_AGENTS}_MODELS": models}
    keys = {name: value for name, value in all_of_it.items() if name in OF_PROVIDERS and name not in added}
    own = {name: value for name, value in all_of_it.items() if name not in keys}
    return [HostPlan(module, python or sys.executable, own, keys, max_mb, models == "own") for module in modules]


def _added(env_file: str) -> dict[str, str]:
    if not env_file:
        return {}
    try:
        lines = Path(env_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"HOLDFAST_AGENTS_ENV_FILE (--agents-env-file) cannot be read: {error}") from error
    pairs = [line.partition("=") for line in map(str.strip, lines) if line and not line.startswith("#")]
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}


class CodeAgents:
    """Hosts, and which of them has an agent."""

    def __init__(self, stack: AsyncExitStack, per_process: int = 1) -> None:
        self._stack = stack
        self._per_process = per_process
        self._hosts: dict[str, AgentHost] = {}
        self._described: dict[str, HostedAgent] = {}
        self._starting = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def running(cls, host_plans: Sequence[HostPlan], per_process: int = 1) -> AsyncGenerator["CodeAgents"]:
        """Starts the hosts for the block. `per_process`: how many runs may share a process. Raises `InvalidRequest` if
        a module cannot be used, or if two of them have an agent of one name."""
        async with AsyncExitStack() as stack:
            agents = cls(stack, per_process)
            for plan in host_plans:
                await agents.add(plan)
            yield agents

    @property
    def described(self) -> Mapping[str, HostedAgent]:
        """The agents by name."""
        return self._described

    @property
    def shown(self) -> list[ShownAgent]:
        """The agents as other processes see them."""
        return [
            ShownAgent(name=one.name, version=one.version, description=one.description, framework=one.framework)
            for one in self._described.values()
        ]

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the agents, by their names."""
        return {one.name: one.version for one in self._described.values()}

    def longest_silence_s(self) -> float:
        """Seconds for which the most silent process of a run has said nothing; 0 if there is none."""
        processes = [process for host in self._hosts.values() for process in host.processes]
        return max((process.silent_s for process in processes), default=0.0)

    async def fork(self, agent: str) -> BodyProcess:
        """Forks a process for one attempt of a run of this agent. A host that was lost is started again. Raises
        `HostGone` if that fails, too."""
        return await (await self._host_of(agent)).fork(agent)

    async def join(self, agent: str) -> BodyProcess:
        """The same, in a process of other runs if this agent's may share one, and there is room. Raises as `fork`."""
        if self._per_process == 1 or not self._described[agent].shares:
            return await self.fork(agent)
        return await (await self._host_of(agent)).join(agent, self._per_process)

    async def _host_of(self, agent: str) -> AgentHost:
        if not self._hosts[agent].is_gone:
            return self._hosts[agent]
        # Every run of a lost host comes here at once: the first one starts it for all of them.
        async with self._starting:
            host = self._hosts[agent]
            if host.is_gone:
                log.warning("agents_started_again", module=host.plan.module)
                try:
                    host = await self._stack.enter_async_context(AgentHost.running(host.plan))
                except InvalidRequest as error:
                    raise HostGone(error.message) from error
                self._hosts.update({name: host for name, old in self._hosts.items() if old.plan == host.plan})
            return host

    async def add(self, plan: HostPlan) -> None:
        """Starts a host. Raises `InvalidRequest` as `running`."""
        host = await self._stack.enter_async_context(AgentHost.running(plan))
        has_keys = any(one.models == "own" for one in host.agents)
        if plan.keys and has_keys is not plan.has_keys:
            host.hang_up()
            plan = plan._replace(has_keys=has_keys)
            host = await self._stack.enter_async_context(AgentHost.running(plan))
        for one in host.agents:
            if one.name in self._hosts:
                others = self._hosts[one.name].plan.module
                raise InvalidRequest(f"two agents are named {one.name!r}: in {others} and in {plan.module}")
            self._hosts[one.name], self._described[one.name] = host, one
