"""Slots of the Redis Cluster that keeps the logs move while runs stream: nothing is lost, and nothing is said twice."""

from typing import Any, cast

from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.log_servers import log_servers
from shared.sql.engine import Database
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import running_product
from tests.kit.product.frame_reader import reading
from tests.kit.services.redis_cluster import PrivateCluster
from tests.kit.services.redis_servers import PrivateRedis


async def test_a_run_goes_on_when_the_slot_of_its_log_moves(
    database: Database, private_redis: PrivateRedis, redis_cluster: PrivateCluster, models: ModelServer
) -> None:
    models.play(Turn(text="word " * 400, pace=0.01))
    redis = private_redis.client()
    async with (
        log_servers(redis_cluster.url, redis) as servers,
        running_product(database, redis, models, servers=servers) as product,
    ):
        agent = await product.agent()
        asked = {"input": "Hello", "stream_tokens": True}
        run_id = (await product.http.post(f"/v1/agents/{agent.id}/messages/async", json=asked)).json()["id"]
        log_key = keys.events(RunId(run_id))
        async with reading(product.http, run_id) as reader:
            for seen in (20, 120, 220):
                await reader.reach(seen)
                await redis_cluster.move_slot_of(log_key)
            await reader.end()
        reader.assert_complete()
        assert (await product.ended(run_id))["status"] == "completed"
        assert await cast("Any", servers.server_of(log_key)).exists(log_key) == 1
        assert await cast("Any", redis).keys("run:*") == []
