"""HTTP/1.1 as far as the model server needs it: one request after the other on a connection, chunked answers, and full
control over how a connection ends."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True)
class HttpRequest:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes
    written: tuple[str, ...] = ()
    """The names of the headers as they were written."""


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request on the connection; None when the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        headers = {name.lower(): value for name, value in fields}
        content = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, path, _ = first.split(" ", 2)
    return HttpRequest(method, path, headers, content, tuple(name for name, _ in fields))


def write_json(
    writer: asyncio.StreamWriter, status: int, body: dict[str, Any] | bytes, headers: dict[str, str]
) -> None:
    """A whole answer. Bytes are sent as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": str(len(content)), **headers}
    writer.write(_head(status, fields) + content)


def write_stream_head(writer: asyncio.StreamWriter) -> None:
    """The head of an answer in chunks."""
    writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))


def write_chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    """One chunk; an empty one ends the answer."""
    writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _head(status: int, fields: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode()
