"""Memory on Letta's wire: blocks, archives and their passages."""

import re
from collections.abc import Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, datetime
from typing import Annotated, Any, Literal, Self

from msgspec.structs import replace
from pydantic import AfterValidator, BaseModel, Field, model_validator

from api.input_limits import Description, Metadata, Name, Tags
from api.letta.messages import Moment, wire_time
from api.letta.model_settings import EmbeddingConfigFields, wire_embedding_config
from shared.concurrency import beside
from shared.domain.agents import Block, zone_of
from shared.domain.errors import BlockTooLong, InvalidRequest
from shared.domain.ids import UUID4_PATTERN, AgentId, ArchiveId, IdMaker, ProjectId
from shared.domain.models import LONGEST_HANDLE
from shared.domain.searches import (
    LONGEST_QUERY,
    MOST_FOUND,
    MOST_TAGS,
    Archive,
    FoundPassage,
    NewPassage,
    Passage,
    PassageQuery,
)

DEFAULT_LIMIT = 100_000
_VARIABLE = re.compile(r"\{\{\s*(?P<name>\w+)\s*\}\}")


class BlockCreate(BaseModel):
    """A block to create."""

    label: Name = Field(min_length=1)
    value: str
    description: Description | None = None
    limit: int = Field(default=DEFAULT_LIMIT, ge=1)
    read_only: bool = False
    metadata: Metadata | None = None
    tags: Tags | None = None

    @model_validator(mode="after")
    def fits(self) -> Self:
        """Checks that the value is within the limit."""
        if len(self.value) > self.limit:
            raise ValueError(f"value has {len(self.value)} characters, more than the limit of {self.limit}")
        return self


def filled_in(block: BlockCreate, variables: Mapping[str, str]) -> BlockCreate:
    """The block with each `{{name}}` replaced by the variable's value. Unknown names stay. Raises `InvalidRequest` if
    the value then exceeds its limit."""
    value = _VARIABLE.sub(lambda found: variables.get(found["name"], found[0]), block.value)
    if len(value) > block.limit:
        raise InvalidRequest(
            f"memory_variables: {block.label} would have more characters than its limit {block.limit}",
            field="memory_variables",
        )
    return block.model_copy(update={"value": value})


class BlockUpdate(BaseModel):
    """The changes to a block. A field that is omitted or null stays."""

    label: Name | None = Field(default=None, min_length=1)
    value: str | None = None
    description: Description | None = None
    limit: int | None = Field(default=None, ge=1)
    read_only: bool | None = None
    metadata: Metadata | None = None
    tags: Tags | None = None

    def apply(self, block: Block) -> Block:
        """The block after the change. Raises `BlockTooLong` if the value exceeds its limit."""
        changed = replace(block, **self.model_dump(exclude_none=True))
        if len(changed.value) > changed.limit:
            raise BlockTooLong(
                f"value: {len(changed.value)} characters are more than the block's limit of {changed.limit}"
            )
        return changed


def new_block(body: BlockCreate, project_id: ProjectId, ids: IdMaker, now: datetime) -> Block:
    """The block that the request describes."""
    return Block(
        id=ids.block(),
        project_id=project_id,
        label=body.label,
        value=body.value,
        description=body.description,
        limit=body.limit,
        read_only=body.read_only,
        metadata=body.metadata or {},
        tags=body.tags or [],
        created_at=now,
        updated_at=now,
    )


def wire_block(block: Block) -> dict[str, Any]:
    """The wire's block."""
    return {
        "id": block.id,
        "label": block.label,
        "value": block.value,
        "description": block.description,
        "limit": block.limit,
        "read_only": block.read_only,
        "metadata": block.metadata,
        "tags": block.tags,
        "project_id": None,
        "template_name": None,
        "is_template": False,
        "template_id": None,
        "base_template_id": None,
        "deployment_id": None,
        "entity_id": None,
        "preserve_on_migration": False,
        "hidden": None,
        "created_by_id": None,
        "last_updated_by_id": None,
    }


MOST_AT_ONCE = 500
"""Passages per request."""

PassageTags = Annotated[list[str], Field(max_length=MOST_TAGS)]


def _in_every_zone(moment: datetime) -> datetime:
    if not MINYEAR < moment.year < MAXYEAR:  # agents read times in their own zone
        raise ValueError(f"the time of a passage must be in the years {MINYEAR + 1} to {MAXYEAR - 1}")
    return moment


class PassageCreate(BaseModel):
    """A passage to store."""

    text: str
    tags: PassageTags | None = None
    metadata: Metadata | None = None
    created_at: Annotated[Moment, AfterValidator(_in_every_zone)] | None = None


class PassagesCreate(BaseModel):
    """Passages to store, all or none."""

    passages: Annotated[list[PassageCreate], Field(max_length=MOST_AT_ONCE)]


