"""Numbers a run's events and brings them out: to Redis at once, to SQL with every checkpoint.

The publisher is the only one who gives numbers, so an event has its number before anybody has stored it, and a settle
never waits for Redis. One append is in flight at a time; what comes meanwhile goes into the next: no timer, no delay.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import structlog

from shared.background import background
from shared.clock import Clock, unix_ms
from shared.domain.errors import IllegalTransition, LeaseLost, LifecycleError, Unavailable
from shared.domain.events import Event, decode, encode
from shared.domain.ids import Seq
from shared.domain.runs import Run
from shared.log_takeover import take_over_log
from shared.redis.event_log import EventLog, LogBehind, OwnedLog
from shared.sql.checkpoint_store import CheckpointStore
from shared.sql.event_rows import EventStore, LogTail
from worker.interruption import Interruption

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SPILL_AT = 2000
"""Entries of one unfinished step after which they are stored without waiting for its end."""

RESERVED_AHEAD = 5 * SPILL_AT
"""How many numbers beyond the last stored one are reserved at once. Enough that a stream never waits for SQL, unless
SQL is away for so long that this many entries would be lost with this process."""

FLUSH_S = 2.0
"""How long the end of a run waits for a Redis that does not answer."""

RETRY_S = 0.1
"""How long to leave a Redis that does not answer alone."""


class Publisher:
    """Brings out one run's events, for as long as its fence holds.

    `stores_first`: an event is in SQL before it is shown. For a Redis that lives in this process and dies with it; a
    real one outlives the process, and keeping SQL off the path of each token is what it is there for.
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
        stores_first: bool = False,
    ) -> None:
        self.run = run
        self.since_checkpoint: list[Event] = []
        """What has been shown of the step in hand."""
        self._event_log = event_log
        self._events = events
        self._checkpoints = checkpoints
        self._clock = clock
        self._interruption = interruption
        self._stores_first = stores_first
        self._next = Seq(run.last_seq + 1)
        self._unsaved_from = self._next
        self._unsaved: list[bytes] = []
        self._outgoing: list[bytes] = []
        self._outgoing_from = self._next
        self._reserved = run.last_seq  # what former owners reserved was for them
        self._found_gap = False
        """What is unsaved begins with a gap that SQL must know before anything more is reserved."""
        self._awake = asyncio.Event()
        self._idle = asyncio.Event()
        self._lost = False
        self._early: list[Event] | None = []
        """What was emitted before the log was taken over: its numbers are not known until then."""
        self.resumes = False
        """Whether somebody has worked on this run before."""
        self._saving = asyncio.Lock()

    @asynccontextmanager
    async def publishing(self) -> AsyncGenerator["Publisher"]:
        """Takes the log over and sends what is emitted, until the block ends. Raises `LeaseLost`."""
        owned = await self._take_over_log()
        async with background(self._send(owned), name=f"publish {self.run.id}"):
            try:
                yield self
            finally:
                if not self._lost:
                    await self.flushed(FLUSH_S)

    def emit(self, *events: Event) -> None:
        """Gives events their numbers and sends them."""
        if self._early is not None:
            self._early.extend(events)
            return
        for event in events:
            self._put(encode(event))
            self.since_checkpoint.append(event)

    def send_stored(self, tail: LogTail) -> None:
        """Sends entries that SQL has numbered and stored itself: the end of a log."""
        known = self._next - tail.first
        self._outgoing.extend(tail.entries[known:])
        self._next = self._unsaved_from = Seq(tail.last + 1)
        self._idle.clear()
        self._awake.set()

    @asynccontextmanager
    async def storing(self) -> AsyncGenerator[LogTail]:
        """The entries that SQL lacks, for somebody who stores them in the middle of a step; they count as stored when
        the block ends without an error. Nobody else stores them meanwhile."""
        async with self._saving:
            tail = LogTail(self._unsaved_from, list(self._unsaved))
            yield tail
            self._drop_saved(tail)

    @asynccontextmanager
    async def saving(self) -> AsyncGenerator[LogTail]:
        """The same for a checkpoint or a settle, which the step in hand ends with."""
        async with self.storing() as tail:
            yield tail
            self.since_checkpoint.clear()

    async def leave_behind(self) -> bool:
        """Stores what SQL lacks of an unfinished step, for the next owner: Redis may not have it, and readers do. False
        when SQL does not answer."""
        try:
            async with self.storing() as tail:
                await self._checkpoints.leave(self.run, tail, Seq(self._next - 1), self._clock.now())
                self._reserved = Seq(self._next - 1)
        except LifecycleError as error:
            self._stop(LeaseLost(str(error)))
        except Unavailable as error:
            log.warning("events_wait_for_sql", entries=len(self._unsaved), error=str(error))
            return False
        return True

    async def flushed(self, within_s: float) -> bool:
        """Waits until Redis has everything, at most `within_s` seconds; whether it has. SQL has it in any case."""
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return not self._lost

    def _put(self, entry: bytes) -> None:
        self._next = Seq(self._next + 1)
        self._unsaved.append(entry)
        self._outgoing.append(entry)
        self._idle.clear()
        self._awake.set()

    def _drop_saved(self, tail: LogTail) -> None:
        del self._unsaved[: len(tail.entries)]
        self._unsaved_from = Seq(tail.first + len(tail.entries))
        self._found_gap = False

    async def _take_over_log(self) -> OwnedLog:
        """Goes on where the log ends, in Redis or in SQL; what only Redis has is stored with the next checkpoint."""
        run = self.run
        known: list[bytes] = []
        if run.last_seq > run.checkpoint_seq:
            known = [entry for _, entry in await self._events.read(run.id, run.checkpoint_seq, limit=run.last_seq)]
        taken = await take_over_log(run, self._event_log, at=unix_ms(self._clock.now()))
        tail = taken.tail
        self._unsaved_from, self._unsaved = tail.first, list(tail.entries)
        self.since_checkpoint = [decode(entry) for entry in [*known, *tail.entries]]
        self._next = self._outgoing_from = Seq(tail.last + 1)
        self.resumes = run.last_seq > 1 or bool(tail.entries)
        self._idle.set()
        self._found_gap = taken.found_gap
        if taken.found_gap:
            self._outgoing, self._outgoing_from = list(tail.entries), tail.first
            self._idle.clear()
            self._awake.set()
        early, self._early = self._early, None
        self.emit(*(early or ()))
        return taken.log

    async def _send(self, owned: OwnedLog) -> None:
        if not self._stores_first:
            await self._reserve(owned)
        while True:
            await self._awake.wait()
            self._awake.clear()
            while self._outgoing and not self._lost:
                if self._stores_first:
                    await self._store_before_showing()
                elif not self._sendable():
                    await self._reserve(owned)
                if batch := self._sendable():
                    await self._send_batch(owned, batch)
            self._idle.set()
            if len(self._unsaved) >= SPILL_AT:
                await self._spill()

    async def _store_before_showing(self) -> None:
        async with self._saving:
            if self._unsaved:
                await self._store_unsaved()
        if self._unsaved_from <= self._outgoing_from:
            await asyncio.sleep(RETRY_S)

    def _sendable(self) -> list[bytes]:
        """Of what waits to be sent, that which may be shown now."""
        return self._showable(self._outgoing_from, self._outgoing)

    def _showable(self, first: Seq, entries: list[bytes]) -> list[bytes]:
        up_to = self._unsaved_from - 1 if self._stores_first else max(self._reserved, self._unsaved_from - 1)
        return entries[: max(0, up_to - first + 1)]

    async def _reserve(self, owned: OwnedLog) -> None:
        """Before numbers are shown, SQL knows that they may be: should Redis and this process be lost together, they
        are not given to other events. Done while the model is being asked, so it costs no time."""
        async with self._saving:
            if self._found_gap:
                await self._store_unsaved()
            # Whoever had the lock may have ended the run, and SQL has every number then.
            is_done = (
                self._next - 1 <= max(self._unsaved_from - 1, self._reserved) and self._next > self.run.last_seq + 1
            )
            if not self._found_gap and (is_done or await self._reserve_ahead(owned)):
                return
        await asyncio.sleep(RETRY_S)

    async def _reserve_ahead(self, owned: OwnedLog) -> bool:
        up_to = Seq(self._next - 1 + RESERVED_AHEAD)
        try:
            await self._checkpoints.reserve(self.run, up_to, owned.reserved_as, self._clock.now())
        except IllegalTransition:
            up_to = Seq(self._next - 1)  # we have ended or parked the run ourselves: all of it is stored
        except LifecycleError as error:
            self._stop(LeaseLost(str(error)))
            return True
        except Unavailable as error:
            log.warning("events_wait_for_sql", entries=len(self._outgoing), error=str(error))
            return False
        self._reserved = up_to
        return True

    async def _send_batch(self, owned: OwnedLog, batch: list[bytes]) -> None:
        """Sends what has queued up; notes when it is no longer ours to send."""
        try:
            await self._append(owned, batch)
        except LeaseLost as error:
            self._stop(error)
        except Unavailable as error:
            log.warning("events_wait_for_redis", entries=len(self._outgoing), error=str(error))
            await asyncio.sleep(RETRY_S)

    def _stop(self, error: LeaseLost) -> None:
        self._lost = True
        self._interruption.interrupt(error)

    async def _append(self, owned: OwnedLog, batch: list[bytes]) -> None:
        is_stored = self._unsaved_from >= self._outgoing_from
        try:
            await owned.append(self._outgoing_from, batch, before_is_stored=is_stored)
        except LogBehind:
            await self._restore(owned)
            return
        del self._outgoing[: len(batch)]
        self._outgoing_from = Seq(self._outgoing_from + len(batch))

    async def _restore(self, owned: OwnedLog) -> None:
        """Redis has lost its data: gives it the tail that SQL lacks again, so that live readers go on."""
        first, entries = self._lost_tail()
        await owned.append(first, entries, restoring=True)
        sent = first + len(entries) - self._outgoing_from
        del self._outgoing[:sent]
        self._outgoing_from = Seq(self._outgoing_from + sent)

    def _lost_tail(self) -> tuple[Seq, Sequence[bytes]]:
        if self._unsaved_from <= self._outgoing_from:
            return self._unsaved_from, self._showable(self._unsaved_from, self._unsaved)
        return self._outgoing_from, self._sendable()

    async def _spill(self) -> None:
        async with self._saving:
            # Whoever had the lock may have stored everything, or ended the run.
            if len(self._unsaved) >= SPILL_AT:
                await self._store_unsaved()

    async def _store_unsaved(self) -> None:
        tail = LogTail(self._unsaved_from, list(self._unsaved))
        try:
            await self._checkpoints.record_log(self.run, tail, self._clock.now())
        except LifecycleError as error:
            self._stop(LeaseLost(str(error)))
        except Unavailable as error:
            log.warning("events_wait_for_sql", entries=len(tail.entries), error=str(error))
        else:
            self._drop_saved(tail)
