"""What agents and clients do with archival memory: store passages and find them.

A passage is stored first and embedded afterwards, outside of any transaction, so a model that is away costs nothing but
the vector, and that comes later (`embedding_upkeep.py`). A search asks for the query's vector once per model of the
archives; without one it goes by words alone. The rankings are put together by their places: scores of a word index and
of a vector have nothing in common.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from msgspec.structs import replace

from shared.archival.embedding_client import ANSWER_S, TEXTS_PER_CALL, EmbeddingClient
from shared.clock import Clock
from shared.domain.archival import FoundPassage, NewPassage, Passage, PassageQuery, refuse_oversized
from shared.domain.errors import ModelError
from shared.domain.ids import AgentId, ArchiveId, IdMaker, PassageId, ProjectId
from shared.domain.model_providers import can_embed
from shared.domain.vectors import Vector
from shared.sql.archival.passages import PassageStore, StoredPassages
from shared.sql.archival.search import PassageSearchStore
from shared.sql.archival.vectors import VectorStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RANK_CONSTANT = 60
"""k of reciprocal rank fusion: a passage at place r of a ranking gets 1 / (k + r) for it. The constant is that of
Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods",
SIGIR 2009."""

DEPTH = 200
"""Places of each ranking that count; twice as many as a search may ask for."""

MOST_MODELS = 4
"""Embedding models that one search asks; the archives of further ones are searched by words."""


@dataclass(frozen=True, kw_only=True)
class ArchivalMemory:
    """Stores and finds passages."""

    passages: PassageStore
    vectors: VectorStore
    finder: PassageSearchStore
    client: EmbeddingClient
    clock: Clock
    ids: IdMaker

    async def insert(
        self,
        project_id: ProjectId,
        agent_id: AgentId,
        text: str,
        tags: Sequence[str] = (),
        *,
        passage_id: PassageId | None = None,
        created_at: datetime | None = None,
    ) -> Passage:
        """Stores a text in the agent's archive, which is made if need be; the passage, with its vector if the model
        answered. The same `passage_id` again stores nothing. Raises `NotFound`, `InvalidRequest` and `Unavailable`."""
        now = self.clock.now()
        new = NewPassage(id=passage_id or self.ids.passage(), text=text, tags=tags, created_at=created_at or now)
        refuse_oversized([new])
        stored = await self.passages.insert_for_agent(
            project_id, agent_id, new, new_archive_id=self.ids.archive(), now=now
        )
        [passage] = await self._embedded(stored)
        return passage

    async def insert_into(
        self, project_id: ProjectId, archive_id: ArchiveId, new: Sequence[NewPassage]
    ) -> Sequence[Passage]:
        """Stores passages in an archive, all or none. Raises as `insert` does."""
        refuse_oversized(new)
        stored = await self.passages.insert_into_archive(project_id, archive_id, new, self.clock.now())
        return await self._embedded(stored)

    async def search(self, project_id: ProjectId, query: PassageQuery) -> list[FoundPassage]:
        """The passages that fit the query best, the best first; without a text those that meet its conditions, the
        oldest first. Raises `NotFound` and `Unavailable`."""
        models = await self.finder.models_of(project_id, query)
        if query.text is None:
            return [FoundPassage(passage) for passage in await self.finder.oldest(project_id, query)]
        if not query.text.strip():
            return []
        by_words = await self.finder.by_words(project_id, query, DEPTH)
        by_vector: dict[int, int] = {}
        for model, vector in (await self._query_vectors(models, query.text)).items():
            ranking = await self.finder.by_vector(project_id, query, model, vector, DEPTH)
            by_vector.update(_places(ranking))
        return await self._fused(project_id, _places(by_words), by_vector, query.limit)

    async def _fused(
        self, project_id: ProjectId, by_words: Mapping[int, int], by_vector: Mapping[int, int], limit: int
    ) -> list[FoundPassage]:
        scores: defaultdict[int, float] = defaultdict(float)
        for places in (by_words, by_vector):
            for number, place in places.items():
                scores[number] += 1 / (RANK_CONSTANT + place)
        best = sorted(scores, key=lambda number: (-scores[number], -number))[:limit]
        loaded = await self.finder.load(project_id, best)
        return [
            FoundPassage(loaded[number], scores[number], by_words.get(number), by_vector.get(number))
            for number in best
            if number in loaded
        ]

    async def _query_vectors(self, models: Sequence[str], text: str) -> dict[str, Vector]:
        asked = [model for model in models if can_embed(model)][:MOST_MODELS]
        found = await asyncio.gather(*(self._query_vector(model, text) for model in asked))
        return {model: vector for model, vector in zip(asked, found, strict=True) if vector is not None}

    async def _query_vector(self, model: str, text: str) -> Vector | None:
        try:
            [vector] = await self.client.embed(model, [text])
        except ModelError as error:
            log.warning("archival_search_by_words_only", model=model, error=error.facts)
            return None
        return vector

    async def _embedded(self, stored: StoredPassages) -> Sequence[Passage]:
        model, waiting = stored.archive.embedding, [one for one in stored.passages if one.vector is None]
        if model is None or not waiting or not can_embed(model):
            return stored.passages
        vectors: dict[str, Vector] = {}
        try:
            async with asyncio.timeout(ANSWER_S):
                for start in range(0, len(waiting), TEXTS_PER_CALL):
                    some = waiting[start : start + TEXTS_PER_CALL]
                    answered = await self.client.embed(model, [one.text for one in some])
                    vectors.update(zip([one.id for one in some], answered, strict=True))
        except (ModelError, TimeoutError) as error:
            why = error.facts if isinstance(error, ModelError) else "it took too long"
            log.warning("passages_embedded_later", model=model, passages=len(waiting) - len(vectors), error=why)
        if vectors:
            await self.vectors.record(model, [(PassageId(one), vector) for one, vector in vectors.items()])
        return [replace(one, vector=vectors[one.id]) if one.id in vectors else one for one in stored.passages]


def _places(ranking: Iterable[int]) -> dict[int, int]:
    return {number: place for place, number in enumerate(ranking, start=1)}
