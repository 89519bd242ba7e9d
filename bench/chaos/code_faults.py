"""Kills processes of agents in code, beside the faults of the schedule: a run's own process, or at times the host that
has forked those of a whole worker. It finds them as descendants of the workers."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from bench.chaos.code_notes import Note
from bench.chaos.deployment import PROGRAM, Deployment
from bench.chaos.ledger import Killed, Ledger

SHORTEST_S, LONGEST_S = 0.3, 2.0
"""Seconds between two kills."""

HOSTS_SHARE = 0.05


@dataclass
class CodeFaults:
    """Kills processes of agents."""

    deployment: Deployment
    ledger: Ledger
    dice: random.Random

    async def play(self) -> None:
        """Kills again and again."""
        while True:
            await asyncio.sleep(self.dice.uniform(SHORTEST_S, LONGEST_S))
            workers = [slot.pid for slot in self.deployment.workers if slot.process is not None]
            hosts = await asyncio.to_thread(_hosts_of, workers)
            forked = [process for some in hosts.values() for process in some]
            if self.dice.random() >= HOSTS_SHARE:
                if forked:
                    self._kill(self.dice.choice(forked), "processes of agents killed")
            elif hosts:
                host = self.dice.choice(list(hosts))
                for process in hosts[host]:
                    self._note(process.pid)
                self._kill(host, "hosts of agents killed")

    def _kill(self, process: psutil.Process, title: str) -> None:
        with suppress(psutil.NoSuchProcess):
            process.kill()
            self.ledger.notes[title] += 1
            self._note(process.pid)

    def _note(self, pid: int) -> None:
        self.ledger.killed.append(Killed(pid, time.time()))


def blame_kills(ledger: Ledger, notes: Iterable[Note]) -> None:
    """Records the run that each kill has hit. A process that had not noted its beginning yet may have had any run of
    that time."""
    begun: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        if note.what == "begun":
            begun[note.detail].append(note)
    for kill in ledger.killed:
        before = [note for note in begun[str(kill.pid)] if note.at <= kill.at]
        kill.run_id = before[-1].run_id if before else None


def _hosts_of(workers: list[int]) -> dict[psutil.Process, list[psutil.Process]]:
    """Returns the hosts of these workers, each with the processes that it has forked."""
    return {host: list(_alive(host)) for worker in workers for host in _alive_of(worker) if _is_host(host)}


def _alive_of(pid: int) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        yield from _alive(psutil.Process(pid))


def _alive(parent: psutil.Process) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        yield from (child for child in parent.children() if child.status() != psutil.STATUS_ZOMBIE)


def _is_host(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[-1:] == [PROGRAM]
    except psutil.Error:
        return False
