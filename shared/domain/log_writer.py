"""The events that one owner of a run has emitted, and how many of them SQL and Redis have. No I/O, no clock, no lock.

A number belongs to a fence: `(fence - 1) * 1_000_000 + n`. So two owners of a run can never give one number to two
events, whatever Redis, a replica or a backup has forgotten, and no store has to remember which numbers were given. A
run that was never handed over counts 1, 2, 3 …, because its only fence is 1. The first event of every later owner
contains the number that it follows.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.domain.errors import LogClosed
from shared.domain.events import LogContinued, decode, encode, follows_of
from shared.domain.ids import Fence, Seq

NUMBERS_PER_FENCE = 1_000_000
"""JSON numbers are exact up to 2^53: room for nine billion claims of one run."""

KEPT_FREE = 10_000
"""A writer requests a new fence when it has fewer numbers left than this."""

KEPT_FOR_END = 1_000
"""Numbers that only the end of the log may use: results of open calls, and the reason for the run's end."""

Entries = list[tuple[Seq, bytes]]
"""Entries of a log with their numbers, in order."""


class LogTail(NamedTuple):
    """Entries with consecutive numbers, which begin with `first`."""

    first: Seq
    entries: Sequence[bytes]

    @property
    def last(self) -> Seq:
        """The number of the last entry; `first - 1` if there are none."""
        return Seq(self.first + len(self.entries) - 1)

    def behind(self, seq: Seq) -> "LogTail":
        """The entries after `seq`."""
        known = min(max(0, seq + 1 - self.first), len(self.entries))
        return LogTail(Seq(self.first + known), self.entries[known:])


def first_seq_of(fence: Fence) -> Seq:
    """The first number that the owner with this fence stores. Number 1 is the run itself and never stored."""
    return Seq(max(2, (fence - 1) * NUMBERS_PER_FENCE + 1))


def _last_free(fence: Fence) -> int:
    """The last number of this fence that is not kept for the end of the log."""
    return first_seq_of(Fence(fence + 1)) - KEPT_FOR_END


def continues(last: Seq, seq: Seq, entry: bytes) -> bool:
    """Whether a reader that has `last` may deliver this entry next. It may if the entry has the next number, or is the
    first one of an owner that continues from a number which the reader has. Entries that the reader has seen after that
    number are void."""
    if seq == last + 1:
        return True
    # Only the first number of a fence jumps. In logs from before numbers belonged to fences, gaps do so, too.
    follows = follows_of(decode(entry))
    return follows is not None and follows <= last < seq


def unbroken(last: Seq, entries: Entries) -> Entries:
    """The entries up to the first one that does not follow its predecessor."""
    for position, (seq, entry) in enumerate(entries):
        if not continues(last, seq, entry):
            return entries[:position]
        last = seq
    return entries


def of_bytes(entries: Entries, most: int) -> Entries:
    """The first entries that have at most `most` bytes together, but at least the first one."""
    left = most
    for position, (_, entry) in enumerate(entries):
        left -= len(entry)
        if left < 0:
            return entries[: max(1, position)]
    return entries


def consecutive(entries: Entries) -> Iterator[LogTail]:
    """The entries in pieces without a jump."""
    start = 0
    for place in range(1, len(entries) + 1):
        if place == len(entries) or entries[place][0] != entries[place - 1][0] + 1:
            yield LogTail(entries[start][0], [entry for _, entry in entries[start:place]])
            start = place


