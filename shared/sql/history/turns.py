"""One turn of a history, as the end of its run reads and completes it. Inside a caller's transaction."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.messages import Message, NewMessage
from shared.domain.runs import Run
from shared.sql.connection import Connection
from shared.sql.history.messages import insert_of_run, message_of
from shared.sql.tables import messages

_ONE_ROW = sa.select(sa.literal(1)).subquery("one_row")


def with_turn(*asked: sa.ColumnElement[Any]) -> sa.Select[*tuple[Any, ...]]:
    """What else is asked, with the messages of a turn: the parameters `of_thread` and `of_turn` name it."""
    in_turn = (messages.c.thread_id == sa.bindparam("of_thread"), messages.c.turn == sa.bindparam("of_turn"))
    # There is an answer to what is asked even if the turn has no message.
    each = sa.outerjoin(_ONE_ROW, messages, sa.and_(*in_turn))
    return sa.select(*asked, messages).select_from(each).order_by(messages.c.position)


_TURN = with_turn()


async def messages_of_turn(connection: Connection, run: Run) -> list[RowMapping]:
    """The rows of the run's turn, in order."""
    found = await connection.execute(_TURN, {"of_thread": run.thread_id, "of_turn": run.turn})
    return in_turn(found.mappings().all())


def in_turn(rows: Sequence[RowMapping]) -> list[RowMapping]:
    """Those among the rows of a query of `with_turn` that are messages."""
    return [row for row in rows if row["id"] is not None]


def add_to_turn(
    connection: Connection, run: Run, rows: Sequence[RowMapping], new: Sequence[NewMessage]
) -> list[Message]:
    """Appends messages to the run's turn, which has these rows, deferred; those that it has already are left as they
    are. All messages of the turn that are in the context, in order."""
    known = {row["id"] for row in rows}
    fresh = [message for message in new if message.id not in known]
    added = insert_of_run(connection, run, fresh, after=rows[-1]["position"] if rows else 0)
    return [message_of(row) for row in [*(row for row in rows if row["in_context"]), *added]]
