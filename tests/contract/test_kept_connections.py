"""The pool of connections to models' servers: which are used again, which are not, and that none is lost."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest

from shared.network.checked_http import PUBLIC_ONLY
from tests.kit.plain_answers import Served, says, says_hello, serving
from tests.kit.raw_http import repeated
from tests.kit.services.tcp_proxy import blackhole_address
from tests.kit.stream_server import stream_server
from tests.kit.wait_until import after, wait_until
from worker.models.connections import PoolLimits, ServerTransport

ONE = PoolLimits(most=1)
BIG = b"x" * 50_000_000
"""More than a socket takes at once."""


Asking = Callable[[httpx2.AsyncClient, str], Coroutine[Any, Any, None]]


@asynccontextmanager
async def client(limits: PoolLimits, pool_s: float | None = None) -> AsyncGenerator[httpx2.AsyncClient]:
    transport = ServerTransport(PUBLIC_ONLY.tls(), limits)
    async with httpx2.AsyncClient(transport=transport, timeout=httpx2.Timeout(None, pool=pool_s)) as http:
        yield http


async def says_nothing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """It waits for the next request."""


async def until_left(served: Served, clients: int) -> None:
    await wait_until(lambda: len(served.left) == clients, description="the client to hang up", every=0.001)


@pytest.mark.parametrize(
    "answer",
    [
        says(b"hello", headers=b"connection: close\r\n"),
        says(b"hello") + b"surplus",
        says(b"hello").replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["the server closes it", "something follows", "HTTP/1.0"],
)
async def test_a_connection_is_closed_behind_a_response_that_nothing_may_follow(answer: bytes) -> None:
    async def answers(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with serving(answers) as served, client(PoolLimits()) as http:
        for _ in range(2):
            assert (await http.get(served.url)).content == b"hello"
        await until_left(served, 2)


async def test_a_client_that_says_that_it_closes_the_connection_does() -> None:
    async with serving(says_hello) as served, client(PoolLimits()) as http:
        await http.get(served.url, headers={"connection": "close"})
        await until_left(served, 1)


async def test_a_body_ends_with_a_connection_that_ends() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        writer.close()

    async with serving(answer) as served, client(PoolLimits()) as http:
        assert (await http.get(served.url)).content == b"hello"


async def test_a_connection_on_which_the_server_has_spoken_is_not_used_again() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(says(b"hello"))

    async with serving(answer) as served, client(PoolLimits()) as http:
        await http.get(served.url)
        writers[0].write(says(b"for nobody"))
        assert (await http.get(served.url)).content == b"hello"
        await until_left(served, 1)


async def test_a_connection_at_rest_is_used_again_for_some_seconds() -> None:
    async with serving(says_hello) as served, client(PoolLimits(kept_s=0.01)) as http:
        await http.get(served.url)
        await after(0.05)
        await http.get(served.url)
        assert len(set(served.asked_over)) == 2
        await until_left(served, 1)


async def test_no_more_connections_are_kept_than_may_be() -> None:
    async with serving(says_hello) as served, client(PoolLimits(most_kept=1)) as http:
        async with http.stream("GET", served.url), http.stream("GET", served.url):
            pass
        await until_left(served, 1)
        await http.get(served.url)
    assert len(set(served.asked_over)) == 2


async def test_a_request_waits_for_a_place() -> None:
    async with serving(says_hello) as served, client(ONE) as http, asyncio.TaskGroup() as group:
        async with http.stream("GET", served.url):
            waiting = group.create_task(http.get(served.url), name="ask")
            await after()
            assert len(served.asked_over) == 1
        assert (await waiting).content == b"hello"
    assert len(set(served.asked_over)) == 1


async def test_a_request_does_not_wait_for_a_place_without_end() -> None:
    async with serving(says_hello) as served, client(ONE, pool_s=0.02) as http:
        async with http.stream("GET", served.url):
            with pytest.raises(httpx2.PoolTimeout):
                await http.get(served.url)
        assert (await http.get(served.url)).content == b"hello"


async def test_a_kept_connection_makes_room_for_one_to_another_server() -> None:
    async with serving(says_hello) as one, serving(says_hello) as other, client(ONE) as http:
        await http.get(one.url)
        await http.get(other.url)
        await until_left(one, 1)


async def test_a_response_that_is_closed_in_the_middle_ends_its_connection_at_once() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says(b"half", length=9))

    async with serving(answer) as served, client(ONE) as http:
        for number in (1, 2):
            async with http.stream("GET", served.url) as response:
                assert await anext(response.aiter_raw()) == b"half"
            await until_left(served, number)


async def test_a_response_that_has_come_is_closed_without_being_read_and_its_connection_used_again() -> None:
    async with serving(says_hello) as served, client(ONE) as http:
        for _ in range(2):
            async with http.stream("GET", served.url):
                pass
    assert len(set(served.asked_over)) == 1


async def reads_a_head(http: httpx2.AsyncClient, url: str) -> None:
    await http.get(url)


async def sends_a_body(http: httpx2.AsyncClient, url: str) -> None:
    await http.post(url, content=BIG)


async def sends_pieces(http: httpx2.AsyncClient, url: str) -> None:
    await http.post(url, content=repeated(BIG, 2))


@pytest.mark.parametrize("asking", [reads_a_head, sends_a_body, sends_pieces])
async def test_a_request_that_is_cancelled_leaves_nothing_open(asking: Asking) -> None:
    never = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(served.asked_over) > 1:
            await says_hello(reader, writer)
        elif asking is reads_a_head:
            await says_nothing(reader, writer)
        else:
            await never.wait()

    async with serving(answer) as served, client(ONE) as http, asyncio.TaskGroup() as group:
        task = group.create_task(asking(http, served.url), name="ask")
        await wait_until(lambda: served.asked_over, description="the request")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        never.set()
        await until_left(served, 1)
        assert (await http.get(served.url)).content == b"hello"


async def test_a_request_that_is_cancelled_before_it_has_a_connection_gives_up_its_place() -> None:
    async with serving(says_hello) as served, client(ONE) as http, asyncio.TaskGroup() as group:
        with blackhole_address() as nowhere:
            connecting = group.create_task(http.get(nowhere), name="connect")
            await after()
            waiting = group.create_task(http.get(served.url), name="wait")
            await after()
            waiting.cancel()
            connecting.cancel()
            await asyncio.wait([waiting, connecting])
        assert (await http.get(served.url)).content == b"hello"


async def test_a_body_is_sent_piece_by_piece() -> None:
    read: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read.append(await reader.readexactly(len(b"2\r\nhi\r\n2\r\nhi\r\n0\r\n\r\n")))
        writer.write(says(b"hello"))

    async with serving(answer) as served, client(ONE) as http:
        for _ in range(2):
            assert (await http.post(served.url, content=repeated(b"hi", 2))).content == b"hello"
    assert read == [b"2\r\nhi\r\n2\r\nhi\r\n0\r\n\r\n"] * 2
    assert len(set(served.asked_over)) == 1


async def test_a_body_that_cannot_be_made_ends_the_request() -> None:
    async def fails() -> AsyncIterator[bytes]:
        yield b"hi"
        raise ZeroDivisionError

    async with serving(says_nothing) as served, client(ONE) as http:
        for number in (1, 2):
            with pytest.raises(ZeroDivisionError):
                await http.post(served.url, content=fails())
            await until_left(served, number)


async def test_a_server_that_answers_before_it_has_read_all_is_heard() -> None:
    is_heard = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says(b"too long"))
        await is_heard.wait()

    async with serving(answer) as served, client(ONE) as http:
        for content in (BIG, repeated(BIG, 2)):
            assert (await http.post(served.url, content=content)).content == b"too long"
        is_heard.set()
        await until_left(served, 2)


async def test_a_server_that_answers_before_it_was_asked_is_heard() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says(b"too many"))
        writer.close()

    async with stream_server(answer) as port, client(ONE) as http:
        assert (await http.get(f"http://127.0.0.1:{port}/")).content == b"too many"


async def test_a_server_that_does_not_answer_for_tls_is_left() -> None:
    async with serving(says_nothing) as served, client(ONE) as http:
        with pytest.raises(httpx2.ConnectTimeout):
            await http.get(served.url.replace("http:", "https:"), timeout=httpx2.Timeout(None, connect=0.05))
        await until_left(served, 1)
        with pytest.raises(httpx2.ReadTimeout):
            await http.get(served.url, timeout=httpx2.Timeout(None, read=0.02))
