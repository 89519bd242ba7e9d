"""Watches SQL during the faults: ended runs must not change, and cancelled runs must do nothing more."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from bench.chaos.deployment import IN_FLIGHT, Deployment
from bench.chaos.ledger import Column, Ledger, RunRecord, Standstill
from bench.chaos.tools import StartLog
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.runs import IDEMPOTENCY_KEY, OTIDS
from shared.sql.run_tables import approvals, runs, submission_keys
from shared.sql.tables import messages

LOOK_S = 1.0
TOOL_DEAD_S = 0.5
"""Seconds after "cancelled" that a tool's process may still be in the process table of a busy machine."""
LONGEST_LOOK_S = 10.0
"""Seconds after "cancelled" for which such a process is watched. A worker that has lost its runs ends it within."""


@dataclass
class Witness:
    """Remembers the state of each run in SQL."""

    deployment: Deployment
    ledger: Ledger
    starts: StartLog
    in_flight: int
    """The most runs of a project that may work at once."""
    final: dict[str, tuple[str, str | None]] = field(default_factory=dict[str, tuple[str, str | None]])
    """The status and stop reason of each ended run."""

    async def watch(self) -> None:
        """Looks again and again."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> dict[str, str]:
        """Compares ended runs with their earlier state. Returns the status of every run."""
        async with self.deployment.database.read() as connection:
            columns = runs.c.id, runs.c.status, runs.c.stop_reason, runs.c.project_id
            found = (await connection.execute(sa.select(*columns))).all()
        rows = [(str(row.id), str(row.status), row.stop_reason) for row in found]
        for project, at_work in Counter(row.project_id for row in found if row.status == RunStatus.RUNNING).items():
            self.ledger.limits[f"{project}: {IN_FLIGHT}, when looked at"] += at_work >= self.in_flight
        for run_id, status, stop_reason in rows:
            seen = self.final.get(run_id)
            if seen is not None and seen != (status, stop_reason):
                self.ledger.broken(Column.CHANGED, run_id, f"was {seen}, is ({status}, {stop_reason})")
            elif seen is None and status in TERMINAL:
                self.final[run_id] = (status, stop_reason)
        return {run_id: status for run_id, status, _ in rows}

    async def kept_waiting(self) -> list[str]:
        """Returns the runs that wait for a person, but for those whose parent was cancelled or has failed: the product
        must end these."""
        parent = runs.alias("parent")
        is_ended = parent.c.status.in_((RunStatus.CANCELLED, RunStatus.FAILED))
        query = (
            sa.select(runs.c.id)
            .outerjoin(parent, parent.c.id == runs.c.parent_run_id)
            .where(runs.c.status == RunStatus.AWAITING_APPROVAL, sa.or_(parent.c.id.is_(None), ~is_ended))
        )
        async with self.deployment.database.read() as connection:
            return list((await connection.execute(query)).scalars())

    async def status_of(self, run_id: str) -> str | None:
        """Returns the run's status in SQL; None if there is no such run."""
        async with self.deployment.database.read() as connection:
            found = await connection.execute(sa.select(runs.c.status).where(runs.c.id == run_id))
            return found.scalar_one_or_none()

    async def thread_of(self, run_id: str) -> str | None:
        """Returns the history that the run belongs to."""
        async with self.deployment.database.read() as connection:
            found = await connection.execute(sa.select(runs.c.thread_id).where(runs.c.id == run_id))
            return found.scalar_one_or_none()

    async def run_of(self, thread_id: str, otid: str) -> str | None:
        """Returns the run of a submission by its otid."""
        return await self._run_under(thread_id, OTIDS + otid)

    async def _run_under(self, thread_id: str, key: str) -> str | None:
        query = sa.select(submission_keys.c.run_id).where(
            submission_keys.c.thread_id == thread_id, submission_keys.c.key == key
        )
        async with self.deployment.database.read() as connection:
            return (await connection.execute(query)).scalar_one_or_none()

    async def called_by(self, agent_id: str, key: str) -> str | None:
        """Returns the run of a single call of the agent's tool by its Idempotency-Key."""
        return await self._run_under(agent_id, IDEMPOTENCY_KEY + key)

    async def approvals_of(self, run_id: str) -> list[Any]:
        """Returns a run's approvals: their ids and times of expiry, their calls, and whether the client makes these."""
        shown = approvals.c.id, approvals.c.expires_at, approvals.c.tool_call_id, approvals.c.client_side
        query = sa.select(*shown).where(approvals.c.run_id == run_id)
        async with self.deployment.database.read() as connection:
            return list(await connection.execute(query))

    async def runs_with(self, key: str) -> list[str]:
        """Returns the runs of a submission with this text in its metadata."""
        query = sa.select(runs.c.id).where(runs.c.options.contains(f'"{key}"'))
        async with self.deployment.database.read() as connection:
            return list((await connection.execute(query)).scalars())

    async def compactions_of(self, thread_id: str) -> list[str]:
        """Returns the compactions of a thread."""
        is_compaction = runs.c.options.contains('"run_type":"compaction"')
        async with self.deployment.database.read() as connection:
            found = await connection.execute(sa.select(runs.c.id).where(runs.c.thread_id == thread_id, is_compaction))
            return list(found.scalars())

    async def cancelled(self, record: RunRecord) -> None:
        """Records that a cancel of this run was just answered with "cancelled". From now on it must do nothing."""
        at = time.time()
        standstill = await self.standstill_of(record.run_id, at)
        if standstill is None:
            self.ledger.broken(Column.LOST, record.run_id, "was answered with cancelled, but SQL does not have it")
            return
        record.standstill = record.standstill or standstill
        excuse = self.deployment.excuse()
        await asyncio.sleep(TOOL_DEAD_S)
        starts = self.starts.starts()
        alive = [start for key in record.story.keys for start in starts.get(key, []) if start.is_alive()]
        for start in alive:
            state, found_at = start.state(), time.time()
            while start.is_alive() and time.time() - at < LONGEST_LOOK_S:
                await asyncio.sleep(0.02)
            gone_s = time.time() - at
            if excuse and (gone_s < LONGEST_LOOK_S or self.deployment.excuse()):
                self.ledger.notes[f"tools that outlived a cancel {excuse}"] += 1
                continue
            began = f"process {start.pid} of {start.key}, begun {at - start.at:.2f} s before cancelled"
            detail = f"{began}, was in state {state!r} {found_at - at:.2f} s after it, and was there for {gone_s:.2f} s"
            self.ledger.broken(Column.AFTER_CANCEL, record.run_id, f"{self.ledger.elapsed_s:.1f} s: {detail}")

    async def standstill_of(self, run_id: str, at: float) -> Standstill | None:
        """Returns a run's rows in SQL."""
        async with self.deployment.database.read() as connection:
            found = await connection.execute(sa.select(runs.c.last_seq, runs.c.fence).where(runs.c.id == run_id))
            row = found.one_or_none()
            ids = await connection.execute(sa.select(messages.c.id).where(messages.c.run_id == run_id))
            known = frozenset(str(one) for one in ids.scalars())
        return None if row is None else Standstill(at, row.last_seq, row.fence, known)
