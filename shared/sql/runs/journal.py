"""The rows of journals. They belong to the newest run of their turn, so that they live as long as it."""

import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import sqlalchemy as sa

from shared.domain.journal import JournalEntry
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.run_tables import run_steps, runs

_CHANGES = ("run_id", "hash", "settings_hash", "state", "result", "attempt", "fence", "ended_at")
"""Columns of an entry that change with its state."""

FORGET_JOURNAL = sa.delete(run_steps).where(run_steps.c.journal == sa.bindparam("of_journal"))
MOVE_JOURNAL = (
    sa.update(run_steps).where(run_steps.c.journal == sa.bindparam("of_journal")).values(run_id=sa.bindparam("to_run"))
)
_ENTRIES = sa.select(run_steps).where(run_steps.c.journal == sa.bindparam("of_journal")).order_by(run_steps.c.number)


_THREAD_STATE = (
    sa.select(runs.c.body_state)
    .where(runs.c.thread_id == sa.bindparam("of_thread"), runs.c.project_id == sa.bindparam("of_project"))
    .where(runs.c.status == RunStatus.COMPLETED, runs.c.body_state.is_not(None))
    # A run that waited behind a parked one has a smaller number than the continuation that came before it.
    .order_by(runs.c.turn.desc(), runs.c.number.desc())
    .limit(1)
)


class JournalStore:
    """Reads journals. Workers write them with their checkpoints."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_run(self, run: Run) -> list[JournalEntry]:
        """The journal of the run's turn, in order. Raises `Unavailable`."""
        async with self._database.read() as connection:
            return await entries_of(connection, run)

    async def thread_state(self, run: Run) -> dict[str, Any]:
        """The state that the body of the thread's last completed run which has one has left; empty if there is none.
        Raises `Unavailable`."""
        async with self._database.read() as connection:
            state = await state_of_thread(connection, run)
        return {} if state is None else msgspec.json.decode(state, type=dict[str, Any])


async def state_of_thread(connection: Connection, run: Run) -> bytes | None:
    """The state that the body of the thread's last completed run which has one has left, as JSON."""
    found = await connection.execute(_THREAD_STATE, {"of_thread": run.thread_id, "of_project": run.project_id})
    return found.scalar_one_or_none()


@cache
def _upsert_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    stored = insert(run_steps)
    changed = {name: stored.excluded[name] for name in _CHANGES}
    return stored.on_conflict_do_update(index_elements=[run_steps.c.journal, run_steps.c.slot], set_=changed)


def store_entries(connection: Connection, run: Run, entries: Sequence[JournalEntry]) -> None:
    """Stores entries of the journal of the run's turn, or their new state; deferred. The run's row is locked."""
    if entries:
        connection.defer(_upsert_of(connection.insert), *(_row_of(run, entry) for entry in entries))


async def entries_of(connection: Connection, run: Run) -> list[JournalEntry]:
    """The journal of the run's turn, in order."""
    rows = (await connection.execute(_ENTRIES, {"of_journal": run.journal})).all()
    return [
        JournalEntry(
            number=row.number,
            kind=row.kind,
            name=row.name,
            branch=row.branch,
            ordinal=row.ordinal,
            hash=row.hash,
            settings_hash=row.settings_hash,
            state=row.state,
            result=None if row.result is None else zlib.decompress(row.result),
            attempt=row.attempt,
            started_at=row.started_at,
            ended_at=row.ended_at,
            idempotency_key=row.idempotency_key,
        )
        for row in rows
    ]


def _row_of(run: Run, entry: JournalEntry) -> dict[str, Any]:
    return {
        "journal": run.journal,
        "slot": entry.slot,
        "run_id": run.id,
        "number": entry.number,
        "kind": entry.kind,
        "name": entry.name,
        "branch": entry.branch,
        "ordinal": entry.ordinal,
        "hash": entry.hash,
        "settings_hash": entry.settings_hash,
        "state": entry.state,
        "result": None if entry.result is None else zlib.compress(entry.result, 1),
        "attempt": entry.attempt,
        "fence": run.fence,
        "started_at": entry.started_at,
        "ended_at": entry.ended_at,
        "idempotency_key": entry.idempotency_key,
    }
