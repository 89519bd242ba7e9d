"""Looks at runs from outside, over a connection of its own, and remembers what nobody may change any more."""

import sqlite3
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.domain.events import Gap, decode
from shared.domain.ids import Fence, RunId, Seq
from shared.domain.lifecycle import TERMINAL, RunStatus

_TRACE = """
SELECT status, fence, ring, last_seq, checkpoint_seq, stalled_claims, stop_reason, updated_at, completed_at,
       cancel_acknowledged_at, cancel_mode,
       (SELECT count(*) FROM event_blocks WHERE run_id = runs.id),
       (SELECT count(*) FROM tool_intents WHERE run_id = runs.id),
       (SELECT count(*) FROM approvals WHERE run_id = runs.id),
       (SELECT count(*) FROM callbacks WHERE run_id = runs.id)
FROM runs WHERE id = ?
"""
_BLOCKS = "SELECT first_seq, last_seq, data FROM event_blocks WHERE run_id = ? AND last_seq > ? ORDER BY first_seq"


NOBODY = Fence(0)


class Trace(NamedTuple):
    """Everything about a run that a refused write must leave as it was."""

    status: str
    fence: Fence
    dispatch: int
    last_seq: int
    checkpoint_seq: int
    attempts_without_progress: int
    stop_reason: str | None
    updated_at: str
    completed_at: str | None
    cancel_acknowledged_at: str | None
    cancel_mode: str | None
    blocks: int
    intents: int
    approvals: int
    callbacks: int

    @property
    def has_ended(self) -> bool:
        return self.status in TERMINAL


@dataclass
class KnownRun:
    """What the test knows of one run."""

    run_id: RunId
    events: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """What any reader may have seen, from the moment when it was in Redis or in SQL. A number has one content."""
    stored_to: int = 1
    """The end of the log in SQL. Event 1 is derived from the run and never stored."""
    ended: Trace | None = None
    log_owner: Fence = NOBODY
    """The newest fence that took the log, as far as Redis remembers it."""
    newest_log_owner: Fence = NOBODY
    """The same, as far as anybody remembers it."""
    redis_lost_data: bool = False
    redis_lost_end: bool = False
    """It lost the end of this log and remembers that the log is there."""
    taken_by_zombie: bool = False
    """Redis had forgotten the newest owner, and an older one took the log."""
    unsure_from: int | None = None
    """From this number on, what readers saw may not be what will be stored: an owner was gone, and Redis had lost what
    it alone had, in a way that the next owner cannot see. Elsewhere a `Gap` keeps numbers from being given twice."""

    @property
    def shown_to(self) -> int:
        return max(self.events, default=1)

    def see(self, seq: int, content: bytes, *, place: str) -> None:
        """Somebody can read this entry."""
        if self.unsure_from is not None and seq >= self.unsure_from:
            self.events[seq] = content
            return
        known = self.events.setdefault(seq, content)
        assert known == content, f"number {seq} was {known!r} and is {content!r} in {place}"

    @property
    def may_have_hole(self) -> bool:
        """Whether there may be numbers that neither Redis nor SQL has, though Redis has later ones."""
        return self.unsure_from is not None

    def see_log(self, entries: list[tuple[Seq, bytes]]) -> None:
        """Somebody can read the log in Redis: all that is not stored yet must be there, from its first entry on."""
        last = self.stored_to
        for seq, entry in entries:
            self.see(seq, entry, place="Redis")
            is_next = seq <= last or follows(seq, entry, last)
            assert is_next or self.may_have_hole, f"Redis goes on with {seq} after {last}"
            last = max(last, seq)

    def doubled(self, first: int) -> None:
        """Numbers from `first` on are given out twice: what readers saw of them may not be what will be stored."""
        assert self.redis_lost_end or self.taken_by_zombie, f"numbers from {first} on are given out twice"
        self.unsure_from = min(first, self.unsure_from or first)

    def took_log(self, fence: Fence) -> None:
        self.log_owner = fence
        self.newest_log_owner = max(fence, self.newest_log_owner)


def follows(seq: int, entry: bytes, last: int) -> bool:
    """Whether an entry comes next in a log: it has the next number, or says that everything up to it is gone."""
    if seq == last + 1:
        return True
    event = decode(entry)
    return isinstance(event, Gap) and seq > last >= event.first_missing - 1


def following(entries: list[tuple[Seq, bytes]], last: int) -> list[tuple[Seq, bytes]]:
    """Those entries that come after the cursor without a hole that no gap explains."""
    known: list[tuple[Seq, bytes]] = []
    for seq, entry in entries:
        if not follows(seq, entry, last):
            break
        known.append((seq, entry))
        last = seq
    return known


class Witness:
    """Reads the database as a stranger would; sees what is committed."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def trace(self, run_id: RunId) -> Trace:
        row: tuple[Any, ...] = self._connection.execute(_TRACE, (run_id,)).fetchone()
        return Trace(*row)

    def check(self, known: KnownRun) -> Trace:
        """The run as it is; fails when what is stored changed, has a hole, or goes on after the end."""
        trace = self.trace(known.run_id)
        self._check_log(known, trace)
        is_over = trace.has_ended or trace.status == RunStatus.AWAITING_APPROVAL
        assert trace.callbacks == int(is_over), f"a {trace.status} run has {trace.callbacks} callbacks"
        if known.ended is not None:
            assert trace == known.ended, "a run changed after its end"
        elif trace.has_ended:
            known.ended = trace
        return trace

    def _check_log(self, known: KnownRun, trace: Trace) -> None:
        if trace.last_seq == known.stored_to:
            return
        assert known.ended is None, "the log went on after the run's end"
        for first, last, data in self._connection.execute(_BLOCKS, (known.run_id, known.stored_to)):
            entries = zlib.decompress(data).split(b"\n")
            assert len(entries) == last - first + 1, f"{len(entries)} entries as {first} to {last}"
            for seq, entry in enumerate(entries, start=first):
                known.see(seq, entry, place="SQL")
                assert seq <= known.stored_to or follows(seq, entry, known.stored_to), f"a hole before {seq}"
                known.stored_to = max(known.stored_to, seq)
        assert known.stored_to == trace.last_seq, f"the log ends at {known.stored_to}, the run says {trace.last_seq}"
