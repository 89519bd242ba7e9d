"""Archives on Letta's wire."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from api.letta.agents import EmbeddingConfigFields
from api.letta.bounded_fields import Description
from api.letta.envelope import wire_time
from api.letta.model_settings import wire_embedding_config
from shared.domain.archival import Archive
from shared.domain.ids import IdMaker, ProjectId
from shared.domain.model_providers import LONGEST_HANDLE

LONGEST_NAME = 1000


class ArchiveCreate(BaseModel):
    """An archive to make."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    description: Description | None = None
    embedding: str | None = Field(default=None, min_length=1, max_length=LONGEST_HANDLE)
    embedding_config: EmbeddingConfigFields | None = None


class ArchiveUpdate(BaseModel):
    """What to change of an archive. A field that is left out, or null, stays."""

    model_config = ConfigDict(extra="ignore")

    name: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    description: Description | None = None


def new_archive(body: ArchiveCreate, project_id: ProjectId, ids: IdMaker, now: datetime) -> Archive:
    """The archive that the request asks for."""
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
