"""Memory: a project's blocks, archives and their passages, their search, tags, and the archival memory of agents."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from api.agent_answers import AgentAnswers
from api.dependencies import (
    AgentEditorDep,
    AgentIdPath,
    ArchiveIdPath,
    BlockIdPath,
    ClockDep,
    EnvironmentDep,
    IdMakerDep,
    Included,
    Limit,
    NewestFirst,
    Number,
    Numbers,
    OldestFirst,
    OptionalAgentIdQuery,
    PassageIdPath,
    ProjectDep,
    Texts,
    served,
)
from api.direct_route import LateRoute
from api.letta.memory import (
    ArchiveCreate,
    ArchiveUpdate,
    BlockCreate,
    BlockUpdate,
    PassageCreate,
    PassagesCreate,
    PassageSearch,
    new_archive,
    new_block,
    new_passages,
    wire_archive,
    wire_block,
    wire_found,
    wire_memories,
    wire_passage,
    wire_passages,
)
from shared.archival.archival_memory import ArchivalMemory
from shared.domain.ids import PassageId
from shared.domain.searches import DEFAULT_FOUND, LONGEST_QUERY, MOST_FOUND, MOST_TAGS, PassageQuery, moment_of
from shared.sql.archival.archives import ArchiveFilter, ArchiveStore
from shared.sql.archival.passages import PassagePage, PassageStore
from shared.sql.definitions.agents import AgentFilter
from shared.sql.definitions.blocks import BlockFilter, BlockStore, TagStore
from shared.sql.paging import MOST_ROWS, refuse_part

AgentAnswersDep = Annotated[AgentAnswers, served(AgentAnswers)]
ArchivalMemoryDep = Annotated[ArchivalMemory, served(ArchivalMemory)]
ArchiveStoreDep = Annotated[ArchiveStore, served(ArchiveStore)]
BlockStoreDep = Annotated[BlockStore, served(BlockStore)]
PassageStoreDep = Annotated[PassageStore, served(PassageStore)]
TagStoreDep = Annotated[TagStore, served(TagStore)]

router = APIRouter(prefix="/v1/archives", tags=["archives"], route_class=LateRoute)


@router.post("")
async def create_archive(
    body: ArchiveCreate,
    ids: IdMakerDep,
    clock: ClockDep,
    archive_store: ArchiveStoreDep,
    environment: EnvironmentDep,
    project_id: ProjectDep,
) -> dict[str, Any]:
    """Creates an archive."""
    archive = new_archive(body, project_id, ids, clock.now())
    return wire_archive(await archive_store.create(archive), environment)


@router.get("")
async def list_archives(
    archive_store: ArchiveStoreDep,
    environment: EnvironmentDep,
    project_id: ProjectDep,
    page: NewestFirst,
    name: Annotated[str | None, Query()] = None,
    agent_id: OptionalAgentIdQuery = None,
) -> list[dict[str, Any]]:
    """The project's archives."""
    found = await archive_store.list(project_id, ArchiveFilter(name, agent_id), page)
    return [wire_archive(archive, environment) for archive in found]


