"""Clients that send several requests before they read an answer, or close their side and still read."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from api.connection_rules import MAX_AHEAD_BYTES, MAX_HEAD_BYTES, MAX_UNANSWERED, MAX_URL_BYTES
from api.event_stream import EventStream, ServerEnd
from api.http_server import IDLE_S
from tests.kit.log_events import log_events
from tests.kit.product.in_process import listening
from tests.kit.raw_http import RawConnection, chunk, head, raw_connection
from tests.kit.wait_until import wait_until

PATIENT_S, IMPATIENT_S = 60.0, 1.0
NEVER_S = 100_000
STREAM_END = b"0\r\n\r\n"
HELD, STREAM = head("GET", "/held"), head("GET", "/stream")
OFFER = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABkAARAAAAAAAIAAAAA"}


class Site:
    """An application that notes what it is asked, and whose answers the test lets go."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.asked: list[str] = []
        self.readers = 0
        self.app = FastAPI()
        self.app.add_api_route("/", self.nothing)
        self.app.add_api_route("/small/{name}", self.small)
        self.app.add_api_route("/held", self.held)
        self.app.add_api_route("/size", self.size, methods=["POST"])
        self.app.add_api_route("/stream", self.stream)
        self.app.add_api_route("/flood", self.flood)

    async def nothing(self) -> str:
        return "nothing"

    async def small(self, name: str) -> str:
        self.asked.append(name)
        return name

    async def held(self) -> str:
        await self.goes_on.wait()
        return "held"

    async def size(self, request: Request) -> int:
        try:
            return len(await request.body())
        except ClientDisconnect:
            return 0

    async def stream(self) -> Response:
        async def frames() -> AsyncGenerator[bytes]:
            yield b"data: first\n\n"
            await self.goes_on.wait()
            yield b"data: last\n\n"

        return EventStream(frames, ServerEnd(), cut=b"", entrance=self._reading)

    async def flood(self) -> Response:
        async def frames() -> AsyncGenerator[bytes]:
            for _ in range(1000):
                yield b"data: %b\n\n" % (b"x" * 100_000)

        return EventStream(frames, ServerEnd(), cut=b"", entrance=self._reading)

    @asynccontextmanager
    async def _reading(self, _scope: Scope) -> AsyncGenerator[None]:
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    async def is_left(self) -> None:
        """Returns when no stream has a reader any more."""
        await wait_until(lambda: self.readers == 0, description="the readers to be gone")


@asynccontextmanager
async def served(
    site: Site, *, timeout_s: float = PATIENT_S, reader_timeout_s: float = PATIENT_S, idle_s: int = IDLE_S
) -> AsyncGenerator[int]:
    """A server of the site, for the block; gives its port."""
    async with listening(site.app, timeout_s=timeout_s, reader_timeout_s=reader_timeout_s, idle_s=idle_s) as address:
        yield int(address.rpartition(":")[2])


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.fixture
async def port(site: Site) -> AsyncGenerator[int]:
    async with served(site) as port:
        yield port


@pytest.fixture
async def raw(port: int) -> AsyncGenerator[RawConnection]:
    async with raw_connection(port) as connection:
        yield connection


async def until(connection: RawConnection, end: bytes) -> bytes:
    """What is sent up to this."""
    async with asyncio.timeout(60):
        return await connection.reader.readuntil(end)


def small(*names: object) -> bytes:
    return b"".join(head("GET", f"/small/{name}") for name in names)


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_requests_that_come_at_once_are_answered_in_turn(raw: RawConnection) -> None:
    for _ in range(2):
        await raw.send(small(*range(MAX_UNANSWERED)))
        assert [(await raw.answer()).json() for _ in range(MAX_UNANSWERED)] == [str(n) for n in range(MAX_UNANSWERED)]


