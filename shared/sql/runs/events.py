"""A run's log in SQL: its entries in compressed blocks, written with every checkpoint, kept as long as the run."""

import zlib
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.ids import RunId, Seq
from shared.domain.log_writer import Entries, LogTail, consecutive
from shared.sql.engine import Database
from shared.sql.run_tables import event_blocks

BLOCK_ENTRIES = 1000
"""Entries per block: one read of the middle of a long log unpacks no more than this."""

BLOCKS_AT_ONCE = 64

SMALL_BLOCK = 100
WORTH_MERGING = 8
"""The end of a run puts its small blocks together when it has so many of them."""


async def insert_events(connection: AsyncConnection, run_id: RunId, tail: LogTail) -> None:
    """Stores entries. The caller has locked the run's row, and has left out what SQL has."""
    rows = [
        {
            "run_id": run_id,
            "first_seq": tail.first + start,
            "last_seq": tail.first + start + len(part) - 1,
            "data": zlib.compress(b"\n".join(part), 1),
        }
        for start in range(0, len(tail.entries), BLOCK_ENTRIES)
        if (part := tail.entries[start : start + BLOCK_ENTRIES])
    ]
    if rows:
        await connection.execute(sa.insert(event_blocks), rows)


async def merge_small_blocks(connection: AsyncConnection, run_id: RunId) -> None:
    """Puts the small blocks of an ended run together: each costs a row, and compresses badly."""
    size = event_blocks.c.last_seq - event_blocks.c.first_seq + 1
    is_small = sa.and_(event_blocks.c.run_id == run_id, size < SMALL_BLOCK)
    counted = await connection.execute(sa.select(sa.func.count()).select_from(event_blocks).where(is_small))
    if counted.scalar_one() < WORTH_MERGING:
        return
    found = await connection.execute(
        sa.select(event_blocks.c.first_seq, event_blocks.c.data).where(is_small).order_by(event_blocks.c.first_seq)
    )
    entries = _unpacked((row.first_seq, row.data) for row in found)
    await connection.execute(sa.delete(event_blocks).where(is_small))
    for tail in consecutive(entries):
        await insert_events(connection, run_id, tail)


async def read_events(connection: AsyncConnection, run_id: RunId, after: Seq, limit: int | None = None) -> Entries:
    """The first `limit` entries after a cursor, or all of them, in order; empty when SQL has none."""
    of_run = event_blocks.c.run_id == run_id
    around = sa.select(sa.func.max(event_blocks.c.first_seq)).where(of_run, event_blocks.c.first_seq <= after + 1)
    begin = sa.func.coalesce(around.scalar_subquery(), 0)
    chosen = sa.select(event_blocks.c.first_seq, event_blocks.c.data).order_by(event_blocks.c.first_seq)
    entries: Entries = []
    condition = event_blocks.c.first_seq >= begin
    while True:
        found = await connection.execute(chosen.where(of_run, condition).limit(BLOCKS_AT_ONCE))
        blocks = found.all()
        entries.extend(item for item in _unpacked((row.first_seq, row.data) for row in blocks) if item[0] > after)
        if len(blocks) < BLOCKS_AT_ONCE or (limit is not None and len(entries) >= limit):
            return entries[:limit]
        condition = event_blocks.c.first_seq > blocks[-1].first_seq


def _unpacked(blocks: Iterable[tuple[int, bytes]]) -> Entries:
    return [
        (Seq(seq), entry)
        for first, data in blocks
        for seq, entry in enumerate(zlib.decompress(data).split(b"\n"), start=first)
    ]


class EventStore:
    """Reads logs from SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, run_id: RunId, after: Seq, limit: int | None = BLOCK_ENTRIES) -> Entries:
        """The first `limit` entries after a cursor (None: all of them), in order; empty when SQL has none."""
        async with self._database.read() as connection:
            return await read_events(connection, run_id, after, limit)
