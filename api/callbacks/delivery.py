"""Delivering callbacks: what a run has come to, posted to the URL that its submission named, and to the project's
webhook endpoints.

The end of a run writes both into outboxes, in the same transaction; here these are emptied. It is done by the API
because the body is a dialect's. One process of the fleet looks per interval, and several may deliver at once: a
callback that one has claimed is nobody else's until its time is over. A receiver may get one twice (it was delivered,
and the process died before it could say so): `webhook-id` is the same then.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
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

# Who may deliver how much at once: one project's silent receivers must not keep another project's callbacks back.


PLACES = 8
"""Callbacks that one process delivers at once."""

OF_A_PROJECT = 6
"""Of them, how many may be one project's."""

REST = timedelta(seconds=5)
"""For how long a receiver that was silent is left alone, whichever callback was the one."""

RESTING_AT_MOST = 10_000


class DeliveryPlaces:
    """What is on its way in this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._in_use = Counter[ProjectId]()
        self._freed = asyncio.Event()
        self._resting: dict[str, datetime] = {}

    def full(self) -> list[ProjectId]:
        """The projects that may not begin another delivery now."""
        return [project_id for project_id, count in self._in_use.items() if count >= OF_A_PROJECT]

    @property
    def are_all_in_use(self) -> bool:
        return self._in_use.total() >= PLACES

    def enter(self, project_id: ProjectId) -> None:
        """A delivery begins."""
        self._in_use[project_id] += 1

    def leave(self, project_id: ProjectId) -> None:
        """A delivery has ended."""
        self._in_use[project_id] -= 1
        if not self._in_use[project_id]:
            del self._in_use[project_id]
        self._freed.set()

    async def wait(self, for_s: float) -> None:
        """Waits until a delivery ends, and not longer than this."""
        self._freed.clear()
        try:
            async with asyncio.timeout(for_s):
                await self._freed.wait()
        except TimeoutError:
            pass  # the caller looks again

    def was_silent(self, url: str) -> None:
        """The receiver has let an attempt time out."""
        now = self._clock.now()
        if len(self._resting) >= RESTING_AT_MOST:
            self._resting = {name: until for name, until in self._resting.items() if until > now}
        self._resting[_receiver(url)] = now + REST

    def rests_until(self, url: str) -> datetime | None:
        """When the receiver may be tried again, if it has been silent a moment ago."""
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
"""Seconds for one attempt, name resolution included. Well under the time for which a claim holds."""
HOUR = 3600.0
RETRY_AFTER_S = (5.0, 30.0, 120.0, 600.0, HOUR, *[4 * HOUR] * 17)
"""Seconds from each failed attempt to the next: three days in all, then the callback is given up."""
JITTER = 0.2
"""Part of a delay by which it may be longer, so that what failed together does not come back together."""
GONE = 410
ERROR_CHARS = 500


PLAIN_HEADERS = {"Content-Type": "application/json", "User-Agent": f"Holdfast/{VERSION}"}


class Attempt(NamedTuple):
    """What came of an attempt. No error: it was delivered. `final`: trying again is of no use."""

    status_code: int | None = None
    error: str | None = None
    final: bool = False


@dataclass(frozen=True, kw_only=True)
class CallbackDelivery:
    """Empties the outboxes."""

    outboxes: Sequence[Outbox]
    runs: RunStore
    http: CallersHttp
    clock: Clock
    jitter: Callable[[], float]
    """Gives a number from 0 to 1."""
    intervals: IntervalLock
    places: DeliveryPlaces
    tracer: Tracer
    on_attempt: Callable[[str], None] = lambda _: None
    """Told what came of each attempt: `delivered`, `failed` or `given_up`."""

    @asynccontextmanager
    async def delivering(self) -> AsyncGenerator[None]:
        """Delivers for as long as the block lasts. Attempts that are under way at its end are waited for."""
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
        """Begins to deliver what is due, one callback per free place."""
        others_at = self.clock.monotonic()
        # In turn, so that much in one of them does not keep back what is in another.
        outboxes = deque(self.outboxes)
        while not stopping.is_set():
            full = self.places.full()
            # That nobody else has one due is found out by a look at all that the full projects have.
            if self.places.are_all_in_use or (full and self.clock.monotonic() < others_at):
                await self.places.wait(POLL_S)
                continue
            due = await self._claim(outboxes, full)
            if due is not None:
                self.places.enter(due.project_id)
                group.create_task(self._deliver_in(due), name=f"callback of {due.run_id}")
            elif full:
                others_at = self.clock.monotonic() + POLL_S
            else:
                return

    async def _claim(self, outboxes: deque[Outbox], but_not_of: Collection[ProjectId]) -> Due | None:
        for _ in self.outboxes:
            outboxes.rotate(-1)
            due = await outboxes[-1].claim(self.clock.now(), but_not_of)
            if due is not None:
                return due
        return None

    async def _deliver_in(self, callback: Due) -> None:
        try:
            rests_until = self.places.rests_until(callback.url)
            if rests_until is None:
                await self._deliver(callback)
            else:
                await callback.postpone(rests_until)
        except Unavailable as error:
            log.warning("callback_left_for_later", run_id=callback.run_id, reason=error.message)
        except Exception:
            # The background-loop boundary: the outbox still has this callback, and the others are to go on.
            log.exception("callback_left_for_later", run_id=callback.run_id)
        finally:
            self.places.leave(callback.project_id)

    async def _deliver(self, callback: Due) -> None:
        attempt = await self._attempt(callback)
        now = self.clock.now()
        delay = None if attempt.error is None or attempt.final else self._delay(callback.attempts)
        await callback.record_attempt(
            now=now,
            status_code=attempt.status_code,
            error=attempt.error,
            next_at=None if delay is None else now + delay,
        )
        self.on_attempt("delivered" if attempt.error is None else "given_up" if delay is None else "failed")
        log.info(
            "callback_attempted",
            run_id=callback.run_id,
            attempt=callback.attempts,
            status_code=attempt.status_code,
            error=attempt.error,
            given_up=attempt.error is not None and delay is None,
        )

    def _delay(self, attempts: int) -> timedelta | None:
        """The time to the next attempt after so many; None: there is none."""
        if attempts > len(RETRY_AFTER_S):
            return None
        return timedelta(seconds=RETRY_AFTER_S[attempts - 1] * (1 + JITTER * self.jitter()))

    async def _attempt(self, callback: Due) -> Attempt:
        try:
            run = await self.runs.look_up(callback.run_id)
            letter = await callback.letter(run, self.clock.now())
            status_code = await self._post(callback, letter, run)
        except NotFound:
            return Attempt(error="the run was deleted", final=True)
        except (ForbiddenAddress, Withdrawn) as error:
            return Attempt(error=str(error)[:ERROR_CHARS], final=True)
        except TimeoutError:
            self.places.was_silent(callback.url)
            return Attempt(error=f"no answer within {ATTEMPT_S:.0f} s")
        except (Unreachable, UnreadableSecret) as error:
            return Attempt(error=str(error)[:ERROR_CHARS])
        if 200 <= status_code < 300:
            return Attempt(status_code)
        return Attempt(status_code, f"the receiver answered {status_code}", final=status_code == GONE)

    async def _post(self, callback: Due, letter: Letter, run: Run) -> int:
        """The status of the receiver's answer. The receiver gets the run's trace, and may go on with it."""
        about = {**of_run(run), "http.request.method": "POST", "holdfast.callback.attempt": callback.attempts}
        headers = {**PLAIN_HEADERS, **letter.headers(self.clock.now())}
        with self.tracer.begin("callback", parent=run.options.traceparent, kind="client", attributes=about) as span:
            if span.traceparent is not None:
                headers["traceparent"] = span.traceparent
            async with asyncio.timeout(ATTEMPT_S):
                status_code = await self.http.post(callback.url, letter.body, headers)
            span.set({"http.response.status_code": status_code})
            if status_code >= 300:
                span.fail(str(status_code))
        return status_code
