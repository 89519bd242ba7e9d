"""Clients and proxies that speak HTTP/1.0, which knows no chunks and nothing in between."""

import socket
from collections.abc import AsyncGenerator

import pytest

from tests.contract.test_pipelined_requests import (
    HELD,
    IMPATIENT_S,
    NEVER_S,
    Site,
    errors_in,
    look_around,
    served,
    until,
)
from tests.kit.log_events import log_events
from tests.kit.raw_http import RawConnection, chunk, head, raw_connection
from tests.kit.wait_until import HANGS_S, wait_until


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.fixture
async def raw(site: Site) -> AsyncGenerator[RawConnection]:
    async with served(site, idle_s=NEVER_S) as port, raw_connection(port) as connection:
        yield connection


def old(request: bytes, version: bytes = b"HTTP/1.0") -> bytes:
    return request.replace(b"HTTP/1.1", version)


STREAM = old(head("GET", "/stream"))
KEPT = old(head("GET", "/stream", Connection="keep-alive"))


@pytest.mark.parametrize("asked", [STREAM, KEPT, old(STREAM, b"HTTP/0.9")], ids=["1.0", "keep-alive", "0.9"])
async def test_a_stream_over_http_1_0_had_the_sizes_of_chunks_among_its_events(
    site: Site, raw: RawConnection, asked: bytes
) -> None:
    await raw.send(asked)
    answer = await until(raw, b"\r\n\r\n")
    assert b"\r\nconnection: close\r\n" in answer
    assert b"transfer-encoding" not in answer
    assert await until(raw, b"\n\n") == b"data: first\n\n"
    site.goes_on.set()
    assert await until(raw, b"\n\n") == b"data: last\n\n"
    await raw.is_closed()


async def test_a_stream_over_http_1_1_is_chunked(site: Site, raw: RawConnection) -> None:
    site.goes_on.set()
    await raw.send(head("GET", "/stream", Connection="close"))
    assert b"\r\ntransfer-encoding: chunked\r\n" in await until(raw, b"\r\n\r\n")
    assert await until(raw, b"0\r\n\r\n") == chunk(b"data: first\n\n") + chunk(b"data: last\n\n") + chunk(b"")
    await raw.is_closed()


async def test_a_stream_over_http_1_0_goes_on_when_its_client_has_closed_its_side(
    site: Site, raw: RawConnection
) -> None:
    await raw.send(STREAM)
    await until(raw, b"data: first\n\n")
    raw.writer.write_eof()
    assert await until(raw, b"\n") == b": keep-alive\n"
    site.goes_on.set()
    assert (await until(raw, b"\n\n")).replace(b": keep-alive\n", b"") == b"data: last\n\n"
    await site.is_left()


async def test_a_reader_over_http_1_0_that_left_is_noticed(site: Site, raw: RawConnection) -> None:
    await raw.send(STREAM)
    await until(raw, b"data: first\n\n")
    raw.writer.close()
    await site.is_left()


async def test_a_reader_over_http_1_0_that_takes_nothing_is_cut_off_as_a_streams(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with log_events() as logged, socket.socket() as silent:
        async with served(site, timeout_s=HANGS_S, reader_timeout_s=IMPATIENT_S) as port:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", port))
            silent.sendall(old(head("GET", "/flood")))
            await wait_until(lambda: logged.has("stream_client_cut_off"), description="the client to be cut off")
            await site.is_left()
    assert (logged.all("application_failed"), errors_in(caplog)) == ([], [])


async def test_a_whole_answer_over_http_1_0_has_its_length(site: Site, raw: RawConnection) -> None:
    await raw.send(old(HELD))
    raw.writer.write_eof()
    await look_around(raw)
    site.goes_on.set()
    answer = await raw.answer()
    assert (answer.json(), answer.headers["connection"]) == ("held", "close")
    await raw.is_closed()


async def test_a_client_of_http_1_0_took_the_answer_in_between_for_its_own(raw: RawConnection) -> None:
    """RFC 9110, 10.1.1: what it expects is not heeded."""
    await raw.send(old(head("POST", "/size", Expect="100-continue", Content_Length="5")) + b"hello")
    assert (await raw.answer()).json() == 5
    await raw.is_closed()


async def test_a_coding_that_http_1_0_does_not_have_was_answered(raw: RawConnection) -> None:
    """RFC 9112, 6.1: another server takes the chunks for the body, or for the next request."""
    await raw.send(old(head("POST", "/size", Transfer_Encoding="chunked")) + chunk(b"hello") + chunk(b""))
    answer = await raw.answer()
    assert (answer.status, answer.json()["code"]) == (400, "invalid_http")
    await raw.is_closed()
