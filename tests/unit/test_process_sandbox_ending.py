"""How a tool call ends when it does not end by itself: cleanup gets its chance, and then nothing of it is left."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from tests.kit.sandboxes import LIMITS
from tests.kit.tools import is_alive, tool_call, written_pids
from tests.kit.wait_until import wait_until
from worker.tools.outcomes import ToolInvocation
from worker.tools.sandbox_choice import ProcessSandbox

GRACE_S = 240.0
QUICKLY_S = 50.0
"""Less than what the tools here sleep, and more than a machine stands still for."""
"""More than any cleanup here takes, also on a busy machine: whoever waits for its end has found a fault."""
REPOSITORY = Path(__file__).parents[2]

FAMILY = """
    import os, signal, time

    def note(path):
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\\n")

    def tool(path, work=60):
        note(path)
        if os.fork() == 0:              # a child in the tool's group
            note(path)
            time.sleep(60)
        if os.fork() == 0:              # a child that leaves the group
            os.setsid()
            if os.fork() == 0:          # and an orphan in a session that nobody knows
                os.setsid()
                os.environ.clear()
                os.chdir("/")
                note(path)
                time.sleep(60)
            os._exit(0)
        while len(open(path).read().split()) < 3:
            time.sleep(0.001)
        time.sleep(work)
        return "done"
"""


@pytest.fixture
async def sandbox() -> AsyncIterator[ProcessSandbox]:
    made = ProcessSandbox(LIMITS, grace_s=GRACE_S)
    yield made
    await made.aclose()


async def cancel_when_written(sandbox: ProcessSandbox, call: ToolInvocation, path: Path, *, times: int = 1) -> float:
    """Cancels the call as soon as the tool has written to `path`. The seconds until the call was over."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sandbox.call(call))
        await wait_until(lambda: path.exists() and path.read_text(), description="the tool's first mark")
        started = time.monotonic()
        for _ in range(times):
            task.cancel()
            await asyncio.wait([task], timeout=0.05)
        await asyncio.wait([task])
        assert task.cancelled()
    return time.monotonic() - started


def start_worker(script: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(script)], env=environment)


@pytest.mark.parametrize(
    ("work", "ending"),
    [
        ("time.sleep(60)", "finally"),
        ("time.sleep(60)", "except ToolCancelled"),
        ("while True: pass", "except __import__('builtins').ToolCancelled"),
        ("subprocess.run(['sleep', '60'])", "finally"),
    ],
)
async def test_cancel_raises_in_the_tools_own_frame(
    sandbox: ProcessSandbox, tmp_path: Path, work: str, ending: str
) -> None:
    source = f"""
        import time, subprocess
        def tool(path):
            def mark(text):
                with open(path, "a") as file:
                    file.write(text + " ")
            try:
                mark("started")
                {work}
            {ending}:
                mark("cleaned")
    """
    marks = tmp_path / "marks"
    seconds = await cancel_when_written(sandbox, tool_call(source, path=str(marks)), marks)
    assert marks.read_text().split() == ["started", "cleaned"]
    assert seconds < QUICKLY_S


@pytest.mark.parametrize("wait", ["await asyncio.sleep(60)", "time.sleep(60)", "await asyncio.gather(nap(), nap())"])
@pytest.mark.parametrize("error", ["ToolCancelled", "asyncio.CancelledError"])
async def test_cancel_reaches_async_code_under_both_names(
    sandbox: ProcessSandbox, tmp_path: Path, wait: str, error: str
) -> None:
    source = f"""
        import asyncio, time
        async def nap():
            await asyncio.sleep(60)
        async def tool(path):
            try:
                # Closed here, and not by a destructor: that would swallow what a signal raises in it.
                with open(path, "w") as file:
                    file.write("started")
                {wait}
            except {error}:
                await asyncio.sleep(0.01)
                open(path, "w").write("cleaned")
    """
    marks = tmp_path / "marks"
    assert await cancel_when_written(sandbox, tool_call(source, path=str(marks)), marks) < QUICKLY_S
    assert marks.read_text() == "cleaned"


async def test_a_tool_that_ignores_the_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    source = """
        import os, signal, time
        def tool(path):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open(path, "w").write(str(os.getpid()))
            time.sleep(60)
    """
    sandbox, pid = ProcessSandbox(LIMITS, grace_s=0.3), tmp_path / "pid"
    seconds = await cancel_when_written(sandbox, tool_call(source, path=str(pid)), pid)
    assert 0.3 <= seconds < QUICKLY_S
    assert not is_alive(int(pid.read_text()))


async def test_a_second_cancel_does_not_stop_the_killing(tmp_path: Path) -> None:
    sandbox, pids = ProcessSandbox(LIMITS, grace_s=0.3), tmp_path / "pids"
    source = FAMILY.replace(
        "        note(path)", "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n        note(path)", 1
    )
    seconds = await cancel_when_written(sandbox, tool_call(source, path=str(pids)), pids, times=3)
    assert seconds < QUICKLY_S
    assert not any(is_alive(pid) for pid in written_pids(pids, 1))


async def test_cancel_kills_children_and_those_that_left_the_group(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sandbox.call(tool_call(FAMILY, path=str(pids))))
        family = await wait_until(lambda: written_pids(pids, 3), description="three processes of the tool")
        assert all(is_alive(pid) for pid in family)
        started = time.monotonic()
        task.cancel()
        await asyncio.wait([task])
    assert not any(is_alive(pid) for pid in family)
    assert time.monotonic() - started < QUICKLY_S


