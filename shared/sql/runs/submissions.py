"""The rows of a new run, inside a caller's transaction, which has its thread locked."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from shared.domain.ids import RunId
from shared.domain.messages import NewMessage, first_words
from shared.domain.runs import Run
from shared.domain.submission_keys import NO_KEYS, SubmissionKeys
from shared.sql.connection import Connection
from shared.sql.history.thread_queue import oldest_other_in_progress
from shared.sql.run_tables import run_inputs, runs
from shared.sql.runs.submission_keys import store_keys
from shared.sql.tables import to_json


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
