"""The keys of submissions, inside a caller's transaction, which has the thread locked."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from shared.domain.errors import NameTaken
from shared.domain.ids import ProjectId, RunId, ThreadId
from shared.domain.submission_keys import SubmissionKeys, shown_name
from shared.sql.connection import Connection
from shared.sql.run_tables import runs, submission_keys


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
