"""A project with many rows of every kind: values that callers may store, copied inside Postgres.

Rows are copied by the database from those that the product has written, each with an id of its own.
"""

import sqlalchemy as sa

from shared.domain.events import TextChunk, ToolsReturned, encode
from shared.domain.ids import MessageId, RunId, Seq, StepId
from shared.domain.log_writer import LogTail
from shared.domain.messages import ToolReturn
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.run_tables import approvals, event_blocks, runs, steps
from shared.sql.runs.steps import blocks_of
from shared.sql.tables import (
    agent_blocks,
    agent_tools,
    agents,
    api_keys,
    archives,
    audit_events,
    blocks,
    conversations,
    messages,
    passages,
    tools,
)
from tests.kit.walls.belongings import Belongings

MANY = 1000
"""The rows of one page of a list."""

LONG_TEXT = "repeat('Likes tea. ', 9000)"
"""Of 99,000 characters, for Postgres."""

SHOWN_TOKENS = 5000
SHOWN_RESULTS = 32


async def much_of_everything(database: Database, belongings: Belongings) -> None:
    """Makes it of the project's belongings. Its first agent, conversation and run have most of it."""
    agent, run = belongings["agents"][0], belongings["runs"][0]
    async with database.write() as connection:
        await _much_of_definitions(connection, agent, belongings["blocks"][0], belongings["tools"][0])
        await _many_messages(connection, agent, run)
        await _many_runs(connection, run)
        await _long_log(connection, run)
        for table, kind in ((conversations, "conversations"), (api_keys, "api_keys"), (audit_events, "audit_events")):
            await _copy(connection, table, belongings[kind][0], MANY)
        await _copy(connection, archives, belongings["archives"][0], MANY, name="'archive ' || n")
        await _copy(connection, passages, belongings["passages"][0], MANY, text=LONG_TEXT)
        asked = {"tool_call_id": "'call_' || n", "arguments": LONG_TEXT}
        await _copy(connection, approvals, belongings["approvals"][0], MANY, **asked)


async def _much_of_definitions(connection: Connection, agent: str, block: str, tool: str) -> None:
    """A thousand agents with some of everything, and one with very much of it."""
    await _copy(connection, blocks, block, MANY, label="'few_' || n")
    await _copy(connection, tools, tool, MANY, name="'few_' || n")
    await _copy(connection, agents, agent, MANY, name="'copy ' || n")
    value = f"(document::jsonb || jsonb_build_object('value', {LONG_TEXT}, 'label', 'long_' || n))::text"
    await _copy(connection, blocks, block, MANY // 5, label="'long_' || n", document=value)
    source = f"(document::jsonb || jsonb_build_object('source_code', {LONG_TEXT}))::text"
    await _copy(connection, tools, tool, MANY // 5, name="'long_' || n", document=source)
    for links, target, table, name in (
        (agent_tools, "tool_id", tools, tools.c.name),
        (agent_blocks, "block_id", blocks, blocks.c.label),
    ):
        first = sa.select(table.c.id).where(name.startswith("few_")).order_by(table.c.number).limit(10).subquery()
        some = sa.select(agents.c.id, first.c.id).join_from(agents, first, sa.true())
        much = sa.select(agents.c.id, table.c.id).join_from(agents, table, name.startswith("long_"))
        for linked in (some.where(agents.c.name.startswith("copy ")), much.where(agents.c.id == agent)):
            await connection.execute(sa.insert(links).from_select(["agent_id", target], linked))


async def _many_messages(connection: Connection, agent: str, run: str) -> None:
    """Of one history: many short ones, some of megabytes, and some that ask for a thousand calls each."""
    of_run = sa.select(messages.c.id).where(messages.c.thread_id == agent, messages.c.run_id == run).limit(1)
    one = (await connection.execute(of_run)).scalar_one()
    call = '{"id":"call_1","name":"look_up","arguments":"{}"},'
    for count, first, body in (
        (2 * MANY, 1_000, """'{"type":"user","content":"' || repeat('word ', 2000) || '"}'"""),
        (15, 10_000, """'{"type":"user","content":"' || repeat('word ', 800000) || '"}'"""),
        (100, 20_000, f"""'{{"type":"assistant","tool_calls":[' || rtrim(repeat('{call}', 1000), ',') || ']}}'"""),
    ):
        place = {"position": f"{first} + n", "in_context": "true", "left_because": "NULL", "sibling_id": "NULL"}
        await _copy(connection, messages, one, count, **place, body=body)


async def _many_runs(connection: Connection, run: str) -> None:
    await _copy(connection, runs, run, 3 * MANY, thread_id="'conv-' || gen_random_uuid()", turn="NULL")
    step = (await connection.execute(sa.select(steps.c.id).where(steps.c.run_id == run).limit(1))).scalar_one()
    timing = '{"tool_call_id":"call_1","tool_name":"look_up","started_at":1700000000000,"ended_at":1700000000001},'
    tools_of_step = f"rtrim(repeat('{timing}', 10), ',')"
    document = f"""replace(document, '"tools":[]', '"tools":[' || {tools_of_step} || ']')"""
    await _copy(connection, steps, step, 10 * MANY, number="n + 1", document=document)


async def _long_log(connection: Connection, run: str) -> None:
    """Tokens, and results of tools of a megabyte each."""
    last = (await connection.execute(sa.select(runs.c.last_seq).where(runs.c.id == run))).scalar_one()
    message, step = MessageId(run.replace("run-", "message-")), StepId(run.replace("run-", "step-"))
    result = ToolReturn("call_1", "look_up", "success", "A result of some length. " * 40_000)
    shown = [encode(TextChunk(1_700_000_000_000, step, message, "word ", 0))] * SHOWN_TOKENS
    shown += [encode(ToolsReturned(1_700_000_000_000, step, message, [result]))] * SHOWN_RESULTS
    await connection.execute(sa.insert(event_blocks), blocks_of(RunId(run), LogTail(Seq(last + 1), shown)))
    await connection.execute(sa.update(runs).where(runs.c.id == run).values(last_seq=last + len(shown)))


async def _copy(connection: Connection, table: sa.Table, row_id: str, times: int, **changed: str) -> None:
    """This many copies of a row. `changed` are expressions of Postgres, in which `n` is the number of the copy; an id
    inside a document becomes the copy's."""
    numbers = sa.func.generate_series(1, times).table_valued("n").render_derived()
    new_id = (sa.literal(row_id.partition("-")[0] + "-") + sa.cast(sa.func.gen_random_uuid(), sa.Text)).label("new_id")
    copies = sa.select(*table.c, numbers.c.n, new_id).join_from(table, numbers, sa.true())
    one = copies.where(table.c.id == row_id).subquery("one")
    values: dict[str, sa.ColumnElement[object]] = {
        column.key: sa.literal_column(changed[column.key]) if column.key in changed else one.c[column.key]
        for column in table.c
        if not (column.primary_key and column.key == "number")
    }
    values["id"] = one.c.new_id
    if "document" in values:
        values["document"] = sa.func.replace(values["document"], one.c.id, one.c.new_id)
    await connection.execute(
        sa.insert(table).from_select(list(values), sa.select(*values.values()).select_from(one), include_defaults=False)
    )
