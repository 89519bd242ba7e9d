"""The publisher sends a run's events to Redis at once, and to SQL with every checkpoint.

`LogWriter` numbers the events and tracks what SQL and Redis have; the publisher runs the loop and handles errors. It
has one append in flight at a time, and the next append sends the events that arrive meanwhile. So it needs no timer.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime

import structlog

from shared.concurrency import Clock, background, unix_ms
from shared.domain.errors import LeaseLost, LifecycleError, Unavailable
from shared.domain.events import Event, LogContinued, StepRestarted, decode, encode
from shared.domain.ids import Seq
from shared.domain.log_writer import KEPT_FREE, LogTail, LogWriter
from shared.domain.runs import HANDED_OVER, Run, WaitsFor
from shared.domain.settling import ShownStep
from shared.redis.event_log import AdoptedLog, EventLog, RedisLostData, adopt_log
from shared.sql.runs.checkpoints import CheckpointStore
from shared.sql.runs.steps import EventStore
from worker.run.interruption import Interruption
from worker.run.observation import RunObservation


def _opening(run: Run, shown: ShownStep, log: AdoptedLog, at: int, *, goes_on: bool) -> LogContinued | StepRestarted:
    """Returns the first event of an owner that has adopted the log of earlier ones."""
    attempt, lost_call = int(run.fence), run.follows_lost_owner
    if run.follows_wait:
        return LogContinued(at, log.follows)
    if goes_on and log.is_whole and shown.beginning is not None:
        return LogContinued(at, log.follows, attempt, lost_call)
    return StepRestarted(
        at=at,
        attempt=attempt,
        void_message_ids=list(shown.message_ids),
        follows=log.follows,
        lost_call=lost_call,
        lost_events=run.follows_lost_owner and not log.is_whole,
    )


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SPILL_AT = 2000
"""Entries of one unfinished step at which the publisher stores them before the step ends."""

SPILL_BYTES = 2_000_000
"""The same limit in bytes. It bounds the bytes that a checkpoint has to pack."""

APPEND_AT_MOST = 5000
"""The most entries of one append. More entries wait only after an outage of Redis, and a long script would block
Redis."""

FLUSH_S = 2.0
"""Seconds for which the end of a run waits for an unresponsive Redis."""

RETRY_S = 0.1
"""Seconds before the publisher retries an unavailable service."""


class Publisher:
    """Publishes one run's events while its fence is the newest.

    With `stores_first`, SQL stores an event before readers see it. That is for an embedded Redis, which dies with this
    process. A real Redis outlives the process, so tokens need not pass through SQL. `kept_free` is as in `LogWriter`.
    """

    def __init__(
        self,
        run: Run,
        *,
        event_log: EventLog,
        events: EventStore,
        checkpoints: CheckpointStore,
        clock: Clock,
        interruption: Interruption,
        observation: RunObservation,
        stores_first: bool = False,
        kept_free: int = KEPT_FREE,
    ) -> None:
        self.run = run
        """The run with its owner's current fence."""
        self.observation = observation
        self.shown = ShownStep()
        """The part of the current step that readers have seen."""
        self.has_saved = False
        """Whether this owner of the run has finished a step."""
        self._event_log = event_log
        self._events = events
        self._checkpoints = checkpoints
        self._clock = clock
        self._interruption = interruption
        self._stores_first = stores_first
        self._writer = LogWriter(run.fence, stores_first=stores_first, kept_free=kept_free)
        self._writes = asyncio.Lock()
        self._awake = asyncio.Event()
        self._idle = asyncio.Event()
        self._is_lost = self._waits_for_redis = self._waits_for_sql = False
        self._unstored_bytes = 0
        self._unsent_since: float | None = None  # when the oldest unsent event was emitted
        self._trimmed = self._to_trim = Seq(0)

    @property
    def follows(self) -> Seq:
        """The number after which this owner's first event comes; 1 if no owner has shown anything before."""
        return self._writer.follows or Seq(1)

    @asynccontextmanager
    async def publishing(self, *, goes_on: bool = False) -> AsyncGenerator["Publisher"]:
        """Adopts the log, and sends emitted events until the block ends. Raises `LeaseLost`, `StaleFence` or
        `Unavailable`.

        `goes_on`: the run's model can continue an answer from its text. Then the text that an earlier owner has shown
        does not become void.
        """
        await self._begin(goes_on=goes_on)
        async with background(self._send(), name=f"publish {self.run.id}"):
            try:
                yield self
            finally:
                if not self._is_lost:
                    await self.wait_sent(FLUSH_S)

    def emit(self, *events: Event) -> None:
        """Numbers events and sends them. Raises `LogClosed` once `ending` has begun."""
        for event in events:
            entry = encode(event)
            self._writer.emit(entry)
            self._unstored_bytes += len(entry)
            self.shown.take(event)
        if self._unsent_since is None:
            self._unsent_since = self._clock.monotonic()
        self._wake()

    def emit_unless_closed(self, event: Event) -> None:
        """`emit` for callers that do not know whether the run is ending. Drops the event if the log is closed."""
        if not self._writer.is_closed:
            self.emit(event)

    def begin_again(self) -> None:
        """Makes void what readers have seen of the current step."""
        shown = self.shown.message_id
        void = [] if shown is None else [shown]
        at, attempt = unix_ms(self._clock.now()), int(self.run.fence)
        self.observation.restarted()
        self.emit(StepRestarted(at=at, attempt=attempt, void_message_ids=void, follows=self._writer.last))

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[Run]:
        """Yields the run for a fenced write. Only one write runs at a time, so each carries the current fence."""
        async with self._writes:
            yield self.run

    @asynccontextmanager
    async def storing(self) -> AsyncGenerator[LogTail]:
        """Yields the entries that SQL lacks, for a write that stores them. They count as stored if the block ends
        without an error."""
        async with self._writes:
            yield (tail := self._writer.to_store())
            self._was_stored(tail)
            self._wake()

    @asynccontextmanager
    async def saving(self) -> AsyncGenerator[LogTail]:
        """`storing` for a checkpoint, which ends the current step: afterwards readers find its events in SQL."""
        async with self.storing() as tail:
            yield tail
            self.shown = ShownStep()
            self.has_saved = True
            self._to_trim = tail.last

    @asynccontextmanager
    async def ending(self) -> AsyncGenerator[LogTail]:
        """`storing` for the write that ends the log. It closes the log to `emit`, because the write itself numbers the
        log's last entries."""
        async with self._writes:
            self._writer.close()
            yield self._writer.to_store()

    def send_end(self, tail: LogTail) -> None:
        """Sends the end of the log, which SQL has numbered and stored."""
        self._writer.end(tail)
        self._wake()

    async def hand_over(self, waits_until: datetime | None = None, waits_for: WaitsFor = "budget") -> bool:
        """Stores the events that SQL lacks, for the next owner, who comes after `waits_until`. False if SQL is
        unavailable."""
        try:
            async with self.storing() as tail:
                await self._checkpoints.hand_over(
                    self.run,
                    tail,
                    self._clock.now(),
                    waits_until=waits_until,
                    waits_for=waits_for,
                    owner=self._owner_to_leave,
                )
        except LifecycleError as error:
            self._stop(LeaseLost(str(error)))
        except Unavailable as error:
            log.warning("events_wait_for_sql", error=str(error))
            return False
        return True

    @property
    def _owner_to_leave(self) -> str | None:
        """The owner whose model call was lost, if the log does not record that yet: this one or, if this one has not
        adopted the log, the previous one, who may also have shown events that only Redis has."""
        if self._writer.follows is not None:
            return HANDED_OVER if self.observation.run.interrupted_in == "model" else None
        if not self.run.follows_lost_owner:
            return None
        return HANDED_OVER if self.run.follows_stored_log else self.run.owner

    async def wait_sent(self, within_s: float) -> bool:
        """Waits at most `within_s` seconds until Redis has every event. Returns whether it has; SQL has them anyway."""
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return not self._is_lost

    async def _begin(self, *, goes_on: bool) -> None:
        """Adopts the log, and continues at its end."""
        run, now = self.run, self._clock.now()
        adopted = await adopt_log(run, self._event_log, self._checkpoints.adopt, now, stores_first=self._stores_first)
        opening = None
        if run.fence > 1:
            is_shown = adopted.follows > run.checkpoint_seq
            behind = await self._events.read(run.id, run.checkpoint_seq, None) if is_shown else []
            self.shown = ShownStep(decode(entry) for _, entry in behind)
            opening = _opening(run, self.shown, adopted, unix_ms(now), goes_on=goes_on)
            self.shown.take(opening)
        if isinstance(opening, StepRestarted) and opening.void_message_ids:
            self.observation.restarted()
        self._writer.begin(adopted.follows, None if opening is None else encode(opening))
        self._wake()

    def _wake(self) -> None:
        self._idle.clear()
        self._awake.set()

    def _stop(self, error: LeaseLost) -> None:
        self._is_lost = True
        self._interruption.interrupt(error)

    async def _send(self) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            while not self._is_lost and not self._writer.is_sent:
                await self._send_some()
            self._idle.set()
            if not self._is_lost:
                if self._writer.unstored >= SPILL_AT or self._unstored_bytes >= SPILL_BYTES:
                    await self._store()
                await self._trim()

    async def _send_some(self) -> None:
        if self._writer.is_nearly_full:
            await self._take_new_fence()
        if self._stores_first:
            await self._store()
        tail = self._writer.to_send()
        if not tail.entries:
            await asyncio.sleep(RETRY_S)  # SQL is unavailable, and readers may see only what it has
            return
        tail = LogTail(tail.first, tail.entries[:APPEND_AT_MOST])
        since, self._unsent_since = self._unsent_since, None
        try:
            needs = self._writer.needed_before(tail)
            await self._event_log.append(self.run.id, self.run.fence, tail, needs=needs)
            self._writer.was_sent(tail.last)
            self._waits_for_redis = False
            delay_s = None if since is None else self._clock.monotonic() - since
            self.observation.shown(sum(map(len, tail.entries)), delay_s)
        except RedisLostData:
            self._unsent_since = since
            await self._open_again()
        except LeaseLost as error:
            self._stop(error)
        except Unavailable as error:
            self._unsent_since = since
            await self._wait_for_redis(error)

    async def _open_again(self) -> None:
        """Opens the log again after Redis lost data, and sends again what SQL lacks, so that live readers continue. SQL
        confirms first that this owner's fence is the newest: Redis may have lost a newer owner's, too."""
        try:
            if not await self._checkpoints.has_fence(self.run):
                raise LeaseLost  # noqa: TRY301 - as the log itself says it
            await self._event_log.open(self.run.id, self.run.fence)
            self._writer.redis_lost_data()
            self.observation.log_lost()
        except LeaseLost as error:
            self._stop(error)
        except Unavailable as error:
            await self._wait_for_redis(error)

    async def _wait_for_redis(self, error: Unavailable) -> None:
        """Waits before the next try. Logs the first failure of an outage: each run tries ten times a second."""
        if not self._waits_for_redis:
            log.warning("events_wait_for_redis", entries=len(self._writer.to_send().entries), error=str(error))
        self._waits_for_redis = True
        await asyncio.sleep(RETRY_S)

    async def _store(self) -> None:
        """Stores the events that SQL lacks, unless the log is closed: then the write that ends it stores them."""
        async with self._writes:
            tail = self._writer.to_store()
            if not tail.entries or self._writer.is_closed:
                return
            try:
                await self._checkpoints.record_events(self.run, tail, self._clock.now())
                self._was_stored(tail)
            except LifecycleError as error:
                self._stop(LeaseLost(str(error)))
            except Unavailable as error:
                if not self._waits_for_sql:
                    log.warning("events_wait_for_sql", entries=len(tail.entries), error=str(error))
                self._waits_for_sql = True

    def _was_stored(self, tail: LogTail) -> None:
        self._waits_for_sql = False
        self._writer.was_stored(tail.last)
        self._unstored_bytes = sum(map(len, self._writer.to_store().entries))

    async def _take_new_fence(self) -> None:
        """Takes a new fence, and retries until SQL answers: an owner that does not know its fence can store nothing."""
        async with self._writes:
            tail, now = self._writer.to_store(), self._clock.now()
            while not self._writer.is_closed:
                try:
                    self.run = await self._checkpoints.take_new_fence(self.run, tail, now)
                    self._writer.continue_under(self.run.fence, tail.last, unix_ms(now))
                    self._unstored_bytes = 0  # or slightly more, which only delays the next spill
                except LifecycleError as error:
                    self._stop(LeaseLost(str(error)))
                except Unavailable as error:
                    log.warning("new_fence_waits_for_sql", error=str(error))
                    await asyncio.sleep(RETRY_S)
                    continue
                return

    async def _trim(self) -> None:
        """Removes from Redis what SQL has: Redis is a cache of the log's end."""
        if self._to_trim <= self._trimmed:
            return
        try:
            await self._event_log.trim(self.run.id, self._to_trim)
            self._trimmed = self._to_trim
        except Unavailable as error:
            log.debug("log_not_trimmed", error=str(error))
