"""Creates agents, tools and memory blocks from an agent file, with new ids, and reports the omitted parts."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace
from pydantic import BaseModel

from api.letta.agent_file import AgentFile, FileAgent, FileBlock, FileGroup, FileHistory, FileTool, checked
from api.letta.agent_file_export import OURS, OURS_OF_AGENTS, OURS_OF_TOOLS
from api.letta.agents import AgentCreate, new_agent
from api.letta.memory import DEFAULT_LIMIT, BlockCreate, new_block
from api.letta.tools import ToolCreate, blank_tool, refuse_network
from api.offered_models import OfferedModels
from shared.domain.agents import Block
from shared.domain.errors import InvalidRequest, InvalidToolSource
from shared.domain.groups import ENABLED, SLEEPTIME, Group, with_group_flag
from shared.domain.ids import AgentId, BlockId, IdMaker, ProjectId
from shared.domain.models import context_window_of, leaves_choice, split_handle
from shared.domain.tools import CUSTOM, ToolPackages
from shared.sql.definitions.imported_agents import ImportBundle, ImportedAgent, ImportedTool

COPY = "_copy"
_KEPT_FOR_ANOTHER_MODEL = ("parallel_tool_calls", "response_format")
_SAID_BY_CONFIG = ("enable_reasoner", "max_reasoning_tokens", "max_tokens")
"""Settings that files also have beside `llm_config`, empty even if the config contains them."""


class ImportOptions(BaseModel):
    """Options of an import."""

    append_copy_suffix: bool = True
    override_existing_tools: bool = True
    strip_messages: bool = False
    name: str | None = None
    model: str | None = None
    embedding: str | None = None
    secrets: dict[str, str] = {}


class ServersHere(NamedTuple):
    """The project's MCP servers: a file names servers, but contains none."""

    names: frozenset[str] = frozenset()
    tools: Mapping[tuple[str, str], str] = {}
    """The project's names of the servers' tools, by the server's name and the tool's name there."""


class Origin(NamedTuple):
    """The owner of the new objects, and the time."""

    project_id: ProjectId
    ids: IdMaker
    now: datetime
    models: OfferedModels
    allowed_hosts: str
    """The hosts to which tools may connect, as in the setting."""
    servers: ServersHere = ServersHere()


class FilePackages(NamedTuple):
    """The packages of one tool, or the reason why it cannot have them."""

    packages: ToolPackages | None = None
    flaw: str = ""


