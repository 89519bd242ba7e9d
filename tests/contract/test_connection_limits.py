"""What a connection may cost: its head, its place among others, and the patience with a client that does not read."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, cast

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse
from uvicorn.server import ServerState

from api.connection_rules import MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES, ConnectionRules
from api.http_server import server_config
from shared.concurrency import background
from shared.domain.errors import ErrorCode
from tests.kit.log_events import LogEvents, log_events
from tests.kit.product.in_process import loopback_listener, served
from tests.kit.project.documents import written_openapi
from tests.kit.raw_http import RawConnection, head, raw_connection
from tests.kit.services.told_again import told_while_awake
from tests.kit.wait_until import HANGS_S, wait_until

PATIENCE_S = 1.0
LONG = 30_000_000
"""More than the kernel takes off a process's hands."""


def application() -> FastAPI:
    app = FastAPI()

    async def small() -> str:
        return "small"

    async def long() -> PlainTextResponse:
        return PlainTextResponse(b"x" * LONG)

    async def stream() -> StreamingResponse:
        async def pieces() -> AsyncGenerator[bytes]:
            for _ in range(LONG // 100_000):
                yield b"x" * 100_000

        return StreamingResponse(pieces())

    for path, route in (("/small", small), ("/long", long), ("/stream", stream)):
        app.add_api_route(path, route)
    return app


class Served(NamedTuple):
    """A server, and its port on loopback."""

    port: int
    server: uvicorn.Server


@asynccontextmanager
async def serving(*, most: int = 1000, patience_s: float = 60, reader_timeout_s: float = 300) -> AsyncGenerator[Served]:
    rules = ConnectionRules(patience_s, reader_timeout_s, most)
    config = server_config(application(), rules, timeout_graceful_shutdown=1)
    with loopback_listener() as listener:
        server = uvicorn.Server(config)
        async with background(served(server, listener), name="test server"):
            await wait_until(lambda: server.started, description="the server to listen")
            try:
                yield Served(listener.getsockname()[1], server)
            finally:
                for listening in server.servers:
                    listening.close()


@pytest.fixture
async def raw() -> AsyncGenerator[RawConnection]:
    """A connection to a server with the usual limits."""
    async with serving() as served, raw_connection(served.port) as connection:
        yield connection


async def test_a_long_head_in_one_piece_is_refused(raw: RawConnection) -> None:
    """Only heads that came in pieces were counted."""
    await raw.send(head("GET", "/small", X_A="x" * MAX_HEAD_BYTES))
    assert (await raw.answer()).status == 431
    await raw.is_closed()


async def test_many_small_headers_are_refused(raw: RawConnection) -> None:
    await raw.send(head("GET", "/small", **{f"X_{number}": "x" for number in range(MAX_HEADERS + 1)}))
    assert (await raw.answer()).status == 431
    await raw.is_closed()


@pytest.mark.parametrize(
    ("status", "code", "refused"),
    [
        (414, ErrorCode.URL_TOO_LONG, head("GET", "/small?" + "x" * MAX_URL_BYTES)),
        (431, ErrorCode.HEAD_TOO_LARGE, head("GET", "/small", X_A="x" * MAX_HEAD_BYTES)),
    ],
)
async def test_a_refused_head_was_not_in_the_document(
    raw: RawConnection, status: int, code: ErrorCode, refused: bytes
) -> None:
    """414 was missing, and 431 was said to be JSON."""
    await raw.send(refused)
    answer = await raw.answer()
    assert (answer.status, answer.json()["code"]) == (status, code)
    operations = [one for methods in written_openapi()["paths"].values() for one in methods.values()]
    for operation in operations:
        assert list(operation["responses"][str(status)]["content"]) == [answer.headers["content-type"].split(";")[0]]


async def test_a_long_url_is_refused(raw: RawConnection) -> None:
    """A URL of 60 MB held everybody up for 5 seconds, without a key."""
    await raw.send(head("GET", "/small?" + "x" * MAX_URL_BYTES))
    assert (await raw.answer()).status == 414
    await raw.is_closed()


FRAMED_TWICE = {
    "no host": b"GET /small HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /small HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "one host twice": b"GET /small HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
    "two hosts, HTTP/1.0": b"GET /small HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
    "identity beside chunked": (
        b"POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"
    ),
    "identity in a line of its own": (
        b"POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "chunked twice": b"POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked and a length": (
        b"POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    ),
}


@pytest.mark.parametrize("request_", FRAMED_TWICE.values(), ids=FRAMED_TWICE)
async def test_what_a_proxy_could_read_otherwise_was_answered(raw: RawConnection, request_: bytes) -> None:
    await raw.send(request_)
    assert (await raw.answer()).status == 400
    await raw.is_closed()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /small HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET /small HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked \r\n\r\n0\r\n\r\n",
    ],
    ids=["empty host", "HTTP/1.0 without a host", "chunked in other letters"],
)
async def test_what_is_framed_once_is_answered(raw: RawConnection, request_: bytes) -> None:
    await raw.send(request_)
    assert (await raw.answer()).status == 200


async def test_a_head_at_the_limits_is_answered(raw: RawConnection) -> None:
    headers = {f"X_{number}": "x" * 400 for number in range(MAX_HEADERS - 10)}
    await raw.send(head("GET", "/small?" + "x" * (MAX_URL_BYTES - 100), **headers))
    assert (await raw.answer()).status == 200
    await raw.send(head("GET", "/small"))
    answer = await raw.answer()
    assert answer.status == 200
    assert "server" not in answer.headers, "which names a version's weaknesses"


