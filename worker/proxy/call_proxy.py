"""The proxy of one call. It accepts connections on a socket in the call's own network, in which nothing else listens.

The zygote makes the socket in that network and sends it to the worker, which can then accept connections from there
without a forwarder. A call's connections end with the call.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import h11
import structlog

from shared.concurrency import background
from worker.proxy.exchange import (
    BUFFER_BYTES,
    EgressDialer,
    EgressTarget,
    Exchange,
    Pace,
    Refused,
    RequestKeys,
    Streams,
    cut,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CONNECTIONS = 16
"""Concurrent connections of one call. More wait in the kernel's backlog."""
CONNECTIONS_PER_S, CONNECTIONS_BURST = 50.0, 50.0
BYTES_PER_S, BYTES_BURST = float(64 << 20), float(16 << 20)
"""For both directions together, because a tool's traffic uses the worker's event loop."""
NO_ROOM_S = 0.2
LOGGED_HOSTS = 20
"""Hosts of one call that are logged, so that a tool which tries many names does not fill the log."""


class EgressProxy:
    """Serves one call as soon as it has the socket. `proxy_of_call` makes it."""

    def __init__(self, reach: EgressDialer, idempotency_key: str) -> None:
        self._reach = reach
        self._keys = RequestKeys(idempotency_key)
        self._listening: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._places = asyncio.Semaphore(CONNECTIONS)
        self._connections = Pace(CONNECTIONS_PER_S, CONNECTIONS_BURST)
        self._bytes = Pace(BYTES_PER_S, BYTES_BURST)
        self._logged: set[EgressTarget] = set()

    def listen(self, listening: socket.socket) -> None:
        """Takes the socket, which `close` closes."""
        listening.setblocking(False)
        self._listening.set_result(listening)

    async def serve(self) -> None:
        """Serves until it is cancelled; all connections have ended then."""
        listening = await self._listening
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                await self._places.acquire()
                await self._connections.take(1)
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError as error:
                    log.warning("tool_connection_not_accepted", error=error.strerror)
                    self._places.release()
                    await asyncio.sleep(NO_ROOM_S)  # the process has no free descriptor; the connection stays
                    continue
                group.create_task(self._serve_one(accepted), name="connection of a tool")

    def close(self) -> None:
        """Closes the socket after the call."""
        if self._listening.done() and not self._listening.cancelled():
            self._listening.result().close()

    async def _serve_one(self, accepted: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, h11.ProtocolError):  # either side may abort
                async with _streams(accepted) as streams:
                    await Exchange(streams, self._reach, self._bytes, self._tell, self._keys).serve()
        finally:
            self._places.release()

    def _tell(self, destination: EgressTarget, refused: Refused | None) -> None:
        if destination in self._logged or len(self._logged) >= LOGGED_HOSTS:
            return
        self._logged.add(destination)
        host, port = destination
        if refused is None:
            log.info("tool_connected", host=host, port=port)
        else:
            log.info("tool_connection_refused", host=host, port=port, status=refused.status)


@asynccontextmanager
async def _streams(accepted: socket.socket) -> AsyncGenerator[Streams]:
    try:
        streams = await asyncio.open_connection(sock=accepted, limit=BUFFER_BYTES)
    except BaseException:
        accepted.close()
        raise
    try:
        yield streams
    finally:
        cut(streams[1])


@asynccontextmanager
async def proxy_of_call(reach: EgressDialer, idempotency_key: str = "") -> AsyncGenerator[EgressProxy]:
    """Yields a proxy for the block, which adds keys made of the call's to its requests. Its connections have ended when
    the block has ended."""
    proxy = EgressProxy(reach, idempotency_key)
    try:
        async with background(proxy.serve(), name="proxy of a tool call"):
            yield proxy
    finally:
        proxy.close()