class FileImport:
    """Converts a file to objects to store. `left_out` has a sentence for each omitted part."""

    def __init__(
        self, file: AgentFile, options: ImportOptions, origin: Origin, packages: Mapping[str, FilePackages]
    ) -> None:
        """`packages`: by the tools' ids in the file, for those tools that ask for packages."""
        self._file = file
        self._packages = packages
        self._options = options
        self._origin = origin
        self._tool_names: dict[str, str | None] = {}
        """None: the tool is omitted."""
        self._block_ids: dict[str, BlockId] = {}
        not_ours = (
            (file.files, "files are left out: Holdfast keeps none"),
            (file.sources, "folders (sources) are left out: Holdfast keeps none"),
            (file.skills, "skills are left out: clients keep them"),
        )
        self.left_out = [said for found, said in not_ours if found]
        self._say_servers()

    def bundle(self) -> ImportBundle:
        """Everything that the file creates. Raises `InvalidRequest`, which names the place."""
        tools = [made for number, tool in enumerate(self._file.tools) if (made := self._tool(tool, number)) is not None]
        blocks = [self._block(block, number) for number, block in enumerate(self._file.blocks)]
        agents = [self._agent(agent, number) for number, agent in enumerate(self._file.agents)]
        own = [block for _, of_agent in agents for block in of_agent]
        self._say_secrets()
        made = {one.id: agent for one, (agent, _) in zip(self._file.agents, agents, strict=True)}
        groups = [group for one in self._file.groups if (group := self._group(one, made)) is not None]
        managers = {group.manager_agent_id for group in groups}
        return ImportBundle(
            agents=[self._with_true_flag(agent, managers) for agent, _ in agents],
            groups=groups,
            blocks=[*blocks, *own],
            tools=tools,
            replace_tools=self._options.override_existing_tools,
        )

    def _tool(self, tool: FileTool, number: int) -> ImportedTool | None:
        """A custom tool. Letta's own tools are found by name, and those of MCP servers by server and name."""
        if tool.tool_type != CUSTOM:
            self._tool_names[tool.id] = self._name_here(tool)
            return None
        place = f"file.tools[{number}]"
        metadata = dict(tool.metadata_ or {})
        ours = _ours(metadata, OURS_OF_TOOLS)
        metadata.pop("tool_hash", None)
        said = {**(tool.model_extra or {}), "pip_requirements": tool.pip_requirements, "metadata_": metadata, **ours}
        # An empty object means no schema: Letta's wire writes one in its place.
        said = {"source_code": "", **{key: value for key, value in said.items() if value not in (None, {})}}
        body = checked(ToolCreate, said, place)
        origin = self._origin
        blank = blank_tool(origin.project_id, origin.ids, origin.now)
        given = self._packages.get(tool.id, FilePackages())
        if given.flaw:
            self.left_out.append(f"the packages of the tool {tool.name!r} are left out: {given.flaw}")
        change = partial(body.apply, source_code=body.source_code, packages=given.packages)
        try:
            refuse_network(body.network, origin.allowed_hosts)
            try:
                made = change(blank)
            except InvalidToolSource as error:
                if not (body.json_schema or {}).get("parameters"):
                    raise
                change = partial(body.declared, name=tool.name)
                made = change(blank)
                self.left_out.append(f"the tool {tool.name!r} cannot run on this server, only at a client: {error}")
        except InvalidRequest as error:
            raise InvalidRequest(f"{place} ({tool.name}): {error}", field=place) from error
        self._tool_names[tool.id] = made.name
        return ImportedTool(made, change)

    def _name_here(self, tool: FileTool) -> str | None:
        """The project's name for a tool that the file does not contain."""
        place = tool.place_at_server()
        if place is None:
            return tool.name
        server, there = place
        name = self._origin.servers.tools.get(place)
        if name is None:
            is_here = server in self._origin.servers.names
            lacks = f"tool {there!r} of the MCP server {server!r}" if is_here else f"MCP server named {server!r}"
            self.left_out.append(f"the tool {tool.name!r} is left out: the project has no {lacks}")
        return name

    def _say_servers(self) -> None:
        named = dict.fromkeys(server.server_name for server in self._file.mcp_servers)
        missing = ", ".join(repr(name) for name in named if name not in self._origin.servers.names)
        if missing:
            self.left_out.append(
                f"MCP servers are left out, because a file has no secrets: {missing}. Make them with POST "
                "/v1/mcp-servers, and import the file again"
            )

    def _block(self, block: FileBlock, number: int) -> Block:
        said = {key: value for key, value in (block.model_extra or {}).items() if value is not None}
        length, limit = len(str(said.get("value", ""))), said.get("limit", DEFAULT_LIMIT)
        if isinstance(limit, int) and length > limit:
            self.left_out.append(f"block {said.get('label')!r} has {length} characters: its limit of {limit} is raised")
            said["limit"] = length
        made = new_block(
            checked(BlockCreate, said, f"file.blocks[{number}]"),
            self._origin.project_id,
            self._origin.ids,
            self._origin.now,
        )
        self._block_ids[block.id] = made.id
        return made

    def _agent(self, agent: FileAgent, number: int) -> tuple[ImportedAgent, list[Block]]:
        """The agent, and the blocks that its entry contains."""
        place = f"file.agents[{number}]"
        origin = self._origin
        body = checked(AgentCreate, self._request(agent, place), place)
        origin.models.served(body.handle())
        own = [new_block(block, origin.project_id, origin.ids, origin.now) for block in body.filled_blocks()]
        by_name = [*(body.tools or ()), *body.base_tools()]
        made = new_agent(body, origin.project_id, origin.ids, origin.now, names=by_name)
        history = FileHistory(origin.ids, origin.now, place)
        placed = [] if self._options.strip_messages else history.take(agent)
        if history.undecided:
            self.left_out.append(f"{history.undecided} calls of {agent.name!r} waited for a decision: they are denied")
        for found, said in (
            (agent.files_agents, "files"), (agent.source_ids, "folders"), (agent.identity_ids, "identities"),
        ):  # fmt: skip
            if found:
                self.left_out.append(f"{said} of {agent.name!r} are left out: Holdfast keeps none")
        if body.initial_message_sequence:
            self.left_out.append(f"initial_message_sequence of {agent.name!r} is left out: a file has messages")
        named = [name for tool_id in agent.tool_ids or () if (name := self._tool_names[tool_id]) is not None]
        imported = ImportedAgent(
            agent=replace(made, block_ids=[*made.block_ids, *(block.id for block in own)]),
            tool_names=list(dict.fromkeys([*named, *by_name])),
            system_message_id=origin.ids.message(),
            history=placed,
        )
        return imported, own

    def _group(self, group: FileGroup, made: Mapping[str, ImportedAgent]) -> Group | None:
        """A sleep-time group of agents that the file has."""
        config, origin = group.manager_config, self._origin
        if config.manager_type != SLEEPTIME:
            self.left_out.append(f"the group {group.id!r} is left out: here agents do not chat in groups")
            return None
        manager = made.get(config.manager_agent_id or "")
        if manager is None or any(agent_id not in made for agent_id in group.agent_ids):
            self.left_out.append(f"the group {group.id!r} is left out: the file lacks some of its agents")
            return None
        return Group(
            id=origin.ids.group(),
            project_id=origin.project_id,
            manager_agent_id=manager.agent.id,
            agent_ids=[made[agent_id].agent.id for agent_id in dict.fromkeys(group.agent_ids)],
            description=group.description or "",
            frequency=config.sleeptime_agent_frequency,
            is_on=bool(manager.agent.extra.get(ENABLED)),
            hidden=group.hidden,
            created_at=origin.now,
            updated_at=origin.now,
        )

    def _with_true_flag(self, imported: ImportedAgent, managers: Collection[AgentId]) -> ImportedAgent:
        """The agent, whose `enable_sleeptime` stays only if it has a sleep-time agent."""
        agent = imported.agent
        if agent.id in managers or not agent.extra.get(ENABLED):
            return imported
        self.left_out.append(
            f"enable_sleeptime of {agent.name!r} is left out: the file has no sleep-time agent for it; a PATCH of the "
            "agent with enable_sleeptime true makes one"
        )
        return replace(imported, agent=with_group_flag(agent, is_on=None))

    def _request(self, agent: FileAgent, place: str) -> dict[str, Any]:
        """The request that would create this agent here."""
        metadata = dict(agent.metadata or {})
        ours = _ours(metadata, OURS_OF_AGENTS)
        options = self._options
        said = {key: value for key, value in agent.settings.items() if value is not None}
        config = agent.llm_config or {}
        if config:
            said = {key: value for key, value in said.items() if key not in _SAID_BY_CONFIG}
        name = options.name or (agent.name + COPY if options.append_copy_suffix else agent.name)
        request = {
            **said,
            "name": name,
            "source_ids": (agent.source_ids or [])[:1],  # their existence is reported
            "metadata": metadata if metadata or agent.metadata is not None else None,
            "block_ids": [self._block_ids[block_id] for block_id in agent.block_ids or ()],
            "secrets": {key: options.secrets.get(key, "") for key in agent.secret_names},
            **ours,
            **self._model(config, said, place),
        }
        return request | ({"embedding": options.embedding} if options.embedding else {})

    def _model(self, config: dict[str, Any], said: dict[str, Any], place: str) -> dict[str, Any]:
        """The model options. Settings for one model are not applied to another."""
        wanted = said.get("model") or config.get("handle")
        chosen = self._options.model or (wanted if isinstance(wanted, str) and leaves_choice(wanted) else None)
        if chosen:
            handle = _known(self._served(chosen), "model")
            kept = {name: config[name] for name in _KEPT_FOR_ANOTHER_MODEL if config.get(name) is not None}
            window = config.get("context_window")
            if isinstance(window, int) and window < context_window_of(handle):
                kept["context_window"] = window
            return {"model": handle, "model_settings": None, "llm_config": {**kept, "handle": handle}}
        endpoint = f"{config.get('model_endpoint_type')}/{config.get('model')}"
        if not isinstance(wanted, str) or not _is_known(wanted):
            if not _is_known(endpoint):
                shown = wanted if isinstance(wanted, str) else endpoint
                _known(shown, f"{place}.llm_config (or name another model in the form's field `model`)")
            if isinstance(wanted, str):
                self.left_out.append(f"the model {wanted!r} is not known here: {endpoint!r} takes its place")
            wanted = endpoint
        rest = {key: value for key, value in config.items() if key not in ("model", "model_endpoint_type")}
        return {"model": wanted, "llm_config": {**rest, "handle": wanted}}

    def _served(self, handle: str) -> str:
        served = self._origin.models.served(handle) or handle
        if served != handle:
            self.left_out.append(f"the model {handle} is {served} here")
        return served

    def _say_secrets(self) -> None:
        names = {name for agent in self._file.agents for name in agent.secret_names}
        given = self._options.secrets
        if missing := sorted(names.difference(given)):
            self.left_out.append(f"secrets without a value: {', '.join(missing)}")
        if unknown := sorted(set(given).difference(names)):
            self.left_out.append(f"secrets that no agent of the file names are left out: {', '.join(unknown)}")


def _ours(metadata: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Removes our own settings from the metadata, and returns the settings with these names."""
    found = metadata.pop(OURS, None)
    return {name: found[name] for name in names if name in found} if isinstance(found, dict) else {}


def _is_known(handle: str) -> bool:
    try:
        split_handle(handle)
    except ValueError:
        return False
    return True


def _known(handle: str, place: str) -> str:
    try:
        split_handle(handle)
    except ValueError as error:
        raise InvalidRequest(f"{place}: {error}", field=place) from error
    return handle
