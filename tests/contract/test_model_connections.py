"""Connections to models' servers: what one reads is what was sent, and every way to fail is an error of the client."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.network.checked_http import NetworkRules
from tests.kit.certificates import SelfSigned
from tests.kit.services.tcp_proxy import blackhole_address, free_port
from tests.kit.wait_until import after
from worker.models.connections import Connections
from worker.models.server_connections import MOST_UNREAD, ServerConnection

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answering, tls: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """A server that answers each request so; its port."""

    served: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                await answer(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in served:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def client(ca_file: str = "") -> AsyncGenerator[httpx2.AsyncClient]:
    connections = Connections(NetworkRules.of("", ca_file))
    try:
        yield connections.client
    finally:
        await connections.aclose()


def says(body: bytes, *, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body) if length is None else length, body)


async def says_hello(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(says(b"hello"))


async def test_the_client_reads_over_connections_of_ours() -> None:
    """Another release of the client may look for its pool in another place."""
    async with (
        serving(says_hello) as port,
        client() as http,
        http.stream("GET", f"http://127.0.0.1:{port}/") as response,
    ):
        assert isinstance(response.extensions["network_stream"], ServerConnection)


async def test_a_connection_is_used_again() -> None:
    ports: set[int] = set()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports.add(writer.get_extra_info("peername")[1])
        writer.write(says(b"hello"))

    async with serving(answer) as port, client() as http:
        for _ in range(3):
            assert (await http.get(f"http://127.0.0.1:{port}/")).content == b"hello"
    assert len(ports) == 1


async def test_a_server_that_hangs_up_between_two_requests_is_not_noticed() -> None:
    """What the event loop had not seen yet of the end of a connection at rest failed the next request."""
    hung_up = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says(b"hello"))
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    async with serving(answer) as port, client() as http:
        for _ in range(3):
            assert (await http.get(f"http://127.0.0.1:{port}/")).content == b"hello"
            await hung_up.wait()


async def test_a_server_waits_for_who_does_not_read() -> None:
    sent = 0
    body = b"x" * (64 * MOST_UNREAD)

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(says(b"", length=len(body)))
        for start in range(0, len(body), MOST_UNREAD):
            writer.write(body[start : start + MOST_UNREAD])
            await writer.drain()
            sent += MOST_UNREAD

    async with serving(answer) as port, client() as http, http.stream("GET", f"http://127.0.0.1:{port}/") as response:
        for _ in range(1000):
            await after()
        held_back = sent
        assert await response.aread() == body
    assert held_back < len(body) == sent


async def test_a_long_request_arrives_as_it_was_sent() -> None:
    body, read = bytes(range(256)) * 40_000, b""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal read
        read = await reader.readexactly(len(body))
        writer.write(says(b"hello"))

    async with serving(answer) as port, client() as http:
        assert (await http.post(f"http://127.0.0.1:{port}/", content=body)).content == b"hello"
    assert read == body


async def test_a_server_is_believed_by_its_certificate_alone(tmp_path: Path) -> None:
    made = SelfSigned.of(tmp_path, "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.certificate, made.key)
    async with serving(says_hello, tls) as port:
        async with client() as http:
            with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
                await http.get(f"https://127.0.0.1:{port}/")
        async with client(made.certificate) as http:
            assert (await http.get(f"https://127.0.0.1:{port}/")).content == b"hello"
            # The certificate is for another name.
            with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
                await http.get(f"https://localhost:{port}/")


@pytest.mark.parametrize(
    ("beginning", "error"),
    [(b"", httpx2.RemoteProtocolError), (says(b"half", length=9), httpx2.RemoteProtocolError)],
)
async def test_a_server_that_hangs_up_is_an_error_of_the_client(beginning: bytes, error: type[Exception]) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        writer.close()

    async with serving(answer) as port, client() as http:
        with pytest.raises(error):
            await http.get(f"http://127.0.0.1:{port}/")


async def test_a_connection_that_is_reset_is_an_error_of_the_client() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with serving(answer) as port, client() as http:
        with pytest.raises(httpx2.TransportError):
            await http.post(f"http://127.0.0.1:{port}/", content=b"x" * 10_000_000)


async def test_who_is_not_there_is_an_error_of_the_client() -> None:
    async with client() as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get(f"http://127.0.0.1:{free_port()}/")
        with blackhole_address() as url, pytest.raises(httpx2.ConnectTimeout):
            await http.get(url, timeout=httpx2.Timeout(None, connect=0.05))


@pytest.mark.parametrize("leads_nowhere", ["refused", "silent"])
async def test_a_host_is_reached_whose_first_address_leads_nowhere(
    leads_nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blackhole_address() as silent:
        nowhere = free_port() if leads_nowhere == "refused" else httpx2.URL(silent).port

        async def both(_host: str, port: int, **_: Any) -> list[Any]:
            return [(2, 1, 6, "", ("127.0.0.1", nowhere)), (2, 1, 6, "", ("127.0.0.1", port))]

        async with serving(says_hello) as port, client() as http:
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
            assert (await http.get(f"http://two.example:{port}/")).content == b"hello"
