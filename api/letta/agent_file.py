"""Letta's agent file (`.af`): what such a file may hold, checked before anything is made of it.

Fields that Holdfast does not know are left out, so that files of newer servers can be read.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from api.letta.bounded_fields import MOST_ENTRIES, Few
from api.letta.refusals import place_of
from shared.domain.errors import InvalidRequest
from shared.json_limits import flaw_of_document

MAX_AGENTS = 100
MAX_MESSAGES = 10_000
LONGEST_ERROR = 1000

LEGACY = (
    "Legacy AgentSchema format is deprecated. Please use the new AgentFileSchema format with 'agents' field. "
    "A Letta server since 0.11 writes it: export the agent there again."
)

Parsed = TypeVar("Parsed", bound=BaseModel)


def _in_utc(moment: datetime) -> datetime:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if not 1970 <= aware.year <= 2200:
        raise ValueError("a time must be in the years 1970 to 2200")
    return aware.astimezone(UTC)


Moment = Annotated[datetime, AfterValidator(_in_utc)]
Id = Annotated[str, Field(min_length=1, max_length=200)]
"""An id inside the file. It means nothing outside of it."""
CallId = Annotated[str, Field(min_length=1)]


class FilePart(BaseModel):
    """A piece of a file. Texts, numbers and lists are taken as they are, never turned into one another."""

    model_config = ConfigDict(extra="ignore")


class FileFunction(FilePart):
    """What a call of a model names."""

    name: str = Field(min_length=1)
    arguments: str


class FileCall(FilePart):
    """A tool call of a model."""

    id: CallId
    function: FileFunction


class FileReturn(FilePart):
    """What a tool call came to."""

    tool_call_id: CallId | None = None
    status: Literal["success", "error"] = "success"
    stdout: list[str] | None = None
    stderr: list[str] | None = None
    func_response: str | list[dict[str, Any]] | None = None


class FileDecision(FileReturn):
    """What a person decided about a call, or the result that a client brought instead."""

    approve: bool | None = None
    reason: str | None = None
    tool_return: str | list[dict[str, Any]] | None = None
    edited_arguments: str | None = None


class FileMessage(FilePart):
    """A message of an agent's history."""

    id: Id
    role: Literal["system", "user", "assistant", "tool", "approval", "summary"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    model: str | None = None
    tool_calls: list[FileCall] | None = None
    tool_call_id: str | None = None
    tool_returns: list[FileReturn] | None = None
    approvals: list[FileDecision] | None = None
    approve: bool | None = None
    approval_request_id: str | None = None
    denial_reason: str | None = None
    created_at: Moment | None = None


class FileAgent(FilePart):
    """An agent. Its settings are read as a request to make one."""

    model_config = ConfigDict(extra="allow")

    id: Id
    name: str = Field(min_length=1)
    messages: list[FileMessage] = Field(default=[], max_length=MAX_MESSAGES)
    in_context_message_ids: list[str] | None = None
    tool_ids: list[str] | None = Field(default=None, max_length=MOST_ENTRIES)
    block_ids: list[str] | None = Field(default=None, max_length=MOST_ENTRIES)
    source_ids: list[str] | None = None
    files_agents: list[Any] | None = None
    identity_ids: list[str] | None = None
    secrets: dict[str, str] | None = None
    tool_exec_environment_variables: dict[str, str] | None = None
    metadata: dict[str, Any] | None = None
    llm_config: dict[str, Any] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that are no part of the file's own structure."""
        return dict(self.model_extra or {})

    @property
    def secret_names(self) -> list[str]:
        """The names of the variables that its tools see. The values are not in the file."""
        return list({**(self.tool_exec_environment_variables or {}), **(self.secrets or {})})


class FileBlock(FilePart):
    """A memory block. Its fields are read as a request to make one."""

    model_config = ConfigDict(extra="allow")

    id: Id


class FileTool(FilePart):
    """A tool. The fields of a tool that a client made are read as a request to make one."""

    model_config = ConfigDict(extra="allow")

    id: Id
    name: str = Field(min_length=1)
    tool_type: str = "custom"
    pip_requirements: list[dict[str, Any]] | None = None
    metadata_: dict[str, Any] | None = None


class FileSkill(FilePart):
    """A folder of instructions that a client keeps with an agent."""

    name: str
    files: Annotated[dict[str, str], Few] | None = None
    source_url: str | None = None

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if self.source_url is None and "SKILL.md" not in (self.files or {}):
            raise ValueError("Either files (with 'SKILL.md') or source_url must be provided")
        return self


class AgentFile(FilePart):
    """A whole file."""

    agents: list[FileAgent] = Field(min_length=1, max_length=MAX_AGENTS)
    blocks: list[FileBlock] = Field(default=[], max_length=MAX_AGENTS * MOST_ENTRIES)
    tools: list[FileTool] = Field(default=[], max_length=MAX_AGENTS * MOST_ENTRIES)
    groups: list[Any] = []
    files: list[Any] = []
    sources: list[Any] = []
    mcp_servers: list[Any] = []
    skills: list[Any] = []

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name, ids in (
            ("agents", [agent.id for agent in self.agents]),
            ("blocks", [block.id for block in self.blocks]),
            ("tools", [tool.id for tool in self.tools]),
        ):
            _refuse_twice(name, ids)
        for number, agent in enumerate(self.agents):
            _refuse_twice(f"agents[{number}].messages", [message.id for message in agent.messages])
            for place, unknown in self._unknown_ids(agent):
                raise ValueError(f"agents[{number}].{place} names {unknown!r}, which is not in the file")
        return self

    def _unknown_ids(self, agent: FileAgent) -> Iterator[tuple[str, str]]:
        for place, named, known in (
            ("tool_ids", agent.tool_ids, {tool.id for tool in self.tools}),
            ("block_ids", agent.block_ids, {block.id for block in self.blocks}),
            ("in_context_message_ids", agent.in_context_message_ids, {message.id for message in agent.messages}),
        ):
            yield from ((place, one) for one in named or () if one not in known)


def _refuse_twice(place: str, ids: Sequence[str]) -> None:
    seen: set[str] = set()
    for one in ids:
        if one in seen:
            raise ValueError(f"{place} has two entries with the id {one!r}")
        seen.add(one)


def read_agent_file(document: bytes) -> AgentFile:
    """The file of these bytes. Raises `InvalidRequest`, which names the place."""
    content = _parsed(document)
    if isinstance(content, str):
        # Some programs write a file as a JSON text of JSON.
        content = _parsed(content.encode())
    if not isinstance(content, dict):
        raise InvalidRequest("file: an agent file is a JSON object with a list of agents", field="file")
    if not isinstance(cast("dict[str, Any]", content).get("agents"), list):
        raise InvalidRequest(f"file: {LEGACY}", field="file")
    return checked(AgentFile, content, "file")


def _parsed(document: bytes) -> Any:
    flaw = flaw_of_document(document)
    if flaw is not None:
        raise InvalidRequest(f"{place_of(flaw.place, 'file')}: {flaw.text}", field=place_of(flaw.place, "file"))
    try:
        return json.loads(document)
    except ValueError as error:
        raise InvalidRequest(f"file: Corrupted agent file format: {error}", field="file") from error


def checked(kind: type[Parsed], value: Any, place: str) -> Parsed:
    """The value as this kind of thing. Raises `InvalidRequest` with the places of what is wrong inside `place`."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_input=False)[:3]
        said = [f"{place_of(one['loc'], place)}: {one['msg'].removeprefix('Value error, ')}" for one in found]
        raise InvalidRequest("; ".join(said)[:LONGEST_ERROR], field=place_of(found[0]["loc"], place)) from error
