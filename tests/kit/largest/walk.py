"""The walk: sends each of the largest requests by itself, and measures how long it holds the event loop."""

import asyncio
import http.client
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import httpx

from tests.kit.largest.loop_holds import LIMIT_S, LoopHolds, calibrate
from tests.kit.largest.requests import LargeRequest
from tests.kit.walls.belongings import is_idle

TRIES = 5
"""Of a request that has held the loop for too long: what a machine does beside it is not in every one of them."""
ANSWERED_WITHIN_S = 300
KEPT_BYTES = 4096
MADE = re.compile(r'"id":"([a-z]+-[0-9a-f-]{36})"')
LISTS = frozenset({"/v1/agents", "/v1/archives", "/v1/blocks", "/v1/tools"})
BEGINS_RUNS = re.compile(r"/(messages|completions|run|compact|summarize|generate|inject|import)$")


class Answer(NamedTuple):
    """A status, and how the body begins. Status 0: the server closed the connection instead."""

    status: int
    beginning: str


class LoopWalk:
    """Sends requests to a product that runs on this thread's loop, one after the other."""

    def __init__(self, client: httpx.AsyncClient, key: str, holds: LoopHolds) -> None:
        """`client` has the key, too."""
        self._client = client
        self._port = client.base_url.port or 80
        self._key = key
        self._holds = holds
        self.requests = 0
        self.routes: set[str] = set()
        self.longest_s = 0.0
        self.too_long: list[str] = []
        """What held the loop for too long, and where."""
        self.broken: list[str] = []
        """What was answered with a 5xx."""

    async def walk(self, requests: Iterable[LargeRequest]) -> None:
        """All of them."""
        for request in requests:
            await self.look_at(request)

    async def look_at(self, request: LargeRequest) -> None:
        """Sends the request, and records what is wrong with the answer."""
        self.requests += 1
        self.routes.add(request.route)
        await self.watch(str(request), lambda: self._ask(request))

    async def watch(self, what: str, act: Callable[[], Awaitable[None]]) -> None:
        """Does something that may be done again, and notes when the loop was held for too long meanwhile."""
        held_s, where = await self._held(act)
        limit_s = LIMIT_S
        for _ in range(TRIES - 1):
            if held_s <= limit_s:
                break
            # A machine that others use is three times as slow as it was a second ago.
            before = calibrate()
            again_s, again_where = await self._held(act)
            again_limit_s = LIMIT_S * max(before, calibrate())
            if again_s / again_limit_s < held_s / limit_s:
                held_s, where, limit_s = again_s, again_where, again_limit_s
        self.longest_s = max(self.longest_s, held_s)
        if held_s > limit_s:
            self.too_long.append(f"{held_s:.2f} s (limit {limit_s:.2f} s): {what}; in {where}")

    async def _held(self, act: Callable[[], Awaitable[None]]) -> tuple[float, str]:
        self._holds.begin()
        await act()
        return self._holds.longest_s, self._holds.where

    async def _ask(self, request: LargeRequest) -> None:
        answer = await asyncio.to_thread(_sent, self._port, self._key, request)
        path = request.target.partition("?")[0]
        if answer.status < 300 and request.method == "POST" and BEGINS_RUNS.search(path):
            await is_idle(self._client)
        # 502: a server that the request names does not answer.
        if answer.status >= 500 and answer.status not in (501, 502, 503):
            self.broken.append(f"{answer.status}: {request}")
        made = MADE.search(answer.beginning)
        if made and request.method == "POST" and path in LISTS and answer.status < 300:
            await self._client.delete(f"{path}/{made[1]}")


def _sent(port: int, key: str, request: LargeRequest) -> Answer:
    """Sends the request from another thread, so that the client's work is not measured."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWERED_WITHIN_S)
    try:
        headers = {**request.headers, "Authorization": f"Bearer {key}"}
        connection.request(request.method, request.target, request.body, headers)
        response = connection.getresponse()
        streams = response.headers.get_content_type() == "text/event-stream"
        if streams and (request.route.endswith("/events") or "/ag-ui/" in request.route or "/ai-sdk/" in request.route):
            return Answer(response.status, "")  # it would not end, or not before a run that nobody works on
        beginning = response.read(KEPT_BYTES)
        while response.read(1 << 20):
            pass
    except (ConnectionError, http.client.HTTPException):
        return Answer(0, "")  # refused while it was still being sent
    else:
        return Answer(response.status, beginning.decode("latin-1"))
    finally:
        connection.close()
