"""HTTP by hand, for requests that no client library sends: bodies that lie about their length, heads without end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

WAIT_S = 180.0


class RawAnswer(NamedTuple):
    """One answer of a server."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass(frozen=True)
class RawConnection:
    """One connection to a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *pieces: bytes) -> None:
        """Sends the pieces. If the server has closed the connection, the test learns it by reading."""
        with suppress(ConnectionError):
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()

    async def answer(self) -> RawAnswer:
        """The next answer. It must have a length."""
        async with asyncio.timeout(WAIT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(headers["content-length"]))
        return RawAnswer(int(head[0].split(" ")[1]), headers, body)

    async def is_closed(self) -> None:
        """Returns when the server has closed the connection. Fails if it sends more, or keeps the connection open."""
        with suppress(ConnectionError):
            async with asyncio.timeout(WAIT_S):
                assert await self.reader.read(1) == b""


@asynccontextmanager
async def raw_connection(port: int) -> AsyncGenerator[RawConnection]:
    """A connection to a port of loopback, for the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def head(method: str, path: str, **headers: str) -> bytes:
    """A request's head. Underscores in the names of headers stand for hyphens."""
    given = {"Host": "127.0.0.1", "Content_Type": "application/json", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    """A piece of a body that is sent in pieces; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def repeated(piece: bytes, times: int) -> AsyncIterable[bytes]:
    """A body that is sent in pieces by a client library."""
    for _ in range(times):
        yield piece
