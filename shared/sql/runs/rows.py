"""Rows of runs, inside a caller's transaction. Only this module writes a run's status: it compiles the lifecycle table
into a guarded UPDATE.

A worker's write locks the run's row first, and fails if the fence is no longer the worker's. With the row locked, the
write reads the stored state: a worker that repeats a write after a lost answer to its commit must not write twice.

This module builds the statements that every run needs once: building one with this many columns costs more than
executing it.

The caller that stores a new run has locked the run's thread.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping
from sqlalchemy.sql.dml import ReturningUpdate

from shared.domain.errors import CancelMode, DeletedRun, IllegalTransition, NameTaken, NotFound, StaleFence
from shared.domain.ids import Fence, ProjectId, RunId, Seq, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger, sources_of
from shared.domain.limits import Reservation
from shared.domain.messages import NewMessage, first_words
from shared.domain.runs import NO_KEYS, CancelRequest, Run, RunError, RunOptions, SubmissionKeys, Usage, shown_name
from shared.sql.connection import Connection
from shared.sql.history.thread_queue import lock_of, oldest_other_in_progress
from shared.sql.run_tables import run_inputs, runs, submission_keys
from shared.sql.tables import columns_of, from_json, to_json

_OF_PARENT = ("parent_run_id", "root_run_id", "awaited")

RUN_COLUMNS = [column for column in runs.c if column.name not in ("reservation", "body_state", *_OF_PARENT)]
"""The columns from which a run is read. Only a write that locks the run reads the reservation for its call, and only
the body reads the body's state. The columns of the parent serve queries; `RunOptions.parent` has the same values."""

_AS_THEY_ARE = (
    "id", "project_id", "agent_id", "thread_id", "conversation_id", "number", "stop_reason", "cause", "continues",
    "continued_by", "decided_at", "turn", "dispatch", "priority", "fence", "owner", "attempts_without_progress",
    "step_count", "last_seq", "checkpoint_seq", "callback_url", "callback_sent_at", "callback_status_code",
    "callback_error", "created_at", "started_at", "first_token_at", "completed_at", "pruned_at", "waits_until",
    "waits_for", "code_version",
)  # fmt: skip


class LockedRun(NamedTuple):
    """The part of a locked row that a write reads."""

    status: RunStatus
    fence: Fence
    owner: str | None
    last_seq: Seq
    cancel_mode: CancelMode | None
    usage: Usage
    reservation: Reservation | None


def run_of(row: RowMapping) -> Run:
    """The run of a row of `runs`."""
    cancel = None
    if row["cancel_requested_at"] is not None:
        cancel = CancelRequest(
            requested_at=row["cancel_requested_at"],
            actor=row["cancel_actor"],
            reason=row["cancel_reason"],
            mode=cancel_mode_of(row["cancel_mode"]),
            acknowledged_at=row["cancel_acknowledged_at"],
        )
    return Run(
        **{name: row[name] for name in _AS_THEY_ARE},
        status=status_of(row["status"]),
        error=None if row["error"] is None else from_json(row["error"], RunError),
        options=from_json(row["options"], RunOptions),
        cancel=cancel,
        usage=from_json(row["usage"], Usage),
    )


def not_found(run_id: str) -> NotFound:
    """Returns the error for a missing run."""
    return NotFound(f"Run {run_id} not found")


_RUN = sa.select(*RUN_COLUMNS).where(runs.c.id == sa.bindparam("run_id"))


async def get_run(connection: Connection, run_id: RunId) -> Run:
    """One run of any project. Raises `NotFound`."""
    found = await connection.execute(_RUN, {"run_id": run_id})
    row = found.mappings().one_or_none()
    if row is None:
        raise not_found(run_id)
    return run_of(row)


_INPUT = sa.select(run_inputs.c.input).where(run_inputs.c.run_id == sa.bindparam("run_id"))


async def input_of(connection: Connection, run_id: RunId) -> list[NewMessage]:
    """The messages of the run's submission."""
    found = await connection.execute(_INPUT, {"run_id": run_id})
    return from_json(found.scalar_one_or_none() or "[]", list[NewMessage])


@lru_cache(maxsize=100)
def move_of(trigger: RunTrigger, *columns: str) -> sa.Update:
    """Returns the statement that applies a trigger and sets these further columns. Its parameters are `of_run`,
    `of_fence`, and `new_` with the name of each column."""
    targets = sources_of(trigger)
    target = sa.case({source.value: target.value for source, target in targets.items()}, value=runs.c.status)
    is_to_move = (runs.c.id == sa.bindparam("of_run"), runs.c.fence == sa.bindparam("of_fence"))
    moves = sa.update(runs).where(*is_to_move, runs.c.status.in_([source.value for source in targets]))
    return moves.values({"status": target, **_new(columns)})


