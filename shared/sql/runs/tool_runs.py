"""What a run that makes one call of a tool leaves behind: the result of the call, in the row of its intent."""

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa

from shared.domain.ids import IdMaker, RunId
from shared.domain.memory import FinishedEdit
from shared.domain.messages import NewMessage, ToolReturn, ToolReturns
from shared.domain.runs import Run
from shared.domain.settling import RunEnd, unfinished_return
from shared.domain.tool_runs import asked_call
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.run_tables import runs, tool_intents
from shared.sql.runs.rows import input_of
from shared.sql.runs.tool_intents import finish_intent, intents_of
from shared.sql.tables import from_json


class ToolRunStore:
    """Reads the results of such runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def result(self, run: Run) -> ToolReturn | None:
        """What the call of a run that has ended came to; None when retention has deleted it."""
        is_ours = sa.exists().where(runs.c.id == tool_intents.c.run_id, runs.c.project_id == run.project_id)
        query = sa.select(tool_intents.c.result).where(
            tool_intents.c.run_id == run.id, tool_intents.c.result.is_not(None), is_ours
        )
        async with self._database.read() as connection:
            text = (await connection.execute(query)).scalar_one_or_none()
        return None if text is None else from_json(text, ToolReturn)


async def close_tool_run(
    connection: Connection,
    run_id: RunId,
    known: Mapping[str, ToolReturn],
    end: RunEnd,
    ids: IdMaker,
    now: datetime,
) -> NewMessage:
    """Stores what the run's call came to, in the transaction that settles the run, whoever ends it; the message that
    shows it in the log, which enters no history.

    `known` are the results that the run's owner has. A result that was stored with the call's effect holds beside them.
    """
    call = asked_call(await input_of(connection, run_id)).call
    intents = await intents_of(connection, run_id)
    result = known.get(call.id) or intents.get(call.id)
    if result is None:
        result = unfinished_return(call, was_started=call.id in intents, why=end.of_open_calls)
    await finish_intent(connection, run_id, FinishedEdit(result), now)
    return NewMessage(id=ids.message(), created_at=now, body=ToolReturns([result]))
