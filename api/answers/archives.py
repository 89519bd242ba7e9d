"""Archival memory."""

from typing_extensions import TypedDict

from api.answers.definitions import EmbeddingConfig
from api.answers.values import Fields, Nothing, Time


class Archive(TypedDict):
    """A place for passages, which agents may share."""

    created_by_id: Nothing
    last_updated_by_id: Nothing
    created_at: Time
    updated_at: Time
    name: str
    description: str | None
    organization_id: Nothing
    vector_db_provider: str
    embedding_config: EmbeddingConfig | None
    metadata: Fields
    id: str


class Passage(TypedDict):
    """A text in archival memory."""

    created_by_id: Nothing
    last_updated_by_id: Nothing
    created_at: Time
    updated_at: Time
    is_deleted: bool
    organization_id: Nothing
    archive_id: str
    source_id: Nothing
    file_id: Nothing
    file_name: Nothing
    metadata: Fields
    tags: list[str] | None
    id: str
    text: str
    embedding: list[float] | None
    embedding_config: EmbeddingConfig | None


class FoundMemory(TypedDict):
    """A passage that an agent's search found."""

    id: str
    timestamp: Time
    content: str
    tags: list[str]


class FoundMemories(TypedDict):
    """What an agent's search found."""

    results: list[FoundMemory]
    count: int


class FoundPassage(TypedDict):
    """A passage that a search found, and why it stands in its place."""

    passage: Passage
    score: float
    metadata: Fields
