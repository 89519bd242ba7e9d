"""Archival memory for agents and clients: stores passages and finds them.

A passage is stored first and embedded later, outside of any transaction. If the model is away, only the vector is
missing, and maintenance adds it later. A search requests the query's vector once from each archive's model; without a
vector, it searches by words only. It combines the rankings by rank, because the scores of a word index and of a vector
are not comparable.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import NamedTuple

import httpx2
import msgspec
import structlog
from msgspec.structs import replace

from shared.concurrency import Clock
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.ids import AgentId, ArchiveId, IdMaker, PassageId, ProjectId
from shared.domain.model_servers import without_credentials
from shared.domain.models import PROVIDERS, can_embed, split_handle
from shared.domain.searches import (
    FoundPassage,
    NewPassage,
    Passage,
    PassageQuery,
    Vector,
    refuse_oversized,
    unit_vector,
)
from shared.network.checked_http import PUBLIC_ONLY, NetworkRules, operators_client
from shared.sql.archival.passages import PassageSearchStore, PassageStore, StoredPassages, VectorStore, WaitingPassage

# Embedding models are called over OpenAI's wire, by the same variables as Holdfast's chat models. The client follows
# the environment's base URLs, with one connection pool per process. It tries once: a text without a vector is not lost,
# and the caller decides when to retry.


ANSWER_S = 10.0
"""Time limit of one answer, in seconds. It is shorter than a chat model's, because a client waits for it."""
TEXTS_PER_CALL = 32
LONGEST_INPUT = 24_000
"""Characters of a text that are embedded, about 6,000 tokens of English; models accept 8,191."""
MOST_DIMENSIONS = 16_000
"""pgvector's limit."""
_ERROR_CHARS = 500
_GOOGLE_PATH = "/v1beta/openai"
"""Google's server speaks OpenAI's wire under this path."""

_TYPES: Mapping[int, ModelErrorType] = {
    HTTPStatus.UNAUTHORIZED: ModelErrorType.AUTHENTICATION,
    HTTPStatus.FORBIDDEN: ModelErrorType.AUTHENTICATION,
    HTTPStatus.REQUEST_TIMEOUT: ModelErrorType.TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS: ModelErrorType.RATE_LIMIT,
    HTTPStatus.BAD_REQUEST: ModelErrorType.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ModelErrorType.BAD_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY: ModelErrorType.BAD_REQUEST,
}
"""All other failures are an `ERROR`. So is a 404, because the server may get the model later."""


class _Entry(msgspec.Struct):
    embedding: list[float]
    index: int | None = None
    """The place of its text. None, as of Google's server for the first text: the entry's place in the list."""


class _Answer(msgspec.Struct):
    data: list[_Entry]


class _Server(NamedTuple):
    """The server of a handle."""

    model: str
    base_url: str
    key: str | None