async def test_the_rest_of_the_family_dies_as_soon_as_the_tool_returns(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    started = time.monotonic()
    outcome = await sandbox.call(tool_call(FAMILY, path=str(pids), work=0))
    assert outcome.text == "done"
    assert not any(is_alive(pid) for pid in written_pids(pids, 3))
    assert time.monotonic() - started < QUICKLY_S


async def test_a_timeout_ends_the_call_and_keeps_its_output(sandbox: ProcessSandbox) -> None:
    source = """
        import time
        def tool():
            try:
                time.sleep(60)
            finally:
                print("cleaned")
    """
    outcome = await sandbox.call(msgspec.structs.replace(tool_call(source), timeout_s=4.0))
    assert (outcome.status, outcome.text) == ("error", "Error: tool timed out after 4 s (HOLDFAST_TOOL_TIMEOUT)")
    assert outcome.stdout == ["cleaned"]


async def test_a_tool_that_swallows_the_cancellation_has_still_timed_out(sandbox: ProcessSandbox) -> None:
    source = """
        import time
        def tool():
            try:
                time.sleep(60)
            except BaseException:
                return "nothing happened"
    """
    outcome = await sandbox.call(msgspec.structs.replace(tool_call(source), timeout_s=4.0))
    assert (outcome.status, outcome.text) == ("error", "Error: tool timed out after 4 s (HOLDFAST_TOOL_TIMEOUT)")


async def test_a_call_cancelled_before_its_process_runs_starts_nothing(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    call = tool_call("def tool(path):\n    open(path, 'w').close()", path=str(mark))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sandbox.call(call))
        await asyncio.wait([task], timeout=0)
        task.cancel()
    assert not mark.exists()


async def test_closing_ends_every_call_and_refuses_new_ones(tmp_path: Path) -> None:
    sandbox = ProcessSandbox(LIMITS, grace_s=GRACE_S)
    paths = [tmp_path / name for name in "ab"]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sandbox.call(tool_call(FAMILY, path=str(path)))) for path in paths]
        for path in paths:
            await wait_until(lambda path=path: written_pids(path, 3), description="the tool's family")
        await sandbox.aclose()
        families = [pid for path in paths for pid in written_pids(path, 3)]
        assert not any(is_alive(pid) for pid in families)
    for task in tasks:
        assert task.result().text == "Error: the tool was stopped, because the worker is shutting down"
    assert (await sandbox.call(tool_call(FAMILY))).text.endswith("the worker is shutting down")


async def test_a_tool_that_kills_its_watcher_dies_with_it(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    source = FAMILY.replace("time.sleep(work)", "os.kill(os.getppid(), 9); time.sleep(work)")
    outcome = await sandbox.call(tool_call(source, path=str(pids)))
    family = written_pids(pids, 3)
    assert outcome.text == "Error executing function tool: the tool's process was killed by SIGKILL without a result"
    survivors = await wait_until(
        lambda: [alive for alive in [[pid for pid in family if is_alive(pid)]] if len(alive) <= 1],
        description="the death of all but the one in a session of its own, whom nobody can know any more",
    )
    for pid in survivors[0]:
        os.kill(pid, signal.SIGKILL)


async def test_a_watcher_that_does_not_react_is_killed_with_all_below_it(tmp_path: Path) -> None:
    pids, sandbox = tmp_path / "pids", ProcessSandbox(LIMITS, grace_s=0.0)
    source = FAMILY.replace("time.sleep(work)", "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(work)")
    call = msgspec.structs.replace(tool_call(source, path=str(pids)), timeout_s=4.0)
    assert (await sandbox.call(call)).text == "Error: tool timed out after 4 s (HOLDFAST_TOOL_TIMEOUT)"
    family = written_pids(pids, 3)
    await wait_until(lambda: not any(is_alive(pid) for pid in family), description="the family's death")


def test_the_sandbox_works_on_uvloop(tmp_path: Path) -> None:
    async def scenario() -> None:
        sandbox, pids = ProcessSandbox(LIMITS, grace_s=GRACE_S), tmp_path / "pids"
        assert (await sandbox.call(tool_call("def tool():\n    return 'done'"))).text == "done"
        assert await cancel_when_written(sandbox, tool_call(FAMILY, path=str(pids)), pids) < QUICKLY_S
        assert not any(is_alive(pid) for pid in written_pids(pids, 1))

    uvloop.run(scenario())


async def test_nothing_survives_a_worker_that_is_killed(tmp_path: Path) -> None:
    pids, script = tmp_path / "pids", tmp_path / "worker_process.py"
    script.write_text(
        textwrap.dedent(f"""
            import asyncio
            from tests.unit.test_process_sandbox_ending import FAMILY
            from tests.kit.sandboxes import LIMITS
            from tests.kit.tools import tool_call
            from worker.tools.sandbox_choice import ProcessSandbox
            sandbox = ProcessSandbox(LIMITS, grace_s=30)
            asyncio.run(sandbox.call(tool_call(FAMILY, path={str(pids)!r})))
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    worker = start_worker(script, environment)
    try:
        family = await wait_until(lambda: written_pids(pids, 3), description="the tool's family")
    finally:
        worker.kill()
        worker.wait()
    await wait_until(lambda: not any(is_alive(pid) for pid in family), description="the family's death")
