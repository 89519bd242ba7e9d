"""A client as programs use it: it calls any API process, retries requests without an answer, obeys `Retry-After`, and
counts errors."""

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from bench.chaos.deployment import PROJECTS
from bench.chaos.ledger import Column, Ledger
from tests.kit.product import HEADERS

AGAIN_S = (0.1, 0.8)
"""The range of seconds that a client waits before a retry."""

TOO_MUCH = 429
NOT_NOW = (503, TOO_MUCH)
_LIMIT = re.compile(r"HOLDFAST_[A-Z_]+")

SILENT_S = 40.0
"""Seconds without data after which a client gives a connection up; keep-alives are more frequent."""

CONNECTION_ERRORS = (httpx.TransportError, OSError, AttributeError)
"""The errors of a lost connection. AttributeError: from anyio on uvloop, if the peer disconnects during the accept."""

_ERROR_KINDS = frozenset({"llm_error", "llm_timeout", "llm_rate_limit", "llm_authentication", "worker_lost"})
"""Errors of a run, which a plain request answers with their own status."""


class StreamLost(Exception):
    """The connection ended before the stream did."""


@dataclass
class Answer:
    """An answer of the API."""

    status: int
    body: Any
    retry_after_s: int | None = None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Refused(Exception):
    """The answer to a request for a stream is not a stream."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status}: {str(answer.body)[:300]}")
        self.answer = answer


@dataclass(frozen=True)
class Request:
    """A request and its keys, which stay the same in every retry."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    headers: dict[str, str] | None = None
    repeat: bool = True
    """Whether it may be sent again if its outcome is unknown."""
    expected: frozenset[int] = frozenset()
    """Statuses of failures that the story expects: they are answers, neither faults nor reasons to send it again."""


class Client:
    """Sends one project's requests to the API processes on these ports."""

    def __init__(
        self, http: httpx.AsyncClient, ports: Sequence[int], ledger: Ledger, dice: random.Random, project: str
    ) -> None:
        self.project = project
        self._key = {"Authorization": f"Bearer {PROJECTS[project]}"}
        self._http = http
        self._ports = ports
        self._ledger = ledger
        self._dice = dice

    async def call(self, request: Request) -> Answer | None:
        """Returns the answer, after as many tries as it takes; None if the outcome of a request without retries is
        unknown."""
        while True:
            try:
                response = await self._http.request(
                    request.method, self._url(request.path), json=request.body, headers=self._headers(request)
                )
            except CONNECTION_ERRORS as error:
                self._ledger.http[f"call: {type(error).__name__}"] += 1
                if not request.repeat:
                    return None
                await self.pause()
                continue
            answer = self._answer(request, response, response.content)
            is_over = answer.status not in NOT_NOW or answer.status in request.expected
            if is_over or _is_end_of_run(answer.body):
                return answer
            await self.come_again(answer)

    async def get(self, path: str) -> Any:
        """Returns the body of a GET that must succeed."""
        answer = await self.call(Request("GET", path))
        assert answer is not None
        if not answer.is_success:
            raise Refused(answer)
        return answer.body

    async def frames(self, request: Request) -> AsyncGenerator[list[bytes]]:
        """Yields the frames of a stream as they arrive, without comments, until the server ends the answer properly.

        Raises `StreamLost` and `Refused`.
        """
        try:
            async with self._http.stream(
                request.method, self._url(request.path), json=request.body, headers=self._headers(request)
            ) as response:
                if response.status_code != 200:
                    raise Refused(self._answer(request, response, await response.aread()))
                rest = b""
                async for chunk in response.aiter_raw():
                    *whole, rest = (rest + chunk).split(b"\n\n")
                    yield [frame for frame in map(_without_comments, whole) if frame]
        except CONNECTION_ERRORS as error:
            self._ledger.http[f"stream: {type(error).__name__}"] += 1
            raise StreamLost(str(error)) from error

    async def pause(self) -> None:
        """Waits before a retry."""
        await asyncio.sleep(self._dice.uniform(*AGAIN_S))

    async def come_again(self, answer: Answer) -> None:
        """Waits after a refusal: as long as the answer says, if a limit is used up."""
        if answer.status == TOO_MUCH and answer.retry_after_s is not None:
            await asyncio.sleep(answer.retry_after_s)
        await self.pause()

    def _headers(self, request: Request) -> dict[str, str]:
        return {**self._key, **(request.headers or {})}

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._dice.choice(self._ports)}{path}"

    def _answer(self, request: Request, response: httpx.Response, content: bytes) -> Answer:
        status = response.status_code
        try:
            body = json.loads(content)
        except ValueError:
            body = content.decode(errors="replace")
        if status >= 400:
            self._ledger.http[f"status {status}"] += 1
        if status >= 500 and status not in {503, *request.expected} and not _is_end_of_run(body):
            detail = f"{request.method} {request.path} answered {status}: {str(body)[:300]}"
            self._ledger.broken(Column.ERRORS, "-", f"{self._ledger.elapsed_s:.1f} s: {detail}")
        retry_after = response.headers.get("Retry-After")
        if status == TOO_MUCH and not _is_end_of_run(body):
            self._note_limit(request, body, retry_after)
        return Answer(status, body, None if retry_after is None else int(retry_after))

    def _note_limit(self, request: Request, body: Any, retry_after: str | None) -> None:
        """Checks that the refusal names its limit and the time to wait, and counts it."""
        said = _LIMIT.search(str(body))
        if said is None or retry_after is None:
            detail = f"{request.method} {request.path}: 429 with Retry-After {retry_after}: {str(body)[:300]}"
            self._ledger.broken(Column.ERRORS, "-", f"{self._ledger.elapsed_s:.1f} s: {detail}")
        else:
            self._ledger.limits[f"{self.project}: {said[0]}"] += 1


def _without_comments(frame: bytes) -> bytes:
    while frame.startswith(b":"):
        frame = frame.partition(b"\n")[2]
    return frame


def _is_end_of_run(body: Any) -> bool:
    match body:
        case {"error": {"type": str(kind)}}:
            return kind in _ERROR_KINDS
        case _:
            return False


def new_http() -> httpx.AsyncClient:
    """Returns a client with one connection per request: kept connections would lead to processes that have ended."""
    timeout = httpx.Timeout(SILENT_S, connect=5.0, pool=None)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2.0)
    return httpx.AsyncClient(headers=HEADERS, timeout=timeout, limits=limits)
