"""The database takes everything but the end of a run: the worker that cannot write it is not taken for lost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import sqlalchemy as sa

from shared.domain.ids import RunId
from shared.sql.engine import Database
from shared.sql.runs.run_store import RunStore
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import running_product
from tests.kit.product.frame_reader import read_whole
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import wait_until

MAX_ATTEMPTS = 1

REFUSE_THE_END = """
    CREATE FUNCTION refuse_the_end() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'going down' USING ERRCODE = 'admin_shutdown';
    END $$
"""
ON_RUNS = """
    CREATE TRIGGER refuse_the_end BEFORE UPDATE ON runs FOR EACH ROW
    WHEN (NEW.status = 'completed') EXECUTE FUNCTION refuse_the_end()
"""


@asynccontextmanager
async def no_run_completes(database: Database) -> AsyncGenerator[None]:
    """For the block, the server says that it shuts down to everybody who completes a run."""
    async with database.write() as connection:
        await connection.execute(sa.text(REFUSE_THE_END))
        await connection.execute(sa.text(ON_RUNS))
    try:
        yield
    finally:
        async with database.write() as connection:
            await connection.execute(sa.text("DROP FUNCTION refuse_the_end CASCADE"))


async def test_a_run_whose_end_could_not_be_stored_counted_as_one_that_kills_its_workers(
    database: Database, private_redis: PrivateRedis, models: ModelServer
) -> None:
    """Each claim that came to its end and could not write it was a claim without progress, and after a few of them an
    innocent run failed as `worker_lost`."""
    is_refused = asyncio.Event()
    models.answer_with(lambda _request: Turn(text="Done.", silent_before_headers=60, resume=is_refused))
    settings = {"database_patience": 0.1, "max_attempts": MAX_ATTEMPTS}
    async with running_product(database, private_redis.client(), models, settings=settings) as product:
        agent = await product.agent()
        run_id = RunId((await product.client.agents.messages.create_async(agent_id=agent.id, input="Hi")).id)
        runs = RunStore(database)
        async with no_run_completes(database):
            is_refused.set()

            async def claimed_often() -> bool:
                return (await runs.look_up(run_id)).fence > MAX_ATTEMPTS + 2

            await wait_until(claimed_often, description="the run to come to its end again and again")
        ended = await product.ended(run_id)
        assert (ended["status"], ended["stop_reason"]) == ("completed", "end_turn")
        assert [m["content"] for m in (await product.history(agent.id))[1:]] == ["Hi", "Done."]
        (await read_whole(product.http, run_id)).assert_complete()
