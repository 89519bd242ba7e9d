"""Delivers callbacks: posts the outcome of a run to the URL that its submission named, and to the project's webhook
endpoints.

The transaction that ends a run writes both to outboxes. This module empties the outboxes. The API does this because the
body depends on the dialect. One process of the fleet looks per interval, and several may deliver at once: no other
process delivers a claimed callback until the claim expires. A receiver may get a callback twice, if the process dies
after the delivery and before it is recorded. The two then have the same `webhook-id`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import structlog

from api.callbacks.outboxes import Due, Letter, Outbox, Withdrawn
from shared.concurrency import Clock
from shared.domain.errors import NotFound, Unavailable, UnreadableSecret
from shared.domain.ids import ProjectId
from shared.domain.runs import Run
from shared.network.addresses import ForbiddenAddress
from shared.network.checked_http import CallersHttp, Unreachable
from shared.process.importing import VERSION
from shared.redis.queue import IntervalLock
from shared.sql.runs.run_store import RunStore
from shared.telemetry.tracer import Tracer, of_run

# Limits on concurrent deliveries, so that one project's silent receivers do not delay another project's callbacks.


PLACES = 8
"""Concurrent deliveries of one process."""

OF_A_PROJECT = 6
"""Concurrent deliveries for one project."""

REST = timedelta(seconds=5)
"""The time for which a receiver that did not answer gets no other callback."""

RESTING_AT_MOST = 10_000


class DeliveryPlaces:
    """The deliveries in progress in this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._in_use = Counter[ProjectId]()
        self._freed = asyncio.Event()
        self._resting: dict[str, datetime] = {}

    def full(self) -> list[ProjectId]:
        """The projects that must not start another delivery now."""
        return [project_id for project_id, count in self._in_use.items() if count >= OF_A_PROJECT]

    @property
    def are_all_in_use(self) -> bool:
        return self._in_use.total() >= PLACES

    def enter(self, project_id: ProjectId) -> None:
        """Records the start of a delivery."""
        self._in_use[project_id] += 1

    def leave(self, project_id: ProjectId) -> None:
        """Records the end of a delivery."""
        self._in_use[project_id] -= 1
        if not self._in_use[project_id]:
            del self._in_use[project_id]
        self._freed.set()

    async def wait(self, for_s: float) -> None:
        """Waits until a delivery ends, at most `for_s`."""
        self._freed.clear()
        try:
            async with asyncio.timeout(for_s):
                await self._freed.wait()
        except TimeoutError:
            pass  # the caller checks again

    def was_silent(self, url: str) -> None:
        """Records that an attempt at this receiver timed out."""
        now = self._clock.now()
        if len(self._resting) >= RESTING_AT_MOST:
            self._resting = {name: until for name, until in self._resting.items() if until > now}
        self._resting[_receiver(url)] = now + REST

    def rests_until(self, url: str) -> datetime | None:
        """The time at which to try the receiver again, if it was silent recently."""
        until = self._resting.get(_receiver(url))
        return until if until is not None and until > self._clock.now() else None


