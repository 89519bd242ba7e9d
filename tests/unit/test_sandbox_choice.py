"""What a worker does on the machine that it finds itself on, and how many tools it lets run at once."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId
from shared.domain.tools import SandboxTier
from tests.kit.sandboxes import WALLED, sandbox_of, walls
from tests.kit.tools import named_processes, tool_call
from tests.kit.wait_until import after, wait_until
from worker.tools.interpreter import described
from worker.tools.sandbox_choice import BoundedSandbox, CallSlots, SandboxChoice, look_at, tools_user, trial

MARKED = """
    import ctypes, time
    def tool(mark, seconds):
        ctypes.CDLL(None).prctl(15, mark.encode())
        time.sleep(seconds)
        return "done"
"""


@pytest.fixture
async def bounded() -> AsyncIterator[BoundedSandbox]:
    async with sandbox_of("tier2") as sandbox:
        yield BoundedSandbox(sandbox, calls_at_once=2)


def choice(sandbox: str = "auto", user: str = "nobody", python: str = "") -> SandboxChoice:
    return SandboxChoice(sandbox, user, python, 8)


@pytest.mark.parametrize(("name", "tier"), [("tier1", SandboxTier.ONE), ("tier2", SandboxTier.TWO)])
async def test_a_tier_that_works_is_taken_by_its_name(name: str, tier: SandboxTier) -> None:
    assert (await walls(name)).tier is tier


async def test_the_best_tier_is_taken_unasked() -> None:
    tier_1 = await walls("tier1")
    found = await choice().best_isolation()
    assert found is not None
    assert (found.tier, found.interpreter) == (tier_1.tier, tier_1.interpreter)


async def test_a_machine_without_walls_is_refused_with_the_reason_and_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "defpath", str(tmp_path))
    with pytest.raises(InvalidRequest) as refused:
        await SandboxChoice("tier1", "nobody", "", 9).best_isolation()
    assert "tier 1: bubblewrap (bwrap) is not installed" in refused.value.message
    assert "HOLDFAST_SANDBOX=process" in refused.value.message


async def test_another_system_gets_plain_processes_unless_walls_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert await choice().best_isolation() is None
    with pytest.raises(InvalidRequest, match="need Linux on x86_64 or aarch64, this is darwin"):
        await SandboxChoice("tier2", "nobody", "", 10).best_isolation()


async def test_plain_processes_are_taken_when_they_are_asked_for() -> None:
    assert await choice("process").best_isolation() is None


@pytest.mark.parametrize("tier", WALLED)
async def test_walls_that_cannot_be_built_are_no_walls(tier: str) -> None:
    plan = msgspec.structs.replace(await walls(tier), scratch_bytes=8 << 20)
    broken = msgspec.structs.replace(plan.interpreter, executable="/nowhere/python")
    reason = await trial(msgspec.structs.replace(plan, interpreter=broken))
    assert reason is not None
    assert "No such file or directory" in reason


def test_a_python_that_cannot_run_tools_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_TOOL_PYTHON: /nowhere/python cannot run tools"):
        look_at("/nowhere/python")
    with pytest.raises(ValueError, match=r"it is Python 3\.10"):
        described(["3.10", "/usr/bin/python3", "/usr/lib", "/usr/lib", ""])


def test_roots_tools_never_run_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert tools_user("nobody") not in (None, (0, 0))
    with pytest.raises(InvalidRequest, match="tools never run as root"):
        tools_user("root")
    with pytest.raises(InvalidRequest, match="no user 'nobody-of-this-name'"):
        tools_user("nobody-of-this-name")
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    assert tools_user("nobody") is None


async def test_parallel_calls_of_one_answer_took_as_many_processes(bounded: BoundedSandbox) -> None:
    """150 calls in one answer were 300 processes and 3 GB."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(bounded.call(tool_call(MARKED, mark="crowd", seconds=0.05))) for _ in range(8)]
        most = 0

        def look() -> bool:
            nonlocal most
            most = max(most, len(named_processes("crowd")))
            return all(task.done() for task in tasks)

        await wait_until(look, description="all calls to end")
    assert 1 <= most <= 2
    assert {task.result().text for task in tasks} == {"done"}


async def test_the_time_of_a_call_that_waits_has_not_begun(bounded: BoundedSandbox) -> None:
    call = msgspec.structs.replace(tool_call(MARKED, mark="waits", seconds=4), timeout_s=10.0)
    quick = msgspec.structs.replace(tool_call("def tool():\n    return 'in time'"), timeout_s=3.9)
    await bounded.call(quick)
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(bounded.call(call))
        await wait_until(lambda: len(named_processes("waits")) == 2, description="both places to be taken")
        assert (await bounded.call(quick)).text == "in time"


async def test_places_go_to_the_project_that_has_the_fewest() -> None:
    slots, order, all_wait = CallSlots(2), list[str](), asyncio.Event()

    async def use(project: str) -> None:
        async with slots.slot(ProjectId(project)):
            order.append(project)
            await all_wait.wait()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(use(project)) for project in [*["crowd"] * 10, "late", "later"]]
        await asyncio.wait(tasks, timeout=0.01)
        all_wait.set()
    assert order.index("late") <= 4
    assert order.index("later") <= 4
    assert len(order) == 12


async def test_sleeping_calls_of_one_project_delayed_anothers_call_until_they_ended() -> None:
    """A hundred calls of one answer took every place for as long as a call may last."""
    slots, over = CallSlots(2, 2), {name: asyncio.Event() for name in ("crowd", "other", "third", "fourth")}
    running: list[str] = []

    async def use(project: str) -> None:
        async with slots.slot(ProjectId(project)):
            running.append(project)
            await over[project].wait()
        running.remove(project)

    async with asyncio.TaskGroup() as group:

        async def begin(*projects: str) -> None:
            for project in projects:
                group.create_task(use(project))
            await turns()

        await begin(*["crowd"] * 100)
        assert running == ["crowd"] * 2
        await begin("other")
        assert running[2:] == ["other"]
        await begin("other", "third", "fourth")
        assert running[3:] == ["third"], "a project has one spare place, and there are two"
        over["third"].set()
        await turns()
        assert running[3:] == ["fourth"]
        over["fourth"].set()
        await turns()
        assert running[3:] == [], "a spare place stays free for projects that have none"
        over["crowd"].set()
        await turns()
        assert running == ["other"] * 2
        over["other"].set()
    assert running == []


async def turns() -> None:
    """As many of the event loop as it takes for a hundred calls to have their places, one after the other."""
    for _ in range(500):
        await after()


async def test_who_waits_for_a_place_can_be_cancelled() -> None:
    slots, freed = CallSlots(1), asyncio.Event()
    entered: list[str] = []

    async def use(name: str) -> None:
        async with slots.slot(ProjectId(name)):
            entered.append(name)
            await freed.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(use("first"))
        leaves, stays = group.create_task(use("leaves")), group.create_task(use("stays"))
        await asyncio.wait([leaves], timeout=0)
        leaves.cancel()
        await asyncio.wait([leaves])
        freed.set()
        await stays
    assert entered == ["first", "stays"]
