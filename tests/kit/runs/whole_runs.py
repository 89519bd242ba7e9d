"""Checks that a run's rows in SQL fit together: a write that was cut in two would leave one part without the other."""

from dataclasses import dataclass

import sqlalchemy as sa

from shared.domain.events import FIRST_SEQ, decode
from shared.domain.ids import RunId, Seq
from shared.domain.log_writer import unbroken
from shared.domain.messages import AssistantMessage, Message, ToolReturns
from shared.domain.runs import Run
from shared.sql.engine import Database
from shared.sql.history.messages import MessageStore
from shared.sql.run_tables import steps
from shared.sql.runs.checkpoints import CheckpointStore
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.steps import EventStore
from tests.kit.wait_until import wait_until


@dataclass(frozen=True)
class StoredWhole:
    """The rows of a run in SQL at one moment."""

    run: Run
    entries: list[tuple[Seq, bytes]]
    brought: list[Message]
    steps: set[str]
    intents: set[str]


async def assert_nothing_is_half_written(database: Database, run_id: str) -> None:
    """Every message from the run's worker has its events and its step, and every result its intent."""
    known: StoredWhole = await wait_until(lambda: _at_one_moment(database, RunId(run_id)), description="a quiet moment")
    run, brought = known.run, known.brought
    assert unbroken(FIRST_SEQ, known.entries) == known.entries, "the log has a hole"
    assert known.entries[-1:] == [] or known.entries[-1][0] == run.last_seq, "the log has not what the run says"
    shown = {getattr(decode(entry), "message_id", None) for _, entry in known.entries}
    assert [message.id for message in brought if message.id not in shown] == [], "a message without its events"
    assert [message.id for message in brought if message.step_id not in known.steps] == [], "a message without its step"
    answers = [message.body for message in brought if isinstance(message.body, AssistantMessage)]
    results = [message.body for message in brought if isinstance(message.body, ToolReturns)]
    assert run.step_count == len(answers)
    calls = {call.id for answer in answers for call in answer.tool_calls}
    returned = {result.tool_call_id for result_message in results for result in result_message.returns}
    assert returned <= known.intents <= calls, "a result without its intent, or an intent without its call"


async def _at_one_moment(database: Database, run_id: RunId) -> StoredWhole | None:
    """None when the run was written to while we read: every write of its worker changes it."""
    runs = RunStore(database)
    run = await runs.look_up(run_id)
    entries = await EventStore(database).read(run_id, Seq(1), limit=100_000)
    stored = await MessageStore(database).list_of_run(run)
    intents = set(await CheckpointStore(database).intents(run_id))
    async with database.read() as connection:
        found = await connection.execute(sa.select(steps.c.id).where(steps.c.run_id == run_id))
        step_ids = set(found.scalars())
    if await runs.look_up(run_id) != run:
        return None
    brought = [message for message in stored if isinstance(message.body, AssistantMessage | ToolReturns)]
    return StoredWhole(run, entries, brought, step_ids, intents)
