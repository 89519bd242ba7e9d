"""A server of the protocol's first version, by hand: it sends all of its answers over one stream."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from tests.kit.mcp.hostile import Act, Asked, begin_events, send


@dataclass
class FirstVersion:
    """The behaviour of such a server. Pass `acts` to a `HostileServer`."""

    channels: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])
    """The streams of answers so far."""

    def acts(self, act: Act) -> dict[str, Act]:
        """The behaviour for each method; `act` for a call of a tool."""
        quiet: dict[str, Act] = dict.fromkeys(("notifications/initialized", "notifications/cancelled"), _accept)
        return {"GET": self._channel, "initialize": self._begin, "tools/call": act, **quiet}

    async def say(self, asked: Asked, writer: asyncio.StreamWriter, result: dict[str, Any]) -> None:
        """Answers by the newest stream."""
        await _accept(asked, writer)
        said = {"jsonrpc": "2.0", "id": asked.id, "result": result}
        self.channels[-1].write(b"event: message\ndata: " + json.dumps(said).encode() + b"\n\n")

    async def _channel(self, _asked: Asked, writer: asyncio.StreamWriter) -> None:
        await begin_events(writer)
        writer.write(b"event: endpoint\ndata: /messages\n\n")
        self.channels.append(writer)
        await asyncio.Event().wait()

    async def _begin(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        about = {"name": "old", "version": "1"}
        await self.say(asked, writer, {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": about})


async def _accept(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    await send(writer, b"", status="202 Accepted")
