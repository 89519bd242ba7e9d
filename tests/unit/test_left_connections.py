"""Connections that one test leaves open failed another one, when Python came to close them."""

import asyncio
import socket

import httpx
import pytest
from fastapi import FastAPI

from tests.kit.product.in_process import listening
from tests.kit.stream_server import stream_server
from tests.kit.wait_until import after, wait_until


async def test_a_server_left_a_connection_open_that_it_had_not_answered() -> None:
    unanswered: list[asyncio.StreamWriter] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unanswered.append(writer)

    async with stream_server(serve) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await wait_until(lambda: unanswered, description="the server to have the connection")
    assert unanswered[0].is_closing()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_a_server_went_on_with_a_connection_after_its_block() -> None:
    begun, is_over = asyncio.Event(), asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_over.set()

    async with stream_server(serve) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await begun.wait()
    assert is_over.is_set()
    writer.close()
    await writer.wait_closed()


async def test_a_request_whose_client_had_left_went_on_after_the_api_had_ended() -> None:
    """It gave its place among the readers back, and opened a connection to Redis for it that nobody closed."""
    begun, is_over = asyncio.Event(), asyncio.Event()
    app = FastAPI()

    @app.get("/")
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await after()  # as long as Redis takes
            is_over.set()

    async with listening(app) as url:
        async with httpx.AsyncClient() as client:
            asking = asyncio.ensure_future(client.get(url))
            await begun.wait()
            asking.cancel()
            await asyncio.wait([asking])
        assert not is_over.is_set()
    assert is_over.is_set()


def test_a_loop_was_closed_over_an_open_connection_and_nobody_failed() -> None:
    loop = asyncio.new_event_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, writer = loop.run_until_complete(asyncio.open_connection(*listener.getsockname()))
        with pytest.raises(AssertionError, match=f"{listener.getsockname()[1]}.*StreamReaderProtocol"):
            loop.close()
    assert loop.is_closed()
    assert writer.is_closing()
