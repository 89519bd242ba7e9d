"""Looks like a worker to its tools: it has secrets, listeners and a tool sandbox, and makes the requested calls.

It obeys JSON lines on its standard input, and answers each on its standard output in the order in which they end. It
summarises the outcome of a call, because a hostile call's result must not be passed on. The test judges the outcome.
"""

import asyncio
import contextlib
import json
import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from shared.domain.tools import SandboxTier, ToolPackages
from shared.network.addresses import AllowedHosts
from shared.network.checked_http import NetworkRules
from tests.kit.environments import environments
from tests.kit.jail.keeper import FOLDER
from tests.kit.jail.plants import Plants, segments
from tests.kit.package_index import PackageIndex, wheel
from worker.main import with_certificates
from worker.proxy.exchange import EgressDialer
from worker.tools.node_choice import find_node, sandbox_of
from worker.tools.outcomes import CallLimits, ToolInvocation, ToolOutcome, ToolSandbox
from worker.tools.sandbox_choice import PlainProcess, SandboxChoice

SHOWN_CHARS = 600
"""Of what a call returned, unless the request wants more."""
LIMITS = CallLimits(memory_bytes=256 << 20, processor_s=60, file_bytes=64 << 20)
GRACE_S = 0.5


async def make_sandbox(tier: SandboxTier, allowed_port: int) -> ToolSandbox:
    """As the worker makes its own, for this tier and no other."""
    settings = {SandboxTier.ONE: "tier1", SandboxTier.TWO: "tier2", SandboxTier.PROCESS: "process"}
    plan = await SandboxChoice(settings[tier], tool_user="nobody", tool_python="", scratch_mb=64).best_isolation()
    walls = plan or PlainProcess(sys.executable, None)
    node = await find_node("", walls, LIMITS)
    if isinstance(walls, PlainProcess):
        return sandbox_of(walls, LIMITS, node, grace_s=GRACE_S)
    network = NetworkRules.of("127.0.0.0/8,::1/128", "")
    reach = EgressDialer(AllowedHosts.parse(f"localhost:{allowed_port}"), network.policy)
    walls = with_certificates(walls, FOLDER, network)
    return sandbox_of(walls, LIMITS, node, grace_s=GRACE_S, reach=reach)


@contextlib.asynccontextmanager
async def packages() -> AsyncGenerator[tuple[str, ...]]:
    """The folder of an environment, made as workers make them, of a package that every call may import."""
    folder = FOLDER / "packages"
    folder.mkdir(mode=0o711)
    index = PackageIndex().put(wheel("planted", "1.0", {"planted/__init__.py": "HELD = True\n"}))
    async with index.serving():
        kept = environments(folder, index, uv=os.environ["JAIL_UV"])
        async with kept.folders(ToolPackages(["planted==1.0"], ["planted"])) as folders:
            yield folders


class StandInWorker:
    def __init__(
        self, sandbox: ToolSandbox, plants: Plants, folders: tuple[str, ...], token: str, answers: int
    ) -> None:
        self._sandbox = sandbox
        self._folders = folders
        self._plants = plants
        self._planted = re.compile(rf"planted-[a-z]+-{token}")
        self._answers = answers
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def obey(self, lines: AsyncIterator[bytes]) -> None:
        async with asyncio.TaskGroup() as group:
            async for line in lines:
                request = json.loads(line)
                match request["do"]:
                    case "call":
                        name = f"call-{request['id']}"
                        self._calls[request["id"]] = group.create_task(self._call(request), name=name)
                    case "cancel":
                        self._calls[request["call"]].cancel()
                    case "look":
                        self._answer(request, **self._look())
                    case _:
                        break
            for call in self._calls.values():
                call.cancel()

    async def _call(self, request: dict[str, Any]) -> None:
        invocation = msgspec.convert(request["invocation"] | {"folders": self._folders}, ToolInvocation)
        started, cancelled = time.monotonic(), False
        task = asyncio.ensure_future(self._made(invocation))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            started, cancelled = time.monotonic(), True
            task.cancel()
            await asyncio.wait([task])
        seconds = time.monotonic() - started
        if task.cancelled():
            self._answer(request, seconds=seconds, cancelled=True)
            return
        if error := task.exception():
            self._answer(request, seconds=seconds, raised=repr(error)[:SHOWN_CHARS])
            return
        summary = self._summary(task.result(), request.get("shown", SHOWN_CHARS))
        self._answer(request, seconds=seconds, cancelled=cancelled, **summary)

    async def _made(self, invocation: ToolInvocation) -> ToolOutcome:
        """The call, within its run."""
        if invocation.run_id is None:
            return await self._sandbox.call(invocation)
        async with self._sandbox.of_run(invocation.run_id):
            return await self._sandbox.call(invocation)

    def _summary(self, outcome: ToolOutcome, shown: int) -> dict[str, Any]:
        texts = [outcome.text, *outcome.stdout, *outcome.stderr]
        whole = "\n".join(texts)
        return {
            "status": outcome.status,
            "text": printable(outcome.text[:shown]),
            "stderr": printable("".join(outcome.stderr)[-SHOWN_CHARS:]),
            "kept": sum(len(text) for text in texts),
            "secrets": sorted(set(self._planted.findall(whole))),
            "cannot_be_stored": "\0" in whole or any("\ud800" <= character <= "\udfff" for character in whole),
        }

    def _look(self) -> dict[str, Any]:
        return {
            "visits": self._plants.visits,
            "targets": self._plants.targets | {"packages": self._folders[0]},
            "segments": segments(),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "open": open_files(),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "cores": len(os.sched_getaffinity(0)),
            "limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)],
        }

    def _answer(self, request: dict[str, Any], **answer: Any) -> None:
        os.write(self._answers, json.dumps({"id": request["id"]} | answer).encode() + b"\n")


def open_files() -> dict[str, int]:
    """How many descriptors there are of each kind of file."""
    kinds = Counter[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself is closed
            kinds[re.sub(r"\d+", "N", str(descriptor.readlink()))] += 1
    return dict(kinds)


def printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


async def lines_of(descriptor: int) -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=1 << 24)
    pipe = os.fdopen(descriptor, "rb")
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    while line := await reader.readline():
        yield line


async def main() -> None:
    requests, answers = os.dup(0), os.dup(1)  # as a rule, programs do not pass these on
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    token = os.environ["JAIL_TOKEN"]
    plants = Plants(token)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(plants.planted())
        sandbox = await make_sandbox(SandboxTier(os.environ["JAIL_TIER"]), plants.targets["allowed"])
        stack.push_async_callback(sandbox.aclose)
        folders = await stack.enter_async_context(packages())
        await StandInWorker(sandbox, plants, folders, token, answers).obey(lines_of(requests))


if __name__ == "__main__":
    asyncio.run(main())
