"""What outlives its worker. The harness adopts every orphan of the processes that it has started, and looks who comes:
a tool's process, a zygote, or whatever else a worker has begun, by whichever way it left."""

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
"""So long a process may take to follow its worker on a busy machine. Slow tools and zygotes would stay longer."""

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on what this process' children leave behind is this process' own child, where the kernel is Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass
class Orphans:
    """Looks for them."""

    deployment: Deployment
    ledger: Ledger
    _seen: dict[psutil.Process, float] = field(default_factory=dict[psutil.Process, float])
    """Since when each is known, by the monotonic clock."""

    async def watch(self) -> None:
        """Looks again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Buries the dead, and notes those that should be."""
        ours = self.deployment.pids
        here = [child for child in psutil.Process().children() if child.pid not in ours]
        self._seen = {child: self._seen.get(child, time.monotonic()) for child in here}
        for orphan, since in self._seen.items():
            if time.monotonic() - since < OUTLIVES_S:
                continue  # a process that was started just now is not among ours yet
            with suppress(psutil.NoSuchProcess):
                if orphan.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(orphan.pid, os.WNOHANG)
                else:
                    detail = f"process {orphan.pid} ({' '.join(orphan.cmdline())[:80]}) is there without its worker"
                    self.ledger.broken(Column.OUTLIVED, "-", detail)

    def kill(self) -> None:
        """Ends those that are left."""
        self.look()
        for orphan in self._seen:
            with suppress(psutil.NoSuchProcess):
                orphan.kill()
