"""The hosts of agents, and the agents of a worker over all of its modules. A host has imported a module, and forks the
processes of the module's agents. Its program is `holdfast.agents.host`."""

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import structlog

from shared.concurrency import lines_of, task_group
from shared.domain.code_agents import ShownAgent
from shared.domain.errors import InvalidRequest
from shared.domain.models import PROVIDERS
from worker.agents.body_process import BodyProcess, ForkedProcess, Frame, HostGone, ProcessEnd

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

START_S = 120.0
"""Seconds for the import of a module."""

LAST_OUTPUT_S = 1.0

LONGEST_MESSAGE = 1_000_000
LONGEST_LINE = 2000
"""Characters of a line of an agent's output that the log shows."""

TOO_OLD = 97
"""The exit status of a Python that is older than 3.10."""

BOOTSTRAP = f"""
import sys, types
sys.version_info < (3, 10) and sys.exit({TOO_OLD})
holdfast = types.ModuleType("holdfast")
holdfast.__path__ = [sys.argv[1]]
sys.modules["holdfast"] = holdfast
from holdfast.agents.host import main
main()
"""
"""The first code of a host. It finds only `holdfast.agents` in the folder that the worker names."""


def package_folder() -> Path:
    """Returns the folder of the package `holdfast`, in a checkout and in an installation."""
    root = Path(__file__).resolve().parents[2]
    return root.parent if root.name == "product" else root / "holdfast"


OF_AGENTS = "HOLDFAST_AGENTS"

OF_PROVIDERS = frozenset(
    name
    for provider in PROVIDERS.values()
    for address in provider.addresses
    for name in (address.url_variable, *address.key_variables)
)
"""Variables that contain keys, or addresses, which may contain keys."""


class HostedAgent(NamedTuple):
    """An agent as its module describes it."""

    name: str
    description: str
    on_change: str
    framework: str
    """`function` for a plain function."""
    models: str
    version: str
    """Empty: the code declares none."""
    shares: bool
    """Whether its runs may share a process with others."""


class HostPlan(NamedTuple):
    """The parameters for starting a host."""

    module: str
    python: str
    environment: Mapping[str, str]
    keys: Mapping[str, str]
    """The worker's variables for model providers."""
    max_mb: int
    """The most MiB of a process of an agent for itself; 0: any number."""
    has_keys: bool = True
    """Whether the host gets `keys`, because one of its agents calls models by itself."""


class UnfitModule(InvalidRequest):
    """A host cannot use the module."""

    def __init__(self, said: Frame) -> None:
        super().__init__("; ".join(said["reasons"]))
        self.reasons: list[str] = said["reasons"]
        self.warnings: list[str] = said["warnings"]
        self.agents = [HostedAgent(**one) for one in said["agents"]]
        """The agents that the module has registered."""
        self.trace: str = said["traceback"]
        """The traceback of the error that the module raised. Empty: none."""


