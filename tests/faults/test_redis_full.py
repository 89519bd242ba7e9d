"""Redis has no room left and refuses writes: runs end all the same, and what they leave there goes in time."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import pytest

from shared.redis import keys
from shared.sql.engine import Database
from tests.kit.log_events import log_events
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.frame_reader import reading
from tests.kit.services.redis_servers import PrivateRedis, read_only
from tests.kit.wait_until import wait_until

KEPT_S = 60
SETTINGS = {"stream_ttl_s": KEPT_S, "cancel_wait_s": 20.0, "sweep_s": 3600.0}


@asynccontextmanager
async def full(redis: PrivateRedis) -> AsyncGenerator[None]:
    """For the block, Redis may hold less than it does."""
    client = cast("Any", redis.client())
    await client.config_set("maxmemory", "1")
    try:
        yield
    finally:
        await client.config_set("maxmemory", "0")


async def seconds_left(redis: PrivateRedis, run_id: str) -> list[int]:
    """How long each key of the run's log stays."""
    client = cast("Any", redis.client())
    names = (keys.events(cast("Any", run_id)), keys.fence(cast("Any", run_id)))
    return [left for name in names if (left := await client.ttl(name)) != -2]


async def begun(product: Product, models: ModelServer, turn: Turn) -> str:
    models.play(turn)
    agent = await product.agent()
    asked = {"input": "Hello", "stream_tokens": True}
    return (await product.http.post(f"/v1/agents/{agent.id}/messages/async", json=asked)).json()["id"]


@pytest.mark.parametrize("ends", ["by itself", "by a cancel"])
async def test_the_log_of_a_run_that_ended_while_redis_was_full_stayed_for_a_day(
    database: Database, private_redis: PrivateRedis, models: ModelServer, ends: str
) -> None:
    turn = Turn(text="word " * (100 if ends == "by itself" else 20_000), pace=0.01)
    async with running_product(database, private_redis.client(), models, settings=SETTINGS) as product:
        run_id = await begun(product, models, turn)
        async with reading(product.http, run_id) as reader:
            await reader.reach(20)
            assert min(await seconds_left(private_redis, run_id)) > KEPT_S
            async with full(private_redis):
                if ends == "by a cancel":
                    await product.http.post(f"/v1/runs/{run_id}/cancel")
                await product.ended(run_id)

                async def goes_soon() -> bool:
                    return max(await seconds_left(private_redis, run_id), default=0) <= KEPT_S

                await wait_until(goes_soon, description="the log to be let go")
            await reader.end()
        reader.assert_complete()
        assert max(await seconds_left(private_redis, run_id), default=0) <= KEPT_S


@pytest.mark.parametrize("refusing", [full, read_only])
async def test_a_redis_that_refused_writes_was_said_to_be_well_and_its_workers_to_be_gone(
    database: Database,
    private_redis: PrivateRedis,
    models: ModelServer,
    refusing: Callable[[PrivateRedis], AbstractAsyncContextManager[None]],
) -> None:
    settings = SETTINGS | {"lease_s": 2.0}
    async with running_product(database, private_redis.client(), models, settings=settings) as product:

        async def says(*, writes: bool, worker: bool | None) -> None:
            async def is_said() -> bool:
                said = (await product.http.get("/readyz?full")).json()
                assert ("refuses writes" in said.get("message", "")) is not said["services"]["redis_writes"]
                return said["services"] | {"redis_writes": writes, "worker": worker} == said["services"]

            await wait_until(is_said, description=f"/readyz to say {writes=}, {worker=}")

        await says(writes=True, worker=True)
        async with refusing(private_redis):
            # The sign of a worker's life ends after a lease, and the worker cannot renew it.
            await says(writes=False, worker=None)
        await says(writes=True, worker=True)


async def test_a_run_logged_every_try_while_redis_was_full(
    database: Database, private_redis: PrivateRedis, models: ModelServer
) -> None:
    turn = Turn(text="word " * 100, pace=0.01)
    async with running_product(database, private_redis.client(), models, settings=SETTINGS) as product:
        run_id = await begun(product, models, turn)
        async with reading(product.http, run_id) as reader:
            await reader.reach(20)
            with log_events() as events:
                async with full(private_redis):
                    await product.ended(run_id)
                await reader.end()
        assert len(events.all("events_wait_for_redis")) == 1
