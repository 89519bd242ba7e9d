"""Passages with vectors: how they get them, and how they are found by meaning. Postgres with pgvector where a server is
given that has it."""

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import sqlalchemy as sa

from shared.archival.archival_memory import LONGEST_INPUT, RANK_CONSTANT, RETRY_AFTER, TEXTS_PER_CALL
from shared.domain.searches import MOST_MULTIPLIED, PassageQuery, unit_vector
from shared.sql.archival.archives import STORER_EMBEDS_FOR
from shared.sql.archival.passages import PassagePage, insert_for_agent
from shared.sql.tables import passage_vectors
from tests.kit.archival import EMBEDDING, IDS, Archival, archival_memory, new_passage
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.services.databases import statements
from tests.kit.wait_until import HANGS_S

STORM, TERRIER, INVOICE = "A storm is coming.", "Her terrier barks.", "The invoice is paid."
SOON = STORER_EMBEDS_FOR.total_seconds()


@pytest.fixture
async def archival(database_url: str) -> AsyncGenerator[Archival]:
    async with archival_memory(database_url) as archival:
        if await has_pgvector(archival):
            async with archival.database.write() as connection:
                await connection.execute(sa.text("CREATE EXTENSION IF NOT EXISTS vector"))
        yield archival


async def has_pgvector(archival: Archival) -> bool:
    """Whether the server has it."""
    if archival.database.is_sqlite:
        return False
    async with archival.database.read() as connection:
        offered = "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"
        return bool((await connection.execute(sa.text(offered))).scalar_one())


async def vectors_of(archival: Archival, agent_id: Any) -> list[list[float] | None]:
    listed = await archival.passages.list_of_agent(PROJECT, agent_id, PassagePage())
    return [None if passage.vector is None else list(passage.vector) for passage in listed]