def _receiver(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return url


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

POLL_S = 1.0
ATTEMPT_S = 10.0
"""Time limit of one attempt in seconds, including name resolution. Far below the duration of a claim."""
HOUR = 3600.0
RETRY_AFTER_S = (5.0, 30.0, 120.0, 600.0, HOUR, *[4 * HOUR] * 17)
"""Seconds from each failed attempt to the next: three days in total, after which the callback is given up."""
JITTER = 0.2
"""The share by which a delay is randomly longer, so that callbacks that failed together are not retried together."""
GONE = 410
ERROR_CHARS = 500


PLAIN_HEADERS = {"Content-Type": "application/json", "User-Agent": f"Holdfast/{VERSION}"}


class Attempt(NamedTuple):
    """The result of an attempt. Without an error, the callback was delivered. `final`: a retry cannot help."""

    status_code: int | None = None
    error: str | None = None
    final: bool = False


@dataclass(frozen=True, kw_only=True)
class CallbackDelivery:
    """Delivers the callbacks of the outboxes."""

    outboxes: Sequence[Outbox[Any]]
    runs: RunStore
    http: CallersHttp
    clock: Clock
    jitter: Callable[[], float]
    """Returns a number from 0 to 1."""
    intervals: IntervalLock
    places: DeliveryPlaces
    tracer: Tracer
    on_attempt: Callable[[str], None] = lambda _: None
    """Called with the result of each attempt: `delivered`, `failed` or `given_up`."""

    @asynccontextmanager
    async def delivering(self) -> AsyncGenerator[None]:
        """Delivers for as long as the block lasts. At the end it waits for attempts in progress."""
        stopping = asyncio.Event()
        async with AsyncExitStack() as stack:
            group = await stack.enter_async_context(asyncio.TaskGroup())
            polling = self.intervals.repeating(
                lambda: self._deliver_due(group, stopping), every_s=POLL_S, name="deliver callbacks"
            )
            await stack.enter_async_context(polling)
            stack.callback(stopping.set)
            yield

    async def _deliver_due(self, group: asyncio.TaskGroup, stopping: asyncio.Event) -> None:
        """Starts to deliver due callbacks, one per free place."""
        others_at = self.clock.monotonic()
        # The outboxes alternate, so that a long outbox does not delay the other.
        outboxes = deque(self.outboxes)
        while not stopping.is_set():
            full = self.places.full()
            # A claim has to read all callbacks of full projects before it finds that no other project has a due one.
            if self.places.are_all_in_use or (full and self.clock.monotonic() < others_at):
                await self.places.wait(POLL_S)
                continue
            claimed = await self._claim(outboxes, full)
            if claimed is not None:
                outbox, due = claimed
                self.places.enter(due.project_id)
                group.create_task(self._deliver_in(outbox, due), name=f"callback of {due.run_id}")
            elif full:
                others_at = self.clock.monotonic() + POLL_S
            else:
                return

    async def _claim(
        self, outboxes: deque[Outbox[Any]], but_not_of: Collection[ProjectId]
    ) -> tuple[Outbox[Any], Due] | None:
        for _ in self.outboxes:
            outboxes.rotate(-1)
            for due in await outboxes[-1].store.claim_due(self.clock.now(), 1, but_not_of=but_not_of):
                return outboxes[-1], due
        return None

    async def _deliver_in(self, outbox: Outbox[Any], due: Due) -> None:
        try:
            rests_until = self.places.rests_until(due.url)
            if rests_until is None:
                await self._deliver(outbox, due)
            else:
                await outbox.store.postpone(due, rests_until)
        except Unavailable as error:
            log.warning("callback_left_for_later", run_id=due.run_id, reason=error.message)
        except Exception:
            # The background-loop boundary: the outbox still has this callback, and the other deliveries must continue.
            log.exception("callback_left_for_later", run_id=due.run_id)
        finally:
            self.places.leave(due.project_id)

    async def _deliver(self, outbox: Outbox[Any], due: Due) -> None:
        attempt = await self._attempt(outbox, due)
        now = self.clock.now()
        delay = None if attempt.error is None or attempt.final else self._delay(due.attempts)
        await outbox.store.record_attempt(
            due,
            now=now,
            status_code=attempt.status_code,
            error=attempt.error,
            next_at=None if delay is None else now + delay,
        )
        self.on_attempt("delivered" if attempt.error is None else "given_up" if delay is None else "failed")
        log.info(
            "callback_attempted",
            run_id=due.run_id,
            attempt=due.attempts,
            status_code=attempt.status_code,
            error=attempt.error,
            given_up=attempt.error is not None and delay is None,
        )

    def _delay(self, attempts: int) -> timedelta | None:
        """The delay before the next attempt after `attempts`; None: no further attempt."""
        if attempts > len(RETRY_AFTER_S):
            return None
        return timedelta(seconds=RETRY_AFTER_S[attempts - 1] * (1 + JITTER * self.jitter()))

    async def _attempt(self, outbox: Outbox[Any], due: Due) -> Attempt:
        try:
            run = await self.runs.look_up(due.run_id)
            letter = await outbox.letter(due, run, self.clock.now())
            status_code = await self._post(due, letter, run)
        except NotFound:
            return Attempt(error="the run was deleted", final=True)
        except (ForbiddenAddress, Withdrawn) as error:
            return Attempt(error=str(error)[:ERROR_CHARS], final=True)
        except TimeoutError:
            self.places.was_silent(due.url)
            return Attempt(error=f"no answer within {ATTEMPT_S:.0f} s")
        except (Unreachable, UnreadableSecret) as error:
            return Attempt(error=str(error)[:ERROR_CHARS])
        if 200 <= status_code < 300:
            return Attempt(status_code)
        return Attempt(status_code, f"the receiver answered {status_code}", final=status_code == GONE)

    async def _post(self, due: Due, letter: Letter, run: Run) -> int:
        """The status of the receiver's answer. The request contains the run's trace context, which the receiver may
        continue."""
        about = {**of_run(run), "http.request.method": "POST", "holdfast.callback.attempt": due.attempts}
        headers = {**PLAIN_HEADERS, **letter.headers(self.clock.now())}
        with self.tracer.begin("callback", parent=run.options.traceparent, kind="client", attributes=about) as span:
            if span.traceparent is not None:
                headers["traceparent"] = span.traceparent
            async with asyncio.timeout(ATTEMPT_S):
                status_code = await self.http.post(due.url, letter.body, headers)
            span.set({"http.response.status_code": status_code})
            if status_code >= 300:
                span.fail(str(status_code))
        return status_code