async def test_one_connection_had_as_many_requests_waiting_as_its_client_liked(site: Site, raw: RawConnection) -> None:
    """Ten thousand in a quarter of a megabyte, each with what a request keeps in memory."""
    with log_events() as logged:
        await raw.send(HELD + small(*range(MAX_UNANSWERED + 100)))
        await wait_until(lambda: logged.has("request_not_read"), description="the first too many")
        site.goes_on.set()
        answers = [await raw.answer() for _ in range(MAX_UNANSWERED)]
        await raw.is_closed()
        assert [one.json() for one in answers] == ["held", *(str(n) for n in range(MAX_UNANSWERED - 1))]
        assert site.asked == [str(n) for n in range(MAX_UNANSWERED - 1)]
        assert [one.headers.get("connection") == "close" for one in answers].index(True) == MAX_UNANSWERED - 1
        assert len(logged.all("request_not_read")) == 1


async def test_a_client_that_left_kept_its_stream_because_it_had_asked_for_more(site: Site, raw: RawConnection) -> None:
    """The last request was told, and the first was being answered."""
    await raw.send(STREAM + small("behind"))
    await until(raw, b"data: first\n\n")
    assert site.readers == 1
    raw.writer.close()
    await site.is_left()
    assert site.asked == []


async def test_a_reader_that_left_is_noticed_though_nothing_happens(site: Site, port: int) -> None:
    """It may be no reader that left, but one that closed its side: it is sent something that means nothing."""
    for _ in range(4):
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(look_in(port), name=f"reader {number}")
    await site.is_left()


async def look_in(port: int) -> None:
    async with raw_connection(port) as connection:
        await connection.send(STREAM)
        await until(connection, b"data: first\n\n")


