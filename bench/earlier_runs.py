"""Inserts runs that ended long ago as rows, to make an old thread or project without waiting for days."""

from dataclasses import dataclass

import sqlalchemy as sa

from shared.domain.runs import RunOptions, Usage
from shared.sql.engine import Database
from shared.sql.tables import to_json
from tests.kit.runs.definitions import NOW
from tests.kit.runs.stored_runs import said

THREADS = 10_000
"""Other threads among which the project's further runs are spread."""
AT_ONCE = 100_000
"""Runs per transaction."""
MOMENT = int(NOW.timestamp() * 1_000_000)
NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
INSERT_RUNS = f"""
    INSERT INTO runs (id, project_id, agent_id, thread_id, status, stop_reason, background, options, turn, dispatch,
        fence, attempts_without_progress, usage, step_count, last_seq, checkpoint_seq, created_at, started_at,
        completed_at, updated_at)
    {{numbers}}
    SELECT '{{name}}-' || n, '{{project_id}}', '{{agent_id}}',
        CASE WHEN n <= {{of_thread}} THEN '{{thread_id}}' ELSE 'other-' || (n % {THREADS}) END,
        'completed', 'end_turn', FALSE, CAST(:options AS TEXT), n, 1, 1, 0, CAST(:usage AS TEXT), 1, 9, 9,
        {MOMENT} + n, {MOMENT} + n, {MOMENT} + n, {MOMENT} + n
    FROM numbers
"""
INSERT_KEYS = """
    INSERT INTO submission_keys (thread_id, key, run_id)
    {numbers} SELECT '{thread_id}', 'otids:{name}-' || n, '{name}-' || n FROM numbers WHERE n <= {of_thread}
"""
INSERT_MESSAGES = f"""
    INSERT INTO messages (id, agent_id, thread_id, run_id, turn, position, in_context, left_because, body, created_at)
    {{numbers}}
    SELECT '{{name}}-' || n, '{{agent_id}}', '{{thread_id}}', '{{name}}-' || n, n, 1, FALSE, 'compacted',
        CAST(:body AS TEXT), {MOMENT} + n
    FROM numbers WHERE n <= {{of_thread}}
"""
DOCUMENTS = {"options": to_json(RunOptions()), "usage": to_json(Usage()), "body": to_json(said("hi").body)}


@dataclass(frozen=True)
class EarlierRuns:
    """The owner of the runs to insert."""

    project_id: str
    agent_id: str
    thread_id: str
    name: str = "earlier"
    """The prefix of their ids."""

    async def insert(self, database: Database, first: int, last: int, *, of_thread: int) -> None:
        """Inserts runs with the numbers from `first` to `last`. Up to `of_thread` they belong to the thread, each with
        a key and a message that is no longer in the context; further ones belong to other threads."""
        for begin in range(first, last + 1, AT_ONCE):
            numbers = NUMBERS.format(first=begin, last=min(last, begin + AT_ONCE - 1))
            await self._insert_part(database, numbers, of_thread)
        if not database.is_sqlite:
            # Postgres does it by itself some time later, SQLite never.
            async with database.write() as connection:
                await connection.execute(sa.text("ANALYZE"))

    async def _insert_part(self, database: Database, numbers: str, of_thread: int) -> None:
        owners = {"project_id": self.project_id, "agent_id": self.agent_id, "thread_id": self.thread_id}
        async with database.write() as connection:
            for statement in (INSERT_RUNS, INSERT_KEYS, INSERT_MESSAGES):
                written = statement.format(numbers=numbers, of_thread=of_thread, name=self.name, **owners)
                values = {name: text for name, text in DOCUMENTS.items() if f":{name}" in statement}
                await connection.execute(sa.text(written), values)
