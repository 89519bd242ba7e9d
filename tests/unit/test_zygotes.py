"""How zygotes live: replaced when they die or have made many calls, one per project, few without work."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import uvloop

from shared.domain.ids import ProjectId
from tests.kit.sandboxes import EVERY_SANDBOX, LIMITS, WALLED, sandbox_of, walls
from tests.kit.tools import is_alive, named_processes, tool_call
from tests.kit.wait_until import wait_until
from worker.tools.isolated_sandbox import IsolatedSandbox, ZygotePool
from worker.tools.outcomes import CappedPipe, PayloadPipe, ToolInvocation, ToolOutcome, ToolSandbox, child_ends
from worker.tools.zygote import Zygote

REPOSITORY = Path(__file__).parents[2]
GRACE_S = 240.0
QUICKLY_S = 60.0
"""More than any cleanup here takes, also on a busy machine."""

NAMED = """
    import ctypes, os, time

    def name(text):
        ctypes.CDLL(None).prctl(15, text.encode())

    def tool(mark):
        name(mark)
        {work}
"""
"""A process that a test can see from outside, whatever walls are around it: it gives itself a name."""
SLEEPS = NAMED.format(work="time.sleep(600)")


def call_of(project: str, source: str, **arguments: Any) -> ToolInvocation:
    return msgspec.structs.replace(tool_call(source, **arguments), project_id=ProjectId(project))


@asynccontextmanager
async def pooled(tier: str, **settings: Any) -> AsyncGenerator[IsolatedSandbox]:
    """A sandbox whose zygotes live by these settings of `ZygotePool`."""
    plan = await walls(tier)
    sandbox = IsolatedSandbox(plan, LIMITS, grace_s=2.0, pool=ZygotePool(plan, **settings))
    try:
        yield sandbox
    finally:
        await sandbox.aclose()


def zygotes() -> list[int]:
    """The process ids of this test's zygotes."""
    parents: dict[int, int] = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            words = child.cmdline()
            if is_alive(child.pid) and "child_zygote" in " ".join(words) and "python" in words[0]:
                parents[child.pid] = child.ppid()
    return sorted(pid for pid, parent in parents.items() if parent not in parents)  # a zygote's calls look like it


async def seen(mark: str, count: int = 1) -> list[int]:
    """The processes of that name, once there are so many."""
    return await wait_until(
        lambda: found if len(found := named_processes(mark)) >= count else None, description=f"{count} tools at work"
    )


@pytest.mark.parametrize("tier", WALLED)
async def test_a_zygote_that_died_is_replaced_and_its_calls_are_errors(tier: str) -> None:
    async with pooled(tier) as sandbox, asyncio.TaskGroup() as group:
        await sandbox.call(tool_call("def tool(): ..."))
        [zygote] = zygotes()
        running = group.create_task(sandbox.call(tool_call(SLEEPS, mark=f"orphaned-{tier}")))
        [call] = await seen(f"orphaned-{tier}")
        os.kill(zygote, signal.SIGKILL)
        outcome = await running
        assert outcome.text.endswith("the tool's process was killed by SIGKILL without a result")
        assert not is_alive(call)
        assert (await sandbox.call(tool_call("def tool():\n    return 'again'"))).text == "again"
        assert zygotes() != [zygote]


@pytest.mark.parametrize("tier", WALLED)
async def test_calls_that_had_not_begun_when_the_zygote_died_lose_nothing(tier: str) -> None:
    quick = tool_call("def tool():\n    return 'done'")
    async with pooled(tier) as sandbox:
        await sandbox.call(quick)
        [zygote] = zygotes()
        os.kill(zygote, signal.SIGSTOP)  # what is asked of it now stays unanswered
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sandbox.call(quick)) for _ in range(3)]
            await asyncio.wait(tasks, timeout=0.1)
            os.kill(zygote, signal.SIGKILL)
        assert [task.result().text for task in tasks] == ["done"] * 3


