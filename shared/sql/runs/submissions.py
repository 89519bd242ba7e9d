"""The rows of a new run, inside a caller's transaction, which has its thread locked."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from shared.domain.errors import NameTaken
from shared.domain.ids import ProjectId, RunId, ThreadId
from shared.domain.messages import NewMessage, first_words
from shared.domain.runs import NO_KEYS, Run, SubmissionKeys, shown_name
from shared.sql.connection import Connection
from shared.sql.history.thread_queue import oldest_other_in_progress
from shared.sql.run_tables import run_inputs, runs, submission_keys
from shared.sql.tables import to_json

# The keys of submissions, inside a caller's transaction, which has the thread locked.


async def run_of_keys(
    connection: Connection, project_id: ProjectId, thread_id: ThreadId, keys: SubmissionKeys
) -> RunId | None:
    """The run of an earlier submission of the project that this one repeats; None for a new one.

    Raises `NameTaken` when something else was sent under one of its names.
    """
    body = keys.body
    looked_for = [*keys.names]
    if body is not None and body.sent_since is not None:
        looked_for.append(body.key)
    if not looked_for:
        return None
    found = await connection.execute(
        sa.select(submission_keys, runs.c.id)
        .join(runs, runs.c.id == submission_keys.c.run_id)
        .where(submission_keys.c.thread_id == thread_id, submission_keys.c.key.in_(looked_for))
        .where(runs.c.project_id == project_id)
        .order_by(runs.c.number)
    )
    rows = found.all()
    for row in rows:
        if row.key in keys.names and row.content != keys.content:
            raise NameTaken(name=shown_name(row.key), run_id=row.run_id)
    named = [row.run_id for row in rows if row.key in keys.names]
    if named:
        return named[0]
    if body is None or body.sent_since is None:
        return None
    return next((row.run_id for row in rows if row.sent_at >= body.sent_since), None)


def _upsert_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    stored = insert(submission_keys)
    last = {name: stored.excluded[name] for name in ("run_id", "sent_at")}
    return stored.on_conflict_do_update(index_elements=[submission_keys.c.thread_id, submission_keys.c.key], set_=last)


_INSERT_NAME = sa.insert(submission_keys)
_UPSERT_BODY = {"sqlite": _upsert_of(sqlite.insert), "postgresql": _upsert_of(postgresql.insert)}


def store_keys(connection: Connection, thread_id: ThreadId, run_id: RunId, keys: SubmissionKeys) -> None:
    """Stores the keys of a new submission; deferred. Of equal bodies, the one that was sent last is found."""
    of_run = {"thread_id": thread_id, "run_id": run_id}
    for name in dict.fromkeys(keys.names):
        connection.defer(_INSERT_NAME, {**of_run, "key": name, "content": keys.content})
    if keys.body is not None:
        last = {**of_run, "sent_at": keys.body.sent_at}
        connection.defer(_UPSERT_BODY[connection.dialect.name], {**last, "key": keys.body.key})


class InsertedRun(NamedTuple):
    """A run as it is stored."""

    run: Run
    behind: RunId | None
    """The oldest run of the thread that had not ended when this one came."""


_INSERT_RUN = sa.insert(runs).returning(runs.c.number, oldest_other_in_progress().label("behind"))
_INSERT_INPUT = sa.insert(run_inputs)


async def insert_run(
    connection: Connection, run: Run, given: Sequence[NewMessage], keys: SubmissionKeys = NO_KEYS
) -> InsertedRun:
    """Stores a new run with its input, and the keys by which a repeated submission is recognised."""
    # A list of runs says how each begins, and must not read the inputs for that. A continuation that brings decisions
    # alone goes on with what the run before was asked.
    words = first_words(given) or run.options.first_words
    run = msgspec.structs.replace(run, options=msgspec.structs.replace(run.options, first_words=words))
    inserted = await connection.execute(
        _INSERT_RUN,
        {
            "id": run.id,
            "project_id": run.project_id,
            "agent_id": run.agent_id,
            "thread_id": run.thread_id,
            "conversation_id": run.conversation_id,
            "status": run.status,
            "background": run.options.background,
            "options": to_json(run.options),
            "continues": run.continues,
            "turn": run.turn,
            "dispatch": run.dispatch,
            "priority": run.priority,
            "fence": run.fence,
            "attempts_without_progress": 0,
            "usage": to_json(run.usage),
            "step_count": 0,
            "last_seq": run.last_seq,
            "checkpoint_seq": run.checkpoint_seq,
            "callback_url": run.callback_url,
            "created_at": run.created_at,
            "updated_at": run.created_at,
            "of_thread": run.thread_id,
            "of_run": run.id,
        },
    )
    # Behind the run, because the policies of these tables ask for it.
    if given:
        connection.defer(_INSERT_INPUT, {"run_id": run.id, "input": to_json(list(given))})
    store_keys(connection, run.keys_thread_id, run.id, keys)
    row = inserted.one()
    return InsertedRun(msgspec.structs.replace(run, number=row.number), row.behind)
