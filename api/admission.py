"""Limits on concurrent requests of callers.

Submissions need a permit. The API stores a few at a time, and the others wait in the order of their arrival. Without
permits a burst would take every connection to the database, and reads and cancels would wait for it. A waiting
submission holds only its body. The API refuses a submission only if too many wait, or if it has waited too long.

Quotas limit requests per second and open streams. Redis counts them, so that all processes enforce the same limits.
Limits protect callers from each other and are not worth an outage: while Redis is away, the API admits every request.
"""

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope

from api.access.callers import Caller
from api.errors import domain_error_answer
from api.request_log import MCP
from shared.concurrency import Clock, background, repeating
from shared.domain.errors import Unavailable
from shared.domain.ids import IdMaker, ProjectId
from shared.domain.limits import BURST_S, LimitReached, Limits, ProjectLimits
from shared.redis.queue import READER_S, Bucket, Empty, Group, Quotas

_SUBMITS = re.compile(
    r"(?:/openai)?/v1/responses(?:/compact)?|/openai/v1/chat/completions|/v1/(?:agents/[^/]+/(?:messages(?:/stream|/async)?|summarize|generate|tools/[^/]+/run)"
    r"|conversations/[^/]+/(?:messages|compact)|groups/[^/]+/messages(?:/stream)?"
    r"|chat/completions(?:/chat/completions)?)|/ag-ui/(?:[^/]+|agent/[^/]+/run)|/ai-sdk/[^/]+/chat"
)
"""Paths whose POST makes a run."""

_METHOD_OF_MCP = b"mcp-method"
_SUBMITS_BY_MCP = b"tools/call"


class Permit:
    """The permit of one submission. It is released at the end of its block, or earlier by `release_permit`."""

    def __init__(self, permits: asyncio.Semaphore) -> None:
        self._permits: asyncio.Semaphore | None = permits

    def __enter__(self) -> None:
        self._before = _PERMIT.set(self)

    def __exit__(self, *_: object) -> None:
        _PERMIT.reset(self._before)
        self.end()

    def end(self) -> None:
        if self._permits is not None:
            self._permits.release()
        self._permits = None


_PERMIT: ContextVar[Permit | None] = ContextVar("permit of a submission", default=None)


def release_permit() -> None:
    """Releases the present request's permit early. Called once its submission is stored, or before a long wait."""
    permit = _PERMIT.get()
    if permit is not None:
        permit.end()


class Admission:
    """Gives permits to `at_once` submissions, first come, first served. Up to `most_waiting` wait for one, each for up
    to `wait_s` seconds. `on_refused` gets the reason of each refusal: `full` or `late`."""

    def __init__(
        self, *, at_once: int, most_waiting: int, wait_s: float, on_refused: Callable[[str], None] = lambda _: None
    ) -> None:
        self._permits = asyncio.Semaphore(at_once)
        self._most_waiting = most_waiting
        self._wait_s = wait_s
        self._on_refused = on_refused
        self.waiting = 0
        """Submissions that wait for a permit."""

    async def enter(self, receive: Receive) -> Permit:
        """Waits for a permit. Raises `Unavailable` if there is none in time, and `ClientLeft` if `receive` reports that
        the client has disconnected."""
        if self._permits.locked():
            await self._wait(receive)
        else:
            await self._permits.acquire()
        return Permit(self._permits)

    async def _wait(self, receive: Receive) -> None:
        if self.waiting >= self._most_waiting:
            self._on_refused("full")
            said = f"{self.waiting} submissions are waiting already (HOLDFAST_WAITING_SUBMISSIONS)"
            raise Unavailable(f"{said}; send the request again")
        self.waiting += 1
        has_permit = goes_on = False
        try:
            async with asyncio.timeout(self._wait_s), background(_until_left(receive), name="watch a waiting client"):
                await self._permits.acquire()
                has_permit = True
            goes_on = True
        except TimeoutError:
            self._on_refused("late")
            said = f"the submission waited longer than {self._wait_s:g} s (HOLDFAST_SUBMISSION_WAIT)"
            raise Unavailable(f"{said}; send the request again") from None
        finally:
            self.waiting -= 1
            if has_permit and not goes_on:
                self._permits.release()  # the client left, or the time ran out, just as the permit arrived


class ClientLeft(Exception):
    """The client has disconnected, so no answer is needed."""


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientLeft


