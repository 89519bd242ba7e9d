"""No hostile tool gets out of its sandbox, holds it up, survives its call or leaves anything behind. In both tiers."""

import pytest

from shared.domain.tools import SandboxTier
from tests.kit.jail.jail import need_a_jail
from tests.security.hostile.exhaust import EXHAUST
from tests.security.hostile.files import FILES
from tests.security.hostile.forge import FORGE
from tests.security.hostile.kernel_calls import KERNEL_CALLS
from tests.security.hostile.network import NETWORK
from tests.security.hostile.other_processes import OTHER_PROCESSES
from tests.security.hostile.poison import POISON
from tests.security.hostile.run_folders import RUN_FOLDERS
from tests.security.hostile.sockets import SOCKETS
from tests.security.hostile.spy import SPY
from tests.security.hostile.survive import SURVIVE
from tests.security.trial import findings

CLASSES = {
    "kernel calls": KERNEL_CALLS,
    "other processes": OTHER_PROCESSES,
    "sockets": SOCKETS,
    "files": FILES,
    "exhaust": EXHAUST,
    "survive": SURVIVE,
    "forge": FORGE,
    "spy": SPY,
    "poison": POISON,
    "network": NETWORK,
    "run folders": RUN_FOLDERS,
}


@pytest.fixture(autouse=True)
def jail_is_possible() -> None:
    need_a_jail()


@pytest.mark.parametrize("attacked", CLASSES)
async def test_without_walls_the_attacks_are_found_out(attacked: str) -> None:
    """What these tests look for, they find: on a sandbox that is no more than a process of the same user."""
    tools = [tool for tool in CLASSES[attacked] if tool.open_without_walls]
    found = await findings(tools, SandboxTier.PROCESS, cancelled=False)
    missed = [tool.name for tool in tools if not any(tool.name in finding for finding in found)]
    assert not missed, found


@pytest.mark.parametrize("tier", [SandboxTier.ONE, SandboxTier.TWO])
@pytest.mark.parametrize("attacked", CLASSES)
async def test_walls_hold(attacked: str, tier: SandboxTier) -> None:
    """Each tool of the class, to its end and cancelled: nothing is found."""
    found = await findings(CLASSES[attacked], tier)
    assert not found, "\n".join(found)
