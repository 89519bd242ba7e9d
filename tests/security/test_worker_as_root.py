"""A worker that is root gives its tools another user, and what they could do to root's files and processes is held.

The worker is root of a user namespace: it finds itself to be root, and a tool that got out would be nobody here.
"""

import os

import msgspec
import pytest

from shared.domain.tools import SandboxTier
from tests.kit.jail.jail import first_uid, jail, need_a_jail
from tests.kit.wait_until import wait_until
from tests.security.bystanders import surroundings
from tests.security.hostile.files import FILES
from tests.security.hostile.hostile_tool import PROJECT
from tests.security.hostile.kernel_calls import KERNEL_CALLS
from tests.security.hostile.other_processes import OTHER_PROCESSES
from tests.security.hostile.spy import SPY
from tests.security.trial import findings
from worker.tools.outcomes import ToolInvocation

WALLS = pytest.mark.parametrize("tier", [SandboxTier.ONE, SandboxTier.TWO])
NOBODY = 65534
SLEEPER = ToolInvocation(PROJECT, "def tool():\n    import time\n    time.sleep(60)", "tool", {}, timeout_s=60)


@pytest.fixture(autouse=True)
def jail_is_possible() -> None:
    need_a_jail()
    if os.getuid() != 0:
        pytest.skip("only root can make a jail with a root in it; CI is root")


@WALLS
async def test_a_tool_of_root_runs_as_somebody_else(tier: SandboxTier) -> None:
    async with jail(tier, as_root=True) as made:
        await surroundings(made)
        before = {process.pid for process in made.processes()}
        number, answer = made.request("call", invocation=msgspec.to_builtins(SLEEPER))
        running = await wait_until(
            lambda: [process for process in made.processes() if process.pid not in before], description="the tool"
        )
        assert {process.uid for process in running} == {first_uid(as_root=True) + NOBODY}
        made.cancel(number)
        await made.answered(answer, 30)


@pytest.mark.parametrize("tier", [SandboxTier.ONE, pytest.param(SandboxTier.TWO, marks=pytest.mark.exhaustive)])
async def test_walls_hold_around_a_tool_of_root(tier: SandboxTier) -> None:
    found = await findings((*KERNEL_CALLS, *OTHER_PROCESSES, *FILES, *SPY), tier, as_root=True)
    assert not found, "\n".join(found)
