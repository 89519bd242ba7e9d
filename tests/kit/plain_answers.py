"""Servers that answer every request with exactly the bytes that a test gives them."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.kit.stream_server import Serving, stream_server


@dataclass
class Served:
    """A server, and its record of its clients. A client's port identifies a connection."""

    port: int = 0
    asked_over: list[int] = field(default_factory=list[int])
    """The connection of each request."""
    left: set[int] = field(default_factory=set[int])
    """The connections whose client has hung up."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@asynccontextmanager
async def serving(answer: Serving, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Served]:
    """A server that calls this function for each request, after its head. A connection stays open unless `answer` ends
    it."""
    served = Served()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = writer.get_extra_info("peername")[1]
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                served.asked_over.append(client)
                await answer(reader, writer)
        served.left.add(client)

    async with stream_server(serve, tls=tls) as port:
        served.port = port
        yield served


def says(body: bytes, *, length: int | None = None, headers: bytes = b"") -> bytes:
    """A response with a length."""
    return b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (
        headers,
        len(body) if length is None else length,
        body,
    )


async def says_hello(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(says(b"hello"))


@asynccontextmanager
async def answering(*answers: bytes, host: str = "127.0.0.1") -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Runs a server that gives these answers in order and repeats the last. Yields its URL and its requests' heads."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[min(len(asked), len(answers)) - 1])
        writer.close()

    async with stream_server(answer, host) as port:
        yield f"http://{host}:{port}", asked


def ok(body: bytes = b"here", headers: str = "content-type: image/PNG; q=1") -> bytes:
    return f"HTTP/1.1 200 OK\r\n{headers}\r\nconnection: close\r\n\r\n".encode() + body


def redirect(url: str, headers: str = "") -> bytes:
    return f"HTTP/1.1 302 Found\r\nlocation: {url}\r\n{headers}content-length: 0\r\n\r\n".encode()
