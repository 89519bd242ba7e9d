"""The events of runs in SQL: a run's log is kept in compressed blocks for as long as the run."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from shared.concurrency import beside
from shared.domain.ids import RunId, Seq
from shared.domain.log_writer import Entries, LogTail, consecutive
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.run_tables import event_blocks

BLOCK_ENTRIES = 1000
"""Entries per block: one read of the middle of a long log unpacks no more than this."""

BLOCK_BYTES = 1_000_000
"""Bytes of a block's entries, unless one alone is longer."""

TIMES_SMALLER = 10
"""So many times as long as its block is a log, more or less."""

BLOCKS_AT_ONCE = 64
FIRST_BLOCKS = 4
"""For who wants a page, which is in one block or two of a long log, and in many of one whose steps are short."""

SMALL_BYTES = 1 << 12

SMALL_BLOCK = 100
SMALL_BLOCK_BYTES = 50_000
"""As it is stored."""
WORTH_MERGING = 8
"""The end of a run puts its small blocks together when it has so many of them."""


async def insert_events(connection: Connection, run_id: RunId, tail: LogTail) -> None:
    """Stores entries, deferred. The caller has locked the run's row, and has left out what SQL has."""
    connection.defer(_INSERT_BLOCKS, *await packed_blocks(run_id, tail))


async def packed_blocks(run_id: RunId, tail: LogTail) -> list[dict[str, Any]]:
    """`blocks_of`, however much is to be packed."""
    return await beside(partial(blocks_of, run_id, tail), sum(map(len, tail.entries)))


def blocks_of(run_id: RunId, tail: LogTail) -> list[dict[str, Any]]:
    """The rows of these entries."""
    return [
        {
            "run_id": run_id,
            "first_seq": tail.first + start,
            "last_seq": tail.first + end - 1,
            "data": _packed(tail.entries[start:end]),
        }
        for start, end in _parts(tail.entries)
    ]


def _parts(entries: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Where the entries of each block begin and end."""
    start = size = 0
    for place, entry in enumerate(entries):
        size += len(entry)
        if place > start and (place - start == BLOCK_ENTRIES or size > BLOCK_BYTES):
            yield start, place
            start, size = place, len(entry)
    if entries:
        yield start, len(entries)


_INSERT_BLOCKS = sa.insert(event_blocks)


def _is_small(run_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    size = event_blocks.c.last_seq - event_blocks.c.first_seq + 1
    is_short = sa.func.length(event_blocks.c.data) < SMALL_BLOCK_BYTES
    return sa.and_(event_blocks.c.run_id == run_id, size < SMALL_BLOCK, is_short)


def count_small_blocks() -> sa.ScalarSelect[int]:
    """How many small blocks the run has that the parameter `run_id` names."""
    is_small = _is_small(sa.bindparam("run_id", type_=sa.Text))
    return sa.select(sa.func.count()).select_from(event_blocks).where(is_small).scalar_subquery()


async def merge_small_blocks(connection: Connection, run_id: RunId, known: int) -> None:
    """Puts the small blocks of an ended run together, if it has `known` of them and that is many: each costs a row, and
    compresses badly."""
    if known < WORTH_MERGING:
        return
    is_small = _is_small(sa.literal(run_id))
    found = await connection.execute(
        sa.select(event_blocks.c.first_seq, event_blocks.c.data).where(is_small).order_by(event_blocks.c.first_seq)
    )
    blocks = found.all()
    entries = await beside(partial(_all_of, blocks, Seq(0)), TIMES_SMALLER * sum(len(row.data) for row in blocks))
    await connection.execute(sa.delete(event_blocks).where(is_small))
    for tail in consecutive(entries):
        await insert_events(connection, run_id, tail)


_BLOCKS = (
    sa.select(event_blocks.c.first_seq, event_blocks.c.data)
    .where(event_blocks.c.run_id == sa.bindparam("run_id"))
    .order_by(event_blocks.c.first_seq)
    .limit(sa.bindparam("at_once"))
)
# Made once: to make a statement takes longer than to read a page.
_BLOCKS_AROUND = _BLOCKS.where(
    event_blocks.c.first_seq
    >= sa.func.coalesce(
        sa.select(sa.func.max(event_blocks.c.first_seq))
        .where(event_blocks.c.run_id == sa.bindparam("run_id"), event_blocks.c.first_seq <= sa.bindparam("seq"))
        .scalar_subquery(),
        0,
    )
)
_BLOCKS_BEHIND = _BLOCKS.where(event_blocks.c.first_seq > sa.bindparam("seq"))


async def read_events(connection: Connection, run_id: RunId, after: Seq, limit: int | None = None) -> Entries:
    """The first `limit` entries after a cursor, or all of them, in order; empty when SQL has none. With a limit, as
    many of them as a block may have bytes are enough."""
    entries: Entries = []
    wanted, seq = _BLOCKS_AROUND, after + 1
    at_once = BLOCKS_AT_ONCE if limit is None else FIRST_BLOCKS
    while True:
        found = await connection.execute(wanted, {"run_id": run_id, "seq": seq, "at_once": at_once})
        blocks = found.all()
        room = None if limit is None else limit - len(entries)
        packed = sum(len(row.data) for row in blocks)
        entries += await beside(partial(_all_of, blocks, after, room), TIMES_SMALLER * packed)
        if limit is not None and (len(entries) >= limit or _bytes_of(entries) >= BLOCK_BYTES):
            return entries[:limit]
        if len(blocks) < at_once:
            return entries
        wanted, seq, at_once = _BLOCKS_BEHIND, blocks[-1].first_seq, BLOCKS_AT_ONCE


def _all_of(blocks: Iterable[Any], after: Seq, most: int | None = None) -> Entries:
    """The entries of these blocks after a cursor; with `most`, so many of them and as many as a block may have bytes,
    or a few more."""
    entries: Entries = []
    for row in blocks:
        entries += [item for item in _unpacked(row.first_seq, row.data) if item[0] > after]
        if most is not None and (len(entries) >= most or _bytes_of(entries) >= BLOCK_BYTES):
            break
    return entries


def _bytes_of(entries: Entries) -> int:
    return sum(len(entry) for _, entry in entries)


def _packed(entries: Sequence[bytes]) -> bytes:
    data = b"\n".join(entries)
    # zlib clears a quarter of a megabyte first, unless it is told that there is little to come.
    window, memory = (10, 1) if len(data) < SMALL_BYTES else (15, 8)
    packer = zlib.compressobj(1, zlib.DEFLATED, window, memory)
    return packer.compress(data) + packer.flush()


def _unpacked(first: int, data: bytes) -> Entries:
    return [(Seq(seq), entry) for seq, entry in enumerate(zlib.decompress(data).split(b"\n"), start=first)]


class EventStore:
    """Reads logs from SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, run_id: RunId, after: Seq, limit: int | None = BLOCK_ENTRIES) -> Entries:
        """The first `limit` entries after a cursor (None: all of them), in order; empty when SQL has none. A page of
        long entries is shorter than the limit."""
        async with self._database.read() as connection:
            return await read_events(connection, run_id, after, limit)