@pytest.mark.parametrize("tier", WALLED)
async def test_a_zygote_that_made_many_calls_is_replaced_and_ends_behind_its_last(tier: str) -> None:
    async with pooled(tier, calls_of_one=2) as sandbox, asyncio.TaskGroup() as group:
        await sandbox.call(tool_call("def tool(): ..."))
        [first] = zygotes()
        running = group.create_task(sandbox.call(tool_call(SLEEPS, mark=f"outlives-{tier}")))
        await seen(f"outlives-{tier}")
        for _ in range(2):
            assert (await sandbox.call(tool_call("def tool():\n    return 'done'"))).text == "done"
        assert first in zygotes()
        assert len(zygotes()) == 2
        running.cancel()
        await wait_until(lambda: first not in zygotes(), description="the first zygote to end")


@pytest.mark.parametrize("tier", WALLED)
async def test_projects_share_no_zygote_and_few_idle_ones_are_kept(tier: str) -> None:
    source = "def tool():\n    return [id(object), hash('x')]"
    async with pooled(tier, most_idle=2) as sandbox:
        found = [json.loads((await sandbox.call(call_of(name, source))).text) for name in ("a", "b", "c", "d")]
        again = json.loads((await sandbox.call(call_of("d", source))).text)
        assert len({tuple(one) for one in found}) == 4
        assert again == found[3]
        await wait_until(lambda: len(zygotes()) <= 2, description="the zygotes without work to end")


@pytest.mark.parametrize("tier", WALLED)
async def test_an_idle_zygote_is_ended(tier: str) -> None:
    async with pooled(tier, idle_s=0.05) as sandbox:
        await sandbox.call(tool_call("def tool(): ..."))
        await wait_until(lambda: not zygotes(), description="the idle zygote to end")
        assert (await sandbox.call(tool_call("def tool():\n    return 'back'"))).text == "back"


@pytest.mark.parametrize("tier", WALLED)
async def test_twenty_cancelled_calls_are_dead_at_once(tier: str) -> None:
    async with sandbox_of(tier, grace_s=GRACE_S) as sandbox, asyncio.TaskGroup() as group:
        mark = f"twenty-{tier}"
        tasks = [group.create_task(sandbox.call(tool_call(SLEEPS, mark=mark))) for _ in range(20)]
        calls = await seen(mark, 20)
        started = time.monotonic()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not any(is_alive(pid) for pid in calls)
        assert time.monotonic() - started < QUICKLY_S  # a tenth of a second on a machine that is not busy


class CancellingZygote(Zygote):
    """A zygote whose answer arrives in the moment in which the task that asked for the call is cancelled."""

    asking: "asyncio.Task[Any] | None" = None

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        super()._take(message, descriptors)
        if self.asking is not None:
            self.asking.cancel()


def pidfds() -> int:
    """The number of this process's descriptors of processes."""
    names = [str(one) for one in Path("/proc/self/fd").iterdir()]
    return sum(os.path.realpath(name).endswith("[pidfd]") for name in names)


@pytest.mark.parametrize("tier", WALLED)
async def test_a_call_that_was_forked_as_its_task_was_cancelled_was_never_ended(tier: str) -> None:
    zygote = CancellingZygote(await walls(tier), lambda _: None)
    await zygote.start()
    try:
        with contextlib.ExitStack() as pipes:
            before, payload = pidfds(), PayloadPipe(b"{}")  # open until the end: its end would end the call, too
            with child_ends(pipes, (payload, CappedPipe(1), CappedPipe(1), CappedPipe(1))) as ends:
                zygote.asking = asyncio.create_task(zygote.fork(ends, "/tmp"))
                await asyncio.wait([zygote.asking])
            assert zygote.asking.cancelled()
            await wait_until(lambda: zygote.is_idle and pidfds() == before, description="the call to be forgotten")
    finally:
        await zygote.aclose()


@pytest.mark.parametrize("name", EVERY_SANDBOX)
async def test_a_cancelled_tool_cleans_up(name: str) -> None:
    work = """try:
            time.sleep(600)
        except ToolCancelled:
            name(mark + "-end")
            time.sleep(1)"""
    mark = f"tidy-{name}"[:11]
    async with sandbox_of(name, grace_s=GRACE_S) as sandbox, asyncio.TaskGroup() as group:
        task = group.create_task(sandbox.call(tool_call(NAMED.format(work=work), mark=mark)))
        [call] = await seen(mark)
        task.cancel()
        assert await seen(f"{mark}-end") == [call]
        await asyncio.wait([task])
        assert task.cancelled()
        assert not is_alive(call)


