"""An upgrade to a release that is yet to come, and back, while everything goes on.

The order is that of `docs/operations/upgrade.md`: workers first, then API processes. On the way back it is the other
way round, so that no worker of this release has to do what only a newer API accepts. The newer release makes no
migration: one that does leaves no way back.
"""

import asyncio
from contextlib import suppress

from bench.chaos.counted_worker import launch_counted
from bench.chaos.deployment import Deployment, Slot, say
from bench.chaos.newer_release import launch_newer

ALONE_S = 4.0
"""How long this release is alone."""

MIGRATES_AGAIN = 3

OVERLAP_S = 2.0
"""How long each step lasts."""


async def upgrade_and_return(deployment: Deployment) -> None:
    """Replaces every process by one of the newer release, one after the other, and then by one of this release again.
    The last worker stays one of the newer release."""
    await asyncio.sleep(ALONE_S)
    say("upgrade: migrating")
    await _migrate(deployment.workers[0])
    for slot in (*deployment.workers, *deployment.apis):
        say(f"upgrade: {slot.name}")
        await slot.replace(launch_newer)
        await asyncio.sleep(OVERLAP_S)
    for slot in (*deployment.apis, *deployment.workers[:-1]):
        say(f"and back: {slot.name}")
        await slot.replace(launch_counted)
        await asyncio.sleep(OVERLAP_S)


async def _migrate(slot: Slot) -> None:
    """A database whose connections are all taken asks to try again, as an operator would."""
    for _ in range(MIGRATES_AGAIN):
        with suppress(AssertionError):
            await slot.processes.migrate()
            return
    await slot.processes.migrate()