def environment_of_agents(environment: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of agents: the worker's without the deployment's own settings, and a file's variables. A
    provider's own client would use an empty address, as compose sets it."""
    own = {
        name: value
        for name, value in environment.items()
        if (not name.startswith("HOLDFAST_") or name.startswith(OF_AGENTS)) and (value or name not in OF_PROVIDERS)
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
    """Returns the plans for the hosts of these modules. `env_file` has lines `NAME=value`; empty: there is none.
    `models`: the source of models for agents that choose none. `max_mb`: the most MiB of a process of an agent for
    itself; 0: any number. Raises `InvalidRequest` if the file cannot be read."""
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


class AgentHost:
    """One host process. `running` starts it, and ends it with all processes that it has forked."""

    def __init__(self, plan: HostPlan, control: socket.socket) -> None:
        self.plan = plan
        self.agents: list[HostedAgent] = []
        self.warnings: list[str] = []
        """Sentences about values of the module that work differently from their framework's documents."""
        self.is_gone = False
        self._control = control
        self._asked: deque[asyncio.Future[Any]] = deque()
        self.processes: set[BodyProcess] = set()
        """The processes with a run, once for each run."""
        self._shared: list[ForkedProcess] = []
        self._joining = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Frame] = loop.create_future()
        loop.add_reader(control, self._readable)

    @classmethod
    @asynccontextmanager
    async def running(cls, plan: HostPlan) -> AsyncGenerator[Self]:
        """Starts a host for the block. Raises `InvalidRequest`, in one sentence, if the module cannot be used."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                process = await _started(plan, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        host = cls(plan, ours)
        async with task_group() as group:
            printed = [
                group.create_task(_log_lines(stream, name), name=f"{name} of {plan.module}")
                for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr"))
                if stream is not None
            ]
            try:
                await host.begin(process)
                yield host
            finally:
                host.hang_up()
                await process.wait()
                # A process that an agent has started may hold the host's output open.
                await asyncio.wait(printed, timeout=LAST_OUTPUT_S)
                for one in printed:
                    one.cancel()

    async def fork(self, agent: str) -> BodyProcess:
        """Forks a process for one attempt of a run. Raises `HostGone`."""
        process, ours = await self._forked(agent, socket.SOCK_STREAM)
        process.runs = process.runs_begun = 1
        return await self._with_run(process, ours)

    async def join(self, agent: str, at_most: int) -> BodyProcess:
        """Begins one attempt of a run in a process that has fewer than `at_most` runs, or in a new one. Raises
        `HostGone`."""
        async with self._joining:
            while True:
                self._shared = [one for one in self._shared if one.is_open]
                process = next((one for one in self._shared if one.runs < at_most), None)
                if process is None:
                    process, control = await self._forked("", socket.SOCK_SEQPACKET)
                    process.open_for(control)
                    self._shared.append(process)
                if (ours := process.begin(agent)) is not None:
                    return await self._with_run(process, ours)

    async def _with_run(self, process: ForkedProcess, ours: socket.socket) -> BodyProcess:
        try:
            return BodyProcess(self.processes, process, *await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            ours.close()
            process.lose_run()
            raise

    async def _forked(self, agent: str, kind: socket.SocketKind) -> tuple[ForkedProcess, socket.socket]:
        """Forks a process. Returns it with our end of its socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            with theirs:
                asked = self._request({"t": "fork", "agent": agent}, [theirs.fileno()])
        except HostGone:
            ours.close()
            raise
        try:
            return ForkedProcess(self.bury, *await asyncio.shield(asked)), ours
        except BaseException:
            ours.close()
            asked.add_done_callback(self._end_unwanted)
            raise

    def bury(self, pid: int) -> "asyncio.Future[ProcessEnd]":
        """Kills the process with its whole group. The future returns how it has ended."""
        return self._request({"t": "bury", "pid": pid})

    async def begin(self, process: asyncio.subprocess.Process) -> None:
        """Waits until the module is imported. Raises `InvalidRequest`."""
        try:
            async with asyncio.timeout(START_S):
                said = await self._ready
        except TimeoutError:
            raise InvalidRequest(f"{self.plan.module} was not imported within {START_S:g} s") from None
        except HostGone:
            how = "signal {}" if (status := await process.wait()) < 0 else "exit code {}"
            if status == TOO_OLD:
                raise InvalidRequest(f"{self.plan.python} is older than Python 3.10, which agents need") from None
            ended = f"{self.plan.python} ended with {how.format(abs(status))}"
            raise InvalidRequest(f"{ended} before it had imported {self.plan.module}") from None
        if said["t"] == "unfit":
            if said["traceback"]:
                log.warning("agents_unfit", module=self.plan.module, traceback=said["traceback"])
            raise UnfitModule(said)
        self.agents = [HostedAgent(**one) for one in said["agents"]]
        self.warnings = said["warnings"]

    def _request(self, message: Frame, descriptors: list[int] | None = None) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            if self.is_gone:
                raise BrokenPipeError
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors or [])
        except BlockingIOError as error:
            raise HostGone(f"the host of {self.plan.module} has more requests than its socket holds") from error
        except OSError as error:
            self.hang_up()
            raise HostGone(f"the host of {self.plan.module} is gone") from error
        self._asked.append(answer)
        return answer

    def _readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, LONGEST_MESSAGE, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self.hang_up()
            return
        message = json.loads(data)
        if not self._ready.done():
            self._ready.set_result(message)
            return
        answer = self._asked.popleft()
        if not answer.done():
            is_new = message["t"] == "forked"
            ending = None if is_new else ProcessEnd(message["status"], message["grown_mb"], self.plan.max_mb)
            answer.set_result((message["pid"], descriptors[0]) if is_new else ending)

    def hang_up(self) -> None:
        """Ends the host with all processes that it has forked. Its open requests raise `HostGone`."""
        if self.is_gone:
            return
        self.is_gone = True
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        gone = HostGone(f"the host of {self.plan.module} is gone")
        for waiting in (self._ready, *self._asked):
            if not waiting.done():
                waiting.set_exception(gone)
                waiting.exception()  # the caller may be gone as well

    def _end_unwanted(self, forked: "asyncio.Future[tuple[int, int]]") -> None:
        """Ends a process whose caller was cancelled before it existed."""
        if not forked.cancelled() and forked.exception() is None:
            pid, pidfd = forked.result()
            os.close(pidfd)
            with contextlib.suppress(HostGone):
                self.bury(pid)