def is_submission(scope: Scope) -> bool:
    """Whether the request makes a run."""
    if scope["method"] != "POST":
        return False
    if scope["path"] == MCP:
        # Older clients do not send the method in a header, and the body is not read yet. It may be a submission.
        return dict(scope["headers"]).get(_METHOD_OF_MCP, _SUBMITS_BY_MCP) == _SUBMITS_BY_MCP
    return _SUBMITS.fullmatch(scope["path"]) is not None


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Result = TypeVar("Result")

AWAY_S = 5.0
"""Seconds for which the API does not ask Redis again after Redis did not answer."""

STAY_AT_ONCE = 1000

PREFETCH_SHARE, MOST_IN_HAND = 1 / 500, 8
"""Prefetch size of a busy caller: at most this share of a burst, and at most this many requests. With the default
limits the API asks Redis about every eighth request."""

BUSY_S = 0.1
"""A caller that asks again within this many seconds is busy. Few callers within a limit are busy, so the prefetched
requests of all processes together are less than half of a burst, and no request is refused because of them."""

MOST_CALLERS = 1000
"""Callers whose limits stay cached. One caller sends many requests and opens many streams."""

READER_RETRY_S = 10.0
"""`Retry-After` of a refused reader, in seconds. The API cannot know when another reader leaves."""

_STOPS_OR_DECIDES = re.compile(r"(?:/openai)?/v1/.+/cancel|/v1/approvals/[^/]+")
"""Paths whose POST stops runs or decides approvals. They have a bucket of their own, so that a caller that has used up
its requests can still do both."""


class CallerQuotas:
    """Enforces the limits of callers."""

    def __init__(self, quotas: Quotas, limits: ProjectLimits, clock: Clock, ids: IdMaker) -> None:
        self._quotas = quotas
        self._limits = limits
        self._clock = clock
        self._ids = ids
        self._away_until: float | None = None
        self._batch_of = lru_cache(maxsize=MOST_CALLERS)(_batch_of)
        self._reading = defaultdict[str, set[str]](set)
        self.open_streams = 0
        """Streams that this process has open, limited or not."""

    async def take_request(self, caller: Caller, kind: str) -> None:
        """Counts one request of this kind. Each kind has its own buckets. Raises `LimitReached`."""
        hand = self._batch_of(self._limits.of(caller.project_id), caller.project_id, caller.key_id, kind)
        if not hand.buckets:
            return
        if hand.left:
            hand.left -= 1
            return
        empty = await self._unless_away(lambda: self._fill(hand))
        if empty is not None:
            bucket, setting = hand.buckets[empty.position], hand.settings[empty.position]
            who = _who(bucket.owner.removeprefix(f"{kind}:"))
            log.info("limit_reached", limit=setting, project=caller.project_id, key=caller.key_id)
            raise LimitReached(
                f"{who} sends more than {bucket.per_s:g} requests per second",
                setting=setting,
                retry_after_s=empty.wait_s,
            )

    async def _fill(self, hand: "_TokenBatch") -> Empty | None:
        """Takes one request from the buckets. For a busy caller it also prefetches the next ones."""
        now = self._clock.monotonic()
        count = hand.handful if now - hand.asked_at < BUSY_S else 1
        # Requests that arrive during this call, or after a refusal, take one each from the buckets.
        hand.asked_at = -math.inf
        empty = await self._quotas.take(hand.buckets, count)
        if empty is not None and count > 1:
            count = 1
            empty = await self._quotas.take(hand.buckets)
        if empty is None:
            hand.asked_at = now
            hand.left += count - 1
        return empty

    def reading_of(self, project_id: ProjectId, scope: Scope) -> AbstractAsyncContextManager[None]:
        """`reading` for the sender of a request. A request with a stream token has no key."""
        caller: Caller | None = scope.get("state", {}).get("caller")
        return self.reading(project_id, None if caller is None else caller.key_id)

    def reading(self, project_id: ProjectId, key_id: str | None) -> AbstractAsyncContextManager[None]:
        """Counts an open stream for as long as the block lasts. Raises `LimitReached`."""
        return _CountedStream(self, self._ids.claim(), project_id, key_id)

    async def enter(self, reader: str, project_id: ProjectId, key_id: str | None) -> Sequence[Group]:
        """Counts a reader. Returns the groups in which it counts. Raises `LimitReached`."""
        groups, settings = _groups(self._limits.of(project_id), project_id, key_id)
        full = await self._unless_away(lambda: self._quotas.enter(reader, groups)) if groups else None
        if full is not None:
            group, setting = groups[full], settings[full]
            log.info("limit_reached", limit=setting, project=project_id, key=key_id)
            raise LimitReached(
                f"{_who(group.owner)} has {group.most} streams open", setting=setting, retry_after_s=READER_RETRY_S
            )
        for group in groups:
            self._reading[group.owner].add(reader)
        self.open_streams += 1
        return groups

    async def leave(self, reader: str, groups: Sequence[Group]) -> None:
        """Ends what `enter` began."""
        self.open_streams -= 1
        for group in groups:
            self._reading[group.owner].discard(reader)
            if not self._reading[group.owner]:
                del self._reading[group.owner]
        if groups:
            await self._unless_away(lambda: self._quotas.leave(reader, groups))

    @asynccontextmanager
    async def counting(self) -> AsyncGenerator[None]:
        """Renews the entries of open streams in Redis for as long as the block lasts."""
        async with repeating(self._stay, every_s=READER_S / 3, name="count readers"):
            yield

    async def _stay(self) -> None:
        for owner in list(self._reading):
            readers = list(self._reading.get(owner, ()))
            for start in range(0, len(readers), STAY_AT_ONCE):
                some = readers[start : start + STAY_AT_ONCE]
                await self._unless_away(lambda owner=owner, some=some: self._quotas.stay(owner, some))

    async def _unless_away(self, ask: Callable[[], Awaitable[Result]]) -> Result | None:
        if self._away_until is not None and self._clock.monotonic() < self._away_until:
            return None
        try:
            answer = await ask()
        except Unavailable as error:
            if self._away_until is None:
                log.warning("limits_not_held", reason=str(error))
            self._away_until = self._clock.monotonic() + AWAY_S
            return None
        if self._away_until is not None:
            self._away_until = None
            log.info("limits_held_again")
        return answer


