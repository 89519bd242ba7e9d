"""What an agent keeps for long is found again, by its words and by its meaning."""

from collections.abc import AsyncIterator

import pytest
from arq.connections import ArqRedis

from shared.sql.engine import Database
from tests.kit.clocks import SettableClock
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.wait_until import wait_until

STORM = "A storm is coming."


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
async def product(
    database: Database, redis: ArqRedis, models: ModelServer, clock: SettableClock
) -> AsyncIterator[Product]:
    async with running_product(database, redis, models, clock=clock) as running:
        yield running


async def test_what_was_stored_while_the_embedding_model_was_away_is_found_by_meaning_later(
    product: Product, clock: SettableClock
) -> None:
    agent = await product.agent(embedding="openai/text-embedding-3-small")
    product.models.embeddings.is_away = True
    [stored] = await product.client.agents.passages.create(agent.id, text=STORM)
    assert stored.embedding is None
    assert (await product.client.agents.passages.search(agent.id, query="storm")).count == 1

    product.models.embeddings.is_away = False
    assert (await product.client.agents.passages.search(agent.id, query="weather")).count == 0
    clock.advance(minutes=2)

    async def is_found() -> bool:
        return (await product.client.agents.passages.search(agent.id, query="weather")).count == 1

    await wait_until(is_found, description="a worker to embed the passage")
