"""A Redis whose answers to scripts a test plays: it records the sent bytes, and the number of their pieces."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import hiredis

from tests.kit.free_ports import free_port
from tests.kit.stream_server import stream_server
from tests.kit.wait_until import wait_until

ANSWERED = b"(answered)"
LOADED = b"(loaded)"
CUT = b"(cut)"


class PlayedRedis:
    """`heard` has the last argument of each script call in the order of its coming, and what was done to the caller.
    All other commands succeed at once."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._port = free_port()
        self._unanswered = 0
        self._caller: asyncio.StreamWriter | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["PlayedRedis"]:
        """Listens for the block."""
        async with stream_server(self._serve, port=self._port):
            yield self

    async def hears(self, *calls: bytes) -> None:
        """Returns when exactly these calls wait for their answers."""
        await wait_until(lambda: self._unanswered == len(calls), description=f"{calls}; it heard {self.heard}")
        assert self.heard[-len(calls) :] == list(calls)

    def answer(self, *replies: bytes) -> None:
        """Answers the oldest calls."""
        assert self._caller is not None
        self.heard.append(ANSWERED)
        self._unanswered -= len(replies)
        self._caller.write(b"".join(replies))

    def cut(self) -> None:
        """Ends the connection, as a server does or a network."""
        self.heard.append(CUT)
        self._unanswered = 0
        self._hang_up()

    def _hang_up(self) -> None:
        if self._caller is not None:
            self._caller.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._caller = writer
        parser = hiredis.Reader()
        while data := await reader.read(1 << 16):
            parser.feed(data)
            while command := parser.gets():
                self._take(command, writer)
        writer.close()

    def _take(self, command: list[bytes], writer: asyncio.StreamWriter) -> None:
        if command[0] == b"EVALSHA":
            self.heard.append(command[-1])
            self._unanswered += 1
            return
        if command[:2] == [b"SCRIPT", b"LOAD"]:
            self.heard.append(LOADED)
        writer.write(b"+OK\r\n")
