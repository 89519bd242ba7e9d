"""Archival memory of agents: their passages, and the archives that they have."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from api.dependencies import AgentIdPath, ArchiveIdPath, EnvironmentDep, Limit, ProjectDep, served
from api.direct_route import LateRoute
from api.letta.passages import PassageCreate, aware, wire_memories, wire_passage, wire_passages
from shared.archival.archival_memory import ArchivalMemory
from shared.domain.ids import PassageId
from shared.domain.searches import DEFAULT_FOUND, LONGEST_QUERY, MOST_FOUND, MOST_TAGS, PassageQuery, moment_of
from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassagePage, PassageStore
from shared.sql.definitions.agent_changes import AgentEditor

AgentEditorDep = Annotated[AgentEditor, served(AgentEditor)]
ArchivalMemoryDep = Annotated[ArchivalMemory, served(ArchivalMemory)]
ArchiveStoreDep = Annotated[ArchiveStore, served(ArchiveStore)]
PassageStoreDep = Annotated[PassageStore, served(PassageStore)]

router = APIRouter(prefix="/v1/agents/{agent_id}", tags=["agents"], route_class=LateRoute)


@router.get("/archival-memory")
async def list_memories(
    agent_id: AgentIdPath,
    passage_store: PassageStoreDep,
    environment: EnvironmentDep,
    project_id: ProjectDep,
    limit: Limit = 100,
    after: str | None = None,
    before: str | None = None,
    search: str | None = None,
    ascending: bool = True,
) -> list[dict[str, Any]]:
    """The passages in the agent's archives."""
    page = PassagePage(limit, after or None, before or None, ascending, search)
    found = await passage_store.list_of_agent(project_id, agent_id, page)
    return await wire_passages(found, environment)


@router.post("/archival-memory")
async def create_memory(
    agent_id: AgentIdPath,
    body: PassageCreate,
    archival_memory: ArchivalMemoryDep,
    environment: EnvironmentDep,
    project_id: ProjectDep,
) -> list[dict[str, Any]]:
    """Stores a passage in the agent's archive, which is made with the first one."""
    passage = await archival_memory.insert(
        project_id, agent_id, body.text, body.tags or (), created_at=aware(body.created_at)
    )
    return [wire_passage(passage, environment)]


@router.get("/archival-memory/search")
async def search_memories(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    archival_memory: ArchivalMemoryDep,
    project_id: ProjectDep,
    query: Annotated[str, Query(max_length=LONGEST_QUERY)],
    tags: Annotated[list[str] | None, Query(max_length=MOST_TAGS)] = None,
    tag_match_mode: Literal["any", "all"] = "any",
    top_k: Annotated[int, Query(ge=1, le=MOST_FOUND)] = DEFAULT_FOUND,
    start_datetime: str | None = None,
    end_datetime: str | None = None,
) -> dict[str, Any]:
    """Finds passages by words and by meaning, as the agent's own tool does."""
    agent = await editor.get(project_id, agent_id)
    found = await archival_memory.search(
        project_id,
        PassageQuery(
            text=query,
            agent_id=agent_id,
            tags=tags or (),
            match_all_tags=tag_match_mode == "all",
            start=moment_of(start_datetime, agent.timezone, "start_datetime") if start_datetime else None,
            end=moment_of(end_datetime, agent.timezone, "end_datetime", is_end=True) if end_datetime else None,
            limit=top_k,
        ),
    )
    return wire_memories(found, agent.timezone)


@router.delete("/archival-memory/{memory_id}")
async def delete_memory(
    agent_id: AgentIdPath, memory_id: str, passage_store: PassageStoreDep, project_id: ProjectDep
) -> dict[str, str]:
    """Deletes a passage of the agent's."""
    await passage_store.delete_from_agent(project_id, agent_id, PassageId(memory_id))
    return {"message": f"Memory id={memory_id} successfully deleted"}


@router.patch("/archives/attach/{archive_id}")
async def attach_archive(
    agent_id: AgentIdPath, archive_id: ArchiveIdPath, archive_store: ArchiveStoreDep, project_id: ProjectDep
) -> None:
    """Gives the agent an archive."""
    await archive_store.attach(project_id, agent_id, archive_id)


@router.patch("/archives/detach/{archive_id}")
async def detach_archive(
    agent_id: AgentIdPath, archive_id: ArchiveIdPath, archive_store: ArchiveStoreDep, project_id: ProjectDep
) -> None:
    """Takes an archive from the agent; the archive stays."""
    await archive_store.detach(project_id, agent_id, archive_id)
