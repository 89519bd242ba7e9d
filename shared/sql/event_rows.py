"""A run's log in SQL: its entries in compressed blocks, written with every checkpoint, kept as long as the run."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.ids import RunId, Seq
from shared.sql.engine import Database
from shared.sql.tables import event_blocks

BLOCK_ENTRIES = 1000
"""Entries per block: one read of the middle of a long log unpacks no more than this."""


SMALL_BLOCK = 100
WORTH_MERGING = 8
"""So many blocks of fewer entries than that are put together when their run ends."""


class LogTail(NamedTuple):
    """Entries that SQL does not have yet; the first one's number is `first`."""

    first: Seq
    entries: Sequence[bytes]

    @property
    def last(self) -> Seq:
        return Seq(self.first + len(self.entries) - 1)


async def insert_events(connection: AsyncConnection, run_id: RunId, tail: LogTail) -> None:
    """Stores a tail. The caller's guarded write on the run makes sure that nobody else stores these numbers."""
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
    """Puts the many small blocks of a run that has ended together: each costs a row, and packs badly."""
    size = event_blocks.c.last_seq - event_blocks.c.first_seq + 1
    is_small = sa.and_(event_blocks.c.run_id == run_id, size < SMALL_BLOCK)
    found = await connection.execute(
        sa.select(event_blocks.c.first_seq, event_blocks.c.data).where(is_small).order_by(event_blocks.c.first_seq)
    )
    blocks = found.all()
    if len(blocks) < WORTH_MERGING:
        return
    tails: list[LogTail] = []
    for first, data in blocks:
        entries = zlib.decompress(data).split(b"\n")
        if tails and tails[-1].last + 1 == first:
            tails[-1] = LogTail(tails[-1].first, [*tails[-1].entries, *entries])
        else:
            tails.append(LogTail(Seq(first), entries))
    await connection.execute(sa.delete(event_blocks).where(is_small))
    for tail in tails:
        await insert_events(connection, run_id, tail)


class EventStore:
    """Reads logs from SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, run_id: RunId, after: Seq, limit: int = BLOCK_ENTRIES) -> list[tuple[Seq, bytes]]:
        """Up to `limit` entries after a cursor, in order; empty when SQL has none."""
        behind = sa.and_(event_blocks.c.run_id == run_id, event_blocks.c.last_seq > after)
        first = sa.select(sa.func.min(event_blocks.c.first_seq)).where(behind).scalar_subquery()
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(event_blocks.c.first_seq, event_blocks.c.data)
                # Blocks are of any size: every checkpoint makes one. The first counts also where entries are missing.
                .where(behind, sa.or_(event_blocks.c.first_seq <= after + limit, event_blocks.c.first_seq == first))
                .order_by(event_blocks.c.first_seq)
            )
            blocks = found.all()
        entries: list[tuple[Seq, bytes]] = []
        for first, data in blocks:
            numbered = enumerate(zlib.decompress(data).split(b"\n"), start=first)
            entries.extend((Seq(seq), entry) for seq, entry in numbered if seq > after)
        return entries[:limit]
