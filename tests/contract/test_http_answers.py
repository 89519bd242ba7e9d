"""What the server makes of an application's answers, byte by byte, and what an application is told of a request."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
import uvicorn
from fastapi import FastAPI
from httptools import HttpRequestParser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.connection_rules import HEAD_TOO_LONG, MAX_HEAD_BYTES, ConnectionRules
from api.http_exchange import Exchange
from api.http_server import server_config
from shared.concurrency import background
from tests.kit.log_events import log_events
from tests.kit.product.in_process import loopback_listener, served
from tests.kit.raw_http import RawConnection, chunk, head, raw_connection
from tests.kit.wait_until import HANGS_S, wait_until

DATE = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"


def begin(status: int = 200, /, **headers: str) -> Message:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": given}


def piece(body: bytes = b"", *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Failure(Exception):
    """What the application here fails of."""


class Application:
    """Answers with the given messages, and fails behind them if it is to."""

    def __init__(self, *messages: Message, fails: bool = False, reads: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.received: list[str] = []
        self._messages, self._fails, self._reads = messages, fails, reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(dict(scope))
        if self._reads:
            self.bodies.append(await self._body(receive))
        for message in self._messages:
            await send(message)
        if self._fails:
            raise Failure
        if self._reads:
            self.received.append((await receive())["type"])

    async def _body(self, receive: Receive) -> bytes:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body, has_more = body + message["body"], message["more_body"]
        return body


WHOLE = begin(content_length="2"), piece(b"ok")
SAID = b"HTTP/1.1 200 OK\r\n" + DATE + b"content-length: 2\r\n\r\nok"
FAILED = (
    b"HTTP/1.1 500 Internal Server Error\r\n" + DATE + b"content-type: text/plain; charset=utf-8\r\n"
    b"content-length: 21\r\nconnection: close\r\n\r\nInternal Server Error"
)
END = chunk(b"")
CHUNKED = b"HTTP/1.1 200 OK\r\n" + DATE + b"transfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def serving(application: ASGIApp, **given: Any) -> AsyncGenerator[RawConnection]:
    """A connection to a server whose clock stands still."""
    given |= {"date_header": False, "headers": [("Date", "Thu, 01 Jan 1970 00:00:00 GMT")]}
    config = server_config(cast("FastAPI", application), ConnectionRules(60), timeout_graceful_shutdown=1, **given)
    with loopback_listener() as listener:
        server = uvicorn.Server(config)
        async with background(served(server, listener), name="test server"):
            await wait_until(lambda: server.started, description="the server to listen")
            try:
                async with raw_connection(listener.getsockname()[1]) as raw:
                    yield raw
            finally:
                for listening in server.servers:
                    listening.close()


async def all_of(raw: RawConnection) -> bytes:
    """What is sent until the server closes the connection."""
    with suppress(ConnectionError):  # what the server does not read resets the connection
        async with asyncio.timeout(HANGS_S):
            return await raw.reader.read()
    return b""


async def said(raw: RawConnection, *requests: bytes) -> bytes:
    await raw.send(*requests)
    raw.writer.write_eof()
    return await all_of(raw)


LAST = head("GET", "/last", Connection="close")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (WHOLE, SAID),
        ((begin(), piece(b"a", more=True), piece(more=True), piece(b"bc")), CHUNKED + chunk(b"a") + chunk(b"bc") + END),
        ((begin(), piece()), CHUNKED + END),
        ((begin(Transfer_Encoding="Chunked"), piece(b"a")), CHUNKED.replace(b": c", b": C") + chunk(b"a") + END),
        ((begin(content_length="3"), piece(b"a", more=True), piece(b"bc")), SAID[:-7] + b"3\r\n\r\nabc"),
        ((begin(204), piece()), b"HTTP/1.1 204 No Content\r\n" + DATE + b"\r\n"),
        ((begin(304, ETag="x"), piece()), b"HTTP/1.1 304 Not Modified\r\n" + DATE + b"etag: x\r\n\r\n"),
        ((begin(599, Content_LENGTH="0"), piece()), b"HTTP/1.1 599 \r\n" + DATE + b"content-length: 0\r\n\r\n"),
    ],
    ids=["length", "pieces", "empty", "chunks of its own", "pieces of a length", "204", "304", "unknown status"],
)  # fmt: skip
async def test_an_answer_is_framed(messages: tuple[Message, ...], expected: bytes) -> None:
    """It is followed by another one on the same connection, so its end is where the client sees it."""
    async with serving(Application(*messages)) as raw:
        assert await said(raw, head("GET", "/"), LAST) == expected + _closing(expected)


def _closing(answer: bytes) -> bytes:
    """The same answer to the last request of a connection."""
    start, _, body = answer.partition(b"\r\n\r\n")
    lines = start.split(b"\r\n")
    by_server = len(lines) if lines[-1] != b"transfer-encoding: chunked" else len(lines) - 1
    return b"\r\n".join([*lines[:by_server], b"connection: close", *lines[by_server:]]) + b"\r\n\r\n" + body


async def test_a_head_has_the_length_of_a_body_that_it_does_not_have() -> None:
    application = Application(begin(content_length="2"), piece(b"o", more=True), piece(b"k"))
    async with serving(application) as raw:
        assert await said(raw, head("HEAD", "/"), LAST) == SAID[:-2] + _closing(SAID)
    assert [scope["method"] for scope in application.asked] == ["GET", "GET"]


async def test_an_application_that_starts_an_answer_with_close_has_its_connection_closed() -> None:
    async with serving(Application(begin(Connection="x, Close", content_length="2"), piece(b"ok"))) as raw:
        await raw.send(head("GET", "/") + head("GET", "/"))
        answer = await all_of(raw)
    assert answer == SAID.replace(b"content-length", b"connection: x, Close\r\ncontent-length")


@pytest.mark.parametrize(
    "application",
    [Application(fails=True), Application(), Application(piece(b"x"))],
    ids=["it fails", "it says nothing", "it begins with the body"],
)
async def test_an_application_without_an_answer_is_a_500(application: Application) -> None:
    with log_events() as logged:
        async with serving(application) as raw:
            await raw.send(head("GET", "/") + head("GET", "/"))
            assert await all_of(raw) == FAILED
    assert logged.has("application_failed") or logged.has("answer_not_whole", has_begun=False)


BROKEN: Mapping[str, tuple[Application, bytes]] = {
    "it fails": (Application(begin(), piece(b"a", more=True), fails=True), CHUNKED + b"1\r\na\r\n"),
    "it does not end": (Application(begin(), piece(b"a", more=True)), CHUNKED + b"1\r\na\r\n"),
    "no body": (Application(begin(content_length="2")), SAID[:-2]),
    "longer": (Application(begin(content_length="1"), piece(b"ab")), SAID[:-2].replace(b": 2", b": 1")),
    "longer in pieces": (Application(begin(content_length="2"), piece(b"ok", more=True), piece(b"!")), SAID),
    "shorter": (Application(begin(content_length="3"), piece(b"ok")), SAID.replace(b": 2", b": 3")),
    "two heads": (Application(begin(), begin()), CHUNKED),
    "behind the end": (Application(*WHOLE, piece(b"more")), SAID),
    "it fails behind the end": (Application(*WHOLE, fails=True), SAID),
    "a body without one": (Application(begin(204), piece(b"x")), b"HTTP/1.1 204 No Content\r\n" + DATE + b"\r\n"),
    "no status": (Application(begin(49), piece()), b""),
    "a name in two": (Application(begin(**{"a b": "c"}), piece()), b""),
    "a line in a name": (Application(begin(**{"a\r\nb": "c"}), piece()), b""),
    "a line in a value": (Application(begin(a="b\r\nc: d"), piece()), b""),
}


@pytest.mark.parametrize(("application", "expected"), BROKEN.values(), ids=BROKEN)
async def test_an_answer_that_is_none_is_broken_off(application: Application, expected: bytes) -> None:
    """Its client must not take what comes next for a part of it, nor a part for the whole."""
    with log_events() as logged:
        async with serving(application) as raw:
            await raw.send(head("GET", "/") + head("GET", "/"))
            assert await all_of(raw) == expected
    assert logged.has("application_failed") or logged.has("answer_not_whole", has_begun=True)


@pytest.mark.parametrize(
    ("target", "path", "raw_path", "query"),
    [
        (b"/a%20b/%C3%A4", "/a b/ä", b"/a%20b/%C3%A4", b""),
        (b"/a?x=%20&y", "/a", b"/a", b"x=%20&y"),
        (b"/a?b?c", "/a", b"/a", b"b?c"),
        (b"/a?", "/a", b"/a", b""),
        (b"//a//b", "//a//b", b"//a//b", b""),
        (b"/%2e%2e/%2F", "/..//", b"/%2e%2e/%2F", b""),
        (b"/%zz", "/%zz", b"/%zz", b""),
        (b"http://there:80/a?b", "/a", b"/a", b"b"),
    ],
)
async def test_a_target_is_taken_apart(target: bytes, path: str, raw_path: bytes, query: bytes) -> None:
    application = Application(*WHOLE)
    async with serving(application) as raw:
        await said(raw, b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    [scope] = application.asked
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == (path, raw_path, query)


async def test_an_application_is_told_who_asks_and_how() -> None:
    application = Application(*WHOLE)
    async with serving(application, root_path="/below") as raw:
        client, server = (raw.writer.get_extra_info(name) for name in ("sockname", "peername"))
        await said(raw, b"PATCH /a%20b HTTP/1.1\r\nHOST: a\r\nX-Two: 1\r\nx-two: 2\r\n\r\n")
    [scope] = application.asked
    assert scope["state"].pop("connection") is not None
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": server,
        "client": client,
        "scheme": "http",
        "method": "PATCH",
        "root_path": "/below",
        "path": "/below/a b",
        "raw_path": b"/below/a%20b",
        "query_string": b"",
        "headers": [(b"host", b"a"), (b"x-two", b"1"), (b"x-two", b"2")],
        "state": {},
    }


@pytest.mark.parametrize("expects", ["100-continue", "100-Continue"])
async def test_a_body_that_is_held_back_is_asked_for_once(expects: str) -> None:
    application = Application(*WHOLE, reads=True)
    async with serving(application) as raw:
        await raw.send(head("POST", "/", Expect=expects, Content_Length="4"))
        assert await raw.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await raw.send(b"ab")
        assert await said(raw, b"cd") == SAID
    assert application.bodies == [b"abcd"]


async def test_what_nobody_defines_is_not_asked_for() -> None:
    application = Application(*WHOLE, reads=True)
    async with serving(application) as raw:
        assert await said(raw, head("POST", "/", Expect="miracles", Content_Length="2") + b"ab") == SAID
    assert application.bodies == [b"ab"]


async def test_a_whole_answer_is_the_end_of_what_an_application_receives() -> None:
    application = Application(*WHOLE, reads=True)
    async with serving(application) as raw:
        await raw.send(head("GET", "/"))
        assert await raw.reader.readexactly(len(SAID)) == SAID
        await wait_until(lambda: application.received, description="the application to receive it")
    assert application.received == ["http.disconnect"]


async def test_a_field_behind_a_body_was_taken_for_one_of_the_head() -> None:
    """A proxy that checks the fields of the head passed `Authorization` or `X-Forwarded-For` on behind the body."""
    application = Application(*WHOLE, reads=True)
    hidden = chunk(b"ab") + b"0\r\nAuthorization: Bearer stolen\r\nExpect: 100-continue\r\n\r\n"
    async with serving(application) as raw:
        assert await said(raw, head("POST", "/", Transfer_Encoding="chunked") + hidden) == SAID
    assert application.bodies == [b"ab"]
    assert {name for name, _ in application.asked[0]["headers"]} == {b"host", b"content-type", b"transfer-encoding"}


ENDLESS = {"a field": b"2\r\nab\r\n0\r\nX-A: x", "an extension": b"2;x"}


@pytest.mark.parametrize("begun", ENDLESS.values(), ids=ENDLESS)
async def test_what_stands_between_the_pieces_of_a_body_had_no_end(begun: bytes) -> None:
    """A field behind the last piece stayed in memory for as long as its client liked, and was copied with each read."""
    application = Application(*WHOLE, reads=True)
    with log_events() as logged:
        async with serving(application) as raw:
            await raw.send(head("POST", "/", Transfer_Encoding="chunked") + begun)
            await raw.send(*[b"x" * MAX_HEAD_BYTES] * 10)  # more than the server reads at once, by far
            await wait_until(lambda: logged.has("request_not_read"), description="the server to refuse it")
            await all_of(raw)
    assert logged.all("request_not_read")[0]["reason"] == HEAD_TOO_LONG.detail
    assert application.bodies == []


async def ok(_scope: Scope, _receive: Receive, send: Send) -> None:
    for message in WHOLE:
        await send(message)


def kept() -> int:
    """How many requests and parsers there are in this process."""
    gc.collect()
    return sum(isinstance(one, (Exchange, HttpRequestParser)) for one in gc.get_objects())


async def test_a_connection_between_two_requests_kept_its_parser_and_the_last_request() -> None:
    """They were two thirds of its memory, and most connections wait most of the time."""
    before = kept()
    async with serving(ok) as raw:
        for _ in range(2):
            await raw.send(head("GET", "/"))
            assert await raw.reader.readexactly(len(SAID)) == SAID
            await wait_until(lambda: kept() == before, description="the request to be forgotten")
