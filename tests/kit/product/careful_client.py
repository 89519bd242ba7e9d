"""A client of an API that may be away: it repeats requests, as a careful client would."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from shared.concurrency import background
from tests.kit.wait_until import wait_until

LONG_S = 180.0


async def ask(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response | None:
    """The answer; None when the API is away."""
    try:
        return await http.request(method, path, json=body)
    except httpx.TransportError:
        return None


async def ask_until_answered(http: httpx.AsyncClient, path: str, body: Any) -> Any:
    """Sends a request until it is answered, as a careful client would."""

    async def try_it() -> httpx.Response | None:
        answer = await ask(http, "POST", path, body)
        return None if answer is None or answer.status_code == 503 else answer

    answer = await wait_until(try_it, description=f"POST {path} to be answered", timeout=LONG_S, every=0.1)
    assert answer.status_code == 200, answer.text
    return answer.json()


@asynccontextmanager
async def deciding(http: httpx.AsyncClient) -> AsyncGenerator[None]:
    """Approves all waiting calls for as long as the block lasts, and repeats requests while the API is away."""

    async def look() -> bool:
        answer = await ask(http, "GET", "/v1/approvals")
        waiting_requests: list[dict[str, Any]] = [] if answer is None else answer.json()
        for waiting in waiting_requests:
            await ask(http, "POST", f"/v1/approvals/{waiting['id']}", {"decision": "approve"})
        return False

    async with background(wait_until(look, description="nothing", timeout=3600, every=0.05), name="decide"):
        yield
