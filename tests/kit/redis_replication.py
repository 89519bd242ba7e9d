"""What a failover of Redis looks like to its clients: a server that takes no writes, and another one in its place."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

from tests.kit.door import Door
from tests.kit.processes import free_port
from tests.kit.redis_services import PrivateRedis
from tests.kit.wait_until import wait_until


def port_of(redis: PrivateRedis) -> int:
    port = urlsplit(redis.url).port
    assert port is not None
    return port


@asynccontextmanager
async def read_only(redis: PrivateRedis) -> AsyncGenerator[None]:
    """For the block, the server follows one that is gone, as in the first moments of a failover: it refuses writes and
    keeps what it has."""
    await _follow(redis, "127.0.0.1", str(free_port()))
    try:
        yield
    finally:
        await promote(redis)


async def replicate(primary: PrivateRedis, replica: PrivateRedis) -> None:
    """Returns when the replica has what the primary has, and follows it from then on."""
    await _follow(replica, "127.0.0.1", str(port_of(primary)))
    client = cast("Any", replica.client())

    async def is_linked() -> bool:
        return (await client.info("replication"))["master_link_status"] == "up"

    await wait_until(is_linked, description="the replica to follow")


async def promote(redis: PrivateRedis) -> None:
    """It follows nobody any more, with what it has, and takes writes."""
    await _follow(redis, "NO", "ONE")


@asynccontextmanager
async def failed_over(door: Door, replica: PrivateRedis) -> AsyncGenerator[None]:
    """For the block, whoever comes to the door gets to the other server, and those who were inside are out."""
    door.shut()
    other = Door(port_of(replica))
    other.port = door.port
    async with other.standing():
        yield


async def _follow(redis: PrivateRedis, host: str, port: str) -> None:
    await cast("Any", redis.client()).execute_command("REPLICAOF", host, port)
