"""Measures the cost of row-level security: `python -m bench.row_level_security`.

It makes two databases with the same rows on one server, for a role that policies apply to: one with policies, whose
sessions have a tenant, and one without. It calls each of the stores' methods on both in turn, without HTTP, so that
both have the same conditions.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from statistics import median

import sqlalchemy as sa
from msgspec.structs import replace

from bench.deployments import machine
from shared.domain.ids import AgentId, IdMaker, ProjectId, RunId, ThreadId
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.runs import Run, RunOptions, Usage
from shared.domain.searches import PassageQuery
from shared.sql.archival.passages import PassageSearchStore
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import EVERY_SHOWN
from shared.sql.engine import Database
from shared.sql.history.message_lists import MessageFilter, MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.migrate import migrate
from shared.sql.paging import Page
from shared.sql.run_tables import metadata
from shared.sql.runs.run_store import RunStore
from shared.sql.tables import to_json
from tests.kit.runs.definitions import NOW, some_agent
from tests.kit.services.databases import PostgresServer

PROJECTS, AGENTS, MESSAGES, PASSAGES = 20, 50, 200, 1_000
"""Per server, per project, per agent, per project."""
TIMES, WARM_UP = 300, 30
SLOW_TIMES = 30
FIRST, SECOND = ProjectId("project-1"), ProjectId("project-2")
MOMENT = int(NOW.timestamp() * 1_000_000)
BODY = to_json(UserMessage(content="The quick brown fox jumps over the lazy dog, and nobody minds."))
FILL = (
    f"""
    INSERT INTO agents (id, project_id, name, document, created_at, updated_at)
    SELECT 'agent-' || p || '-' || a, 'project-' || p, 'Ada', CAST(:agent AS TEXT), {MOMENT}, {MOMENT}
    FROM generate_series(1, {PROJECTS}) p, generate_series(1, {AGENTS}) a
    """,
    f"""
    INSERT INTO runs (id, project_id, agent_id, thread_id, status, background, options, dispatch, fence,
        attempts_without_progress, usage, step_count, last_seq, checkpoint_seq, created_at, updated_at)
    SELECT 'run-' || p || '-' || a || '-' || r, 'project-' || p, 'agent-' || p || '-' || a,
        'agent-' || p || '-' || a, 'completed', FALSE, CAST(:options AS TEXT), 1, 1, 0, CAST(:usage AS TEXT), 1,
        9, 9, {MOMENT} + r, {MOMENT} + r
    FROM generate_series(1, {PROJECTS}) p, generate_series(1, {AGENTS}) a, generate_series(1, {MESSAGES // 2}) r
    """,
    f"""
    INSERT INTO messages (id, agent_id, thread_id, turn, position, in_context, body, created_at)
    SELECT 'message-' || p || '-' || a || '-' || m, 'agent-' || p || '-' || a, 'agent-' || p || '-' || a, m, 1, TRUE,
        CAST(:body AS TEXT), {MOMENT} + m
    FROM generate_series(1, {PROJECTS}) p, generate_series(1, {AGENTS}) a, generate_series(1, {MESSAGES}) m
    """,
    f"""
    INSERT INTO archives (id, project_id, name, document, created_at, updated_at)
    SELECT 'archive-' || p, 'project-' || p, 'all', '{{}}', {MOMENT}, {MOMENT} FROM generate_series(1, {PROJECTS}) p
    """,
    f"""
    INSERT INTO passages (number, id, project_id, archive_id, text, document, created_at, updated_at)
    SELECT (p - 1) * {PASSAGES} + n, 'passage-' || p || '-' || n, 'project-' || p, 'archive-' || p, 'word' || n, '{{}}',
        {MOMENT}, {MOMENT}
    FROM generate_series(1, {PROJECTS}) p, generate_series(1, {PASSAGES}) n
    """,
    """
    INSERT INTO passage_words (number, words)
    SELECT number, CAST('word' || number % 100 || ' every' AS TSVECTOR) FROM passages
    """,
)


class Side:
    """One of the two databases, and the measured operations on it."""

    def __init__(self, database: Database, *, policies: bool) -> None:
        self._caller = FIRST
        of_one = database.scoped_to(lambda: FIRST, policies=policies)
        in_turn = database.scoped_to(lambda: self._caller, policies=policies)
        agents, messages, lists = AgentEditor(of_one), MessageStore(of_one), MessageLists(of_one)
        self._runs, self._runs_in_turn = RunStore(of_one), RunStore(in_turn)
        self._ids = IdMaker()
        run_id, agent_id = RunId("run-1-1-1"), AgentId("agent-1-1")
        words = PassageQuery(text="word7")
        self.things: dict[str, tuple[Callable[[], Awaitable[object]], int]] = {
            "a run by its id": (lambda: self._runs.get(FIRST, run_id), TIMES),
            "a page of 50 agents": (lambda: agents.list(FIRST, EVERY_SHOWN, Page()), TIMES),
            f"a context of {MESSAGES} messages": (lambda: messages.context(FIRST, ThreadId(agent_id)), TIMES),
            "a page of 50 messages": (lambda: lists.page(MessageFilter(FIRST, agent_id=agent_id), limit=50), TIMES),
            f"a search in {AGENTS * MESSAGES:,} messages": (lambda: lists.search(FIRST, ["zebra"]), SLOW_TIMES),
            f"words in {PASSAGES * PROJECTS:,} passages": (
                lambda: PassageSearchStore(of_one).by_words(FIRST, words, 200), TIMES,
            ),
            "a submission": (self._submit, TIMES),
            "a run by its id, another project each time": (self._get_in_turn, TIMES),
        }  # fmt: skip

    async def _submit(self) -> None:
        thread = ThreadId(self._ids.run())
        run = Run(id=self._ids.run(), project_id=FIRST, agent_id=AgentId("agent-1-1"), thread_id=thread, created_at=NOW)
        said = NewMessage(id=self._ids.message(), created_at=NOW, body=UserMessage(content="hi"))
        await self._runs.submit(run, [said])

    async def _get_in_turn(self) -> None:
        self._caller = SECOND if self._caller is FIRST else FIRST
        await self._runs_in_turn.get(self._caller, RunId("run-1-1-1" if self._caller is FIRST else "run-2-1-1"))


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.row_level_security", description=__doc__)
    parser.add_argument("--postgres", default="postgresql://127.0.0.1/test", help="a server to make databases on")
    server = PostgresServer(parser.parse_args().postgres)
    print(machine())
    urls = [server.create_database_of_plain_owner() for _ in range(2)]
    try:
        async with AsyncExitStack() as stack:
            databases = [Database(url, answer_s=None) for url in urls]
            for database in databases:
                stack.push_async_callback(database.aclose)
            for database, policies in zip(databases, (True, False), strict=True):
                await _fill(database, policies=policies)
            with_policies, without = (
                Side(database, policies=policies) for database, policies in zip(databases, (True, False), strict=True)
            )
            for name, (work, times) in with_policies.things.items():
                await _compare(name, work, without.things[name][0], times)
    finally:
        for url in urls:
            server.drop_database(url)
        server.drop_free()


async def _fill(database: Database, *, policies: bool) -> None:
    await migrate(database)
    document = replace(some_agent(), project_id=FIRST)
    values = {"agent": to_json(document), "options": to_json(RunOptions()), "usage": to_json(Usage()), "body": BODY}
    async with database.write() as connection:
        for statement in FILL:
            needed = {name: text for name, text in values.items() if f":{name}" in statement}
            await connection.execute(sa.text(statement), needed)
        for table in metadata.sorted_tables if not policies else ():
            await connection.execute(sa.text(f"ALTER TABLE {table.name} DISABLE ROW LEVEL SECURITY"))
        await connection.execute(sa.text("ANALYZE"))


async def _compare(
    name: str, one: Callable[[], Awaitable[object]], other: Callable[[], Awaitable[object]], times: int
) -> None:
    taken: tuple[list[float], list[float]] = [], []
    for number in range(WARM_UP + times):
        for work, seconds in zip((one, other), taken, strict=True):
            began = time.perf_counter()
            await work()
            if number >= WARM_UP:
                seconds.append(time.perf_counter() - began)
    with_policies, without = (median(seconds) * 1000 for seconds in taken)
    more = with_policies - without
    difference = f"{more:+.2f} ms, {more / without:+.0%}"
    print(f"{name}: {with_policies:.2f} ms with policies, {without:.2f} ms without: {difference}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
