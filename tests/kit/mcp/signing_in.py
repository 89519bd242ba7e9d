"""Plays a person who signs in at an MCP server through a running product, and the client that waits meanwhile."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.kit.mcp.authorizing import AuthorizingServer, consented
from tests.kit.product import Product

CALLBACK = "/v1/tools/mcp/oauth/callback"


async def stored(product: Product, notes: AuthorizingServer, **fields: Any) -> dict[str, Any]:
    """The server in the answer to its creation."""
    config = {"mcp_server_type": "streamable_http", "server_url": notes.url, **fields}
    answer = await product.http.post("/v1/mcp-servers", json={"server_name": "notes", "config": config})
    assert answer.is_success, answer.text
    return answer.json()


async def shown(product: Product, server: dict[str, Any]) -> dict[str, Any]:
    return (await product.http.get(f"/v1/mcp-servers/{server['id']}")).json()


class Connecting:
    """A client that reads the stream of a sign-in."""

    def __init__(self, product: Product, method: str, path: str, **request: Any) -> None:
        self._product = product
        self._request = (method, path, request)
        self.events: list[dict[str, Any]] = []
        self.url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read(self) -> list[dict[str, Any]]:
        method, path, request = self._request
        async with self._product.http.stream(method, path, **request) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line.removeprefix("data: "))
                self.events.append(event)
                if event["event"] == "authorization_url":
                    self.url.set_result(event["url"])
        return self.events


def of_stored(product: Product, server: dict[str, Any]) -> Connecting:
    return Connecting(product, "GET", f"/v1/mcp-servers/connect/{server['id']}")


async def came_back(product: Product, location: str, **headers: str) -> httpx.Response:
    """The answer to the person's browser, which has no key."""
    parts = urlsplit(location)
    async with httpx.AsyncClient(base_url=product.base_url, trust_env=False) as browser:
        return await browser.get(f"{parts.path}?{parts.query}", headers=headers)


async def signed_in(product: Product, notes: AuthorizingServer, **fields: Any) -> dict[str, Any]:
    server = await stored(product, notes, **fields)
    connecting = of_stored(product, server)
    async with asyncio.TaskGroup() as group:
        group.create_task(connecting.read())
        answer = await came_back(product, await consented(await connecting.url))
        assert answer.status_code == 200, answer.text
    return await shown(product, server)


async def begun(product: Product, notes: AuthorizingServer) -> tuple[dict[str, Any], str]:
    """The stored server, and the address to which the consenting person's browser is sent. No client waits for it."""
    server = await stored(product, notes)
    connecting = of_stored(product, server)
    reading = asyncio.get_running_loop().create_task(connecting.read())
    try:
        return server, await consented(await connecting.url)
    finally:
        reading.cancel()
