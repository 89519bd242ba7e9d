"""Letta's agent file (`.af`): its contents, validated before the API creates objects from them.

Unknown fields are ignored, so that files of newer servers can be read.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from api.errors import place_of
from api.input_limits import MOST_ENTRIES, Description, Few, as_object
from api.letta.message_input import content_parts, tool_result
from api.letta.messages import Moment
from api.letta.packed_texts import is_packed_summary, unpacked_result, unpacked_summary
from shared.domain.errors import InvalidRequest
from shared.domain.groups import MOST_TURNS
from shared.domain.ids import IdMaker
from shared.domain.mcp_servers import MCP_TYPE, SOURCE
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    ContentPart,
    Decision,
    ImportedMessage,
    MessageBody,
    Reasoning,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.json_limits import flaw_of_document
from shared.sql.definitions.imported_agents import ImportedHistory

MAX_AGENTS = 100
MAX_MESSAGES = 10_000
LONGEST_ERROR = 1000

LEGACY = (
    "Legacy AgentSchema format is deprecated. Please use the new AgentFileSchema format with 'agents' field. "
    "A Letta server since 0.11 writes it: export the agent there again."
)

Parsed = TypeVar("Parsed", bound=BaseModel)


def _plausible(moment: datetime) -> datetime:
    if not 1970 <= moment.year <= 2200:
        raise ValueError("a time must be in the years 1970 to 2200")
    return moment


FileMoment = Annotated[Moment, AfterValidator(_plausible)]
Id = Annotated[str, Field(min_length=1, max_length=200)]
"""An id inside the file. It has no meaning outside of it."""
CallId = Annotated[str, Field(min_length=1)]


class FilePart(BaseModel):
    """A part of a file. Texts, numbers and lists are not converted into one another."""


class FileFunction(FilePart):
    """The function of a model's call."""

    name: str = Field(min_length=1)
    arguments: str


class FileCall(FilePart):
    """A tool call of a model."""

    id: CallId
    function: FileFunction


class FileReturn(FilePart):
    """The result of a tool call."""

    tool_call_id: CallId | None = None
    status: Literal["success", "error"] = "success"
    stdout: list[str] | None = None
    stderr: list[str] | None = None
    func_response: str | list[dict[str, Any]] | None = None


class FileDecision(FileReturn):
    """A person's decision on a call, or the result that a client sent instead."""

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
    created_at: FileMoment | None = None


class FileAgent(FilePart):
    """An agent. Its settings are parsed like a request to create one."""

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
        """The fields that do not belong to the file's own structure."""
        return dict(self.model_extra or {})

    @property
    def secret_names(self) -> list[str]:
        """The names of the variables that the agent's tools can read. The file has no values."""
        return list({**(self.tool_exec_environment_variables or {}), **(self.secrets or {})})


class FileBlock(FilePart):
    """A memory block. Its fields are parsed like a request to create one."""

    model_config = ConfigDict(extra="allow")

    id: Id


class FileTool(FilePart):
    """A tool. The fields of a custom tool are parsed like a request to create one."""

    model_config = ConfigDict(extra="allow")

    id: Id
    name: str = Field(min_length=1)
    tool_type: str = "custom"
    pip_requirements: list[dict[str, Any]] | None = None
    metadata_: dict[str, Any] | None = None

    def place_at_server(self) -> tuple[str, str] | None:
        """The names of the tool's MCP server, and of the tool there. None: the tool is not an MCP server's, or the file
        does not name them."""
        given = as_object((self.metadata_ or {}).get(SOURCE))
        if self.tool_type != MCP_TYPE or given is None:
            return None
        return str(given.get("server_name")), str(given.get("tool_name") or self.name)


class FileServer(FilePart):
    """An MCP server, without its secrets. Only its name is used."""

    model_config = ConfigDict(extra="allow")

    server_name: str = ""


class FileSkill(FilePart):
    """A folder of instructions that a client stores with an agent."""

    name: str
    files: Annotated[dict[str, str], Few] | None = None
    source_url: str | None = None

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if self.source_url is None and "SKILL.md" not in (self.files or {}):
            raise ValueError("Either files (with 'SKILL.md') or source_url must be provided")
        return self