@router.get("/{archive_id}")
async def retrieve_archive(
    archive_id: ArchiveIdPath, archive_store: ArchiveStoreDep, environment: EnvironmentDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One archive."""
    return wire_archive(await archive_store.get(project_id, archive_id), environment)


@router.patch("/{archive_id}")
async def update_archive(
    archive_id: ArchiveIdPath,
    body: ArchiveUpdate,
    archive_store: ArchiveStoreDep,
    clock: ClockDep,
    environment: EnvironmentDep,
    project_id: ProjectDep,
) -> dict[str, Any]:
    """Changes an archive's name and description."""
    archive = await archive_store.update(
        project_id, archive_id, name=body.name, description=body.description, now=clock.now()
    )
    return wire_archive(archive, environment)


@router.delete("/{archive_id}", status_code=204, response_class=Response)
async def delete_archive(archive_id: ArchiveIdPath, archive_store: ArchiveStoreDep, project_id: ProjectDep) -> None:
    """Deletes an archive with its passages, and detaches it from its agents."""
    await archive_store.delete(project_id, archive_id)


@router.get("/{archive_id}/agents")
async def list_agents_of_archive(
    archive_id: ArchiveIdPath,
    archive_store: ArchiveStoreDep,
    editor: AgentEditorDep,
    agent_answers: AgentAnswersDep,
    project_id: ProjectDep,
    page: NewestFirst,
    include: Included = None,
) -> list[dict[str, Any]]:
    """The agents to which the archive is attached."""
    await archive_store.get(project_id, archive_id)
    agents = await editor.list(project_id, AgentFilter(archive_id=archive_id), page)
    return await agent_answers.all(agents, include)


@router.post("/{archive_id}/passages")
async def create_passage(
    archive_id: ArchiveIdPath,
    body: PassageCreate,
    ids: IdMakerDep,
    clock: ClockDep,
    archival_memory: ArchivalMemoryDep,
    environment: EnvironmentDep,
    project_id: ProjectDep,
) -> dict[str, Any]:
    """Stores a passage in the archive."""
    new = new_passages([body], ids, clock.now())
    [passage] = await archival_memory.insert_into(project_id, archive_id, new)
    return wire_passage(passage, environment)


@router.post("/{archive_id}/passages/batch")
async def create_passages(
    archive_id: ArchiveIdPath,
    body: PassagesCreate,
    ids: IdMakerDep,
    clock: ClockDep,
    archival_memory: ArchivalMemoryDep,
    environment: EnvironmentDep,
    project_id: ProjectDep,
) -> list[dict[str, Any]]:
    """Stores passages in the archive, all or none."""
    new = new_passages(body.passages, ids, clock.now())
    stored = await archival_memory.insert_into(project_id, archive_id, new)
    return await wire_passages(stored, environment)


@router.delete("/{archive_id}/passages/{passage_id}", status_code=204, response_class=Response)
async def delete_passage(
    archive_id: ArchiveIdPath, passage_id: PassageIdPath, passage_store: PassageStoreDep, project_id: ProjectDep
) -> None:
    """Deletes a passage of the archive."""
    await passage_store.delete_from_archive(project_id, archive_id, passage_id)


blocks_router = APIRouter(prefix="/v1/blocks", tags=["blocks"], route_class=LateRoute)


@blocks_router.post("")
async def create_block(
    body: BlockCreate, ids: IdMakerDep, clock: ClockDep, block_store: BlockStoreDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Creates a block."""
    block = new_block(body, project_id, ids, clock.now())
    return wire_block(await block_store.create(block))


@blocks_router.get("")
async def list_blocks(
    block_store: BlockStoreDep,
    project_id: ProjectDep,
    page: OldestFirst,
    label: str | None = None,
    label_search: str | None = None,
    description_search: str | None = None,
    value_search: str | None = None,
    tags: Texts = None,
    match_all_tags: bool = False,
    connected_to_agents_count_gt: Number | None = None,
    connected_to_agents_count_lt: Number | None = None,
    connected_to_agents_count_eq: Numbers = None,
    name: str | None = None,
    templates_only: bool = False,
    identity_id: str | None = None,
    identifier_keys: Texts = None,
) -> list[dict[str, Any]]:
    """The project's blocks. Filters by template or identity find none."""
    if name or templates_only or identity_id or identifier_keys:
        return []
    wanted = BlockFilter(
        label=label,
        label_search=label_search,
        description_search=description_search,
        value_search=value_search,
        tags=tags or (),
        match_all_tags=match_all_tags,
        agents_more_than=connected_to_agents_count_gt,
        agents_less_than=connected_to_agents_count_lt,
        agents_exactly=connected_to_agents_count_eq,
    )
    return [wire_block(block) for block in await block_store.list(project_id, wanted, page)]


@blocks_router.get("/count")
async def count_blocks(block_store: BlockStoreDep, project_id: ProjectDep) -> int:
    """The number of the project's blocks."""
    return await block_store.count(project_id)


@blocks_router.get("/{block_id}")
async def retrieve_block(block_id: BlockIdPath, block_store: BlockStoreDep, project_id: ProjectDep) -> dict[str, Any]:
    """One block."""
    return wire_block(await block_store.get(project_id, block_id))


@blocks_router.patch("/{block_id}")
async def update_block(
    block_id: BlockIdPath, body: BlockUpdate, block_store: BlockStoreDep, clock: ClockDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes a block, and thereby the instructions of its agents."""
    return wire_block(await block_store.update(project_id, block_id, body.apply, clock.now()))


@blocks_router.delete("/{block_id}")
async def delete_block(block_id: BlockIdPath, block_store: BlockStoreDep, project_id: ProjectDep) -> dict[str, str]:
    """Deletes a block and detaches it from its agents."""
    await block_store.delete(project_id, block_id)
    return {"message": f"Block id={block_id} successfully deleted"}


@blocks_router.get("/{block_id}/agents")
async def list_agents_of_block(
    block_id: BlockIdPath,
    block_store: BlockStoreDep,
    editor: AgentEditorDep,
    agent_answers: AgentAnswersDep,
    project_id: ProjectDep,
    page: NewestFirst,
    include: Included = None,
) -> list[dict[str, Any]]:
    """The agents that have the block."""
    await block_store.get(project_id, block_id)
    agents = await editor.list(project_id, AgentFilter(block_id=block_id, show_hidden=True), page)
    return await agent_answers.all(agents, include)


passages_router = APIRouter(prefix="/v1/passages", tags=["passages"], route_class=LateRoute)


@passages_router.post("/search")
async def search_passages(
    body: PassageSearch, archival_memory: ArchivalMemoryDep, environment: EnvironmentDep, project_id: ProjectDep
) -> list[dict[str, Any]]:
    """Finds passages by words and by meaning, in an agent, in an archive, or in the whole project."""
    found = await archival_memory.search(project_id, body.as_query())
    return [wire_found(one, environment) for one in found]


tags_router = APIRouter(prefix="/v1/tags", tags=["tags"], route_class=LateRoute)


@tags_router.get("")
async def list_tags(
    tag_store: TagStoreDep,
    project_id: ProjectDep,
    page: OldestFirst,
    name: str | None = None,
    query_text: str | None = None,
) -> list[str]:
    """The tags of agents and blocks, by name. `query_text` is the older name of `name`."""
    return await tag_store.list(project_id, page, name or query_text)


# Archival memory of agents: their passages and archives.


archival_router = APIRouter(prefix="/v1/agents/{agent_id}", tags=["agents"], route_class=LateRoute)


@archival_router.get("/archival-memory")
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
    page = PassagePage(min(limit, MOST_ROWS + 1), after or None, before or None, ascending, search)
    found = await passage_store.list_of_agent(project_id, agent_id, page)
    refuse_part(found)
    return await wire_passages(found, environment)


@archival_router.post("/archival-memory")
async def create_memory(
    agent_id: AgentIdPath,
    body: PassageCreate,
    archival_memory: ArchivalMemoryDep,
    environment: EnvironmentDep,
    project_id: ProjectDep,
) -> list[dict[str, Any]]:
    """Stores a passage in the agent's archive. The first passage creates the archive."""
    passage = await archival_memory.insert(project_id, agent_id, body.text, body.tags or (), created_at=body.created_at)
    return [wire_passage(passage, environment)]


@archival_router.get("/archival-memory/search")
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


@archival_router.delete("/archival-memory/{memory_id}")
async def delete_memory(
    agent_id: AgentIdPath, memory_id: str, passage_store: PassageStoreDep, project_id: ProjectDep
) -> dict[str, str]:
    """Deletes one of the agent's passages."""
    await passage_store.delete_from_agent(project_id, agent_id, PassageId(memory_id))
    return {"message": f"Memory id={memory_id} successfully deleted"}


@archival_router.patch("/archives/attach/{archive_id}")
async def attach_archive(
    agent_id: AgentIdPath, archive_id: ArchiveIdPath, archive_store: ArchiveStoreDep, project_id: ProjectDep
) -> None:
    """Gives the agent an archive."""
    await archive_store.attach(project_id, agent_id, archive_id)


@archival_router.patch("/archives/detach/{archive_id}")
async def detach_archive(
    agent_id: AgentIdPath, archive_id: ArchiveIdPath, archive_store: ArchiveStoreDep, project_id: ProjectDep
) -> None:
    """Takes an archive from the agent; the archive stays."""
    await archive_store.detach(project_id, agent_id, archive_id)
