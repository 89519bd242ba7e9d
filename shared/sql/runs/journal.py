"""The rows of journals. They belong to the newest run of their turn, and so live as long as that run."""

import sqlite3
import zlib
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, cast

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping
from sqlalchemy.dialects import postgresql, sqlite

from shared.domain.journal import JournalEntry
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.run_tables import run_steps, runs
from shared.sql.tables import fields_of, microseconds

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


class JournalStore(Store):
    """Reads journals. Workers write them with their checkpoints."""

    async def of_run(self, run: Run) -> list[JournalEntry]:
        """The journal of the run's turn, in order. Raises `Unavailable`."""
        async with self._database.read() as connection:
            return await entries_of(connection, run)

    async def thread_state(self, run: Run) -> dict[str, Any]:
        """The state that the newest completed run of the thread has left, among runs with a state; empty without one.
        Raises `Unavailable`."""
        async with self._database.read() as connection:
            state = await state_of_thread(connection, run)
        return {} if state is None else msgspec.json.decode(state, type=dict[str, Any])


async def state_of_thread(connection: Connection, run: Run) -> bytes | None:
    """Like `JournalStore.thread_state`, as JSON."""
    found = await connection.execute(_THREAD_STATE, {"of_thread": run.thread_id, "of_project": run.project_id})
    return found.scalar_one_or_none()


@cache
def _upsert_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    return _with_new_state(insert(run_steps))


def _with_new_state(stored: Any) -> sa.Executable:
    changed = {name: stored.excluded[name] for name in _CHANGES}
    return stored.on_conflict_do_update(index_elements=[run_steps.c.journal, run_steps.c.slot], set_=changed)


def store_entries(connection: Connection, run: Run, entries: Sequence[JournalEntry]) -> None:
    """Stores entries of the journal of the run's turn, or their new state; deferred. The run's row is locked."""
    if entries:
        connection.defer(_upsert_of(connection.insert), *(_row_of(run, entry) for entry in entries))


# Most calls of a body are steps between which it shows nothing. Postgres gets such an entry in one statement with the
# check of its fence; SQLite gets it with the writes of other runs. A transaction that first locks the run, and then
# reads the data for other writes, costs a worker twice as much.


_TAKES_PLACE = (
    sa.update(runs)
    .where(
        runs.c.id == sa.bindparam("of_run"),
        runs.c.fence == sa.bindparam("of_fence"),
        runs.c.status == sa.bindparam("running"),
    )
    .values(attempts_without_progress=sa.literal_column("0"), updated_at=sa.bindparam("at"))
)
"""Changes a row if the run still belongs to the owner."""


@cache
def _entry_if_owned() -> sa.Executable:
    """Postgres evaluates the condition again if it had to wait for a claim of the run, which changes the fence."""
    owned = _TAKES_PLACE.returning(runs.c.id).cte("owned")
    values = [sa.bindparam(f"entry_{column.name}", type_=column.type) for column in run_steps.c]
    stored = postgresql.insert(run_steps).from_select(run_steps.c.keys(), sa.select(*values).select_from(owned))
    return _with_new_state(stored)


async def store_entry_alone(connection: Connection, run: Run, entry: JournalEntry, now: datetime) -> bool:
    """Stores an entry of the journal of the run's turn, or its new state, in one statement of Postgres. False if the
    caller does not own the run: then nothing is stored."""
    row = {f"entry_{name}": value for name, value in _row_of(run, entry).items()}
    given = {**row, "of_run": run.id, "of_fence": run.fence, "running": RunStatus.RUNNING.value, "at": now}
    return (await connection.execute(_entry_if_owned(), given)).rowcount == 1


@cache
def _texts_for_sqlite() -> tuple[str, str]:
    dialect, upsert = sqlite.dialect(paramstyle="named"), cast("sa.ClauseElement", _upsert_of(sqlite.insert))
    return str(_TAKES_PLACE.compile(dialect=dialect)), str(upsert.compile(dialect=dialect))


def add_entry(run: Run, entry: JournalEntry, now: datetime, connection: sqlite3.Connection) -> bool:
    """Like `store_entry_alone`, in a transaction of SQLite that has writes of other runs, too."""
    update, insert = _texts_for_sqlite()
    given = {"of_run": run.id, "of_fence": run.fence, "running": RunStatus.RUNNING.value, "at": microseconds(now)}
    is_ours = connection.execute(update, given).rowcount == 1
    if is_ours:
        ended_at = None if entry.ended_at is None else microseconds(entry.ended_at)
        times = {"started_at": microseconds(entry.started_at), "ended_at": ended_at}
        connection.execute(insert, {**_row_of(run, entry), **times})
    return is_ours


async def entries_of(connection: Connection, run: Run) -> list[JournalEntry]:
    """The journal of the run's turn, in order."""
    found = await connection.execute(_ENTRIES, {"of_journal": run.journal})
    return [_entry_of(row) for row in found.mappings()]


def _entry_of(row: RowMapping) -> JournalEntry:
    result = None if row["result"] is None else zlib.decompress(row["result"])
    return JournalEntry(result=result, **fields_of(row, JournalEntry, beside="result"))


def _row_of(run: Run, entry: JournalEntry) -> dict[str, Any]:
    result = None if entry.result is None else zlib.compress(entry.result, 1)
    place = {"journal": run.journal, "slot": entry.slot, "run_id": run.id, "fence": run.fence}
    return {**msgspec.structs.asdict(entry), **place, "result": result}
