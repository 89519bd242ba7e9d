"""What is known of a run's tool calls before their results are in the history: that a tool was about to start, and the
result itself of a call that was answered in one transaction with its effect, or beside others of the same answer."""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa

from shared.domain.ids import RunId
from shared.domain.memory import EditedBlock, FinishedEdit
from shared.domain.messages import ToolCall, ToolReturn
from shared.sql.connection import Connection
from shared.sql.run_tables import tool_intents
from shared.sql.tables import from_json, to_json

_INSERT_INTENT = sa.insert(tool_intents)
_INSERT_RESULT = (
    sa.update(tool_intents)
    .where(
        tool_intents.c.run_id == sa.bindparam("of_run"),
        tool_intents.c.tool_call_id == sa.bindparam("call_id"),
        tool_intents.c.result.is_(None),
    )
    .values(result=sa.bindparam("returned"), state="finished")
)
_FORGET_INTENTS = sa.delete(tool_intents).where(
    tool_intents.c.run_id == sa.bindparam("of_run"),
    tool_intents.c.tool_call_id.in_(sa.bindparam("call_ids", expanding=True)),
)


async def insert_intents(connection: Connection, run_id: RunId, calls: Sequence[ToolCall], now: datetime) -> None:
    """Stores that the tools of these calls are about to start; deferred. The run's row is locked."""
    rows = {
        call.id: {
            "run_id": run_id, "tool_call_id": call.id, "tool_name": call.name, "state": "started", "started_at": now
        }
        for call in calls
    }  # fmt: skip
    await forget_intents(connection, run_id, rows)
    if rows:
        connection.defer(_INSERT_INTENT, *rows.values())


def insert_results(connection: Connection, run_id: RunId, results: Sequence[ToolReturn]) -> None:
    """Stores what calls whose intents are stored have come to; deferred. The run's row is locked."""
    if results:
        connection.defer(
            _INSERT_RESULT,
            *({"of_run": run_id, "call_id": one.tool_call_id, "returned": to_json(one)} for one in results),
        )


async def forget_intents(connection: Connection, run_id: RunId, call_ids: Collection[str]) -> None:
    """Deletes what is known of calls with these ids: some servers number the calls of every answer anew, so an earlier
    answer may have had a call of the same id."""
    if call_ids:
        await connection.execute(_FORGET_INTENTS, {"of_run": run_id, "call_ids": list(call_ids)})


class _StoredResult(ToolReturn, frozen=True):
    """A result as the row has it. It decodes as a plain `ToolReturn`, too."""

    edited: Sequence[EditedBlock] = ()


async def finish_intent(connection: Connection, run_id: RunId, finished: FinishedEdit, now: datetime) -> None:
    """Stores the result of a call, with the transaction that has its effect."""
    result = finished.result
    await forget_intents(connection, run_id, [result.tool_call_id])
    await connection.execute(
        sa.insert(tool_intents).values(
            run_id=run_id,
            tool_call_id=result.tool_call_id,
            tool_name=result.tool_name,
            state="finished",
            started_at=now,
            result=to_json(_StoredResult(**msgspec.structs.asdict(result), edited=finished.edited)),
        )
    )


async def finished_edit(connection: Connection, run_id: RunId, call_id: str) -> FinishedEdit | None:
    """What a call has come to; None for a call that was not finished with its effect."""
    found = await connection.execute(
        sa.select(tool_intents.c.result).where(
            tool_intents.c.run_id == run_id, tool_intents.c.tool_call_id == call_id, tool_intents.c.result.is_not(None)
        )
    )
    text = found.scalar_one_or_none()
    if text is None:
        return None
    return FinishedEdit(from_json(text, ToolReturn), from_json(text, _StoredResult).edited)


async def intents_of(connection: Connection, run_id: RunId) -> dict[str, ToolReturn | None]:
    """The ids of the run's calls whose tools were about to start, with the results that are stored."""
    found = await connection.execute(
        sa.select(tool_intents.c.tool_call_id, tool_intents.c.result).where(tool_intents.c.run_id == run_id)
    )
    return {row.tool_call_id: None if row.result is None else from_json(row.result, ToolReturn) for row in found}
