"""Upgrades to a made-up newer release, and back, while runs go on.

The order is that of `docs/operations/upgrade.md`: workers first, then API processes. The way back reverses it, so that
no worker of this release gets work that only a newer API accepts. The newer release has no migration, because a
migration could not be reverted.
"""

import asyncio
from contextlib import suppress

from bench.chaos.counted_worker import launch_counted
from bench.chaos.deployment import Deployment, Slot, say
from bench.chaos.newer_release import launch_newer

ALONE_S = 4.0
"""Seconds in which only this release runs."""

MIGRATES_AGAIN = 3

OVERLAP_S = 2.0
"""Seconds of each step."""


async def upgrade_and_return(deployment: Deployment) -> None:
    """Replaces every process with one of the newer release, one after the other, and then with one of this release.
    The last worker stays on the newer release."""
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
    """Migrates. If the database has no free connection, it tries again, as an operator would."""
    for _ in range(MIGRATES_AGAIN):
        with suppress(AssertionError):
            await slot.processes.migrate()
            return
    await slot.processes.migrate()
