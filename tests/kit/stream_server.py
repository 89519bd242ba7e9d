"""A server for tests that leaves no connection open.

If a connection is still open when its event loop is closed, the garbage collector closes it later, with a warning, in
the middle of another test, which then fails. So every test that plays a server uses this one.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, object]]


@asynccontextmanager
async def stream_server(
    serve: Serving, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[int]:
    """Calls `serve` for each connection, for the block; gives the port. Port 0 is one that is free.

    A connection may outlive its `serve`. The end of the block cuts every connection that is open, and cancels every
    `serve` that goes on.
    """
    connections = _Connections(serve)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Protocol(connections), host, port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await connections.end()
        await server.wait_closed()


class _Connections:
    """The open connections of a server, and the tasks that serve them."""

    def __init__(self, serve: Serving) -> None:
        self._serve = serve
        self._serving: set[asyncio.Task[object]] = set()
        self.open: set[asyncio.Transport] = set()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(lambda task: self._ended(task, writer))

    def _ended(self, task: asyncio.Task[object], writer: asyncio.StreamWriter) -> None:
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            writer.close()
            asyncio.get_running_loop().call_exception_handler({"message": "A test's server failed", "exception": error})

    async def end(self) -> None:
        for transport in list(self.open):
            transport.abort()  # `close` would wait for a client that does not read
        going_on = list(self._serving)
        for task in going_on:
            task.cancel()
        await asyncio.gather(*going_on, return_exceptions=True)


class _Protocol(asyncio.StreamReaderProtocol):
    """A connection that says when it is closed. asyncio's server can name its open connections from Python 3.13 on."""

    def __init__(self, connections: _Connections) -> None:
        super().__init__(asyncio.StreamReader(), connections.begin)
        self._connections = connections
        self._opened: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened = cast("asyncio.Transport", transport)
        self._connections.open.add(self._opened)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._opened is not None:
            self._connections.open.discard(self._opened)
        super().connection_lost(exc)
