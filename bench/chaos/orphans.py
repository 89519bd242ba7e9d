"""Finds processes that outlive their worker. The harness adopts all orphans of the processes that it started, such as a
tool's process or a zygote, however they detached themselves."""

import asyncio
import ctypes
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from bench.chaos.deployment import Deployment
from bench.chaos.ledger import Column, Ledger

LOOK_S = 0.25
OUTLIVES_S = 2.0
"""Seconds that a process may take to end after its worker on a busy machine. Leaked tools and zygotes stay longer."""

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the parent of its children's orphans, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass
class Orphans:
    """Watches for orphans."""

    deployment: Deployment
    ledger: Ledger
    _seen: dict[psutil.Process, float] = field(default_factory=dict[psutil.Process, float])
    """When each was first seen, by the monotonic clock."""

    async def watch(self) -> None:
        """Looks for orphans again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Reaps dead orphans, and records orphans that should be dead."""
        ours = self.deployment.pids
        here = [child for child in psutil.Process().children() if child.pid not in ours]
        self._seen = {child: self._seen.get(child, time.monotonic()) for child in here}
        for orphan, since in self._seen.items():
            if time.monotonic() - since < OUTLIVES_S:
                continue  # it may be a process that has just been started
            with suppress(psutil.NoSuchProcess):
                if orphan.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(orphan.pid, os.WNOHANG)
                else:
                    detail = f"process {orphan.pid} ({' '.join(orphan.cmdline())[:80]}) has outlived its worker"
                    self.ledger.broken(Column.OUTLIVED, "-", detail)

    def kill(self) -> None:
        """Kills the orphans that are left."""
        self.look()
        for orphan in self._seen:
            with suppress(psutil.NoSuchProcess):
                orphan.kill()
