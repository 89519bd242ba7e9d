"""The release before this one, taken from the repository, and the upgrade from it while everything goes on.

The order is that of `docs/operations/upgrade.md`. A worker of the earlier release does not bear a newer one's API, nor
does it start on a database that was migrated: it goes on from before, beside workers of this release, until it is
replaced.
"""

import asyncio
import subprocess
import tarfile
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

from bench.chaos.counted_worker import launch_counted
from bench.chaos.deployment import Deployment, Slot, say
from bench.chaos.ledger import Ledger
from bench.chaos.newer_release import launch_newer_worker
from tests.kit.commands import ROOT, Command, CommandProcess, Launch, execute

COMMIT = "0c674cc"
"""The last one in which the numbers of a log were reserved."""

PROGRAM = "from api.cli import main; main()"
"""Its commands had another home than ours."""

STAYS_S = 8.0
"""How long the earlier release is alone."""

MIGRATES_AGAIN = 3

OVERLAP_S = 2.0
"""How long each step of the upgrade lasts."""


def launch_of_earlier(directory: Path) -> Launch | None:
    """Starts commands of the earlier release; None where the repository does not have it."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", COMMIT],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        return None
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(directory, filter="data")
    return partial(_execute, directory)


def _execute(directory: Path, command: Command) -> CommandProcess:
    """Its API fails the streams of newer workers' runs. To draw each traceback with the values of its variables, as it
    does on a terminal, kept a process so busy that it did not end within a minute of SIGTERM."""
    environment = {**command.environment, "HOLDFAST_LOG_JSON": "true"}
    return execute(replace(command, environment=environment), PROGRAM, directory)


async def upgrade(deployment: Deployment, ledger: Ledger) -> None:
    """Migrates, and then replaces the workers one after the other, then the API processes. The last worker is of the
    release that comes after this one, which the others bear."""
    ledger.upgraded_at = float("inf")
    await asyncio.sleep(STAYS_S)
    say("upgrade: migrating")
    first, *others = deployment.workers
    first.processes.launch = launch_counted
    await _migrate(first)
    for slot in (first, *others, *deployment.apis):
        say(f"upgrade: {slot.name}")
        await slot.replace(launch_counted)
        await asyncio.sleep(OVERLAP_S)
    ledger.upgraded_at = time.monotonic()
    await use_newer_worker(deployment)


async def _migrate(slot: Slot) -> None:
    """A database whose connections are all taken asks to try again, as an operator would."""
    for _ in range(MIGRATES_AGAIN):
        with suppress(AssertionError):
            await slot.processes.migrate()
            return
    await slot.processes.migrate()


async def use_newer_worker(deployment: Deployment) -> None:
    """The last worker becomes one of the release that comes after this one."""
    await deployment.workers[-1].replace(launch_newer_worker)
