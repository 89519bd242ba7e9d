"""Servers that answer with the very bytes that a test gives them, whatever they are asked."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


@asynccontextmanager
async def answering(*answers: bytes, host: str = "127.0.0.1") -> AsyncGenerator[tuple[str, list[bytes]]]:
    """A server that gives these answers in turn, the last for ever; its URL, and the heads of what it was asked."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[min(len(asked), len(answers)) - 1])
        writer.close()

    server = await asyncio.start_server(answer, host, 0)
    async with server:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}", asked


def ok(body: bytes = b"here", headers: str = "content-type: image/PNG; q=1") -> bytes:
    return f"HTTP/1.1 200 OK\r\n{headers}\r\nconnection: close\r\n\r\n".encode() + body


def redirect(url: str, headers: str = "") -> bytes:
    return f"HTTP/1.1 302 Found\r\nlocation: {url}\r\n{headers}content-length: 0\r\n\r\n".encode()
