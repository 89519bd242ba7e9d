"""A Redis inside this process, for `holdfast dev` and tests: nothing in it outlives the process."""

from typing import cast

from fakeredis import FakeServer
from fakeredis.aioredis import FakeRedis
from redis.asyncio.connection import ConnectionPool

from shared.redis.connection import Redis, client_of


def connect_embedded(server: FakeServer | None = None) -> Redis:
    """A client of an embedded Redis. Clients of one `server` share its data."""
    return client_of(cast("ConnectionPool", FakeRedis(server=server or FakeServer()).connection_pool))
