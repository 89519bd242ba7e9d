"""Archival memory through the real `letta-client`."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import httpx
import pytest
from letta_client import APIStatusError, AsyncLetta, BadRequestError, NotFoundError, UnprocessableEntityError
from letta_client.types.archives.passage_create_many_params import Passage

from shared.domain.searches import LONGEST_TEXT, MOST_TAGS
from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product import api_client
from tests.kit.services.databases import open_database

EMBEDDING = "openai/text-embedding-3-small"
NOWHERE = "archive-00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
async def models() -> AsyncGenerator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def http(database: Database, models: ModelServer) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database, environment=models.base_urls()) as client:
        yield client


@pytest.fixture
async def client(http: httpx.AsyncClient) -> AsyncLetta:
    return AsyncLetta(base_url="http://localhost", api_key="none", http_client=http, max_retries=0)


async def an_agent(client: AsyncLetta, embedding: str | None = None, timezone: str = "UTC") -> str:
    agent = await client.agents.create(name="Ada", model="openai/gpt-4o", timezone=timezone, embedding=embedding)
    return agent.id


async def test_an_agents_memories_are_created_listed_found_and_deleted(
    client: AsyncLetta, http: httpx.AsyncClient
) -> None:
    agent_id = await an_agent(client)
    [sky] = await client.agents.passages.create(agent_id, text="The sky is blue.", tags=["science", "sky"])
    assert (sky.text, sky.tags, sky.is_deleted) == ("The sky is blue.", ["science", "sky"], False)
    assert (sky.metadata, sky.source_id, sky.embedding, sky.embedding_config) == ({}, None, None, None)
    at = datetime(2024, 1, 15, 12, tzinfo=UTC)
    [old] = await client.agents.passages.create(agent_id, text="The sea is blue, too.", created_at=at)
    assert (old.created_at, old.tags) == (at, None)
    assert (await http.get(f"/v1/agents/{agent_id}/context")).json()["num_archival_memory"] == 2

    assert [one.id for one in await client.agents.passages.list(agent_id)] == [old.id, sky.id]
    assert [one.id for one in await client.agents.passages.list(agent_id, ascending=False, limit=1)] == [sky.id]
    assert [one.id for one in await client.agents.passages.list(agent_id, after=old.id or "")] == [sky.id]
    assert [one.id for one in await client.agents.passages.list(agent_id, search="SKY")] == [sky.id]

    found = await client.agents.passages.search(agent_id, query="blue sky")
    assert found.count == 2
    assert [one.id for one in found.results] == [sky.id, old.id]
    assert (found.results[1].content, found.results[1].timestamp) == (old.text, "2024-01-15T12:00:00+00:00")
    assert (found.results[0].tags, found.results[1].tags) == (["science", "sky"], [])
    assert (await client.agents.passages.search(agent_id, query="blue", tags=["sky"])).count == 1
    assert (await client.agents.passages.search(agent_id, query="blue", top_k=1)).count == 1
    assert (await client.agents.passages.search(agent_id, query="  ")).count == 0
    both = await client.agents.passages.search(agent_id, query="blue", tags=["sky", "sea"], tag_match_mode="all")
    assert both.results == []

    assert await client.agents.passages.delete(sky.id or "", agent_id=agent_id) == {
        "message": f"Memory id={sky.id} successfully deleted"
    }
    assert [one.id for one in await client.agents.passages.list(agent_id)] == [old.id]
    with pytest.raises(NotFoundError):
        await client.agents.passages.delete(sky.id or "", agent_id=agent_id)


async def test_a_search_means_times_in_the_agents_timezone(client: AsyncLetta, http: httpx.AsyncClient) -> None:
    agent_id = await an_agent(client, timezone="Asia/Tokyo")
    midnight_in_tokyo = datetime(2024, 1, 14, 15, tzinfo=UTC)
    await client.agents.passages.create(agent_id, text="New day.", created_at=midnight_in_tokyo)
    path = f"/v1/agents/{agent_id}/archival-memory/search"

    async def found(**span: str) -> list[str]:
        answer = await http.get(path, params={"query": "day", **span})
        return [one["timestamp"] for one in answer.json()["results"]]

    assert await found(start_datetime="2024-01-15", end_datetime="2024-01-15") == ["2024-01-15T00:00:00+09:00"]
    assert await found(end_datetime="2024-01-14") == []
    assert await found(start_datetime="2024-01-15T00:00:01") == []
    assert await found(start_datetime="2024-01-14T15:00:00+00:00") == ["2024-01-15T00:00:00+09:00"]
    wrong = await http.get(path, params={"query": "day", "start_datetime": "tomorrow"})
    assert (wrong.status_code, "start_datetime" in wrong.text) == (400, True)


async def test_an_archive_is_made_changed_listed_and_deleted(client: AsyncLetta) -> None:
    archive = await client.archives.create(name="Facts", description="What is known.", embedding=EMBEDDING)
    assert archive.embedding_config is not None
    assert (archive.embedding_config.handle, archive.embedding_config.embedding_dim) == (EMBEDDING, 1536)
    assert archive.vector_db_provider == "native"
    other = await client.archives.create(name="Other")
    assert other.embedding_config is None
    changed = await client.archives.update(archive.id, name="Truths")
    assert (changed.name, changed.description) == ("Truths", "What is known.")
    assert (await client.archives.retrieve(archive.id)).to_dict() == changed.to_dict()
    assert [one.id async for one in client.archives.list(limit=1)] == [other.id, archive.id]
    assert [one.id async for one in client.archives.list(order="asc", limit=1)] == [archive.id, other.id]
    assert [one.id async for one in client.archives.list(name="Truths")] == [archive.id]
    await client.archives.delete(archive.id)
    with pytest.raises(NotFoundError):
        await client.archives.retrieve(archive.id)


async def test_an_archive_is_shared_by_the_agents_that_it_is_attached_to(
    client: AsyncLetta, http: httpx.AsyncClient
) -> None:
    first, second = await an_agent(client), await an_agent(client)
    archive = await client.archives.create(name="Shared")
    for agent_id in (first, second, second):
        assert await client.agents.archives.attach(archive.id, agent_id=agent_id) is None
    [stored] = await client.agents.passages.create(first, text="We meet at noon.")
    assert stored.archive_id == archive.id
    assert (await client.agents.passages.search(second, query="noon")).count == 1
    assert [one.id async for one in client.archives.list(agent_id=second)] == [archive.id]
    attached = (await http.get(f"/v1/archives/{archive.id}/agents")).json()
    assert {agent["id"] for agent in attached} == {first, second}
    assert await client.agents.archives.detach(archive.id, agent_id=second) is None
    assert (await client.agents.passages.search(second, query="noon")).count == 0


async def test_passages_of_an_archive_are_created_one_by_one_and_together(client: AsyncLetta) -> None:
    archive = await client.archives.create(name="Facts", embedding=EMBEDDING)
    one = await client.archives.passages.create(
        archive.id, text="A storm is coming.", metadata={"source": "radio"}, created_at="2024-01-15T12:00:00"
    )
    assert (one.metadata, one.created_at) == ({"source": "radio"}, datetime(2024, 1, 15, 12, tzinfo=UTC))
    assert one.embedding is not None
    assert len(one.embedding) == 3
    assert one.embedding_config is not None
    assert one.embedding_config.handle == EMBEDDING
    many = await client.archives.passages.create_many(
        archive.id, passages=[{"text": "Her terrier barks.", "tags": ["dogs"]}, {"text": "The invoice is paid."}]
    )
    assert [passage.text for passage in many] == ["Her terrier barks.", "The invoice is paid."]
    assert await client.archives.passages.create_many(archive.id, passages=[]) == []
    await client.archives.passages.delete(one.id or "", archive_id=archive.id)
    left = await client.passages.search(archive_id=archive.id)
    assert [found.passage.id for found in left] == [passage.id for passage in many]
    with pytest.raises(NotFoundError):
        await client.archives.passages.delete(one.id or "", archive_id=archive.id)
    other = await client.archives.create(name="Other")
    with pytest.raises(NotFoundError):
        await client.archives.passages.delete(many[0].id or "", archive_id=other.id)


async def test_passages_are_found_over_the_whole_project_with_their_ranks(client: AsyncLetta) -> None:
    agent_id = await an_agent(client, EMBEDDING)
    await client.agents.passages.create(agent_id, text="A storm is coming.", tags=["weather"])
    archive = await client.archives.create(name="Words")
    await client.archives.passages.create(archive.id, text="Rain, says the radio.")
    [storm] = await client.passages.search(query="weather", tags=["weather"])
    assert storm.passage.text == "A storm is coming."
    assert storm.metadata == {"combined_score": storm.score, "vector_rank": 1}
    assert {found.passage.text for found in await client.passages.search(query="radio rain")} == {
        "A storm is coming.", "Rain, says the radio.",
    }  # fmt: skip
    assert len(await client.passages.search(query="radio", archive_id=archive.id)) == 1
    everything = await client.passages.search()
    assert [(found.score, found.metadata) for found in everything] == [(0.0, {}), (0.0, {})]
    now = datetime.now(UTC)
    assert await client.passages.search(start_date=now) == []
    assert len(await client.passages.search(end_date=now, limit=1)) == 1


async def test_an_insert_answers_while_the_embedding_model_is_away(client: AsyncLetta, models: ModelServer) -> None:
    agent_id = await an_agent(client, EMBEDDING)
    models.embeddings.is_away = True
    [stored] = await client.agents.passages.create(agent_id, text="A storm is coming.")
    assert stored.embedding is None
    assert (await client.agents.passages.search(agent_id, query="storm")).count == 1


async def test_requests_over_a_limit_name_the_field_and_the_fix(client: AsyncLetta, http: httpx.AsyncClient) -> None:
    agent_id = await an_agent(client)
    with pytest.raises(BadRequestError, match="text has 50001 characters, and a passage may have 50000: split it"):
        await client.agents.passages.create(agent_id, text="x" * (LONGEST_TEXT + 1))
    with pytest.raises(BadRequestError, match="text is empty"):
        await client.agents.passages.create(agent_id, text=" ")
    with pytest.raises(BadRequestError, match=r"tags: 'y+' has 501 characters"):
        await client.agents.passages.create(agent_id, text="x", tags=["y" * 501])
    with pytest.raises(UnprocessableEntityError, match="tags"):
        await client.agents.passages.create(agent_id, text="x", tags=[str(n) for n in range(MOST_TAGS + 1)])
    with pytest.raises(UnprocessableEntityError, match="top_k"):
        await client.agents.passages.search(agent_id, query="x", top_k=101)
    with pytest.raises(UnprocessableEntityError, match="limit"):
        await client.passages.search(limit=101)
    with pytest.raises(UnprocessableEntityError, match="name"):
        await client.archives.create(name="")
    archive = await client.archives.create(name="x")
    many: list[Passage] = [{"text": "x"} for _ in range(501)]
    with pytest.raises(UnprocessableEntityError, match="passages"):
        await client.archives.passages.create_many(archive.id, passages=many)
    assert (await http.get("/v1/archives/archive-1")).status_code == 422


async def test_what_is_not_there_is_a_404(client: AsyncLetta) -> None:
    agent_id = await an_agent(client)
    attempts = (
        client.archives.retrieve(NOWHERE),
        client.archives.update(NOWHERE, name="x"),
        client.archives.delete(NOWHERE),
        client.archives.passages.create(NOWHERE, text="x"),
        client.archives.passages.create_many(NOWHERE, passages=[{"text": "x"}]),
        client.agents.archives.attach(NOWHERE, agent_id=agent_id),
        client.agents.archives.detach(NOWHERE, agent_id=agent_id),
        client.passages.search(query="x", archive_id=NOWHERE),
    )
    for attempt in attempts:
        with pytest.raises(APIStatusError) as refused:
            await attempt
        assert refused.value.status_code == 404


async def test_a_passage_for_another_projects_agent_told_that_the_agent_has_an_archive_and_its_id(
    database: Database,
) -> None:
    async with api_client(database, api_keys="one=k1,two=k2") as http:
        one, two = {"Authorization": "Bearer k1"}, {"Authorization": "Bearer k2"}
        agent = (await http.post("/v1/agents", json={"model": "builtin/echo"}, headers=one)).json()["id"]
        path = f"/v1/agents/{agent}/archival-memory"
        assert (await http.post(path, json={"text": "x"}, headers=one)).status_code == 200
        refused = await http.post(path, json={"text": "x"}, headers=two)
        assert (refused.status_code, refused.json()["detail"]) == (404, f"Agent with ID {agent} not found")
