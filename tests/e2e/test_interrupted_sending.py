"""Ctrl-C before the server has said that it has the message."""

import asyncio
import json
from typing import Any

import pytest

from tests.kit.product.terminal import INTERRUPT, clean_environment, on_terminal
from tests.kit.stream_server import stream_server

AGENT = {"id": "agent-00000000-0000-4000-8000-000000000000", "name": "first"}
_PRESENT: dict[str, Any] = {"cursor": "0.0.0", "running": None, "queued": [], "waiting": []}
_NOTE: dict[str, Any] = {"message_type": "event_message", "event_type": "caught_up", "event_data": _PRESENT}
_CAUGHT_UP = b"data: %b\n\n" % json.dumps(_NOTE).encode()


class SilentServer:
    """Knows one agent, and answers nothing to a message."""

    def __init__(self) -> None:
        self.has_message = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of a connection after the other."""
        while head := await _head(reader):
            if head.startswith(b"POST"):
                self.has_message.set()
                return
            said = _CAUGHT_UP if b"/events" in head else json.dumps([] if b"/approvals" in head else AGENT).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n" % len(said) + said)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


@pytest.mark.parametrize("command", [["run", AGENT["id"], "Hello"], ["chat", AGENT["id"], "--history", "0"]])
async def test_nothing_said_whether_an_interrupted_message_had_made_a_run(command: list[str]) -> None:
    server = SilentServer()
    async with stream_server(server.answer) as port:
        environment = clean_environment(HOLDFAST_URL=f"http://127.0.0.1:{port}")
        with on_terminal(command, environment) as terminal:
            if command[0] == "chat":
                await terminal.shows("» ")
                terminal.type("Hello\n")
            await server.has_message.wait()
            terminal.type(INTERRUPT)
            assert await terminal.ended() == 130
    assert "interrupted before the server answered" in terminal.text
    assert f"holdfast runs list --agent {AGENT['id']}" in terminal.text
