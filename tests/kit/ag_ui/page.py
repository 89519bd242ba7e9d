"""A page that talks AG-UI with a running product, with the client in Python."""

from typing import Any
from uuid import uuid4

import httpx

from tests.kit.ag_ui.client import AgUiClient


class Page:
    """One tab: a client that sends all its messages with each request, as the public clients do."""

    def __init__(self, http: httpx.AsyncClient, agent_id: str, thread: str, *, is_current: bool = True) -> None:
        self.http, self.agent_id, self.thread = http, agent_id, thread
        self.client = AgUiClient(is_current=is_current)
        self.status = 0
        self.answer: Any = None
        """The body of an answer that is not a stream."""
        self.received = b""

    async def say(self, text: str, *, message_id: str | None = None, **fields: Any) -> AgUiClient:
        """Adds a message of the user, and runs the agent."""
        self.client.messages.append({"id": message_id or str(uuid4()), "role": "user", "content": text})
        return await self.run(**fields)

    async def run(self, **fields: Any) -> AgUiClient:
        """Runs the agent on the messages, and reads the stream to its end."""
        version = {"protocolVersion": "1.0"} if self.client.is_current else {}
        body = {"threadId": self.thread, "runId": str(uuid4()), "messages": self.client.messages, **version, **fields}
        return await self._read("POST", f"/ag-ui/{self.agent_id}", json=body)

    async def resume(self, **payloads: Any) -> AgUiClient:
        """Answers interrupts: a payload for each, or `None` to cancel it."""
        entries = [
            {
                "interruptId": name,
                **({"status": "cancelled"} if one is None else {"status": "resolved", "payload": one}),
            }
            for name, one in payloads.items()
        ]
        return await self.run(resume=entries)

    async def connect(self, *, after: str | None = None, **query: Any) -> AgUiClient:
        """Joins the conversation."""
        version = {"protocolVersion": "1.0"} if self.client.is_current else {}
        cursor = {} if after is None else {"after": after}
        params = {"threadId": self.thread, **version, **cursor, **query}
        return await self._read("GET", f"/ag-ui/{self.agent_id}/connect", params=params)

    async def stop(self, **fields: Any) -> httpx.Response:
        """Stops the run at work."""
        return await self.http.post(f"/ag-ui/{self.agent_id}/stop", json={"threadId": self.thread, **fields})

    async def _read(self, method: str, path: str, **request: Any) -> AgUiClient:
        self.client.connects()
        self.received = b""
        async with self.http.stream(method, path, **request) as response:
            self.status = response.status_code
            if response.status_code != 200:
                await response.aread()
                self.answer = response.json()
                return self.client
            rest = b""
            async for piece in response.aiter_bytes():
                self.received += piece
                whole, end, rest = (rest + piece).rpartition(b"\n\n")
                self.client.read(whole + end)
        return self.client
