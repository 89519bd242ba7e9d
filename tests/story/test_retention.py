"""A run whose log was deleted because it ended long ago: what is left of it, and what a client sees."""

from arq.connections import ArqRedis

from shared.sql.engine import Database
from tests.kit.clocks import SettableClock
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.frame_reader import FrameReader
from tests.kit.wait_until import wait_until


async def submitted(product: Product, agent_id: str) -> str:
    """The id of the run that this submission, repeated or not, has."""
    again = {"Idempotency-Key": "order-4711"}
    run = await product.client.agents.messages.create_async(agent_id, input="Hello", extra_headers=again)
    return run.id


async def test_the_workers_prune_what_ended_long_ago_and_readers_get_its_end(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    clock = SettableClock()
    async with running_product(database, redis, models, clock=clock) as product:
        agent = await product.agent(model="builtin/echo")
        run_id = await submitted(product, agent.id)
        before = await product.ended(run_id)
        assert await submitted(product, agent.id) == run_id
        whole = FrameReader(product.http, run_id)
        await whole.read()
        said = (await product.http.get(f"/v1/runs/{run_id}/messages")).json()

    clock.advance(seconds=3 * 24 * 3600)
    async with running_product(database, redis, models, clock=clock, settings={"retain_days": 2}) as product:

        async def pruned() -> bool:
            return "pruned_at" in (await product.run(run_id))["metadata"]

        await wait_until(pruned, description="the run to be pruned")
        after = await product.run(run_id)
        del after["metadata"]["pruned_at"]
        assert after == before
        assert (await product.http.get(f"/v1/runs/{run_id}/steps")).json() == []
        assert (await product.http.get(f"/v1/runs/{run_id}/messages")).json() == said

        reader = FrameReader(product.http, run_id)
        await reader.read()
        assert [note["first_missing"] for note in reader.notes("gap")] == [2]
        assert reader.raw[-3:] == whole.raw[-3:]
        assert len(reader.raw) == 5  # the announcement, the gap, and the end

        assert await submitted(product, agent.id) != run_id
