"""HTTP/1.1 without a connection: what a request looks like, and what of a server's bytes is a response."""

import httpx2
import pytest

from worker.models.server_connections import MOST_OVERHEAD, IncomingResponse, OutgoingRequest

URL = "http://models.example/v1/chat?a=b"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


def read(*pieces: bytes, has_body: bool = True, hangs_up: bool = False) -> IncomingResponse:
    response = IncomingResponse(has_body=has_body)
    for piece in pieces:
        response.feed(piece)
    if hangs_up:
        response.end()
    return response


def sent(request: httpx2.Request, *pieces: bytes) -> bytes:
    asked = OutgoingRequest(request)
    return asked.head + b"".join(map(asked.framed, pieces)) + asked.end()


WHOLE = {
    "a length": (OK + b"content-length: 5\r\n\r\nhello", True),
    "chunks": (OK + CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", True),
    "chunks with extensions and trailers": (OK + CHUNKED + b"5;a=b\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n", True),
    "spaces behind the size of a chunk": (OK + CHUNKED + b"5 \r\nhello\r\n0 \r\n\r\n", True),
    "a length beside chunks": (OK + b"content-length: 9\r\n" + CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", True),
    "lines that end in LF": (b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello", True),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 5\r\n\r\nhello", True),
    "continue, and a hint": (
        b"HTTP/1.1 100 Continue\r\nx-early: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n"
        + OK
        + b"content-length: 5\r\n\r\nhello",
        True,
    ),
    "the server closes": (OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", False),
    "HTTP/1.0 that keeps alive": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\nhello",
        True,
    ),
}
"""A response with the body `hello`, and whether its connection may be used again."""


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(("data", "keeps_alive"), WHOLE.values(), ids=WHOLE)
def test_a_response_is_whole(data: bytes, keeps_alive: bool, size: int) -> None:
    response = read(*(data[start : start + size] for start in range(0, len(data), size)))
    assert (response.failure, response.status_code, response.take()) == (None, 200, b"hello")
    assert (response.is_whole, response.keeps_alive) == (True, keeps_alive)
    assert b"x-early" not in dict(response.headers)


def test_headers_are_as_the_server_wrote_them() -> None:
    response = read(OK + b"X-Case:  a b \t\r\nx-empty:\r\nSet-Cookie: a\r\nSet-Cookie: b\r\ncontent-length: 0\r\n\r\n")
    cookies = [(b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")]
    assert response.headers == [(b"X-Case", b"a b"), (b"x-empty", b""), *cookies, (b"content-length", b"0")]
    assert (response.version, response.reason) == (b"HTTP/1.1", b"OK")


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    response = read(OK + b"\r\nhel", b"lo")
    assert not response.is_over
    response.end()
    assert (response.is_whole, response.keeps_alive, response.take()) == (True, False, b"hello")


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_a_response_that_has_no_body_is_whole(status: bytes) -> None:
    response = read(b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\n\r\n" % status)
    assert (response.is_whole, response.keeps_alive) == (True, True)


def test_the_answer_to_a_question_for_the_head_has_no_body() -> None:
    response = read(OK + b"content-length: 5\r\n\r\n", has_body=False)
    assert (response.is_whole, response.keeps_alive, response.take()) == (True, False, b"")


@pytest.mark.parametrize("surplus", [b"x", OK + b"content-length: 1\r\n\r\nx"])
def test_what_comes_behind_a_response_is_no_part_of_it_and_ends_the_use_of_its_connection(surplus: bytes) -> None:
    together = read(OK + b"content-length: 5\r\n\r\nhello" + surplus)
    apart = read(OK + b"content-length: 5\r\n\r\nhello", surplus)
    for response in (together, apart):
        assert (response.is_whole, response.keeps_alive, response.take()) == (True, False, b"hello")
        assert response.headers == [(b"content-length", b"5")]


UNREADABLE = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a protocol nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    "a space in a header's name": OK + b"x y: 1\r\n\r\n",
    "a length that is none": OK + b"content-length: -5\r\n\r\n",
    "two lengths": OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
    "a coding that is not known": OK + b"transfer-encoding: gzip\r\n\r\nhello",
    "the size of a chunk that is none": OK + CHUNKED + b"zz\r\n",
    "a head without end": OK + b"x: " + b"y" * MOST_OVERHEAD,
    "hints without end": b"HTTP/1.1 103 Early Hints\r\n\r\n" * (MOST_OVERHEAD // 20),
    "trailers without end": OK + CHUNKED + b"0\r\n" + b"x: y\r\n" * (MOST_OVERHEAD // 4),
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_response_is_an_error(data: bytes) -> None:
    response = read(data)
    assert isinstance(response.failure, httpx2.RemoteProtocolError)
    assert not response.is_whole
    assert not response.keeps_alive


CUT_SHORT = {
    "nothing": b"",
    "in its head": OK + b"content-",
    "in its body": OK + b"content-length: 5\r\n\r\nhel",
    "in a chunk": OK + CHUNKED + b"5\r\nhel",
    "before the last chunk": OK + CHUNKED + b"5\r\nhello\r\n",
}


@pytest.mark.parametrize("data", CUT_SHORT.values(), ids=CUT_SHORT)
def test_a_response_that_is_cut_short_is_an_error(data: bytes) -> None:
    assert isinstance(read(data, hangs_up=True).failure, httpx2.RemoteProtocolError)


def test_a_long_body_is_no_overhead() -> None:
    body = b"x" * MOST_OVERHEAD
    response = read(OK + b"content-length: %d\r\n\r\n" % (2 * len(body)), body, body)
    assert (response.failure, len(response.take())) == (None, 2 * len(body))


def test_a_request_is_written_as_it_was_built() -> None:
    request = httpx2.Request("POST", URL, headers={"X-Key": "Abc"}, content=b"hello")
    assert sent(request, b"hello") == (
        b"POST /v1/chat?a=b HTTP/1.1\r\nHost: models.example\r\nX-Key: Abc\r\nContent-Length: 5\r\n\r\nhello"
    )


def test_a_body_of_unknown_length_is_sent_in_chunks() -> None:
    """An empty piece would be the chunk that ends the body."""
    request = httpx2.Request("POST", URL, headers={"transfer-encoding": "chunked"})
    assert sent(request, b"he", b"", b"llo").endswith(b"\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")


@pytest.mark.parametrize("body", [b"hell", b"hello!"])
def test_a_body_that_is_not_as_long_as_was_announced_is_refused(body: bytes) -> None:
    with pytest.raises(httpx2.LocalProtocolError, match="than was announced"):
        sent(httpx2.Request("POST", URL, headers={"content-length": "5"}), body)


@pytest.mark.parametrize("value", ["key\r\nx-other: 1", "key\n", "key\0"])
def test_a_header_with_a_line_break_in_it_is_refused(value: str) -> None:
    with pytest.raises(httpx2.LocalProtocolError):
        OutgoingRequest(httpx2.Request("GET", URL, headers={"authorization": value}))


@pytest.mark.parametrize(
    "request_",
    [
        httpx2.Request("CONNECT", URL),
        httpx2.Request("GET", URL, headers={"connection": "upgrade", "upgrade": "websocket"}),
    ],
)
def test_another_protocol_cannot_be_asked_for(request_: httpx2.Request) -> None:
    with pytest.raises(httpx2.UnsupportedProtocol):
        OutgoingRequest(request_)
