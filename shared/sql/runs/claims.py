"""The claim of a run, inside a caller's transaction. The first claim puts the run's input into the history.

It stands between a submission and the first token, so it asks as few questions as it can: one that reads the run and
locks its thread, one that claims it, and one that writes its input.
"""

from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningUpdate

from shared.domain.ids import Fence, RunId
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import NewMessage
from shared.domain.runs import Run
from shared.sql.connection import Connection
from shared.sql.history.messages import clear_context, insert_into_new_turn, insert_messages
from shared.sql.history.thread_queue import input_to_place, is_next_in_queue, lock_of, turn_after_all
from shared.sql.run_tables import run_inputs, runs
from shared.sql.runs.inbox import has_left_over, take_left_over
from shared.sql.runs.rows import RUN_COLUMNS, lock_run, move_of, not_found, parameters_of, refusal, run_of
from shared.sql.tables import from_json

# Only the first claim reads the input, which may be megabytes.
_WAITING = (
    sa.select(*RUN_COLUMNS, sa.case((runs.c.fence == 0, run_inputs.c.input)).label("given"))
    .select_from(sa.join(runs, run_inputs, run_inputs.c.run_id == runs.c.id, isouter=True))
    .where(runs.c.id == sa.bindparam("run_id"))
)
_WAITING_AND_LOCKED = _WAITING.add_columns(lock_of(runs.c.thread_id))


async def waiting_run(connection: Connection, run_id: RunId) -> tuple[Run, list[NewMessage]]:
    """A run that is to be claimed, with its input if nobody has claimed it before. Another process that ends or claims
    a run of its thread waits from here on. Raises `NotFound`."""
    query = _WAITING_AND_LOCKED if connection.dialect.name == "postgresql" else _WAITING
    row = (await connection.execute(query, {"run_id": run_id})).mappings().one_or_none()
    if row is None:
        raise not_found(run_id)
    return run_of(row), from_json(row["given"] or "[]", list[NewMessage])


@lru_cache(maxsize=10)
def _claim(*columns: str, continues: bool) -> ReturningUpdate[Any]:
    may_be_claimed = (runs.c.dispatch == sa.bindparam("of_dispatch"), is_next_in_queue(continues=continues))
    claimed = move_of(RunTrigger.CLAIM, *columns).where(*may_be_claimed)
    turn = sa.func.coalesce(runs.c.turn, turn_after_all())
    # The thread was locked before this statement begins, so it sees what every earlier run of it was left with.
    return claimed.values(turn=turn).returning(*RUN_COLUMNS, has_left_over().label("has_left_over"))


async def claim_run(
    connection: Connection, waiting: Run, given: list[NewMessage], dispatch: int, owner: str, now: datetime
) -> Run:
    """Claims a run that `waiting_run` gave, with its input. Raises `LifecycleError` when the run is not to be claimed
    now, or not by this dispatch."""
    fence = Fence(waiting.fence + 1)
    values = {
        "updated_at": now,
        "fence": fence,
        "owner": owner,
        "attempts_without_progress": waiting.attempts_without_progress + 1,
        "started_at": waiting.started_at or now,
        "waits_until": None,
    }
    of_run = {"of_thread": waiting.thread_id, "of_number": waiting.number, "of_dispatch": dispatch}
    moved = await connection.execute(
        _claim(*values, continues=waiting.continues is not None),
        {**of_run, **parameters_of(waiting.id, waiting.fence, values)},
    )
    row = moved.mappings().one_or_none()
    if row is None:
        raise refusal(await lock_run(connection, waiting.id), waiting.id, RunTrigger.CLAIM, waiting.fence)
    claimed = run_of(row)
    if waiting.fence > 0:
        return msgspec.structs.replace(claimed, follows_lost_owner=waiting.owner is not None)
    placed = input_to_place(claimed, given)
    if waiting.turn is None:
        await _begin_turn(connection, claimed, placed, now, has_left_over=row["has_left_over"])
    else:
        await insert_messages(connection, claimed, placed)
    return claimed


async def _begin_turn(
    connection: Connection, run: Run, placed: list[NewMessage], now: datetime, *, has_left_over: bool
) -> None:
    """Puts the input of the first run of a turn into the history."""
    if run.options.clears_context:
        await clear_context(connection, run.thread_id)
    # Messages that were left for the next run go to one that answers.
    takes_more = has_left_over and run.answers_messages
    left_over = await take_left_over(connection, run, now) if takes_more else []
    insert_into_new_turn(connection, run, [*left_over, *placed])
