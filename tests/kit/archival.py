"""Archival memory over a database and a model server that embeds."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shared.archival.archival_memory import ArchivalMemory, EmbeddingClient, EmbeddingMaintenance
from shared.domain.agents import Agent
from shared.domain.ids import IdMaker, ProjectId
from shared.domain.searches import Archive, NewPassage, Passage, PassageQuery
from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassageSearchStore, PassageStore, VectorStore
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.engine import Database
from tests.kit.clocks import SettableClock
from tests.kit.model_server import ModelServer
from tests.kit.runs.definitions import NOW, PROJECT, some_agent
from tests.kit.services.databases import open_database

EMBEDDING = "openai/text-embedding-3-small"
IDS = IdMaker()


def new_passage(text: str, **fields: Any) -> NewPassage:
    """A passage to store."""
    given: dict[str, Any] = {"id": IDS.passage(), "created_at": NOW, **fields}
    return NewPassage(text=text, **given)


@dataclass
class Archival:
    """The services of one process, and their database."""

    database: Database
    server: ModelServer
    clock: SettableClock
    memory: ArchivalMemory
    maintenance: EmbeddingMaintenance
    archives: ArchiveStore
    agents: AgentEditor

    @property
    def passages(self) -> PassageStore:
        return self.memory.passages

    async def agent(self, *, project_id: ProjectId = PROJECT, **fields: Any) -> Agent:
        """A stored agent."""
        agent = some_agent(project_id=project_id, **fields)
        return (await self.agents.create(agent, system_message_id=IDS.message())).agent

    async def archive(self, *, project_id: ProjectId = PROJECT, **fields: Any) -> Archive:
        """A stored archive."""
        given: dict[str, Any] = {"id": IDS.archive(), "name": "Shared", "created_at": NOW, "updated_at": NOW, **fields}
        return await self.archives.create(Archive(project_id=project_id, **given))

    async def remember(
        self, agent: Agent, *texts: str, tags: Sequence[str] = (), created_at: datetime | None = None
    ) -> list[Passage]:
        """Stores texts, one after the other."""
        return [
            await self.memory.insert(agent.project_id, agent.id, text, tags, created_at=created_at) for text in texts
        ]

    async def find(self, text: str | None, *, project_id: ProjectId = PROJECT, **wanted: Any) -> list[str]:
        """The texts that a search finds, the best first."""
        found = await self.memory.search(project_id, PassageQuery(text=text, **wanted))
        return [one.passage.text for one in found]


@asynccontextmanager
async def archival_memory(
    database_url: str, *, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[Archival]:
    """Archival memory for the block. `environment`: the variables of models, instead of the model server's."""
    async with open_database(database_url) as database, ModelServer() as server:
        clock, vectors = SettableClock(), VectorStore(database)
        client = EmbeddingClient(server.base_urls() if environment is None else environment)
        memory = ArchivalMemory(
            passages=PassageStore(database),
            vectors=vectors,
            finder=PassageSearchStore(database),
            client=client,
            clock=clock,
            ids=IDS,
        )
        maintenance = EmbeddingMaintenance(vectors=vectors, client=client, clock=clock)
        try:
            yield Archival(database, server, clock, memory, maintenance, ArchiveStore(database), AgentEditor(database))
        finally:
            await client.aclose()
