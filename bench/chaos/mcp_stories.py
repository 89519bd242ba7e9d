"""Stories of clients whose agents call the tools of an MCP server, and of clients that call the tools themselves."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bench.chaos.client import Answer, Client, Refused, Request
from bench.chaos.ledger import Column, Ledger, Story
from bench.chaos.mcp_slots import McpSlot
from bench.chaos.scripts import Scripts
from bench.chaos.stories import Stories, Tell
from bench.chaos.submitting import Submitting
from bench.chaos.tools import BOOK, HANG_UP, LOOK_UP, MULL, OF_SERVERS, REFUSE

FAILURES = frozenset({502, 503})
"""The server did not answer, or the API process ended. The server may have acted, so the client does not retry."""
NO_CHANGES: dict[str, list[str]] = {"added": [], "updated": [], "deleted": [], "skipped": []}


@dataclass(frozen=True)
class AskedByClient:
    """A call that a client made itself, and the answer."""

    key: str
    tool: str
    began_at: float
    ended_at: float
    answer: Answer | None


@dataclass(frozen=True)
class Refreshed:
    """A failed refresh of the server's tools."""

    began_at: float
    ended_at: float
    said: str


@dataclass
class McpStories:
    """Plays stories."""

    client: Client
    ledger: Ledger
    scripts: Scripts
    submitting: Submitting
    letta: Stories
    server: McpSlot
    dice: random.Random
    server_id: str = ""
    tool_ids: dict[str, str] = field(default_factory=dict[str, str])
    """The ids of the tools, by name."""
    asked: list[AskedByClient] = field(default_factory=list[AskedByClient])
    not_read: list[Refreshed] = field(default_factory=list[Refreshed])

    async def register(self) -> Sequence[str]:
        """Registers the project's server. Returns the ids of its tools."""
        body = {"server_name": self.client.project, "config": self.server.config}
        made = await self.client.call(Request("POST", "/v1/mcp-servers", body))
        assert made is not None
        assert made.is_success, f"{made.status} {made.body}"
        self.server_id = made.body["id"]
        tools = await self.client.get(f"/v1/mcp-servers/{self.server_id}/tools")
        self.tool_ids = {tool["name"]: tool["id"] for tool in tools}
        assert set(self.tool_ids) == set(OF_SERVERS), self.tool_ids
        return list(self.tool_ids.values())

    def kinds(self) -> dict[str, tuple[Tell, int]]:
        """The kinds of stories, with their relative frequencies."""
        return {
            "mcp": (self.calls, 5),
            "mcp, slow": (self.slow, 3),
            "mcp, approval": (self.approval, 3),
            "mcp, cancelled": (self.cancelled, 3),
            "mcp, by clients": (self.by_clients, 3),
        }

    async def calls(self, story: Story) -> None:
        """A run that calls tools of the server."""
        await self.letta.streamed(story, self.scripts.of_servers())

    async def slow(self, story: Story) -> None:
        """A run that waits for the server for some seconds."""
        await self.letta.streamed(story, self.scripts.slow_server())

    async def approval(self, story: Story) -> None:
        """A run whose calls a person must allow, because the server's hints warn of the tool."""
        await self.letta.decided(story, await self.letta.streamed(story, self.scripts.dangerous_server()))

    async def cancelled(self, story: Story) -> None:
        """A run that is cancelled, usually during a call."""
        scripts = self.scripts
        write = self.dice.choice([scripts.slow_server, scripts.slow_server, scripts.of_servers])
        async with AsyncExitStack() as stack:
            record = await self.letta.begin(story, write(), stack)
            if record is None:
                return
            record.is_pushed = True
            await asyncio.sleep(self.dice.choice([0.0, self.dice.uniform(0, 1), self.dice.uniform(0, 6)]))
            await self.letta.cancel_now(record)
        await self.letta.cancel_what_waits(record)

    async def by_clients(self, story: Story) -> None:
        """A client calls a tool without an agent, and refreshes the server's tools."""
        name = self.dice.choice([LOOK_UP, BOOK, MULL, REFUSE, HANG_UP])
        key = self.ledger.otid("tried")
        seconds = self.dice.uniform(0, 4) if name == MULL else 0.0
        path = f"/v1/mcp-servers/{self.server_id}/tools/{self.tool_ids[name]}/run"
        body = {"args": {"key": key, "seconds": seconds}}
        began_at = time.time()
        answer = await self.client.call(Request("POST", path, body, repeat=False, expected=FAILURES))
        self.asked.append(AskedByClient(key, name, began_at, time.time(), answer))
        self.ledger.notes[f"tools tried: {answer.status if answer else 'unknown'}"] += 1
        await self._refresh(story)

    async def _refresh(self, story: Story) -> None:
        began_at = time.time()
        path = f"/v1/mcp-servers/{self.server_id}/refresh"
        answer = await self.client.call(Request("PATCH", path, expected=frozenset({502})))
        assert answer is not None
        self.ledger.notes[f"lists read: {answer.status}"] += 1
        if answer.status == 502:
            self.not_read.append(Refreshed(began_at, time.time(), str(answer.body)[:300]))
        elif not answer.is_success:
            raise Refused(answer)
        elif answer.body != NO_CHANGES:
            detail = f"story {story.number}: the server's list has not changed, but was read as {answer.body}"
            self.ledger.broken(Column.MCP_WRONG, "-", detail)
