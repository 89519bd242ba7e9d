"""One owner of a run, as far as the fence goes: it numbers events, sends them to Redis and stores them in SQL.

It does by hand, one round trip per call, what the worker's publisher does by itself, so that a test can put anything
between two round trips. Each call checks the answer against what the fence allows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from shared.runs.log_takeover import TakenLog, take_over_log

from shared.domain.errors import CancelRequested, IllegalTransition, LeaseLost, StaleFence
from shared.domain.events import TextChunk, encode
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.runs import Run
from shared.redis.event_log import EventLog, LogBehind, OwnedLog
from shared.sql.runs.events import LogTail
from tests.kit.clocks import FrozenClock
from tests.kit.protocol_witness import KnownRun, Trace, Witness
from tests.kit.runs.stored_runs import Stores, answer, call, checkpoint, ending, request_of

SqlWrite = Literal["record", "record_log", "record_intents", "park", "settle", "acknowledge_cancel", "reserve", "leave"]

RESERVED_AHEAD = 3

_TRIGGERS = (RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL)


@dataclass
class Owner:
    """Somebody who was given a fence. It may be old by now, which the owner does not know."""

    name: str
    known: KnownRun
    run: Run
    log: EventLog
    stores: Stores
    witness: Witness
    clock: FrozenClock
    reserved: int = 0
    """Numbers up to here may be shown."""
    owned: OwnedLog | None = None
    found_gap: bool = False
    """A gap waits to be stored; nothing may be reserved before."""
    behind: bool = False
    """Redis said that it lost a part of the log."""
    over: bool = False
    """It ended or parked the run."""
    unsaved_from: int = 0
    unsaved: list[bytes] = field(default_factory=list[bytes])
    outgoing_from: int = 0
    outgoing: list[bytes] = field(default_factory=list[bytes])
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def is_open(self) -> bool:
        return self.owned is not None

    @property
    def next(self) -> int:
        return max(self.unsaved_from + len(self.unsaved), self.outgoing_from + len(self.outgoing))

    def emit(self, number: int) -> None:
        """Gives numbers to events that nobody has seen yet."""
        for _ in range(number):
            text = f"{self.name} {self.run.fence} {next(self.numbers)}"
            entry = encode(TextChunk(at=0, step_id=StepId("step"), message_id=MessageId("message"), text=text))
            self.unsaved.append(entry)
            self.outgoing.append(entry)

    async def open(self) -> bool:
        """Takes the log and goes on where it ends; whether it is ours."""
        newer = self.known.log_owner > self.run.fence
        try:
            if self.owned is None and not self.over:
                self._go_on_after(await take_over_log(self.run, self.log, at=0))
            else:
                await self._open_again()
        except LeaseLost:
            assert newer, "an owner was shut out of a log that nobody newer had taken"
            return False
        assert not newer, "an old owner took the log"
        return True

    async def _open_again(self) -> None:
        """A request that was late, or one of the API to show the end of the log."""
        again = await self.log.open(self.run.id, self.run.fence)
        self.owned = again if self.over else self.owned
        self._took_log()

    def _go_on_after(self, taken: TakenLog) -> None:
        tail, self.owned, self.found_gap = taken.tail, taken.log, taken.found_gap
        self.unsaved_from, self.unsaved = tail.first, list(tail.entries)
        self.outgoing_from = tail.last + 1
        self.reserved = self.run.last_seq
        if taken.found_gap:
            assert self.known.redis_lost_data, "a gap is told, and Redis had lost nothing"
            self.outgoing_from, self.outgoing = tail.first, list(tail.entries)
        if self.run.fence > self.known.newest_log_owner and self.known.shown_to > tail.last:
            self.known.doubled(tail.last + 1)
        self._took_log()

    async def send(self, *, reply_lost: bool = False) -> bool:
        """Appends what waits; again, when the reply to the last time was lost. Whether the log is still ours.

        Numbers that were not reserved are reserved first, and shown the next time.
        """
        if self.next - 1 > self.reserved:
            return await self.write("reserve")
        if self.behind:
            return await self._send(self._tail(), restoring=True, reply_lost=reply_lost)
        return await self._send(LogTail(Seq(self.outgoing_from), self.outgoing), restoring=False, reply_lost=reply_lost)

    async def restore(self) -> bool:
        """Gives Redis everything that SQL lacks, also when nobody asked."""
        if self.next - 1 > self.reserved:
            return await self.write("reserve")
        return await self._send(self._tail(), restoring=True, reply_lost=False)

    def _tail(self) -> LogTail:
        if self.unsaved_from >= self.outgoing_from:
            return LogTail(Seq(self.outgoing_from), self.outgoing)
        sent = max(0, self.unsaved_from + len(self.unsaved) - self.outgoing_from)
        return LogTail(Seq(self.unsaved_from), [*self.unsaved, *self.outgoing[sent:]])

    async def _send(self, tail: LogTail, *, restoring: bool, reply_lost: bool) -> bool:
        newer = self.known.log_owner > self.run.fence
        entries = list(tail.entries)
        if not entries:
            return True
        assert self.owned is not None, "nobody sends to a log that he has not opened"
        before_is_stored = self.unsaved_from >= tail.first
        try:
            await self.owned.append(tail.first, entries, restoring=restoring, before_is_stored=before_is_stored)
        except LeaseLost:
            assert newer, "an owner was shut out of a log that nobody newer had taken"
            return False
        except LogBehind:
            assert not newer, "an old owner was asked to restore the log"
            # Without a loss, too: a former owner stored what it did not live to send.
            is_stored = tail.first <= self.known.stored_to + 1
            assert self.known.redis_lost_data or is_stored, "the log is behind, and Redis had lost nothing"
            assert not restoring, "restoring was refused"
            self.behind = True
            return True
        assert not newer, "an old owner appended to the log"
        shown = await self.log.read(self.run.id, Seq(tail.first - 1), len(entries))
        assert shown == list(enumerate(entries, start=tail.first)), "what was appended is not what can be read"
        self._took_log()
        if not reply_lost:
            self.behind = False
            sent_to = tail.first + len(entries)
            del self.outgoing[: sent_to - self.outgoing_from]
            self.outgoing_from = sent_to
        return True

    def _took_log(self) -> None:
        if self.run.fence < self.known.newest_log_owner:
            # Redis forgot the newer owner, until that one writes again.
            self.known.taken_by_zombie = True
            self.known.doubled(min(self.known.stored_to + 1, self.unsaved_from, self.outgoing_from))
        self.known.took_log(self.run.fence)

    async def write(self, kind: SqlWrite) -> bool:
        """Tries one write to SQL; whether it was accepted, which is exactly when the fence is the run's."""
        if kind == "reserve" and self.found_gap:
            kind = "record_log"
        before = self.witness.trace(self.run.id)
        unsaved = LogTail(Seq(self.unsaved_from), list(self.unsaved))
        try:
            end = await self._write(kind, unsaved)
        except (StaleFence, IllegalTransition, CancelRequested) as error:
            assert not self._may(kind, before), f"{kind} of the run's owner was refused: {error}"
            assert self.witness.trace(self.run.id) == before, f"a refused {kind} left something"
            return False
        assert self._may(kind, before), f"{kind} under fence {self.run.fence} was accepted by {before}"
        if kind in ("record", "record_log", "park", "settle", "leave"):
            del self.unsaved[:]
            self.found_gap = False
            self.unsaved_from = unsaved.last + 1
        if kind in ("reserve", "leave"):
            self.reserved = self.next - 1 + (RESERVED_AHEAD if kind == "reserve" else 0)
        if end is not None:
            self.over = True
            self.reserved = end.last
            self.outgoing.extend(end.entries[self.next - end.first :])
        return True

    def _may(self, kind: SqlWrite, trace: Trace) -> bool:
        if kind == "park" and trace.cancel_mode is not None:
            return False
        return trace.status == RunStatus.RUNNING and trace.fence == self.run.fence

    async def _write(self, kind: SqlWrite, unsaved: LogTail) -> LogTail | None:
        """The write itself; gives the end of the log when it ends the stream."""
        run, stores, now = self.run, self.stores, self.clock.now()
        match kind:
            case "record":
                await stores.checkpoints.record(run, checkpoint(run, now=now, tail=unsaved))
            case "record_log":
                await stores.checkpoints.record_log(run, unsaved, now)
            case "record_intents":
                await stores.checkpoints.record_intents(run, [call(f"call-{next(self.numbers)}")], now)
            case "acknowledge_cancel":
                await stores.runs.acknowledge_cancel(run.id, run.fence, now)
            case "leave":
                await stores.checkpoints.leave(run, unsaved, Seq(self.next - 1), now)
            case "reserve":
                assert self.owned is not None, "nobody reserves numbers for a log that he has not opened"
                await stores.checkpoints.reserve(run, Seq(self.next - 1 + RESERVED_AHEAD), self.owned.reserved_as, now)
            case "park":
                waits = call(f"call-{next(self.numbers)}", needs_approval=True)
                asking = answer("may I?", waits)
                stop = checkpoint(run, asking, now=now, tail=unsaved)
                return await stores.checkpoints.park(run, stop, [request_of(run, asking, waits)])
            case "settle":
                # Who parked a run cancels it no more by what it knows: CANCEL is for those who look it up first.
                trigger = RunTrigger.COMPLETE if self.over else _TRIGGERS[next(self.numbers) % len(_TRIGGERS)]
                return (await stores.settlements.settle(run, ending(trigger, run, now=now, tail=unsaved))).tail
        return None
