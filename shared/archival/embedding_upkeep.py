"""Embedding what was stored while its model was away, or by a process without the model's key."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from shared.archival.embedding_client import TEXTS_PER_CALL, EmbeddingClient
from shared.clock import Clock
from shared.domain.errors import ModelError, ModelErrorType
from shared.sql.archival.vectors import VectorStore, WaitingPassage

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RETRY_AFTER = timedelta(minutes=1)
CALLS_OF_A_ROUND = 20
"""A worker that ends waits for the round that it is in."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingUpkeep:
    """Fills in vectors. One process of the fleet does it per interval; two at once do no harm."""

    vectors: VectorStore
    client: EmbeddingClient
    clock: Clock

    async def embed_due(self) -> int:
        """A round; how many passages got their vector. Raises `Unavailable`."""
        total = 0
        for _ in range(CALLS_OF_A_ROUND):
            due = await self.vectors.claim_due(self.clock.now(), until=RETRY_AFTER, limit=TEXTS_PER_CALL)
            by_model: defaultdict[str, list[WaitingPassage]] = defaultdict(list)
            for waiting in due:
                by_model[waiting.model].append(waiting)
            embedded = [await self._embed(model, some) for model, some in by_model.items()]
            total += sum(embedded)
            if len(due) < TEXTS_PER_CALL or not all(embedded):
                # Nothing more is due, or a model is away: what was claimed comes again.
                break
        if total:
            log.info("passages_embedded", passages=total)
        return total

    async def _embed(self, model: str, some: Sequence[WaitingPassage]) -> int:
        try:
            answered = await self.client.embed(model, [waiting.text for waiting in some])
        except ModelError as error:
            if error.error_type is not ModelErrorType.BAD_REQUEST:
                log.warning("passages_embedded_later", model=model, passages=len(some), error=error.facts)
                return 0
            return await self._one_by_one(model, some, error)
        await self.vectors.record(model, [(waiting.id, vector) for waiting, vector in zip(some, answered, strict=True)])
        return len(some)

    async def _one_by_one(self, model: str, some: Sequence[WaitingPassage], refusal: ModelError) -> int:
        """One text that the model refuses must not keep the others from their vectors."""
        if len(some) > 1:
            return sum([await self._embed(model, [waiting]) for waiting in some])
        log.warning("passage_not_embedded", model=model, passage_id=some[0].id, error=refusal.facts)
        await self.vectors.give_up(some[0].id)
        return 1
