"""Watches runs from outside, over a connection of its own, and remembers facts that must never change again."""

import sqlite3
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from arq.connections import ArqRedis

from shared.domain.errors import CancelRequested, LifecycleError
from shared.domain.events import FIRST_SEQ, is_end
from shared.domain.ids import Fence, RunId, Seq
from shared.domain.lifecycle import STREAM_ENDED, TERMINAL
from shared.domain.log_writer import Entries, LogTail, continues
from shared.domain.runs import Run
from shared.redis import keys

_TRACE = """
SELECT status, fence, owner, dispatch, last_seq, checkpoint_seq, attempts_without_progress, stop_reason, updated_at,
       completed_at, cancel_acknowledged_at, cancel_mode,
       (SELECT count(*) FROM event_blocks WHERE run_id = runs.id),
       (SELECT count(*) FROM tool_intents WHERE run_id = runs.id),
       (SELECT count(*) FROM approvals WHERE run_id = runs.id),
       (SELECT count(*) FROM callbacks WHERE run_id = runs.id)
FROM runs WHERE id = ?
"""
_BLOCKS = "SELECT first_seq, last_seq, data FROM event_blocks WHERE run_id = ? AND last_seq > ? ORDER BY first_seq"

FENCED = frozenset(
    ("record", "record_events", "record_intents", "adopt", "hand_over", "take_new_fence", "park", "settle", "take_over")
)
"""The writes that carry a fence; the run is their first argument."""


class Trace(NamedTuple):
    """The fields of a run that a refused write must not change."""

    status: str
    fence: Fence
    owner: str | None
    dispatch: int
    last_seq: Seq
    checkpoint_seq: Seq
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


@dataclass
class KnownRun:
    """The test's knowledge of one run."""

    run_id: RunId
    events: dict[Seq, bytes] = field(default_factory=dict[Seq, bytes])
    """The entries that a reader may have seen, once they were in Redis or in SQL. A number has one content, whatever
    is forgotten."""
    stored_to: Seq = FIRST_SEQ
    """The end of the log in SQL. Event 1 is derived from the run and never stored."""
    ended: Trace | None = None
    redis_lost_data: bool = False
    redis_has_hole: bool = False
    """The log lost a part that SQL never had, but not the entries after it. Until a new owner adopts the log."""

    def see(self, seq: Seq, content: bytes, *, place: str) -> None:
        """A reader can see this entry."""
        known = self.events.setdefault(seq, content)
        assert known == content, f"number {seq} was {known!r} and is {content!r} in {place}"

    def see_log(self, entries: Entries) -> None:
        """A reader can follow the log in Redis: entries that SQL lacks continue those in SQL."""
        last = self.stored_to
        for seq, entry in entries:
            self.see(seq, entry, place="Redis")
            is_next = seq <= last or continues(last, seq, entry) or self.redis_has_hole
            assert is_next, f"Redis goes on with {seq} after {last}"
            last = max(last, seq)
        is_whole = last >= max(self.events, default=1)
        assert is_whole or self.redis_lost_data, f"Redis and SQL reach to {last}, and {max(self.events)} was shown"


class Witness:
    """Reads the database from outside; sees only committed data."""

    def __init__(self, path: str, redis: ArqRedis) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._redis = redis

    def close(self) -> None:
        self._connection.close()

    def trace(self, run_id: RunId) -> Trace:
        row: tuple[Any, ...] = self._connection.execute(_TRACE, (run_id,)).fetchone()
        return Trace(*row)

    async def watch(self, name: str, args: Sequence[Any], call: Callable[[], Awaitable[Any]]) -> Any:
        """Watches a call while it happens: only the newest fence counts, in SQL and in the log."""
        if name == "append":
            return await self._watch_append(*args, call=call)
        if name == "claim" and len(args) > 1:
            return await self._watch_claim(*args, call=call)
        if name not in FENCED:
            return await call()
        run = cast("Run", args[0])
        before = self.trace(run.id)
        may = (before.fence, before.status) == (run.fence, run.status)
        try:
            answer = await call()
        except (LifecycleError, CancelRequested) as error:
            assert self.trace(run.id) == before, f"a refused {name} left something"
            is_refused = not may or (isinstance(error, CancelRequested) and before.cancel_mode is not None)
            assert is_refused, f"{name} of the run's owner was refused: {error}"
            raise
        # A repeated write is answered as the first time.
        assert may or self.trace(run.id) == before, f"{name} under fence {run.fence} changed {before}"
        return answer

    async def _watch_claim(
        self, run_id: RunId, dispatch: int, owner: str, _: object, *, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        before = self.trace(run_id)
        claimed = await call()
        if claimed is None or before.owner == owner:
            assert self.trace(run_id) == before, "a claim that was refused, or made before, changed the run"
        else:
            assert dispatch == before.dispatch, f"dispatch {dispatch} claimed a run whose newest is {before.dispatch}"
            assert claimed.fence == before.fence + 1, f"fence {claimed.fence} came after {before.fence}"
        return claimed

    async def _watch_append(
        self, run_id: RunId, fence: Fence, tail: LogTail, *, call: Callable[[], Awaitable[Any]]
    ) -> None:
        holder = await cast("Any", self._redis).get(keys.fence(run_id))
        await call()
        assert holder is not None, "somebody appended to a log that he had not opened"
        assert int(holder.split()[0]) == fence, f"fence {fence} appended {tail.first} to the log of {holder}"

    def check(self, known: KnownRun) -> Trace:
        """The present run; fails if stored events changed, have a hole, or continue after the end."""
        trace = self.trace(known.run_id)
        self._check_log(known, trace)
        is_over = trace.status in STREAM_ENDED
        assert trace.callbacks == int(is_over), f"a {trace.status} run has {trace.callbacks} callbacks"
        if known.ended is not None:
            assert trace == known.ended, "a run changed after its end"
        elif trace.status in TERMINAL:
            known.ended = trace
        return trace

    def _check_log(self, known: KnownRun, trace: Trace) -> None:
        if trace.last_seq == known.stored_to:
            return
        assert known.ended is None, "the log went on after the run's end"
        last_entry = known.events.get(known.stored_to)
        assert last_entry is None or not is_end(last_entry), "the log went on after its end"
        for first, last, data in self._connection.execute(_BLOCKS, (known.run_id, known.stored_to)):
            entries = zlib.decompress(data).split(b"\n")
            assert len(entries) == last - first + 1, f"{len(entries)} entries as {first} to {last}"
            for seq, entry in enumerate(entries, start=first):
                known.see(Seq(seq), entry, place="SQL")
                is_next = seq <= known.stored_to or continues(known.stored_to, Seq(seq), entry)
                assert is_next, f"the stored log goes on with {seq} after {known.stored_to}"
                known.stored_to = max(known.stored_to, Seq(seq))
        assert known.stored_to == trace.last_seq, f"the log ends at {known.stored_to}, the run says {trace.last_seq}"