def _new(columns: Sequence[str]) -> dict[str, sa.ColumnElement[Any]]:
    new: dict[str, sa.ColumnElement[Any]] = {
        name: sa.bindparam(f"new_{name}", type_=runs.c[name].type) for name in columns
    }
    stay = {name: sa.func.coalesce(runs.c[name], new[name]) for name in _WRITTEN_ONCE if name in new}
    return new | stay


_WRITTEN_ONCE = ("first_token_at",)
"""Columns that keep their first value."""


def parameters_of(run_id: RunId, fence: Fence, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a statement of `move_of`."""
    return {"of_run": run_id, "of_fence": fence, **{f"new_{name}": value for name, value in values.items()}}


@lru_cache(maxsize=100)
def _applied(trigger: RunTrigger, *columns: str) -> ReturningUpdate[Any]:
    return move_of(trigger, *columns).returning(*RUN_COLUMNS)


async def apply(
    connection: Connection,
    run_id: RunId,
    trigger: RunTrigger,
    *,
    fence: Fence,
    now: datetime,
    values: dict[str, Any] | None = None,
) -> Run:
    """Applies a trigger to a run with this fence, together with the deferred writes, and returns the changed run.
    `values` are further columns to set.

    Changes nothing and raises `StaleFence` if the run was claimed since, `IllegalTransition` if its status has no such
    move, and `DeletedRun`.
    """
    written = {"updated_at": now, **(values or {})}
    moved = await connection.execute_with_deferred(_applied(trigger, *written), parameters_of(run_id, fence, written))
    row = moved.mappings().one_or_none()
    if row is None:
        raise refusal(await lock_run(connection, run_id), run_id, trigger, fence)
    return run_of(row)


_LOCKED = (
    runs.c.status,
    runs.c.fence,
    runs.c.owner,
    runs.c.last_seq,
    runs.c.cancel_mode,
    runs.c.usage,
    runs.c.reservation,
)
_LOCK_RUN = sa.select(*_LOCKED).where(runs.c.id == sa.bindparam("run_id")).with_for_update()


_LOCK_RUN_AND_THREAD = _LOCK_RUN.add_columns(lock_of(runs.c.thread_id))


async def lock_run(connection: Connection, run_id: RunId) -> LockedRun:
    """Locks a run's row until the transaction ends. Raises `DeletedRun`, also for a run that never existed."""
    return await _locked(connection, _LOCK_RUN, run_id)


async def lock_run_and_thread(connection: Connection, run_id: RunId) -> LockedRun:
    """Locks the run's thread and then its row; every transaction that takes both locks takes them in this order. Reads
    the row when both are locked. Raises `DeletedRun`."""
    # Postgres computes the selected columns, which include the lock of the thread, before it locks the row.
    return await _locked(connection, _LOCK_RUN_AND_THREAD, run_id)


async def _locked(connection: Connection, query: sa.Executable, run_id: RunId) -> LockedRun:
    row = (await connection.execute(query, {"run_id": run_id})).one_or_none()
    if row is None:
        raise DeletedRun(not_found(run_id).message)
    mode = None if row.cancel_mode is None else cancel_mode_of(row.cancel_mode)
    reserved = None if row.reservation is None else from_json(row.reservation, Reservation)
    usage = from_json(row.usage, Usage)
    return LockedRun(status_of(row.status), row.fence, row.owner, row.last_seq, mode, usage, reserved)


async def lock_owned(connection: Connection, run_id: RunId, fence: Fence) -> LockedRun:
    """Locks the row of a running run whose worker has this fence.

    Raises `StaleFence`, `IllegalTransition` if the run has ended or is parked, and `DeletedRun`.
    """
    locked = await lock_run(connection, run_id)
    if locked.fence != fence or locked.status is not RunStatus.RUNNING:
        raise refusal(locked, run_id, RunTrigger.COMPLETE, fence)
    return locked


def refusal(locked: LockedRun, run_id: RunId, trigger: RunTrigger, fence: Fence) -> StaleFence | IllegalTransition:
    """The error for a caller with this fence that cannot move a run in this state."""
    if locked.fence != fence:
        return StaleFence(run_id, fence, locked.fence)
    return IllegalTransition(locked.status, trigger)


@lru_cache(maxsize=100)
def _written(*columns: str) -> sa.Update:
    return sa.update(runs).where(runs.c.id == sa.bindparam("of_run")).values(_new(columns))


def update_owned(connection: Connection, run_id: RunId, now: datetime, values: dict[str, Any]) -> None:
    """Writes columns of a run whose row the caller has locked. The write is deferred."""
    written = {"updated_at": now, **values}
    new = {f"new_{name}": value for name, value in written.items()}
    connection.defer(_written(*written), {"of_run": run_id, **new})


def status_of(text: str) -> RunStatus:
    """Returns the status of this name. A status that only a newer release knows counts as running: the run has not
    ended, and every write of this release names the statuses that it changes."""
    try:
        return RunStatus(text)
    except ValueError:
        return RunStatus.RUNNING


def cancel_mode_of(text: str) -> CancelMode:
    """Returns the mode of this name. A mode that only a newer release knows counts as `interrupt`, because in every
    mode the run must stop."""
    try:
        return CancelMode(text)
    except ValueError:
        return CancelMode.INTERRUPT


# The keys of submissions, inside a transaction of a caller that has locked the thread.


RUNS_OF_KEYS = (
    sa.select(submission_keys)
    .join(runs, runs.c.id == submission_keys.c.run_id)
    .where(submission_keys.c.thread_id == sa.bindparam("of_thread"))
    .where(submission_keys.c.key.in_(sa.bindparam("keys", expanding=True)))
    .where(runs.c.project_id == sa.bindparam("of_project"))
    .order_by(runs.c.number)
)
"""The keys, among some, of submissions to a thread of a project. The oldest run's keys come first."""


async def run_of_keys(
    connection: Connection, project_id: ProjectId, thread_id: ThreadId, keys: SubmissionKeys
) -> RunId | None:
    """Returns the run of the project's earlier submission that this one repeats; None if this one is new.

    Raises `NameTaken` if other content was sent under one of its names.
    """
    body = keys.body
    looked_for = [*keys.names]
    if body is not None and body.sent_since is not None:
        looked_for.append(body.key)
    if not looked_for:
        return None
    given = {"of_thread": thread_id, "of_project": project_id, "keys": looked_for}
    rows = (await connection.execute(RUNS_OF_KEYS, given)).all()
    for row in rows:
        if row.key in keys.names and row.content != keys.content:
            raise NameTaken(name=shown_name(row.key), run_id=row.run_id)
    named = [row.run_id for row in rows if row.key in keys.names]
    if named:
        return named[0]
    if body is None or body.sent_since is None:
        return None
    return next((row.run_id for row in rows if row.sent_at >= body.sent_since), None)


@cache
def _upsert_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    stored = insert(submission_keys)
    last = {name: stored.excluded[name] for name in ("run_id", "sent_at")}
    return stored.on_conflict_do_update(index_elements=[submission_keys.c.thread_id, submission_keys.c.key], set_=last)


_INSERT_NAME = sa.insert(submission_keys)


def store_keys(connection: Connection, thread_id: ThreadId, run_id: RunId, keys: SubmissionKeys) -> None:
    """Stores the keys of a new submission. The writes are deferred. Among equal bodies, `run_of_keys` finds the one
    that was sent last."""
    of_run = {"thread_id": thread_id, "run_id": run_id}
    for name in dict.fromkeys(keys.names):
        connection.defer(_INSERT_NAME, {**of_run, "key": name, "content": keys.content})
    if keys.body is not None:
        last = {**of_run, "sent_at": keys.body.sent_at}
        connection.defer(_upsert_of(connection.insert), {**last, "key": keys.body.key})


class InsertedRun(NamedTuple):
    """A run as it is stored."""

    run: Run
    behind: RunId | None
    """The oldest run of the thread that had not ended when this one was stored."""


_AT_FIRST = (
    "id", "project_id", "agent_id", "thread_id", "conversation_id", "status", "continues", "turn", "dispatch",
    "priority", "code_version", "fence", "last_seq", "checkpoint_seq", "callback_url", "created_at",
)  # fmt: skip
"""The columns of a new run that are fields of it."""

_INSERT_RUN = sa.insert(runs).returning(runs.c.number, oldest_other_in_progress().label("behind"))
_INSERT_INPUT = sa.insert(run_inputs)


async def insert_run(
    connection: Connection, run: Run, given: Sequence[NewMessage], keys: SubmissionKeys = NO_KEYS
) -> InsertedRun:
    """Stores a new run with its input, and the keys that identify a repeated submission."""
    # A list of runs shows the first words of each, and must not read the inputs for them. A continuation that has only
    # decisions keeps the first words of the previous run.
    words, parent = first_words(given) or run.options.first_words, run.options.parent
    run = msgspec.structs.replace(run, options=msgspec.structs.replace(run.options, first_words=words))
    inserted = await connection.execute(
        _INSERT_RUN,
        {
            **columns_of(run, *_AT_FIRST),
            "background": run.options.background,
            "options": to_json(run.options),
            "attempts_without_progress": 0,
            "usage": to_json(run.usage),
            "step_count": 0,
            "parent_run_id": None if parent is None else parent.run_id,
            "root_run_id": None if parent is None else parent.root_id,
            "awaited": None if parent is None else parent.awaited,
            "updated_at": run.created_at,
            "of_thread": run.thread_id,
            "of_run": run.id,
        },
    )
    # These writes come after the run, because the policies of their tables look it up.
    if given:
        connection.defer(_INSERT_INPUT, {"run_id": run.id, "input": to_json(list(given))})
    store_keys(connection, run.keys_thread_id, run.id, keys)
    row = inserted.one()
    return InsertedRun(msgspec.structs.replace(run, number=row.number), row.behind)