async def test_a_passage_is_found_by_its_meaning_without_a_word_in_common(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    stored = await archival.remember(agent, STORM, TERRIER, INVOICE)
    assert all(passage.vector is not None and passage.model == EMBEDDING for passage in stored)
    assert await archival.find("Which weather?", agent_id=agent.id, limit=1) == [STORM]
    assert await archival.find("My dog?", agent_id=agent.id, limit=1) == [TERRIER]
    assert await archival.find("budget", limit=1) == [INVOICE]
    asked = archival.server.embeddings.requests[-1]
    assert (asked.path, asked.model) == ("/v1/embeddings", "text-embedding-3-small")
    assert asked.headers["authorization"] == "Bearer test-openai"


async def test_both_rankings_are_fused_by_their_places(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    await archival.remember(agent, "Rain, and clouds.", "The dog dislikes the bath.", INVOICE)
    query = PassageQuery(text="dislikes rain and weather", agent_id=agent.id)
    found = {one.passage.text: one for one in await archival.memory.search(PROJECT, query)}
    best = found["Rain, and clouds."]
    assert (best.word_rank, best.vector_rank) == (1, 1)
    assert best.score == pytest.approx(2 / (RANK_CONSTANT + 1))
    by_vector_alone = found[INVOICE]
    assert by_vector_alone.word_rank is None
    assert by_vector_alone.vector_rank is not None
    assert by_vector_alone.score == pytest.approx(1 / (RANK_CONSTANT + by_vector_alone.vector_rank))


async def test_punctuation_alone_finds_by_meaning_what_it_can(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    await archival.remember(agent, STORM)
    assert await archival.find("???", agent_id=agent.id) == [STORM]


async def test_tags_narrow_a_search_by_meaning(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    await archival.remember(agent, STORM, tags=["a"])
    await archival.remember(agent, TERRIER, tags=["b"])
    assert await archival.find("weather", agent_id=agent.id, tags=["b"]) == [TERRIER]


async def test_without_an_embedding_model_nothing_is_asked(archival: Archival) -> None:
    agent = await archival.agent()
    await archival.remember(agent, STORM)
    assert await archival.find("storm", agent_id=agent.id) == [STORM]
    assert await archival.find("weather", agent_id=agent.id) == []
    assert archival.server.embeddings.requests == []


@pytest.mark.parametrize("handle", ["letta/letta-free", "anthropic/none", "builtin/echo", "openai/..", "no slash"])
async def test_a_model_that_cannot_embed_leaves_words(archival: Archival, handle: str) -> None:
    agent = await archival.agent(embedding=handle)
    await archival.remember(agent, STORM)
    assert await archival.find("storm", agent_id=agent.id) == [STORM]
    archival.clock.advance(seconds=SOON)
    assert await archival.maintenance.embed_due() == 0


async def test_a_passage_is_kept_while_its_model_is_away_and_embedded_later(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    archival.server.embeddings.is_away = True
    [stored] = await archival.remember(agent, STORM)
    assert stored.vector is None
    assert await archival.find("storm", agent_id=agent.id) == [STORM]
    assert await archival.maintenance.embed_due() == 0, "for a moment it is whose who stored it"
    archival.clock.advance(seconds=SOON)
    assert await archival.maintenance.embed_due() == 0
    archival.server.embeddings.is_away = False
    assert await archival.maintenance.embed_due() == 0, "it was tried a moment ago"
    archival.clock.advance(seconds=RETRY_AFTER.total_seconds())
    assert await archival.maintenance.embed_due() == 1
    assert await archival.find("weather", agent_id=agent.id) == [STORM]
    archival.clock.advance(days=1)
    assert await archival.maintenance.embed_due() == 0


async def test_a_passage_that_a_caller_stores_in_its_transaction_is_embedded_at_the_next_round(
    archival: Archival,
) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    async with archival.database.write() as connection:
        await insert_for_agent(connection, PROJECT, agent.id, new_passage(STORM), new_archive_id=IDS.archive(), now=NOW)
    assert await archival.maintenance.embed_due() == 1
    assert await archival.find("weather", agent_id=agent.id) == [STORM]


async def test_a_search_goes_by_words_while_the_model_is_away(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    await archival.remember(agent, STORM, TERRIER)
    archival.server.embeddings.failures.append(500)
    assert await archival.find("terrier", agent_id=agent.id) == [TERRIER]


async def test_a_text_that_the_model_refuses_does_not_keep_others_from_their_vectors(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    archival.server.embeddings.refuses = lambda text: "terrier" in text
    [stored] = await archival.remember(agent, STORM)
    await archival.memory.insert_into(
        PROJECT, stored.archive_id, [new_passage(TERRIER), new_passage(INVOICE), new_passage("x" * (LONGEST_INPUT + 9))]
    )
    assert [vector is None for vector in await vectors_of(archival, agent.id)].count(True) == 3
    archival.clock.advance(seconds=SOON)
    assert await archival.maintenance.embed_due() == 3
    by_text = {one.text: one for one in await archival.passages.list_of_agent(PROJECT, agent.id, PassagePage())}
    assert [text for text, one in by_text.items() if one.vector is None] == [TERRIER]
    assert max(len(text) for one in archival.server.embeddings.requests for text in one.texts) == LONGEST_INPUT
    asked = len(archival.server.embeddings.requests)
    archival.clock.advance(days=1)
    assert await archival.maintenance.embed_due() == 0
    assert len(archival.server.embeddings.requests) == asked


async def test_many_passages_are_embedded_in_few_calls_and_each_gets_its_own_vector(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    [stored] = await archival.remember(agent, STORM)
    texts = [(STORM, TERRIER, INVOICE)[number % 3] + f" {number}" for number in range(TEXTS_PER_CALL + 8)]
    await archival.memory.insert_into(PROJECT, stored.archive_id, [new_passage(text) for text in texts])
    assert [len(one.texts) for one in archival.server.embeddings.requests] == [1, TEXTS_PER_CALL, 8]
    found = await archival.find("dog", agent_id=agent.id, limit=5)
    assert all(text.startswith(TERRIER) for text in found)


async def test_no_transaction_is_open_while_a_model_is_asked(archival: Archival) -> None:
    """Another insert goes through while the first one's model is silent; SQLite has one writer at a time."""
    agent, other = await archival.agent(embedding=EMBEDDING), await archival.agent()
    archival.server.embeddings.resume = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(archival.remember(agent, STORM))
        await archival.remember(other, TERRIER)
        assert not waiting.done()
        archival.server.embeddings.resume.set()
    assert (await vectors_of(archival, agent.id)) != [None]


async def test_a_passage_that_is_deleted_while_it_is_embedded_leaves_no_vector(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    archival.server.embeddings.resume = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(archival.remember(agent, STORM))
        async with asyncio.timeout(HANGS_S):
            while not (listed := await archival.passages.list_of_agent(PROJECT, agent.id, PassagePage())):
                pass
        await archival.passages.delete_from_agent(PROJECT, agent.id, listed[0].id)
        archival.server.embeddings.resume.set()
    async with archival.database.read() as connection:
        assert (await connection.execute(sa.select(passage_vectors.c.number))).all() == []


async def test_archives_with_different_models_are_searched_together(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    await archival.remember(agent, STORM)
    other = await archival.archive(embedding="ollama/nomic-embed-text")
    await archival.archives.attach(PROJECT, agent.id, other.id)
    await archival.memory.insert_into(PROJECT, other.id, [new_passage("Clouds!")])
    assert sorted(await archival.find("weather", agent_id=agent.id)) == [STORM, "Clouds!"]
    assert {one.model for one in archival.server.embeddings.requests} == {"text-embedding-3-small", "nomic-embed-text"}


async def test_a_model_that_changed_its_dimensions_is_no_error(archival: Archival) -> None:
    agent = await archival.agent(embedding=EMBEDDING)
    await archival.remember(agent, STORM)
    archival.server.embeddings.vector_of = lambda _text: [1.0, 2.0]
    assert await archival.find("storm", agent_id=agent.id) == [STORM]


async def test_of_very_many_vectors_the_nearest_is_found(archival: Archival) -> None:
    """More than are compared exactly: the signs choose which ones are."""
    agent, dice = await archival.agent(embedding=EMBEDDING), random.Random(7)
    count, size = MOST_MULTIPLIED + 200, 64
    archive = (await archival.remember(agent, "first"))[0].archive_id
    numbers = [[dice.gauss(0, 1) for _ in range(size)] for _ in range(count)]
    archival.server.embeddings.is_away = True
    stored = await archival.memory.insert_into(PROJECT, archive, [new_passage(f"N {n}") for n in range(count)])
    vectors = [(one.id, unit_vector(vector)) for one, vector in zip(stored, numbers, strict=True)]
    await archival.memory.vectors.record(EMBEDDING, vectors)
    archival.server.embeddings.is_away = False
    archival.server.embeddings.vector_of = lambda _text: [number + dice.gauss(0, 0.1) for number in numbers[42]]
    with statements() as asked:
        assert await archival.find("?", agent_id=agent.id, limit=1) == ["N 42"]
    is_done_by_pgvector = any("<=>" in statement for statement in asked)
    assert is_done_by_pgvector is await has_pgvector(archival)
    assert is_done_by_pgvector is not any("signs" in statement for statement in asked)
