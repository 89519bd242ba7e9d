"""A database that cuts its connections: runs, streams and requests go on with new ones."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import sqlalchemy as sa

from shared.domain.ids import RunId
from shared.sql.engine import Database
from shared.sql.runs.run_store import RunStore
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole, reading
from tests.kit.services.databases import PostgresServer
from tests.kit.wait_until import wait_until

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'terminating connection' USING ERRCODE = 'admin_shutdown'; END $$
"""
ON_CHECKPOINT = "CREATE TRIGGER refuse BEFORE INSERT ON event_blocks FOR EACH ROW EXECUTE FUNCTION refuse()"


async def test_a_run_goes_on_when_the_database_cuts_all_connections(
    working_product: Product, postgres_server: PostgresServer, postgres_url: str
) -> None:
    tool = await working_product.tool('def look() -> str:\n    """Looks."""\n    return "seen"\n')
    agent = await working_product.agent(model="builtin/scripted", tools=[tool])
    looking = {"text": "word ", "repeat": 50, "delay_ms": 5, "calls": [{"name": "look"}]}
    script = {"turns": [looking, looking, {"text": "Done."}]}
    answer = await working_product.http.post(
        f"/v1/agents/{agent.id}/messages/async", json={"input": json.dumps(script), "stream_tokens": True}
    )
    run_id = answer.json()["id"]
    async with reading(working_product.http, run_id) as reader:
        for frames in (5, 30, 80):
            await reader.reach(frames)
            postgres_server.cut_connections(postgres_url)
        await reader.end()

    reader.assert_complete()
    assert (await working_product.ended(run_id))["status"] == "completed"
    assert (await read_whole(working_product.http, run_id)).raw == reader.raw


async def test_a_step_whose_checkpoint_the_database_refused_is_taken_again(working_product: Product) -> None:
    tool = await working_product.tool('def look() -> str:\n    """Looks."""\n    return "seen"\n')
    agent = await working_product.agent(model="builtin/scripted", tools=[tool])
    script = {"turns": [{"text": "one two three", "calls": [{"name": "look"}]}, {"text": "Done."}]}
    runs = RunStore(working_product.context.database)
    async with refusing_checkpoints(working_product.context.database):
        answer = await working_product.http.post(
            f"/v1/agents/{agent.id}/messages/async", json={"input": json.dumps(script), "stream_tokens": True}
        )
        run_id = RunId(answer.json()["id"])
        async with reading(working_product.http, run_id) as shown:
            await wait_until(lambda: shown.of_type("tool_call_message"), description="the step to be shown")

        async def claimed_again() -> bool:
            return (await runs.look_up(run_id)).fence > 1

        await wait_until(claimed_again, description="the worker to have waited for as long as it may")

    whole = await read_whole(working_product.http, run_id)

    whole.assert_complete()
    assert whole.raw[: len(shown.raw)] == shown.raw
    # It may have been refused and begun again several times, when the machine stood still.
    assert 1 <= len(whole.notes("step_restarted")) < (await runs.look_up(run_id)).fence
    assert (await working_product.ended(run_id))["status"] == "completed"


@asynccontextmanager
async def refusing_checkpoints(database: Database) -> AsyncGenerator[None]:
    """For the block, the server answers every checkpoint as one that shuts down."""
    async with database.write() as connection:
        await connection.execute(sa.text(REFUSE))
        await connection.execute(sa.text(ON_CHECKPOINT))
    try:
        yield
    finally:
        async with database.write() as connection:
            await connection.execute(sa.text("DROP FUNCTION refuse CASCADE"))
