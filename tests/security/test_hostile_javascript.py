"""No hostile tool in JavaScript gets out of its sandbox, holds it up or survives its call. In both tiers."""

import os

import pytest

from shared.domain.tools import SandboxTier
from tests.kit.jail.jail import jail, need_a_jail
from tests.kit.node import need_node
from tests.security.bystanders import call
from tests.security.hostile.hostile_javascript import HostileJavascript
from tests.security.hostile.javascript import JAVASCRIPT
from tests.security.trial import findings


@pytest.fixture(autouse=True)
def jail_is_possible() -> None:
    need_a_jail()
    need_node()


@pytest.mark.parametrize("as_root", [False, True])
@pytest.mark.parametrize("tier", list(SandboxTier))
async def test_javascript_runs_in_the_jail(tier: SandboxTier, *, as_root: bool) -> None:
    """Where it does not run, every attack is held, and nothing is shown."""
    if as_root and (os.getuid() != 0 or tier is SandboxTier.PROCESS):
        pytest.skip("only root can make a jail with a root in it; CI is root")
    harmless = HostileJavascript("js_harmless", "none", "async function tool() { return `HELD: ${process.version}`; }")
    async with jail(tier, as_root=as_root) as made:
        answer = await call(made, harmless.invocation(made.targets, linger=False))
    assert answer["text"].startswith("HELD: v"), answer


async def test_without_walls_attacks_in_javascript_are_found_out() -> None:
    tools = [tool for tool in JAVASCRIPT if tool.open_without_walls]
    found = await findings(tools, SandboxTier.PROCESS, cancelled=False)
    missed = [tool.name for tool in tools if not any(tool.name in finding for finding in found)]
    assert not missed, found


@pytest.mark.parametrize("tier", [SandboxTier.ONE, SandboxTier.TWO])
async def test_walls_hold_around_javascript(tier: SandboxTier) -> None:
    """Each tool, to its end and cancelled: nothing is found."""
    found = await findings(JAVASCRIPT, tier)
    assert not found, "\n".join(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("tier", [SandboxTier.ONE, SandboxTier.TWO])
async def test_walls_hold_around_javascript_of_a_worker_that_is_root(tier: SandboxTier) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a jail with a root in it; CI is root")
    found = await findings(JAVASCRIPT, tier, as_root=True, cancelled=False)
    assert not found, "\n".join(found)
