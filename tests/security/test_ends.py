"""How quickly, and how surely, hostile calls end when their worker wants them to end, or ends itself."""

import os
import signal
import time

import msgspec
import pytest

from shared.domain.tools import SandboxTier
from tests.kit.jail.jail import Answer, Jail, WorkerLost, jail, need_a_jail
from tests.kit.wait_until import wait_until
from tests.security.bystanders import surroundings
from tests.security.hostile.exhaust import EXHAUST
from tests.security.hostile.survive import SURVIVE

CALLS = 20
QUICKLY_S = 50.0
"""A bound for hangs. On a machine with nothing else to do they are gone a tenth of a second after the grace."""
LAST = ("deaf", "leader_exits", "stopped", "refuse_the_cancellation", "spin")
"""Tools that do not end by themselves."""
WALLS = pytest.mark.parametrize("tier", [SandboxTier.ONE, SandboxTier.TWO])


@pytest.fixture(autouse=True)
def jail_is_possible() -> None:
    need_a_jail()


def start(made: Jail, count: int) -> list[tuple[int, Answer]]:
    tools = [tool for tool in (*SURVIVE, *EXHAUST) if tool.name in LAST]
    planted = made.targets | {"pids": [process.inside for process in made.processes()]}
    calls = [tools[number % len(tools)].invocation(planted, linger=True) for number in range(count)]
    return [made.request("call", invocation=msgspec.to_builtins(call)) for call in calls]


@WALLS
async def test_hostile_calls_that_are_cancelled_are_dead_at_once(tier: SandboxTier) -> None:
    async with jail(tier) as made:
        await surroundings(made)
        before = len(made.processes())
        calls = start(made, CALLS)
        await wait_until(lambda: len(made.processes()) >= before + CALLS, description="all calls to run")
        started = time.monotonic()
        for number, _ in calls:
            made.cancel(number)
        await wait_until(lambda: len(made.processes()) <= before, description="no process of a call", every=0.002)
        seconds = time.monotonic() - started
        for _, answer in calls:
            await made.answered(answer, QUICKLY_S)
    print(f"{tier}: {CALLS} hostile calls were dead {seconds * 1000:.0f} ms after their cancellation")
    assert seconds < QUICKLY_S


@WALLS
async def test_a_worker_that_is_killed_leaves_no_process_of_a_hostile_tool(tier: SandboxTier) -> None:
    async with jail(tier) as made:
        outside = {process.pid for process in made.processes()} - {made.worker()}
        await surroundings(made)
        before = len(made.processes())
        calls = start(made, len(LAST))
        await wait_until(lambda: len(made.processes()) >= before + len(LAST), description="all calls to run")
        files = made.files()
        os.kill(made.worker(), signal.SIGKILL)
        await wait_until(
            lambda: {process.pid for process in made.processes()} <= outside, description="nothing of the worker's left"
        )
        with pytest.raises(WorkerLost):
            await made.answered(calls[0][1], QUICKLY_S)
        assert set(made.files()) <= set(files)