class PassageSearch(BaseModel):
    """A search over the passages of a project."""

    query: Annotated[str, Field(max_length=LONGEST_QUERY)] | None = None
    agent_id: Annotated[str, Field(pattern=f"^agent-{UUID4_PATTERN}$")] | None = None
    archive_id: Annotated[str, Field(pattern=f"^archive-{UUID4_PATTERN}$")] | None = None
    tags: PassageTags | None = None
    tag_match_mode: Literal["any", "all"] = "any"
    limit: int = Field(default=50, ge=1, le=MOST_FOUND)
    start_date: Moment | None = None
    end_date: Moment | None = None

    def as_query(self) -> PassageQuery:
        """The search in the domain's terms. On the wire an empty query means no query."""
        return PassageQuery(
            text=self.query or None,
            agent_id=AgentId(self.agent_id) if self.agent_id else None,
            archive_id=ArchiveId(self.archive_id) if self.archive_id else None,
            tags=self.tags or (),
            match_all_tags=self.tag_match_mode == "all",
            start=self.start_date,
            end=self.end_date,
            limit=self.limit,
        )


def new_passages(bodies: Sequence[PassageCreate], ids: IdMaker, now: datetime) -> list[NewPassage]:
    """The passages that a request describes."""
    return [
        NewPassage(
            id=ids.passage(),
            text=body.text,
            tags=body.tags or (),
            metadata=body.metadata or {},
            created_at=body.created_at or now,
        )
        for body in bodies
    ]


def wire_passage(passage: Passage, environment: Mapping[str, str]) -> dict[str, Any]:
    """The wire's passage."""
    return {
        "created_by_id": None,
        "last_updated_by_id": None,
        "created_at": wire_time(passage.created_at),
        "updated_at": wire_time(passage.updated_at),
        "is_deleted": False,
        "organization_id": None,
        "archive_id": passage.archive_id,
        "source_id": None,
        "file_id": None,
        "file_name": None,
        "metadata": passage.metadata,
        "tags": passage.tags or None,
        "id": passage.id,
        "text": passage.text,
        "embedding": None if passage.vector is None else list(passage.vector),
        "embedding_config": wire_embedding_config(passage.model, environment),
    }


async def wire_passages(found: Sequence[Passage], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """The wire's passages. A vector has thousands of numbers, so a thread renders long lists."""
    size = sum(CHARACTERS_OF_A_PASSAGE + len(passage.vector or ()) for passage in found)
    return await beside(lambda: [wire_passage(passage, environment) for passage in found], size)


CHARACTERS_OF_A_PASSAGE = 500


def wire_found(found: FoundPassage, environment: Mapping[str, str]) -> dict[str, Any]:
    """A result of a search over the project."""
    ranks = {"combined_score": found.score, "vector_rank": found.vector_rank, "fts_rank": found.word_rank}
    return {
        "passage": wire_passage(found.passage, environment),
        "score": found.score,
        "metadata": {name: value for name, value in ranks.items() if value} if found.score else {},
    }


def wire_memories(found: Sequence[FoundPassage], timezone: str) -> dict[str, Any]:
    """The results of a search of an agent, in the agent's time."""
    zone = zone_of(timezone)
    results = [
        {
            "id": one.passage.id,
            "timestamp": one.passage.created_at.astimezone(zone).isoformat(),
            "content": one.passage.text,
            "tags": one.passage.tags,
        }
        for one in found
    ]
    return {"results": results, "count": len(results)}


# Archives on Letta's wire.


LONGEST_NAME = 1000


class ArchiveCreate(BaseModel):
    """An archive to create."""

    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    description: Description | None = None
    embedding: str | None = Field(default=None, min_length=1, max_length=LONGEST_HANDLE)
    embedding_config: EmbeddingConfigFields | None = None


class ArchiveUpdate(BaseModel):
    """The changes to an archive. A field that is omitted or null stays."""

    name: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    description: Description | None = None


def new_archive(body: ArchiveCreate, project_id: ProjectId, ids: IdMaker, now: datetime) -> Archive:
    """The archive that the request describes."""
    config = body.embedding_config.full_handle() if body.embedding_config else None
    return Archive(
        id=ids.archive(),
        project_id=project_id,
        name=body.name,
        description=body.description,
        embedding=config or body.embedding,
        created_at=now,
        updated_at=now,
    )


def wire_archive(archive: Archive, environment: Mapping[str, str]) -> dict[str, Any]:
    """The wire's archive."""
    return {
        "created_by_id": None,
        "last_updated_by_id": None,
        "created_at": wire_time(archive.created_at),
        "updated_at": wire_time(archive.updated_at),
        "name": archive.name,
        "description": archive.description,
        "organization_id": None,
        "vector_db_provider": "native",
        "embedding_config": wire_embedding_config(archive.embedding, environment),
        "metadata": {},
        "id": archive.id,
    }
