"""Checks the tools at the end: each call was started once at most, was counted, and has ended."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from bench.chaos.ledger import Column, Ledger, RunRecord
from bench.chaos.tools import STARTS_AGAIN, Start
from shared.domain.messages import ToolReturns
from shared.sql.engine import Database
from shared.sql.history.messages import message_of
from shared.sql.tables import messages


def check_tools(ledger: Ledger, starts: dict[str, list[Start]]) -> int:
    """Checks that every call started at most once in each branch, none after its run's cancel, and none still runs.
    Returns the number of starts."""
    for record in ledger.runs.values():
        for key, name in record.story.keys.items():
            begun = starts.get(key, [])
            if len(begun) > record.story.branches and name not in STARTS_AGAIN:
                shown = ", ".join(f"pid {start.pid} at {start.at:.2f}" for start in begun)
                column = Column.CODE_TOOLS if record.is_of_code else Column.TOOLS
                ledger.broken(column, record.run_id, f"{name} {key} of story {record.story.number}: {shown}")
            _check_after_cancel(ledger, record, begun)
    return sum(len(begun) for begun in starts.values())


def _check_after_cancel(ledger: Ledger, record: RunRecord, begun: list[Start]) -> None:
    for start in begun:
        if record.standstill is not None and start.at > record.standstill.at:
            late = start.at - record.standstill.at
            ledger.broken(Column.AFTER_CANCEL, record.run_id, f"{start.key} started {late:.2f} s after cancelled")
        if start.is_alive():
            ledger.broken(Column.AFTER_CANCEL, record.run_id, f"process {start.pid} of {start.key} is still alive")


async def check_counts(ledger: Ledger, database: Database, starts: Mapping[str, Sequence[object]]) -> None:
    """Checks that the start of every returned tool was counted, because otherwise a second start would be missed."""
    keys = {key: record.run_id for record in ledger.runs.values() for key in record.story.keys}
    async with database.read() as connection:
        for row in (await connection.execute(sa.select(messages))).mappings():
            body = message_of(row).body
            for one in body.returns if isinstance(body, ToolReturns) else ():
                if one.status == "success" and one.text in keys and not starts.get(one.text):
                    ledger.broken(Column.UNCOUNTED, keys[one.text], f"{one.text} returned, and no start is counted")