async def test_silent_connections_do_not_keep_others_out_for_ever() -> None:
    """400 silent connections made every new one reset, and nothing said so."""
    with log_events() as logged:
        await _fill_and_free(logged)


async def _fill_and_free(logged: LogEvents) -> None:
    async with serving(most=10) as (port, _), AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(raw_connection(port)) for _ in range(10)]
        await silent[0].send(head("GET", "/small"))
        assert (await silent[0].answer()).status == 200
        for _ in range(3):
            async with raw_connection(port) as another:
                await another.send(head("GET", "/small"))
                answer = await another.answer()
                assert (answer.status, answer.headers["retry-after"]) == (503, "2")
                assert answer.json()["code"] == "too_many_connections"
                await another.is_closed()
        async with raw_connection(port) as another:
            await another.is_closed()
        assert len(logged.all("connections_refused")) == 1
        await silent[0].send(head("GET", "/small"))
        assert (await silent[0].answer()).status == 200

        silent[1].writer.close()

        async def is_let_in() -> bool:
            async with raw_connection(port) as another:
                await another.send(head("GET", "/small"))
                return (await another.answer()).status == 200

        await wait_until(is_let_in, description="a place to be free")


@told_while_awake
async def test_who_does_not_read_an_answer_is_cut_off_and_a_stream_waits() -> None:
    """The answer stayed in this process's memory for as long as its reader liked."""
    async with (
        serving(patience_s=PATIENCE_S) as (port, server),
        raw_connection(port) as streaming,
        raw_connection(port) as reading,
    ):
        await streaming.send(head("GET", "/stream"))
        await reading.send(head("GET", "/long"))
        connections = server.server_state.connections
        await wait_until(lambda: len(connections) == 2, description="both to be served")
        await wait_until(lambda: len(connections) == 1, description="the one that holds its answer up to be cut off")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reading.answer()
        async with asyncio.timeout(HANGS_S):
            assert await _length(streaming) > LONG


async def _length(connection: RawConnection) -> int:
    """How much comes until the end of a stream."""
    length, last = 0, b""
    while not last.endswith(b"0\r\n\r\n"):
        last = last[-8:] + (piece := await connection.reader.read(1_000_000))
        assert piece
        length += len(piece)
    return length


class PlayedTransport(asyncio.Transport):
    """The server's side of a connection whose client takes what the test says."""

    unsent_bytes = 0
    is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class PlayedTimers:
    """An event loop whose timers the test lets run out."""

    def __init__(self) -> None:
        self._new: list[tuple[asyncio.TimerHandle, Callable[[], None]]] = []

    def call_later(self, _delay: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(0, act, (), asyncio.get_running_loop())
        self._new.append((handle, act))
        return handle

    def new(self) -> Callable[[], None]:
        """The timers that were set since the last call, to run out when what this gives is called."""
        new, self._new = self._new, []

        def run_out() -> None:
            for handle, act in new:
                if not handle.cancelled():
                    act()

        return run_out


async def test_a_client_that_asked_for_long_answers_one_after_another_was_cut_off() -> None:
    """The beginning of a new answer was compared with the beginning of the one before: nothing seemed to be taken."""
    config, timers, transport = server_config(FastAPI(), ConnectionRules(30, 300)), PlayedTimers(), PlayedTransport()
    config.load()
    connection = cast("Any", config.http_protocol_class)(
        config=config, server_state=ServerState(), app_state={}, _loop=timers
    )
    connection.connection_made(transport)

    timers.new()

    def sent_a_long_answer() -> Callable[[], None]:
        transport.unsent_bytes = LONG
        connection.pause_writing()
        return timers.new()

    time_of_the_first_is_over = sent_a_long_answer()
    transport.unsent_bytes = 0
    connection.resume_writing()
    time_of_the_second_is_over = sent_a_long_answer()
    time_of_the_first_is_over()
    assert not transport.is_aborted
    time_of_the_second_is_over()
    assert transport.is_aborted, "it took nothing of the second"


async def test_a_request_that_has_begun_makes_its_connection_no_idle_one() -> None:
    async with serving() as served, raw_connection(served.port) as raw:
        await raw.send(head("GET", "/small"))
        assert (await raw.answer()).status == 200
        [connection] = cast("Any", served.server.server_state.connections)
        idle: asyncio.TimerHandle = connection.deadline
        begun = head("GET", "/small?again")
        await raw.send(begun[:-2])
        async with raw_connection(served.port) as later:
            await later.send(head("GET", "/small"))
            assert (await later.answer()).status == 200, "so the server has read the beginning, which was sent before"
        assert idle.cancelled()
        assert connection.deadline is not idle, "which is the time for a request to arrive"
        await raw.send(begun[-2:])
        assert (await raw.answer()).status == 200
        connection.give_up()
        await raw.is_closed()


async def test_a_peer_that_vanished_without_a_word_kept_its_place_for_a_quarter_of_an_hour() -> None:
    """So long the kernel goes on sending what nobody acknowledges."""
    async with serving(reader_timeout_s=7.5) as served, raw_connection(served.port):
        connections = served.server.server_state.connections
        await wait_until(lambda: connections, description="the connection to be there")
        [connection] = connections
        kept: socket.socket = connection.transport.get_extra_info("socket")
        assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7500