async def test_a_silent_client_that_had_asked_for_more_ended_with_a_traceback(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream was taken for an answer that had not begun, and nothing said that its client was cut off."""
    with log_events() as logged, socket.socket() as silent:
        async with served(site, reader_timeout_s=IMPATIENT_S) as port:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", port))
            silent.sendall(head("GET", "/flood") + small("behind"))
            await wait_until(lambda: logged.has("stream_client_cut_off"), description="the client to be cut off")
            await site.is_left()
    assert len(logged.all("stream_client_cut_off")) == 1
    assert (site.asked, logged.all("application_failed"), errors_in(caplog)) == ([], [], [])


TOO_LONG = head("GET", "/small/x?" + "x" * MAX_URL_BYTES)
BROKEN_BODY = head("POST", "/size", Transfer_Encoding="chunked") + b"nonsense\r\n"


@pytest.mark.parametrize(("behind", "status"), [(TOO_LONG, 414), (b"NONSENSE\r\n\r\n", 400), (BROKEN_BODY, 400)])
@pytest.mark.parametrize("before", [HELD, STREAM], ids=["answer", "stream"])
async def test_a_flaw_behind_a_request_cost_its_answer(
    site: Site, raw: RawConnection, before: bytes, behind: bytes, status: int
) -> None:
    with log_events() as logged:
        await raw.send(before + small("between") + behind + small("behind"))
        await wait_until(lambda: logged.has("request_not_read"), description="the flaw to be found")
    site.goes_on.set()
    if before is HELD:
        assert (await raw.answer()).json() == "held"
    else:
        assert b"data: last\n\n" in await until(raw, STREAM_END)
    assert (await raw.answer()).json() == "between"
    assert (await raw.answer()).status == status
    await raw.is_closed()
    assert site.asked == ["between"]


async def test_a_long_head_behind_a_request_was_refused_in_the_middle_of_its_answer(
    site: Site, raw: RawConnection
) -> None:
    await raw.send(STREAM)
    await until(raw, b"data: first\n\n\r\n")
    await raw.send(b"GET /small/x HTTP/1.1\r\nX-A: ", *[b"x" * 8192] * (MAX_HEAD_BYTES // 8192 + 2))
    site.goes_on.set()
    assert b"HTTP/1.1" not in await until(raw, STREAM_END)
    assert (await raw.answer()).status == 431
    await raw.is_closed()


async def test_a_body_was_taken_for_a_part_of_the_next_head(raw: RawConnection) -> None:
    body = b" " * (2 * MAX_HEAD_BYTES)
    next_head = small("next")
    await raw.send(head("POST", "/size", Content_Length=str(len(body))) + body + next_head[:20])
    assert (await raw.answer()).json() == len(body)
    await raw.send(next_head[20:])
    assert (await raw.answer()).json() == "next"


async def test_a_head_that_began_behind_an_answer_had_the_time_of_an_idle_connection(site: Site) -> None:
    async with served(site, timeout_s=IMPATIENT_S, idle_s=NEVER_S) as port, raw_connection(port) as raw:
        await raw.send(HELD + b"GET /small/x HTTP/1.1\r\n")
        site.goes_on.set()
        assert (await raw.answer()).json() == "held"
        await raw.is_closed()


HALF = head("POST", "/size", Content_Length="9") + b"half"


@pytest.mark.parametrize("behind", [b"", small("behind"), b"GET /small/x HTTP/1.1\r\n", HALF, small("behind") + HALF])
async def test_a_client_that_closed_its_side_was_answered_nothing(site: Site, behind: bytes) -> None:
    async with served(site, idle_s=NEVER_S) as port, raw_connection(port) as raw:
        await raw.send(HELD + behind)
        raw.writer.write_eof()
        await look_around(raw)
        site.goes_on.set()
        assert (await raw.answer()).json() == "held"
        if behind.startswith(small("behind")):
            assert (await raw.answer()).json() == "behind"
        await raw.is_closed()


async def test_a_stream_ended_when_its_client_closed_its_side(site: Site, raw: RawConnection) -> None:
    await raw.send(STREAM)
    await until(raw, b"data: first\n\n")
    raw.writer.write_eof()
    await until(raw, b": keep-alive\n\r\n")
    site.goes_on.set()
    said = await until(raw, STREAM_END)
    assert b"data: last\n\n" in said
    await raw.is_closed()


async def test_half_a_request_is_not_waited_for_when_its_client_has_closed_its_side(raw: RawConnection) -> None:
    await raw.send(HALF)
    raw.writer.write_eof()
    await raw.is_closed()


async def look_around(raw: RawConnection) -> None:
    """Returns when the server has seen all that was sent before: it takes connections in turn."""
    port = raw.writer.get_extra_info("peername")[1]
    async with raw_connection(port) as other:
        await other.send(small("other"))
        await other.answer()


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize(
    ("framing", "body"),
    [({"Content_Length": "5"}, b"hello"), ({"Transfer_Encoding": "chunked"}, chunk(b"hello") + chunk(b""))],
)
async def test_the_body_of_a_request_that_offered_http_2_was_lost(
    raw: RawConnection, framing: dict[str, str], body: bytes, pieces: int
) -> None:
    """Java's client offers it with each first request of a connection."""
    asked = head("POST", "/size", **OFFER, **framing) + body + small("next")
    length = len(asked) // pieces + 1
    for begin in range(0, len(asked), length):
        await raw.send(asked[begin : begin + length])
        await look_around(raw)
    assert (await raw.answer()).json() == 5
    assert (await raw.answer()).json() == "next"


@pytest.mark.parametrize("target", ["http://127.0.0.1", "http://127.0.0.1/", "http://127.0.0.1?a=/b", "/"])
async def test_an_absolute_url_without_a_path_was_no_http(raw: RawConnection, target: str) -> None:
    await raw.send(head("GET", target))
    assert (await raw.answer()).json() == "nothing"


@pytest.mark.parametrize("target", ["127.0.0.1:80", "/small/x", "http://127.0.0.1/small/x"])
async def test_no_tunnel_is_opened(site: Site, raw: RawConnection, target: str) -> None:
    await raw.send(head("CONNECT", target) + small("inside"))
    assert (await raw.answer()).status == 400
    await raw.is_closed()
    assert site.asked == []


async def test_what_a_client_sends_behind_a_request_waits_in_the_kernel(site: Site, raw: RawConnection) -> None:
    """Its own buffer fills up then, and is emptied when its turn comes."""
    body = b" " * 20_000_000
    await raw.send(HELD)
    raw.writer.write(head("POST", "/size", Content_Length=str(len(body))) + body + small("last"))
    await look_around(raw)
    assert raw.writer.transport.get_write_buffer_size() > len(body) // 2 > MAX_AHEAD_BYTES
    site.goes_on.set()
    assert [(await raw.answer()).json() for _ in range(3)] == ["held", len(body), "last"]