async def _started(plan: HostPlan, control: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *(plan.python, "-c", BOOTSTRAP, str(package_folder()), str(control), str(plan.max_mb), plan.module),
            pass_fds=(control,),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**plan.environment, **(plan.keys if plan.has_keys else {})},
            start_new_session=True,
        )
    except OSError as error:
        raise InvalidRequest(f"HOLDFAST_AGENTS_PYTHON (--agents-python) cannot be started: {error}") from error


async def _log_lines(stream: asyncio.StreamReader, name: str) -> None:
    """Logs the output of agents, a line at a time."""
    async for line in lines_of(stream):
        if text := line.decode(errors="replace").rstrip():
            log.info("agent_printed", stream=name, text=text[:LONGEST_LINE])


class CodeAgents:
    """The hosts of a worker, and the host of each agent."""

    def __init__(self, stack: AsyncExitStack, per_process: int = 1) -> None:
        self._stack = stack
        self._per_process = per_process
        self._hosts: dict[str, AgentHost] = {}
        self._described: dict[str, HostedAgent] = {}
        self._starting = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def running(cls, host_plans: Sequence[HostPlan], per_process: int = 1) -> AsyncGenerator["CodeAgents"]:
        """Starts the hosts for the block. `per_process`: the most runs that may share a process. Raises
        `InvalidRequest` if a module cannot be used, or if two modules have an agent of the same name."""
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
        """The agents in the form for other processes."""
        return [
            ShownAgent(name=one.name, version=one.version, description=one.description, framework=one.framework)
            for one in self._described.values()
        ]

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the agents, by their names."""
        return {one.name: one.version for one in self._described.values()}

    def longest_silence_s(self) -> float:
        """Returns the seconds since the last frame of the most silent process of a run; 0 if there is none."""
        processes = [process for host in self._hosts.values() for process in host.processes]
        return max((process.silent_s for process in processes), default=0.0)

    async def fork(self, agent: str) -> BodyProcess:
        """Forks a process for one attempt of a run of this agent. A lost host is started again. Raises `HostGone` if
        that fails, too."""
        return await (await self._host_of(agent)).fork(agent)

    async def join(self, agent: str) -> BodyProcess:
        """As `fork`, but in a process of other runs if this agent's runs may share one, and one has room."""
        if self._per_process == 1 or not self._described[agent].shares:
            return await self.fork(agent)
        return await (await self._host_of(agent)).join(agent, self._per_process)

    async def _host_of(self, agent: str) -> AgentHost:
        if not self._hosts[agent].is_gone:
            return self._hosts[agent]
        # All runs of a lost host arrive here at once: the first one starts the host for all of them.
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
