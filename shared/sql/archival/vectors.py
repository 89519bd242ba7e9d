"""Vectors of passages, and the passages that still wait for theirs."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa

from shared.domain.ids import PassageId
from shared.domain.vectors import Vector, signs_of
from shared.sql.engine import Database
from shared.sql.tables import archives, passage_vectors, passages


class WaitingPassage(msgspec.Struct, frozen=True):
    """A passage without its vector."""

    id: PassageId
    text: str
    model: str


class VectorStore:
    """Writes vectors. Every passage of an archive with a model is due until it has its vector or is given up."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_due(self, now: datetime, *, until: timedelta, limit: int) -> list[WaitingPassage]:
        """Passages that are due, for the caller alone: they are due again after `until`."""
        async with self._database.write() as connection:
            due = (
                sa.select(passages.c.id, passages.c.text, archives.c.embedding)
                .join(archives, archives.c.id == passages.c.archive_id)
                .where(passages.c.embed_at <= now, archives.c.embedding.is_not(None))
                .order_by(passages.c.embed_at)
                .limit(limit)
                .with_for_update(of=passages, skip_locked=True)
            )
            found = [WaitingPassage(*row) for row in await connection.execute(due)]
            if found:
                ids = [waiting.id for waiting in found]
                await connection.execute(sa.update(passages).where(passages.c.id.in_(ids)).values(embed_at=now + until))
            return found

    async def record(self, model: str, vectors: Sequence[tuple[PassageId, Vector]]) -> None:
        """Stores vectors by the ids of their passages. One of a passage that was deleted meanwhile is dropped."""
        async with self._database.write() as connection:
            ids = [passage_id for passage_id, _ in vectors]
            waiting = sa.select(passages.c.id, passages.c.number).where(
                passages.c.id.in_(ids), passages.c.embed_at.is_not(None)
            )
            numbers = {row.id: row.number for row in await connection.execute(waiting.with_for_update())}
            rows = [
                {
                    "number": numbers[passage_id],
                    "model": model,
                    "dimensions": len(vector),
                    "signs": signs_of(vector),
                    "vector": vector,
                }
                for passage_id, vector in vectors
                if passage_id in numbers
            ]
            if rows:
                await connection.execute(sa.insert(passage_vectors), rows)
                done = passages.c.number.in_(list(numbers.values()))
                await connection.execute(sa.update(passages).where(done).values(embed_at=None))

    async def give_up(self, passage_id: PassageId) -> None:
        """Leaves a passage without a vector for good."""
        async with self._database.write() as connection:
            await connection.execute(sa.update(passages).where(passages.c.id == passage_id).values(embed_at=None))