class FileGroupManager(FilePart):
    """The agent of the file that manages a group, and the way in which it does."""

    manager_type: str = ""
    manager_agent_id: str | None = None
    sleeptime_agent_frequency: int | None = Field(default=None, ge=0, le=MOST_TURNS)


class FileGroup(FilePart):
    """An agent and its sleep-time agents, or a group of another kind."""

    id: str = ""
    agent_ids: list[str] = Field(default=[], max_length=MAX_AGENTS)
    description: Description | None = None
    manager_config: FileGroupManager = FileGroupManager()
    hidden: bool | None = None


class AgentFile(FilePart):
    """A whole file."""

    agents: list[FileAgent] = Field(min_length=1, max_length=MAX_AGENTS)
    blocks: list[FileBlock] = Field(default=[], max_length=MAX_AGENTS * MOST_ENTRIES)
    tools: list[FileTool] = Field(default=[], max_length=MAX_AGENTS * MOST_ENTRIES)
    groups: list[FileGroup] = Field(default=[], max_length=MAX_AGENTS)
    files: list[Any] = []
    sources: list[Any] = []
    mcp_servers: list[FileServer] = Field(default=[], max_length=MOST_ENTRIES)
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
    """Parses a file. Raises `InvalidRequest`, which names the place."""
    content = _parsed(document)
    if isinstance(content, str):
        # Some programs write a file as JSON within a JSON string.
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
    """The value as an object of this type. Raises `InvalidRequest` with the places of the flaws inside `place`."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_input=False)[:3]
        said = [f"{place_of(one['loc'], place)}: {one['msg'].removeprefix('Value error, ')}" for one in found]
        raise InvalidRequest("; ".join(said)[:LONGEST_ERROR], field=place_of(found[0]["loc"], place)) from error


# Converts the messages of an agent file to the domain's.


NO_IMAGE = "[An image that the agent file does not hold.]"


class FileHistory:
    """Converts an agent's messages to a history. `place` is the agent's place in the file.

    The file's instructions are ignored: they are rendered again, from the agent's settings and memory.
    """

    def __init__(self, ids: IdMaker, now: datetime, place: str) -> None:
        self._history = ImportedHistory(ids)
        self._now = now
        self._place = place
        self._tool_names: dict[str, str] = {}

    @property
    def undecided(self) -> int:
        """The number of calls that waited for a person."""
        return self._history.undecided

    def take(self, agent: FileAgent) -> list[ImportedMessage]:
        """The whole history. Messages that have left the context are first."""
        numbered = {message.id: number for number, message in enumerate(agent.messages)}
        shown = agent.in_context_message_ids
        inside = list(numbered.values()) if shown is None else [numbered[one] for one in dict.fromkeys(shown)]
        outside = sorted(set(numbered.values()).difference(inside))
        for number in outside:
            self._add(agent.messages[number], number, in_context=False)
        for place, number in enumerate(inside):
            message = agent.messages[number]
            if place or message.role != "system":
                self._add(message, number, in_context=True)
        return self._history.finish()

    def _add(self, message: FileMessage, number: int, *, in_context: bool) -> None:
        self._tool_names.update((call.id, call.function.name) for call in message.tool_calls or ())
        try:
            body = self._body(message)
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{self._place}.messages[{number}].{error}", field=f"{self._place}.messages[{number}]"
            ) from error
        if body is not None:
            self._history.add(body, message.created_at or self._now, in_context=in_context)

    def _body(self, message: FileMessage) -> MessageBody | None:
        match message.role:
            case "user" | "system" as role:
                return _user(message, role)
            case "summary":
                return unpacked_summary(_joined(message.content))
            case "tool":
                returns = self._returns(message)
                return ToolReturns(returns) if returns else None
            case "approval" if not message.tool_calls:
                decisions = list(_decisions(message))
                return ApprovalResponse(decisions) if decisions else None
            case "assistant" | "approval":
                return _answer(message)

    def _returns(self, message: FileMessage) -> list[ToolReturn]:
        """Older servers have one result per message, in its text."""
        given = message.tool_returns or [FileReturn()]
        called = [(one, one.tool_call_id or message.tool_call_id) for one in given]
        return [self._return(one, call_id, message) for one, call_id in called if call_id]

    def _return(self, one: FileReturn, call_id: str, message: FileMessage) -> ToolReturn:
        text, parts = _result(_joined(message.content) if one.func_response is None else one.func_response)
        return ToolReturn(
            tool_call_id=call_id,
            tool_name=self._tool_names.get(call_id) or message.name or "unknown",
            status=one.status,
            text=text,
            stdout=one.stdout,
            stderr=one.stderr,
            parts=parts,
        )


def _joined(content: str | list[dict[str, Any]] | None) -> str:
    return content if isinstance(content, str) else "\n".join(_texts(content or (), "text", "text"))


def _result(said: str | list[dict[str, Any]] | None) -> tuple[str, list[ContentPart] | None]:
    """A result as text, and as parts if it has some."""
    text, parts = tool_result(_with_images(said))
    return (unpacked_result(text) if parts is None else text), parts


def _user(message: FileMessage, role: str) -> MessageBody:
    given = _with_images(message.content) or ""
    content = given if isinstance(given, str) else content_parts(given, field="content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], TextContent):
        content = content[0].text
    if isinstance(content, str) and role == "user" and is_packed_summary(content):
        return unpacked_summary(content)
    return UserMessage(content, role="system" if role == "system" else "user", name=message.name)


def _with_images(content: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]] | None:
    """The content, with images in the form of a request. Letta stores some images itself, and adds their data to the
    file."""
    return content if isinstance(content, str) or content is None else [_with_image(part) for part in content]


def _with_image(part: dict[str, Any]) -> dict[str, Any]:
    given: Any = part.get("source")
    if part.get("type") != "image" or not isinstance(given, dict):
        return part
    source = cast("dict[str, Any]", given)
    if source.get("type") != "letta":
        return part
    if not source.get("data"):
        return {"type": "text", "text": NO_IMAGE}
    return {"type": "image", "source": {**source, "type": "base64"}}


def _answer(message: FileMessage) -> AssistantMessage:
    parts: list[dict[str, Any]] = (
        [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content or []
    )
    waits = message.role == "approval"
    calls = {
        call.id: ToolCall(call.id, call.function.name, call.function.arguments, waits)
        for call in message.tool_calls or ()
    }
    return AssistantMessage(
        text="\n".join(_texts(parts, "text", "text")),
        reasoning=_reasoning(parts),
        tool_calls=list(calls.values()),
        model=message.model,
    )


def _texts(parts: Iterable[dict[str, Any]], kind: str, key: str) -> list[str]:
    return [part[key] for part in parts if part.get("type") == kind and isinstance(part.get(key), str)]


def _reasoning(parts: Sequence[dict[str, Any]]) -> Reasoning | None:
    """The model's visible reasoning. Reasoning that a provider has encrypted is ignored: only that provider can use
    it."""
    thoughts = _texts(parts, "reasoning", "reasoning")
    for part in parts:
        if part.get("type") == "summarized_reasoning" and isinstance(part.get("summary"), list):
            pieces = [as_object(piece) or {} for piece in cast("list[Any]", part["summary"])]
            thoughts.extend(str(piece.get("text", "")) for piece in pieces)
    if not thoughts:
        return None
    signatures = _texts(parts, "reasoning", "signature")
    return Reasoning("\n".join(thoughts), signatures[-1] if signatures else None)


def _decisions(message: FileMessage) -> Iterable[Decision]:
    for one in message.approvals or ():
        if one.tool_call_id is not None:
            yield _decision(one, one.tool_call_id)
    if not message.approvals and message.approve is not None and message.approval_request_id:
        yield Decision(message.approval_request_id, approve=message.approve, reason=message.denial_reason)


def _decision(one: FileDecision, call_id: str) -> Decision:
    if one.approve is not None:
        return Decision(call_id, approve=one.approve, reason=one.reason, edited_arguments=one.edited_arguments)
    text, parts = _result(one.tool_return if one.func_response is None else one.func_response)
    return Decision(
        call_id, kind="tool", tool_return=text, status=one.status, stdout=one.stdout, stderr=one.stderr, parts=parts
    )
