"""Connections to models' servers: what one reads is what was sent, and every way to fail is an error of the client."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.network.checked_http import NetworkRules
from tests.kit.certificates import SelfSigned
from tests.kit.free_ports import free_port
from tests.kit.plain_answers import says, says_hello, serving
from tests.kit.services.tcp_proxy import blackhole_address
from tests.kit.wait_until import after
from worker.models.connections import Connections, body_of
from worker.models.server_connections import MOST_UNREAD


@asynccontextmanager
async def client(ca_file: str = "") -> AsyncGenerator[httpx2.AsyncClient]:
    connections = Connections(NetworkRules.of("", ca_file))
    try:
        yield connections.client
    finally:
        await connections.aclose()


async def test_the_client_reads_over_connections_of_ours() -> None:
    """What has no body of ours is read by httpx2's iterators, which cost more."""
    async with (
        serving(says_hello) as served,
        client() as http,
        http.stream("GET", served.url) as response,
    ):
        assert body_of(response) is not None


async def test_a_connection_is_used_again() -> None:
    async with serving(says_hello) as served, client() as http:
        for _ in range(3):
            assert (await http.get(served.url)).content == b"hello"
    assert len(set(served.asked_over)) == 1


async def test_a_server_that_hangs_up_between_two_requests_is_not_noticed() -> None:
    """What the event loop had not seen yet of the end of a connection at rest failed the next request."""
    hung_up = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says(b"hello"))
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    async with serving(answer) as served, client() as http:
        for _ in range(3):
            assert (await http.get(served.url)).content == b"hello"
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

    async with serving(answer) as served, client() as http, http.stream("GET", served.url) as response:
        for _ in range(1000):
            await after()
        held_back = sent
        assert await response.aread() == body
    assert held_back < len(body) == sent


async def test_who_takes_what_has_arrived_holds_a_server_back_no_longer() -> None:
    body = b"x" * (8 * MOST_UNREAD)

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says(body))

    read = 0
    async with serving(answer) as served, client() as http, http.stream("GET", served.url) as response:
        for _ in range(1000):
            await after()
        arriving = body_of(response)
        assert arriving is not None
        while (piece := arriving.arrived()) is not None:
            read += len(piece)
            if not piece:
                await arriving.arrival()
    assert read == len(body)


async def test_a_long_request_arrives_as_it_was_sent() -> None:
    body, read = bytes(range(256)) * 40_000, b""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal read
        read = await reader.readexactly(len(body))
        writer.write(says(b"hello"))

    async with serving(answer) as served, client() as http:
        assert (await http.post(served.url, content=body)).content == b"hello"
    assert read == body


async def test_a_server_is_believed_by_its_certificate_alone(tmp_path: Path) -> None:
    made = SelfSigned.of(tmp_path, "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.certificate, made.key)
    async with serving(says_hello, tls) as served:
        async with client() as http:
            with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
                await http.get(f"https://127.0.0.1:{served.port}/")
        async with client(made.certificate) as http:
            assert (await http.get(f"https://127.0.0.1:{served.port}/")).content == b"hello"
            # The certificate is for another name.
            with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
                await http.get(f"https://localhost:{served.port}/")


@pytest.mark.parametrize(
    ("beginning", "error"),
    [(b"", httpx2.RemoteProtocolError), (says(b"half", length=9), httpx2.RemoteProtocolError)],
)
async def test_a_server_that_hangs_up_is_an_error_of_the_client(beginning: bytes, error: type[Exception]) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        writer.close()

    async with serving(answer) as served, client() as http:
        with pytest.raises(error):
            await http.get(served.url)


async def test_a_connection_that_is_reset_in_the_middle_of_a_response_is_an_error_of_the_client() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says(b"half", length=9))
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with serving(answer) as served, client() as http:
        with pytest.raises(httpx2.ReadError):
            await http.get(served.url)


@pytest.mark.parametrize(
    ("content", "timeout", "error"),
    [
        (b"", httpx2.Timeout(None, read=0.02), httpx2.ReadTimeout),
        (b"x" * 50_000_000, httpx2.Timeout(None, write=0.02), httpx2.WriteTimeout),
    ],
)
async def test_a_time_that_the_caller_sets_for_each_read_or_write_holds(
    content: bytes, timeout: httpx2.Timeout, error: type[Exception]
) -> None:
    is_over = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await is_over.wait()

    async with serving(answer) as served, client() as http:
        with pytest.raises(error):
            await http.post(served.url, content=content, timeout=timeout)
        is_over.set()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "127.0.0.1/v1"])
async def test_what_is_not_http_is_an_error_of_the_client(url: str) -> None:
    async with client() as http:
        with pytest.raises(httpx2.UnsupportedProtocol):
            await http.get(url)


async def test_a_connection_that_is_reset_is_an_error_of_the_client() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with serving(answer) as served, client() as http:
        with pytest.raises(httpx2.TransportError):
            await http.post(served.url, content=b"x" * 10_000_000)


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

        async with serving(says_hello) as served, client() as http:
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
            assert (await http.get(f"http://two.example:{served.port}/")).content == b"hello"
