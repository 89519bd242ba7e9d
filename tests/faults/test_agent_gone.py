"""A run whose agent is gone ends; it is not tried for ever."""

from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa
from arq.connections import ArqRedis

from shared.sql.engine import Database
from shared.sql.tables import agents
from tests.kit.model_server import ModelServer
from tests.kit.product import running_product
from tests.kit.services.databases import patient_database


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    """A database of this test."""
    opened = patient_database(sqlite_url)
    yield opened
    await opened.aclose()


async def test_a_run_that_was_submitted_while_its_agent_was_deleted_fails(database: Database, redis: ArqRedis) -> None:
    async with ModelServer() as models, running_product(database, redis, models, with_worker=False) as product:
        agent = await product.agent()
        run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Hello")
        async with database.write() as connection:
            await connection.execute(sa.delete(agents))

    async with ModelServer() as models, running_product(database, redis, models) as product:
        ended = await product.ended(run.id)

    assert (ended["status"], ended["metadata"]["error"]["error_type"]) == ("failed", "internal_error")
    assert agent.id in ended["metadata"]["error"]["detail"]