class EmbeddingClient:
    """The embedding models that a process can call."""

    def __init__(
        self, environment: Mapping[str, str], network: NetworkRules = PUBLIC_ONLY, *, answer_s: float = ANSWER_S
    ) -> None:
        self._environment = environment
        self._network = network
        self._answer_s = answer_s
        self._http: httpx2.AsyncClient | None = None

    async def embed(self, handle: str, texts: Sequence[str]) -> list[Vector]:
        """The vectors of up to `TEXTS_PER_CALL` texts, in order. Raises `ModelError`."""
        server = self._server(handle)
        if self._http is None:
            # Created at the first use: its TLS context takes 20 ms, and most deployments embed nothing.
            self._http = operators_client(self._network, timeout_s=self._answer_s)
        body = {"model": server.model, "input": [text[:LONGEST_INPUT] for text in texts]}
        headers = {"authorization": f"Bearer {server.key}"} if server.key else {}
        try:
            async with asyncio.timeout(self._answer_s):
                answer = await self._http.post(f"{server.base_url}/embeddings", json=body, headers=headers)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise _failed(ModelErrorType.TIMEOUT, f"no answer within {self._answer_s:g} s", server) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise _failed(ModelErrorType.ERROR, f"{type(error).__name__}: {error}", server) from error
        if not answer.is_success:
            said = f"status {answer.status_code}: {answer.text[:_ERROR_CHARS]}"
            raise _failed(_TYPES.get(answer.status_code, ModelErrorType.ERROR), said, server)
        return _vectors_in(answer.content, len(texts), server)

    async def aclose(self) -> None:
        """Closes every connection."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _server(self, handle: str) -> _Server:
        if not can_embed(handle):
            raise ModelError(
                ModelErrorType.BAD_REQUEST, f"The embedding model {handle!r} cannot be asked over OpenAI's wire."
            )
        name, model = split_handle(handle)
        provider = PROVIDERS[name]
        key, base_url = provider.key(self._environment), provider.base_url(self._environment)
        if provider.needs_key and key is None:
            [variable] = provider.addresses[0].key_variables
            said = f"The embedding model {handle!r} needs a key: set {variable}."
            raise ModelError(ModelErrorType.AUTHENTICATION, said)
        if base_url is None:
            variable = provider.addresses[0].url_variable
            raise ModelError(ModelErrorType.ERROR, f"The embedding model {handle!r} needs an address: set {variable}.")
        return _Server(model, base_url + _GOOGLE_PATH if provider.wire == "google" else base_url, key)


def _vectors_in(content: bytes, count: int, server: _Server) -> list[Vector]:
    try:
        entries = msgspec.json.decode(content, type=_Answer).data
        by_index = {
            place if entry.index is None else entry.index: unit_vector(entry.embedding)
            for place, entry in enumerate(entries)
        }
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _failed(ModelErrorType.ERROR, f"no embeddings in the answer: {error}", server) from error
    lengths = {len(vector) for vector in by_index.values()}
    is_whole = len(entries) == count and by_index.keys() == set(range(count))
    if not is_whole or len(lengths) != 1 or max(lengths) > MOST_DIMENSIONS:
        said = f"{len(entries)} embeddings of {sorted(lengths)} numbers for {count} texts"
        raise _failed(ModelErrorType.ERROR, said, server)
    return [by_index[place] for place in range(count)]


def _failed(error_type: ModelErrorType, said: str, server: _Server) -> ModelError:
    return ModelError(error_type, f"{said} [The server that was asked: {without_credentials(server.base_url)}]")


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RANK_CONSTANT = 60
"""k of reciprocal rank fusion: a passage at place r of a ranking scores 1 / (k + r). The constant is that of Cormack,
Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods", SIGIR 2009."""

DEPTH = 200
"""Places of each ranking that count: twice the largest limit of a search."""

MOST_MODELS = 4
"""Embedding models that one search calls. Archives of further models are searched by words."""


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
        """Stores a text in the agent's archive, and creates the archive if needed. Returns the passage, with its vector
        if the model answered. A repeated `passage_id` stores nothing. Raises `NotFound`, `InvalidRequest` and
        `Unavailable`."""
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
        """Stores passages in an archive, all or none. Raises as `insert`."""
        refuse_oversized(new)
        stored = await self.passages.insert_into_archive(project_id, archive_id, new, self.clock.now())
        return await self._embedded(stored)

    async def search(self, project_id: ProjectId, query: PassageQuery) -> list[FoundPassage]:
        """The best passages for the query, the best first. Without a text: the passages that meet its conditions, the
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


# Embeds passages that were stored while their model was away, or by a process without the model's key.


RETRY_AFTER = timedelta(minutes=1)
CALLS_OF_A_ROUND = 20
"""Calls per round. A worker that shuts down waits for the current round."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingMaintenance:
    """Adds missing vectors. One process of the fleet does this per interval; two processes at once do no harm."""

    vectors: VectorStore
    client: EmbeddingClient
    clock: Clock

    async def embed_due(self) -> int:
        """One round. Returns the number of passages that got vectors. Raises `Unavailable`."""
        total = 0
        for _ in range(CALLS_OF_A_ROUND):
            due = await self.vectors.claim_due(self.clock.now(), until=RETRY_AFTER, limit=TEXTS_PER_CALL)
            by_model: defaultdict[str, list[WaitingPassage]] = defaultdict(list)
            for waiting in due:
                by_model[waiting.model].append(waiting)
            embedded = [await self._embed(model, some) for model, some in by_model.items()]
            total += sum(embedded)
            if len(due) < TEXTS_PER_CALL or not all(embedded):
                # No passage is due, or a model is away: the claimed passages become due again.
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
        """Embeds each text alone: a text that the model refuses must not prevent the vectors of the other texts."""
        if len(some) > 1:
            return sum([await self._embed(model, [waiting]) for waiting in some])
        log.warning("passage_not_embedded", model=model, passage_id=some[0].id, error=refusal.facts)
        await self.vectors.give_up(some[0].id)
        return 1
