"""Tries hostile tools on a sandbox in a jail, to their end and cancelled, and finds what they have done from outside.

Every finding is a sentence; it begins with the name of a tool, as far as one can be blamed.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shared.domain.tools import SandboxTier
from tests.kit.jail.jail import Answer, Jail, Seen, WorkerLost, jail
from tests.kit.wait_until import after, wait_until
from tests.security.bystanders import SLACK_S, difference, ordinary_calls, surroundings, victim
from tests.security.hostile.hostile_tool import HostileTool

AT_ONCE = 6
UNTIL_CANCELLED_S = 0.3
UNTIL_GONE_S = 2.0
VICTIM_S = 180.0
OTHERS_S = 150.0
CANCEL_S = 120.0
"""From a cancel to the end, at most. How quick it is on a quiet machine is another test."""
KEPT_CHARS = 4 << 20
WATCHDOG_MB = 3000
LOOK_EVERY_S = 0.05
WRONG = re.compile(r": ((Name|Type|Attribute|Syntax|Key|Index|Import|ModuleNotFound|Value|Reference)Error)\b")
"""A tool of ours that ends so has not been held: it is at fault."""


class Trial:
    """Hostile tools in one jail. `findings` is what they managed to do."""

    def __init__(self, jail: Jail) -> None:
        self._jail = jail
        self._processes: Counter[str] = Counter()
        self._memory_mb = 0.0
        self._run_files: list[str] = []
        self.findings: list[str] = []

    async def run(self, tools: Sequence[HostileTool], *, cancelled: bool) -> None:
        before = await surroundings(self._jail)
        if again := difference(before, await surroundings(self._jail)):
            self.findings.append(f"two calls of a new sandbox differ: {again}")
        if any(tool.has_network for tool in tools):
            await surroundings(self._jail, has_network=True)  # such calls have a zygote of their own, which stays
        async with victim(self._jail, self.findings):
            await wait_until(self._victim_runs, timeout=VICTIM_S, description="the victim to have begun")
            self._processes = Counter(process.command for process in self._jail.processes())
            worker, files = await self._jail.look(), self._jail.files()
            self._run_files = [path for path in files if path.endswith("/kept")]
            for linger in (False, True) if cancelled else (False,):
                async with ordinary_calls(self._jail, self.findings):
                    await self._try_all(tools, linger=linger)
                await self._expect_gone(tools)
            self._compare_worker(worker, await self._look_when_still(worker))
            self._compare_files(files, self._jail.files())
        if later := difference(before, await surroundings(self._jail)):
            self.findings.append(f"a call after them finds other surroundings: {later}")

    def _victim_runs(self) -> bool:
        """It has written its files: whatever it needs is there, and does not change any more."""
        return any(path.endswith("/kept") and seen and seen[0] for path, seen in self._jail.files().items())

    async def _try_all(self, tools: Sequence[HostileTool], *, linger: bool) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def in_its_place(tool: HostileTool) -> None:
            async with places:
                await self._try(tool, linger=linger)

        async with asyncio.TaskGroup() as group:
            for tool in tools:
                if not tool.alone:
                    group.create_task(in_its_place(tool), name=tool.name)
        for tool in tools:
            if tool.alone:
                async with memory_to_itself():
                    self._memory_mb = self._memory()
                    await self._try(tool, linger=linger)
                    await self._expect_gone([tool])

    async def _try(self, tool: HostileTool, *, linger: bool) -> None:
        planted = self._jail.targets | {"pids": [process.inside for process in self._jail.processes()]}
        planted["run_files"] = self._run_files
        invocation = tool.invocation(planted, linger=linger)
        number, answer = self._jail.request("call", invocation=msgspec.to_builtins(invocation))
        if linger:
            await asyncio.wait([answer], timeout=UNTIL_CANCELLED_S)
            if not answer.done():
                self._jail.cancel(number)
            await self._wait(tool, answer, CANCEL_S)
        else:
            await self._wait(tool, answer, tool.timeout_s + SLACK_S)
        if not answer.done():
            self.findings.append(f"{tool.name}: had not ended in time (cancelled: {linger})")
        elif isinstance(lost := answer.exception(), WorkerLost):
            self.findings.append(f"{tool.name}: {lost}")
            raise lost
        else:
            self._judge(tool, answer.result())

    async def _wait(self, tool: HostileTool, answer: Answer, seconds: float) -> None:
        """Until the answer is there, with an eye on the memory if the tool runs alone."""
        loop = asyncio.get_running_loop()
        deadline, most = loop.time() + seconds, 0.0
        while loop.time() < deadline and not answer.done():
            await asyncio.wait([answer], timeout=LOOK_EVERY_S if tool.alone else seconds)
            if tool.alone:
                most = max(most, self._memory() - self._memory_mb)
            if most > WATCHDOG_MB:
                raise WorkerLost(f"{tool.name} takes {most:.0f} MB, and everything is ended for it")
        if most > tool.growth_mb:
            self.findings.append(f"{tool.name}: took {most:.0f} MB of memory")

    def _memory(self) -> float:
        """MB of the jail's processes, and of what lies in no process: the whole machine's, so only roughly ours."""
        return sum(process.private_mb for process in self._jail.processes()) + self._jail.shared_mb()

    def _judge(self, tool: HostileTool, answer: dict[str, Any]) -> None:
        text = str(answer.get("text", ""))
        if raised := answer.get("raised"):
            self.findings.append(f"{tool.name}: the sandbox raised {raised}")
        if text.startswith("ESCAPED"):
            self.findings.append(f"{tool.name}: {text}")
        elif WRONG.search(text) or (tool.says and answer.get("status") == "success" and not text.startswith("HELD")):
            self.findings.append(f"{tool.name}: is itself at fault: {text} {answer.get('stderr')}")
        if answer.get("secrets"):
            self.findings.append(f"{tool.name}: got {answer['secrets']}")
        if answer.get("kept", 0) > KEPT_CHARS:
            self.findings.append(f"{tool.name}: made the worker keep {answer['kept']} characters")
        if answer.get("cannot_be_stored"):
            self.findings.append(f"{tool.name}: brought text that no database takes")

    async def _expect_gone(self, tools: Sequence[HostileTool]) -> None:
        """Nothing runs that did not run before. What does is blamed, and ended."""
        for _ in range(int(UNTIL_GONE_S / LOOK_EVERY_S)):
            if not (left := self._more_than_before()):
                return
            await after(LOOK_EVERY_S)
        else:
            left = self._more_than_before()
        for process in left:
            named = [tool.name for tool in tools if f"hostile-{tool.name}" in process.command]
            names = ", ".join(named or [tool.name for tool in tools])
            self.findings.append(f"{names}: left a process running: {process.command[-200:]}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _more_than_before(self) -> list[Seen]:
        left, known = list[Seen](), self._processes.copy()
        for process in self._jail.processes():
            known[process.command] -= 1
            if known[process.command] < 0:
                left.append(process)
        return left

    async def _look_when_still(self, before: dict[str, Any]) -> dict[str, Any]:
        """The worker when the folders of calls are removed, which happens behind them, and while no thread of it
        measures the victim's folder: both hold a descriptor."""
        seen = dict[str, Any]()

        async def is_still() -> bool:
            seen.update(await self._jail.look())
            return seen["descriptors"] == before["descriptors"]

        with contextlib.suppress(AssertionError):  # `_compare_worker` says it
            await wait_until(is_still, timeout=VICTIM_S, description="the worker to have closed its files")
        return seen

    def _compare_worker(self, before: dict[str, Any], later: dict[str, Any]) -> None:
        for name, visits in later["visits"].items():
            if visits:
                self.findings.append(f"somebody came to the worker's listener {name!r}, {visits} times")
        for name in ("segments", "descriptors", "nice", "cores", "limits"):
            if before[name] != later[name]:
                self.findings.append(f"the worker's {name} were {before[name]} and are {later[name]}")
        if before["descriptors"] != later["descriptors"]:
            new = Counter[str](later["open"]) - Counter[str](before["open"])
            self.findings.append(f"the worker has opened {dict(new)}")

    def _compare_files(self, before: dict[str, tuple[int, ...]], later: dict[str, tuple[int, ...]]) -> None:
        """A tool gives its files its own name."""
        for path in sorted(before | later):
            if before.get(path) != later.get(path):
                change = "left" if path not in before else "removed" if path not in later else "changed"
                self.findings.append(f"somebody {change} {path!r}")


@contextlib.asynccontextmanager
async def memory_to_itself() -> AsyncGenerator[None]:
    """One test process at a time tries what takes much memory: some of it is counted for the whole machine."""
    path = Path(tempfile.gettempdir(), f"holdfast-tests-memory-{os.getuid()}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    def is_ours() -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        await wait_until(is_ours, timeout=OTHERS_S, description="other tests to have taken no memory")
        yield
    finally:
        os.close(lock)


async def findings(
    tools: Sequence[HostileTool], tier: SandboxTier, *, as_root: bool = False, cancelled: bool = True
) -> list[str]:
    """What the tools managed to do to a worker whose sandbox is of that tier. `cancelled`: not only to their end, but
    once more to where they are cancelled."""
    async with jail(tier, as_root=as_root) as made:
        trial = Trial(made)
        try:
            await trial.run(tools, cancelled=cancelled)
        except* WorkerLost as lost:
            trial.findings.append(f"no more was tried: {lost.exceptions[0]}")
    return trial.findings