class LogWriter:
    """One owner's part of a log.

    The owner may emit events before `begin`, which reports the entries that the log has already; until then there is
    nothing to send or store. With `stores_first`, an entry may be sent only when SQL has it. The owner wants a new
    fence when `kept_free` numbers are left.
    """

    def __init__(self, fence: Fence, *, stores_first: bool = False, kept_free: int = KEPT_FREE) -> None:
        self.fence = fence
        self.follows: Seq | None = None
        """The number before this owner's first one. None until `begin`."""
        self._stores_first = stores_first
        self._kept_free = kept_free
        self._opens = fence > 1
        start = first_seq_of(fence)
        self._last_free = _last_free(fence)
        self._stored = Seq(start - 1)
        self._sent = Seq(start - 1)
        # The opening entry has the first number, even if other entries were emitted before it.
        self._first = Seq(start + self._opens)
        self._entries: list[bytes] = []
        self._closed = False

    @property
    def last(self) -> Seq:
        """The last number in use."""
        return Seq(self._first + len(self._entries) - 1)

    @property
    def is_sent(self) -> bool:
        """Whether Redis has all entries that it should have."""
        return self._sent == self.last

    @property
    def is_closed(self) -> bool:
        """Whether the log's end is being stored: nothing may be emitted any more."""
        return self._closed

    @property
    def is_nearly_full(self) -> bool:
        """Whether the numbers of this fence are nearly used up, so that the owner must take a new one."""
        return self.last > first_seq_of(Fence(self.fence + 1)) - self._kept_free

    def begin(self, follows: Seq, opening: bytes | None) -> None:
        """The log holds everything up to `follows`. Every owner but the first one gives an `opening` entry, which tells
        readers that number."""
        self.follows = follows
        if self._opens and opening is not None:
            self._entries.insert(0, opening)
            self._first = Seq(self._first - 1)

    def emit(self, entry: bytes) -> None:
        """Adds an entry. Raises `LogClosed` when the end of the log is being stored, and when the fence has only the
        numbers for an end left."""
        if self._closed or self.last >= self._last_free:
            raise LogClosed
        self._entries.append(entry)

    @property
    def unstored(self) -> int:
        """How many entries SQL lacks."""
        return self.last - self._stored if self.follows is not None else 0

    def to_store(self) -> LogTail:
        """Returns the entries that SQL lacks."""
        return self._behind(self._stored, self.last)

    def to_send(self) -> LogTail:
        """Returns the entries that Redis lacks and that may be shown."""
        return self._behind(self._sent, self._stored if self._stores_first else self.last)

    def needed_before(self, tail: LogTail) -> Seq:
        """The number that Redis must have before `tail`, or readers would find a hole. 0: SQL has all earlier
        entries."""
        # SQL has all that earlier owners have shown before this one begins.
        is_stored = tail.first - 1 <= max(self._stored, first_seq_of(self.fence) - 1)
        return Seq(0) if is_stored else Seq(tail.first - 1)

    def was_stored(self, up_to: Seq) -> None:
        """SQL has every entry up to this number."""
        self._stored = max(self._stored, up_to)
        self._drop()

    def was_sent(self, up_to: Seq) -> None:
        """Redis has every entry up to this number, or SQL has those that Redis lacks."""
        self._sent = max(self._sent, up_to)
        self._drop()

    def redis_lost_data(self) -> None:
        """Marks the entries that SQL lacks to be sent again."""
        self._sent = min(self._sent, self._stored)

    def close(self) -> None:
        """The log's end is about to be stored."""
        self._closed = True

    def end(self, tail: LogTail) -> None:
        """SQL has numbered and stored these last entries: they only have to be sent."""
        self._closed = True
        self._entries.extend(tail.behind(self.last).entries)
        self.was_stored(tail.last)

    def continue_under(self, fence: Fence, stored: Seq, at: int) -> None:
        """The owner has a new fence, and SQL has the entries up to `stored` under the old one. The next entry records
        that. Entries after `stored` were never shown, and get new numbers."""
        later = self._entries[stored + 1 - self._first :]
        self.follows = stored
        self.fence, self._last_free = fence, _last_free(fence)
        start = first_seq_of(fence)
        self._first, self._entries = start, [encode(LogContinued(at, stored)), *later]
        # Redis may still lack some of the old entries. SQL has them, and readers get them there.
        self._stored = self._sent = Seq(start - 1)

    def _behind(self, seq: Seq, up_to: Seq) -> LogTail:
        if self.follows is None:
            return LogTail(Seq(seq + 1), ())
        start = seq + 1 - self._first
        return LogTail(Seq(seq + 1), self._entries[start : max(start, up_to + 1 - self._first)])

    def _drop(self) -> None:
        """Drops the entries that SQL and Redis both have."""
        both = min(self._stored, self._sent) + 1 - self._first
        if both > 0:
            del self._entries[:both]
            self._first = Seq(self._first + both)
