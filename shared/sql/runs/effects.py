"""The rows that make up a run's effects: the starts of tools, and the verdicts on lost calls."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from shared.crash_points import CrashPoint
from shared.domain.effects import Effect, Intent, SettledEffect, effects_of_journal, effects_of_messages, settled
from shared.domain.errors import Conflict
from shared.domain.ids import RunId
from shared.domain.messages import Message, ToolCall, ToolReturn
from shared.domain.runs import Run
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.run_tables import settled_effects, tool_intents
from shared.sql.runs.journal import entries_of
from shared.sql.tables import from_json, to_json

_INTENTS = (
    sa.select(tool_intents).where(tool_intents.c.run_id == sa.bindparam("of_run")).order_by(tool_intents.c.started_at)
)
_SETTLED = sa.select(settled_effects).where(settled_effects.c.idempotency_key.in_(sa.bindparam("keys", expanding=True)))


@cache
def _insert_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    return insert(settled_effects).on_conflict_do_nothing(index_elements=[settled_effects.c.idempotency_key])


async def store_settled_effect(connection: Connection, run: Run, settlement: SettledEffect) -> SettledEffect:
    """Stores a verdict on a call, once. Returns the stored verdict."""
    row = {
        "idempotency_key": settlement.idempotency_key,
        "run_id": run.id,
        "call_id": settlement.call_id,
        "settled_by": settlement.by,
        "who": settlement.who,
        "outcome": settlement.outcome,
        "result": settlement.result,
        "settled_at": settlement.at,
    }
    await connection.execute(_insert_of(connection.insert), row)
    return (await _settlements(connection, [settlement.idempotency_key]))[settlement.idempotency_key]


async def _settlements(connection: Connection, keys: Sequence[str]) -> dict[str, SettledEffect]:
    rows = (await connection.execute(_SETTLED, {"keys": list(keys)})).all()
    return {
        row.idempotency_key: SettledEffect(
            idempotency_key=row.idempotency_key,
            call_id=row.call_id,
            by=row.settled_by,
            who=row.who,
            outcome=row.outcome,
            result=row.result,
            at=row.settled_at,
        )
        for row in rows
    }


class EffectStore(Store):
    """Reads the effects of runs, and stores people's verdicts on them."""

    async def of_run(self, run: Run, turn: Sequence[Message]) -> list[Effect]:
        """Returns the run's tool calls in order. `turn` are the messages of its turn; a run with a journal needs none.
        Such a run shows the calls of its whole turn."""
        async with self._database.read() as connection:
            if run.options.code_agent is not None:
                effects = effects_of_journal(run, await entries_of(connection, run))
            else:
                rows = (await connection.execute(_INTENTS, {"of_run": run.id})).all()
                effects = effects_of_messages(run, turn, [_intent_of(row) for row in rows])
            keys = [effect.idempotency_key for effect in effects]
            return settled(effects, await _settlements(connection, keys) if keys else {})

    async def settle(self, run: Run, settlement: SettledEffect) -> SettledEffect:
        """Stores a person's verdict on a call whose outcome nothing else can settle. A repetition returns the stored
        verdict. Raises `Conflict` if a probe or another person has settled it otherwise."""
        async with self._database.write(CrashPoint.SETTLE_EFFECT) as connection:
            known = (await _settlements(connection, [settlement.idempotency_key])).get(settlement.idempotency_key)
            stored = known or await store_settled_effect(connection, run, settlement)
            if (stored.outcome, stored.result) != (settlement.outcome, settlement.result):
                raise Conflict(
                    f"the call {settlement.call_id} is settled already, by {stored.who or stored.by}: {stored.outcome}"
                )
            if known is None:
                await record(connection, run.project_id, "effect.settled", run.id)
            return stored


def _intent_of(row: Any) -> Intent:
    return Intent(
        call_id=row.tool_call_id,
        tool_name=row.tool_name,
        started_at=row.started_at,
        attempt=row.attempt,
        result=None if row.result is None else from_json(row.result, ToolReturn),
    )


# The state of a run's tool calls before their results enter the history. A row has the intent to start a tool, and the
# call's result if a worker stored it with the call's effect, or before other calls of the same answer had ended.


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

ATTEMPT = sa.select(tool_intents.c.attempt).where(
    tool_intents.c.run_id == sa.bindparam("of_run"), tool_intents.c.tool_call_id == sa.bindparam("call_id")
)


@cache
def _start_of(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    """Some model servers number the calls of each answer from the start, so an earlier answer may have had a call with
    the same id."""
    stored = insert(tool_intents)
    renewed = {name: stored.excluded[name] for name in ("tool_name", "state", "started_at", "attempt", "result")}
    key = [tool_intents.c.run_id, tool_intents.c.tool_call_id]
    return stored.on_conflict_do_update(index_elements=key, set_=renewed)


def store_intents(
    connection: Connection, run_id: RunId, calls: Sequence[ToolCall], now: datetime, attempt: int = 1
) -> None:
    """Stores that the tools of these calls are about to start, for the `attempt`th time. The writes are deferred. The
    caller has locked the run's row."""
    rows = {
        call.id: {
            "run_id": run_id,
            "tool_call_id": call.id,
            "tool_name": call.name,
            "state": "started",
            "started_at": now,
            "attempt": attempt,
            "result": None,
        }
        for call in calls
    }
    if rows:
        connection.defer(_start_of(connection.insert), *rows.values())


def insert_results(connection: Connection, run_id: RunId, results: Sequence[ToolReturn]) -> None:
    """Stores the results of calls whose intents are stored. The writes are deferred. The caller has locked the run's
    row."""
    if results:
        connection.defer(
            _INSERT_RESULT,
            *({"of_run": run_id, "call_id": one.tool_call_id, "returned": to_json(one)} for one in results),
        )


async def forget_intents(connection: Connection, run_id: RunId, call_ids: Collection[str]) -> None:
    """Deletes the intents and results of calls of earlier answers that have the same ids as these."""
    if call_ids:
        await connection.execute(_FORGET_INTENTS, {"of_run": run_id, "call_ids": list(call_ids)})
