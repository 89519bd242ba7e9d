"""Agent files: exports and imports of agents."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
import structlog
from fastapi import APIRouter, Form, Header, Request, Response, UploadFile
from fastapi.params import Form as FormField
from pydantic import BaseModel, ConfigDict, Field

from api.access.authentication import Access
from api.dependencies import (
    AgentEditorDep,
    AgentIdPath,
    ClockDep,
    IdMakerDep,
    InputLimitsDep,
    MessageStoreDep,
    OfferedModelsDep,
    ProjectDep,
    served,
)
from api.direct_route import LateRoute
from api.errors import Refused
from api.event_stream import in_pieces
from api.every_answer import warning_of
from api.input_limits import MOST_ENTRIES
from api.letta.agent_file import AgentFile, FileSkill, read_agent_file
from api.letta.agent_file_export import ExportedAgent, agent_file
from api.letta.agent_file_import import FileImport, FilePackages, ImportOptions, Origin, ServersHere
from api.mcp_servers import McpServers
from shared.domain.agents import render_system
from shared.domain.errors import ErrorCode, InvalidRequest, NotFound
from shared.domain.ids import ConversationId, IdMaker, ProjectId, ThreadId
from shared.domain.mcp_servers import MCP_TYPE, McpServer, tool_source
from shared.domain.messages import Message, SystemMessage
from shared.json_limits import flaw_of_document
from shared.packages.environments import PackageEnvironments
from shared.process.importing import VERSION
from shared.process.settings import Settings
from shared.sql.definitions.agents import AgentDetails
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.definitions.imported_agents import ImportBundle, ImportedAgentStore, ImportReport
from shared.sql.definitions.tools import BaseToolSeeder
from shared.sql.history.messages import MessageStore

AccessDep = Annotated[Access, served(Access)]
BaseToolSeederDep = Annotated[BaseToolSeeder, served(BaseToolSeeder)]
ImportedAgentStoreDep = Annotated[ImportedAgentStore, served(ImportedAgentStore)]
ConversationStoreDep = Annotated[ConversationStore, served(ConversationStore)]
McpServersDep = Annotated[McpServers, served(McpServers)]
PackageEnvironmentsDep = Annotated[PackageEnvironments, served(PackageEnvironments)]
SettingsDep = Annotated[Settings, served(Settings)]

MULTIPART = "multipart/form-data"

LONGEST_FOR_PEOPLE = 10_000_000
"""Bytes of the longest file that is formatted with line breaks."""


class MultipartRoute(LateRoute):
    """A route for multipart forms: other content gets a 415 before it is parsed.

    A parser of URL-encoded forms handles separators one by one, and a body has room for millions of them.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute.get_route_handler`."""
        handler = super().get_route_handler()
        if not any(isinstance(field.field_info, FormField) for field in self.dependant.body_params):
            return handler

        async def of_parts_only(request: Request) -> Response:
            given = request.headers.get("content-type", "")
            if given.partition(";")[0].strip().lower() != MULTIPART:
                said = f"Content-Type is {given[:100]!r}: send the form as {MULTIPART}"
                raise Refused(415, ErrorCode.UNSUPPORTED_MEDIA_TYPE, said, field="header.Content-Type")
            return await handler(request)

        return of_parts_only


router = APIRouter(prefix="/v1/agents", tags=["agents"], route_class=MultipartRoute)
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ExportRequest(BaseModel):
    """Options in the body of the newer form of the export."""

    skills: Annotated[list[FileSkill], Field(max_length=MOST_ENTRIES)] = []
    conversation_id: str | None = None
    scrub_messages: bool = False


class ImportForm(BaseModel):
    """The form of an import. Every second field is an older name. Unknown fields are in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    file: UploadFile
    append_copy_suffix: bool = True
    override_existing_tools: bool = True
    strip_messages: bool = False
    name: str | None = None
    override_name: str | None = None
    model: str | None = None
    override_model_handle: str | None = None
    embedding: str | None = None
    override_embedding_handle: str | None = None
    secrets: str | None = None
    env_vars_json: str | None = None
    project_id: str | None = None

    def options(self, embedding_header: str | None) -> ImportOptions:
        """The options of the import. Raises `InvalidRequest` if the secrets are not a JSON object of texts."""
        return ImportOptions(
            append_copy_suffix=self.append_copy_suffix,
            override_existing_tools=self.override_existing_tools,
            strip_messages=self.strip_messages,
            name=self.name or self.override_name,
            model=self.model or self.override_model_handle,
            embedding=self.embedding or self.override_embedding_handle or embedding_header,
            secrets=_secrets(self.secrets or self.env_vars_json),
        )


@router.get("/{agent_id}/export")
async def export_agent(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    access: AccessDep,
    message_store: MessageStoreDep,
    conversation_store: ConversationStoreDep,
    mcp_servers: McpServersDep,
    ids: IdMakerDep,
    clock: ClockDep,
    project_id: ProjectDep,
    conversation_id: str | None = None,
    scrub_messages: bool = False,
    use_legacy_format: bool = False,
) -> Response:
    """Returns the agent as a file. The file contains no values of secrets."""
    if use_legacy_format:
        raise InvalidRequest(
            "use_legacy_format: Legacy format is not supported, neither by Letta's newer servers",
            field="query.use_legacy_format",
        )
    wanted = ExportRequest(conversation_id=conversation_id, scrub_messages=scrub_messages)
    return await export_agent_with_skills(
        agent_id, editor, access, message_store, conversation_store, mcp_servers, ids, clock, project_id, wanted
    )


@router.post("/{agent_id}/export")
async def export_agent_with_skills(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    access: AccessDep,
    message_store: MessageStoreDep,
    conversation_store: ConversationStoreDep,
    mcp_servers: McpServersDep,
    ids: IdMakerDep,
    clock: ClockDep,
    project_id: ProjectDep,
    body: ExportRequest | None = None,
) -> Response:
    """Returns the agent as a file, with skills that the client adds."""
    wanted = body or ExportRequest()
    [details] = await editor.details([await editor.get(project_id, agent_id)])
    sleepers = [await editor.get(project_id, sleeper) for sleeper in (details.group.agent_ids if details.group else ())]
    # Stored before it is shown: there is no export without its event.
    await access.audit.add(project_id, "agent.exported", agent_id, *(sleeper.id for sleeper in sleepers))
    history = await _history(message_store, conversation_store, ids, project_id, details, wanted.conversation_id)
    exported = [ExportedAgent(details, history)]
    for of_sleeper in await editor.details(sleepers):
        said = await message_store.context(project_id, ThreadId(of_sleeper.agent.id))
        # The file does not contain a group that the sleep-time agent itself manages: that belongs to another agent.
        exported.append(ExportedAgent(msgspec.structs.replace(of_sleeper, group=None), said))
    servers = await mcp_servers.of_tools(project_id, [tool for one in exported for tool in one.details.tools])
    content = await asyncio.to_thread(_written_file, exported, servers, wanted, clock.now())
    return Response(content, media_type="application/json")


@router.post("/import")
async def import_agents(
    form: Annotated[ImportForm, Form()],
    response: Response,
    base_tools: BaseToolSeederDep,
    ids: IdMakerDep,
    clock: ClockDep,
    offered: OfferedModelsDep,
    settings: SettingsDep,
    package_environments: PackageEnvironmentsDep,
    input_limits: InputLimitsDep,
    imported_agents: ImportedAgentStoreDep,
    mcp_servers: McpServersDep,
    project_id: ProjectDep,
    x_override_embedding_model: Annotated[str | None, Header()] = None,
) -> dict[str, list[str]]:
    """Creates the agents of a file with their tools, memory and messages: all of them, or nothing."""
    await base_tools.fill(project_id)
    options, document = form.options(x_override_embedding_model), await form.file.read()
    # A file may be megabytes, and other requests wait for the event loop.
    file = await asyncio.to_thread(read_agent_file, document)
    packages = await _packages(package_environments, file)
    servers = await _servers_here(mcp_servers, project_id, file)
    origin = Origin(project_id, ids, clock.now(), offered, settings.tool_network, servers)
    bundle, notes = await asyncio.to_thread(_understood, file, options, origin, packages)
    for tool in bundle.tools:
        input_limits.refuse_long_source(tool.new.source_code, f"the source of the tool {tool.new.name!r}")
    arrival = await imported_agents.store(project_id, bundle)
    if form.project_id:
        notes.append("project_id is left out: the API key says which project it is")
    if form.model_extra:
        notes.append(f"not acted on: {', '.join(sorted(form.model_extra))}")
    notes.extend(_notes_on_tools(arrival))
    if notes:
        response.headers["Warning"] = warning_of(notes)
        made = ", ".join(one.agent.id for one in bundle.agents)
        log.warning("agent_file_imported_with_notes", agents=made, notes=len(notes))
    return {"agent_ids": [one.agent.id for one in bundle.agents]}


async def _packages(package_environments: PackageEnvironments, file: AgentFile) -> dict[str, FilePackages]:
    """The packages of the file's tools, by the tools' ids. A tool is imported without packages that are unavailable."""
    found: dict[str, FilePackages] = {}
    for tool in file.tools:
        try:
            found[tool.id] = FilePackages(await package_environments.chosen(tool.pip_requirements, None))
        except InvalidRequest as error:
            found[tool.id] = FilePackages(flaw=error.message)
    return found


async def _servers_here(mcp_servers: McpServers, project_id: ProjectId, file: AgentFile) -> ServersHere:
    """The project's MCP servers, with the tools of the servers that the file names."""
    if not file.mcp_servers and all(tool.tool_type != MCP_TYPE for tool in file.tools):
        return ServersHere()
    servers = await mcp_servers.store.list(project_id)
    wanted = {place[0] for tool in file.tools if (place := tool.place_at_server()) is not None}
    tools = {
        (source.server_name, source.tool_name): tool.name
        for server in servers
        if server.name in wanted
        for tool in await mcp_servers.store.tools(project_id, server.id)
        if (source := tool_source(tool)) is not None
    }
    return ServersHere(frozenset(server.name for server in servers), tools)


def _understood(
    file: AgentFile, options: ImportOptions, origin: Origin, packages: Mapping[str, FilePackages]
) -> tuple[ImportBundle, list[str]]:
    reading = FileImport(file, options, origin, packages)
    return reading.bundle(), reading.left_out


def _secrets(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    document = text.encode("utf-8", "surrogatepass")
    try:
        if flaw_of_document(document) is None:
            return msgspec.json.decode(document, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise InvalidRequest(
        'secrets must be a valid JSON string: an object of texts, e.g. {"API_KEY": "…"}', field="secrets"
    )


def _notes_on_tools(arrival: ImportReport) -> list[str]:
    said = (
        ("tools that this server does not have are left out: %s", arrival.missing),
        ("tools of the project were replaced: %s", arrival.replaced),
        ("calls of these tools go on waiting for a person, as they do in the project: %s", arrival.guarded),
        ("tools of the project stay, the file's differ: %s", arrival.kept),
    )
    return [sentence % ", ".join(names) for sentence, names in said if names]


def _written_file(
    exported: Sequence[ExportedAgent], servers: Sequence[McpServer], wanted: ExportRequest, now: datetime
) -> bytes:
    """The file. A short one is formatted for people, with each value on its own line."""
    file = agent_file(
        [one._replace(history=[]) for one in exported] if wanted.scrub_messages else exported,
        servers=servers,
        skills=[skill.model_dump() for skill in wanted.skills],
        generator=f"holdfast {VERSION}",
        now=now,
    )
    body = in_pieces(file)
    return body if len(body) > LONGEST_FOR_PEOPLE else msgspec.json.format(body, indent=2)


async def _history(
    message_store: MessageStore,
    conversation_store: ConversationStore,
    ids: IdMaker,
    project_id: ProjectId,
    details: AgentDetails,
    conversation_id: str | None,
) -> list[Message]:
    """The messages in the context of the agent or of one of its conversations, the instructions first."""
    agent = details.agent
    if conversation_id is None or conversation_id == "default":
        return await message_store.context(project_id, ThreadId(agent.id))
    conversation = await conversation_store.get(project_id, ConversationId(conversation_id))
    if conversation.agent_id != agent.id:
        raise NotFound(f"Conversation with ID {conversation_id} not found: it is another agent's")
    said = await message_store.context(project_id, ThreadId(conversation.id))
    if said and isinstance(said[0].body, SystemMessage):
        return said
    instructions = Message(
        id=ids.message(),
        agent_id=agent.id,
        thread_id=ThreadId(conversation.id),
        conversation_id=conversation.id,
        run_id=None,
        step_id=None,
        created_at=conversation.created_at,
        body=SystemMessage(render_system(agent, details.blocks, conversation.id)),
    )
    return [instructions, *said]
