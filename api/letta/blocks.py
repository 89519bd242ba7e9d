"""Memory blocks on Letta's wire."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.input_limits import Description, Metadata, Name, Tags
from shared.domain.agents import Block
from shared.domain.errors import BlockTooLong, InvalidRequest
from shared.domain.ids import IdMaker, ProjectId

DEFAULT_LIMIT = 100_000
_VARIABLE = re.compile(r"\{\{\s*(?P<name>\w+)\s*\}\}")


class BlockCreate(BaseModel):
    """A block to create."""

    model_config = ConfigDict(extra="ignore")

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

    model_config = ConfigDict(extra="ignore")

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