class _CountedStream:
    """An open stream among those of its caller."""

    __slots__ = ("_groups", "_key_id", "_project_id", "_quotas", "_reader")

    def __init__(self, quotas: CallerQuotas, reader: str, project_id: ProjectId, key_id: str | None) -> None:
        self._quotas = quotas
        self._reader = reader
        self._project_id = project_id
        self._key_id = key_id
        self._groups: Sequence[Group] = ()

    async def __aenter__(self) -> None:
        self._groups = await self._quotas.enter(self._reader, self._project_id, self._key_id)

    async def __aexit__(self, *_: object) -> None:
        await self._quotas.leave(self._reader, self._groups)


async def over_request_limit(quotas: CallerQuotas, scope: Scope) -> Response | None:
    """Counts a request before the API reads its body. Returns the 429 if a limit is reached, else None."""
    caller: Caller | None = scope.get("state", {}).get("caller")
    if caller is None:
        return None
    method, path = scope["method"], scope["path"]
    stops = method == "POST" and _STOPS_OR_DECIDES.fullmatch(path.rstrip("/")) is not None
    try:
        await quotas.take_request(caller, "stop" if stops else "any")
    except LimitReached as error:
        return domain_error_answer(f"{method} {path}", error)
    return None


@dataclass(slots=True)
class _TokenBatch:
    """The buckets of a caller, the settings that define them, and the prefetched requests that this process has not
    used yet."""

    buckets: Sequence[Bucket]
    settings: Sequence[str]
    handful: int
    left: int = 0
    asked_at: float = -math.inf


def _batch_of(limits: Limits, project_id: ProjectId, key_id: str, kind: str) -> _TokenBatch:
    said = (
        (f"project:{project_id}", limits.requests_per_s, "HOLDFAST_REQUESTS_PER_S"),
        (f"key:{project_id}:{key_id}", limits.key_requests_per_s, "HOLDFAST_KEY_REQUESTS_PER_S"),
    )
    buckets = [Bucket(f"{kind}:{owner}", per_s, max(1.0, per_s * BURST_S)) for owner, per_s, _ in said if per_s]
    handful = max(1, min([MOST_IN_HAND, *(int(one.burst * PREFETCH_SHARE) for one in buckets)]))
    return _TokenBatch(buckets, [setting for _, per_s, setting in said if per_s], handful)


@lru_cache(maxsize=MOST_CALLERS)
def _groups(limits: Limits, project_id: ProjectId, key_id: str | None) -> tuple[Sequence[Group], Sequence[str]]:
    """The groups in which a caller's streams count, and the settings that define them."""
    said = [(f"project:{project_id}", limits.readers, "HOLDFAST_READERS")]
    if key_id is not None:
        said.append((f"key:{project_id}:{key_id}", limits.key_readers, "HOLDFAST_KEY_READERS"))
    return [Group(owner, most) for owner, most, _ in said if most], [setting for _, most, setting in said if most]


def _who(owner: str) -> str:
    kind, _, name = owner.partition(":")
    return f"The project {name!r}" if kind == "project" else "This key"
