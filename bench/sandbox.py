"""Measures the cost of a tool call with each kind of isolation, and the time until cancelled calls are dead.

    python -m bench.sandbox [--calls 200]

It prints a row for each value of HOLDFAST_SANDBOX that works on this machine, and one for a call in JavaScript if it
finds Node.js.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import uvloop

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId
from worker.tools.isolated_sandbox import IsolatedSandbox
from worker.tools.node_choice import find_node
from worker.tools.outcomes import CallLimits, ToolInvocation, ToolSandbox
from worker.tools.sandbox_choice import PlainProcess, ProcessSandbox, SandboxChoice

LIMITS = CallLimits(memory_bytes=512 << 20, processor_s=60, file_bytes=64 << 20)
ECHO = ToolInvocation(ProjectId("bench"), "def echo(word):\n    return word\n", "echo", {"word": "hello"})
ECHO_JAVASCRIPT = ToolInvocation(
    ProjectId("bench"),
    "export function echo(word) { return word; }",
    "echo",
    {"word": "hello"},
    language="javascript",
    parameters=("word",),
)
SLEEP = ToolInvocation(
    ProjectId("bench"), "import time\ndef sleep():\n    time.sleep(600)\n", "sleep", {}, timeout_s=60.0
)
IN_FLIGHT = 8
CANCELLED = 20
SETTLED_S = 1.0
"""Seconds in which the calls to cancel have begun."""


@asynccontextmanager
async def opened(name: str) -> AsyncGenerator[ToolSandbox]:
    walls = await SandboxChoice(name, "nobody", "", 64).best_isolation() or PlainProcess(sys.executable, None)
    node = await find_node("", walls, LIMITS)
    sandbox: ToolSandbox
    if isinstance(walls, PlainProcess):
        sandbox = ProcessSandbox(LIMITS, grace_s=2.0, node=node)
    else:
        sandbox = IsolatedSandbox(msgspec.structs.replace(walls, node=node), LIMITS, grace_s=2.0)
    try:
        yield sandbox
    finally:
        await sandbox.aclose()


async def one_call(sandbox: ToolSandbox, echo: ToolInvocation) -> float:
    """Returns the milliseconds of one call."""
    began = time.perf_counter()
    outcome = await sandbox.call(echo)
    assert outcome.text == "hello", outcome
    return (time.perf_counter() - began) * 1000


async def calls_per_second(sandbox: ToolSandbox, echo: ToolInvocation, calls: int) -> float:
    waiting = iter(range(calls))

    async def caller() -> None:
        for _ in waiting:
            await one_call(sandbox, echo)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(caller())
    return calls / (time.perf_counter() - began)


async def cancel_many(sandbox: ToolSandbox) -> float:
    """Returns the milliseconds from the cancel until every call is dead."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sandbox.call(SLEEP)) for _ in range(CANCELLED)]
        await asyncio.sleep(SETTLED_S)
        began = time.perf_counter()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return (time.perf_counter() - began) * 1000


async def measure(name: str, calls: int) -> None:
    try:
        async with opened(name) as sandbox:
            await measure_calls(name, sandbox, ECHO, calls)
            if (await sandbox.call(ECHO_JAVASCRIPT)).status == "success":
                await measure_calls(f"{name} js", sandbox, ECHO_JAVASCRIPT, calls)
    except InvalidRequest as error:
        print(f"{name:10} {error.message}")


async def measure_calls(name: str, sandbox: ToolSandbox, echo: ToolInvocation, calls: int) -> None:
    first = await one_call(sandbox, echo)
    warm = sorted([await one_call(sandbox, echo) for _ in range(calls)])
    rate = await calls_per_second(sandbox, echo, calls)
    dead = f"{await cancel_many(sandbox):12.1f}" if echo is ECHO else ""
    middle, worst = statistics.median(warm), warm[int(len(warm) * 0.99) - 1]
    print(f"{name:10} {first:9.1f} {middle:8.1f} {worst:8.1f} {rate:9.0f} {dead}")


async def main(calls: int) -> None:
    print(f"{'':10} {'first ms':>9} {'p50 ms':>8} {'p99 ms':>8} {'calls/s':>9} {f'{CANCELLED} dead ms':>12}")
    for name in ("tier1", "tier2", "process"):
        await measure(name, calls)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    uvloop.run(main(parser.parse_args().calls))