@pytest.mark.parametrize("name", EVERY_SANDBOX)
async def test_a_tool_that_ignores_a_cancel_is_killed_after_the_grace(name: str) -> None:
    source = NAMED.format(work="__import__('signal').signal(15, 1); name(mark + '!'); time.sleep(600)")
    async with sandbox_of(name, grace_s=0.3) as sandbox:
        outcome = await sandbox.call(msgspec.structs.replace(tool_call(source, mark=f"deaf-{name}"), timeout_s=4.0))
        assert outcome.text == "Error: tool timed out after 4 s (HOLDFAST_TOOL_TIMEOUT)"
        assert named_processes(f"deaf-{name}!") == []


@pytest.mark.parametrize("name", EVERY_SANDBOX)
async def test_a_timeout_lets_the_tool_clean_up_and_keeps_its_output(name: str) -> None:
    work = "\n".join(("try:", "            time.sleep(60)", "        finally:", "            print('cleaned')"))
    call = msgspec.structs.replace(tool_call(NAMED.format(work=work), mark="slow"), timeout_s=4.0)
    async with sandbox_of(name) as sandbox:
        outcome = await sandbox.call(call)
    assert (outcome.status, outcome.text) == ("error", "Error: tool timed out after 4 s (HOLDFAST_TOOL_TIMEOUT)")
    assert outcome.stdout == ["cleaned"]


@pytest.mark.parametrize("tier", WALLED)
async def test_closing_ends_calls_and_zygotes_and_refuses_new_calls(tier: str) -> None:
    async with sandbox_of(tier) as sandbox, asyncio.TaskGroup() as group:
        running = group.create_task(sandbox.call(tool_call(SLEEPS, mark=f"closing-{tier}")))
        calls = await seen(f"closing-{tier}")
        await sandbox.aclose()
        assert not any(is_alive(pid) for pid in calls)
        assert zygotes() == []
    assert running.result().text == "Error: the tool was stopped, because the worker is shutting down"
    assert (await sandbox.call(tool_call(SLEEPS, mark="late"))).text.endswith("the worker is shutting down")


@pytest.mark.parametrize("tier", WALLED)
def test_walls_work_on_uvloop(tier: str) -> None:
    async def scenario() -> ToolOutcome:
        async with sandbox_of(tier) as sandbox:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(sandbox.call(tool_call(SLEEPS, mark=f"uvloop-{tier}")))
                await seen(f"uvloop-{tier}")
                task.cancel()
            assert named_processes(f"uvloop-{tier}") == []
            return await called(sandbox)

    async def called(sandbox: ToolSandbox) -> ToolOutcome:
        return await sandbox.call(tool_call("def tool():\n    return 'done'"))

    assert uvloop.run(scenario()).text == "done"


@pytest.mark.parametrize("tier", WALLED)
async def test_nothing_of_a_walled_tool_survives_a_worker_that_is_killed(tier: str, tmp_path: Path) -> None:
    script, mark = tmp_path / "worker_process.py", f"left-{tier}"
    script.write_text(
        textwrap.dedent(f"""
            import asyncio
            from tests.kit.sandboxes import sandbox_of
            from tests.kit.tools import tool_call
            from tests.unit.test_zygotes import SLEEPS

            async def main():
                async with sandbox_of({tier!r}) as sandbox:
                    await sandbox.call(tool_call(SLEEPS, mark={mark!r}))

            asyncio.run(main())
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    worker = await asyncio.to_thread(subprocess.Popen, [sys.executable, str(script)], env=environment)
    try:
        calls = await seen(mark)
        family = [child.pid for child in psutil.Process(worker.pid).children(recursive=True)]
    finally:
        worker.kill()
        await asyncio.to_thread(worker.wait)
    await wait_until(
        lambda: not any(is_alive(pid) for pid in (*calls, *family)), description="the death of tool and zygote"
    )
