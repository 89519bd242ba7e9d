"""The kinds of Redis that tests run on: in process, a real server, and servers that a test may kill and replace."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, cast

from arq.connections import ArqRedis
from fakeredis import FakeServer
from redis.exceptions import RedisError

from shared.redis.connection import connect
from shared.redis.embedded import connect_embedded
from tests.kit.free_ports import free_port
from tests.kit.wait_until import HANGS_S, wait_until


class RedisService:
    """One Redis, and the clients that a test has made of it. `stores_first`: as in `connect_embedded`."""

    def __init__(self, url: str | None, *, stores_first: bool = False) -> None:
        self._url = url
        self._stores_first = stores_first
        self._embedded = FakeServer()
        self._clients: list[ArqRedis] = []

    def client(self) -> ArqRedis:
        """One more client, as another process would have it."""
        client = connect(self._url) if self._url else connect_embedded(self._embedded, stores_first=self._stores_first)
        if self._url:
            # redis-py's own limit is over whenever the machine stands still while a connection is made.
            cast("Any", client.connection_pool).connection_kwargs["socket_connect_timeout"] = HANGS_S
        self._clients.append(client)
        return client

    async def empty(self) -> None:
        """Deletes everything in its database."""
        await cast("Any", self.client()).flushdb()

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose(close_connection_pool=True)


class PrivateRedis(RedisService):
    """A Redis server of one test: it may be killed, started again and emptied. It stores nothing on disk."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        super().__init__(self.url)
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """None when it does not run."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Returns when the server answers."""
        settings = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._directory)]
        self._process = await asyncio.create_subprocess_exec("redis-server", *settings, stdout=DEVNULL, stderr=DEVNULL)
        await wait_until(self._answers, description="the private Redis to answer")

    async def kill(self) -> None:
        """As `kill -9` would; everything in it is lost."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    @asynccontextmanager
    async def hanging(self) -> AsyncGenerator[None]:
        """For the block, the server exists but does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    async def cut_subscribers(self) -> None:
        """Closes all pub/sub connections, as a network would."""
        await cast("Any", self.client()).client_kill_filter(_type="pubsub")

    async def _answers(self) -> bool:
        client = connect(self.url)
        try:
            try:
                return bool(await cast("Any", client).ping())
            finally:
                # On a busy machine that, too, may take longer than the client waits.
                await client.aclose(close_connection_pool=True)
        except (RedisError, OSError):
            return False


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
    await _follow(replica, "127.0.0.1", str(primary.port))
    client = cast("Any", replica.client())

    async def is_linked() -> bool:
        return (await client.info("replication"))["master_link_status"] == "up"

    await wait_until(is_linked, description="the replica to follow")


async def promote(redis: PrivateRedis) -> None:
    """Makes it a primary with its present data, which accepts writes."""
    await _follow(redis, "NO", "ONE")


async def _follow(redis: PrivateRedis, host: str, port: str) -> None:
    await cast("Any", redis.client()).execute_command("REPLICAOF", host, port)
