"""Checks decisions: a denied call never starts, and the model gets a client's result once."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from bench.chaos.ledger import Column, Decided, Ledger
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, ToolReturn, ToolReturns
from shared.sql.engine import Database
from shared.sql.history.messages import message_of
from shared.sql.run_tables import approvals, runs
from shared.sql.tables import messages


async def check_decisions(ledger: Ledger, database: Database, starts: Mapping[str, Sequence[object]]) -> None:
    """Checks every decided call."""
    told: dict[tuple[str, str], list[ToolReturn]] = defaultdict(list)
    async with database.read() as connection:
        # Messages of a rollback are in no history: its calls never had results, or are open again and closed anew.
        rolled_back = set[tuple[str, str]]()
        for row in (await connection.execute(sa.select(messages))).mappings():
            body = message_of(row).body
            if isinstance(body, AssistantMessage) and row["left_because"] == "rolled_back":
                rolled_back |= {(row["thread_id"], call.id) for call in body.tool_calls}
            elif isinstance(body, ToolReturns):
                for one in body.returns:
                    if row["left_because"] == "rolled_back":
                        rolled_back.add((row["thread_id"], one.tool_call_id))
                    else:
                        told[row["thread_id"], one.tool_call_id].append(one)
        found = await connection.execute(
            sa.select(approvals.c.id, approvals.c.thread_id, runs.c.status).join(runs, runs.c.id == approvals.c.run_id)
        )
        waited = {row.id: (str(row.thread_id), str(row.status)) for row in found}
    for approval_id, decided in ledger.decided.items():
        thread_id, status = waited.get(approval_id, ("-", "-"))
        record = ledger.runs.get(decided.run_id)
        # Another branch may have approved what this one has denied.
        is_alone = record is None or record.story.branches == 1
        begun = starts.get(decided.key, ()) if is_alone else ()
        if (thread_id, decided.tool_call_id) not in rolled_back:
            _check(ledger, decided, told[thread_id, decided.tool_call_id], begun)
        if decided.status == "denied" and status not in (RunStatus.COMPLETED, RunStatus.CANCELLED):
            ledger.broken(Column.DECISIONS, decided.run_id, f"{decided.key} was denied, and its run is {status}")


def _check(ledger: Ledger, decided: Decided, told: list[ToolReturn], begun: Sequence[object]) -> None:
    if decided.status != "approved" and begun:
        detail = f"{decided.key} was {decided.status} and started: {begun}"
        ledger.broken(Column.DECISIONS, decided.run_id, detail)
    if len(told) != 1:
        detail = f"{decided.key} was {decided.status} and has {len(told)} results: {[one.text for one in told]}"
        ledger.broken(Column.DECISIONS, decided.run_id, detail)
    elif decided.status == "returned" and told[0].text != decided.tool_return:
        detail = f"{decided.key}: the client returned {decided.tool_return!r}, the model gets {told[0].text!r}"
        ledger.broken(Column.DECISIONS, decided.run_id, detail)
    elif decided.status == "denied" and told[0].status != "error":
        ledger.broken(Column.DECISIONS, decided.run_id, f"{decided.key} was denied, and came to {told[0].text!r}")
