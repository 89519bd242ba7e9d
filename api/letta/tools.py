"""Tools on Letta's wire. A tool's name and schema come from its source, which the API parses and never runs."""

import hashlib
from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.input_limits import MOST_ENTRIES, Description, Few, Metadata, Names, Objects, Tags
from api.letta.messages import outcome_field
from api.letta.runs import Waiting
from api.tool_source.reader import ToolDeclaration, read_tool_source
from api.tool_source.syntax import refuse_missing_modules
from api.tool_source.typescript import read_typescript_source
from shared.domain.errors import InvalidRequest, InvalidToolSource
from shared.domain.ids import IdMaker, ProjectId
from shared.domain.mcp_servers import MCP_TYPE, kept_source
from shared.domain.messages import ToolReturn
from shared.domain.tool_catalog import is_base_tool
from shared.domain.tools import (
    CUSTOM,
    DEFAULT_RETURN_CHAR_LIMIT,
    LANGUAGES,
    LEAST_TOOL_MEMORY_MB,
    PYTHON,
    TYPESCRIPT,
    Tool,
    ToolLimits,
    ToolPackages,
)
from shared.json_limits import schema_flaw

# The limits that a tool may set: lower ones than the worker's for each call, and network access where the operator
# allows a host.


class LimitsIn(BaseModel):
    """Limits of one call of the tool, where they are lower than the worker's."""

    # A misspelled limit must not be ignored.
    model_config = ConfigDict(extra="forbid")

    timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    cpu_s: int | None = Field(default=None, ge=1, le=86_400)
    memory_mb: int | None = Field(default=None, ge=LEAST_TOOL_MEMORY_MB, le=1 << 20)


def limits_that_are_less_here(wanted: LimitsIn | None, *, timeout_s: float, cpu_s: int, memory_mb: int) -> list[str]:
    """A sentence for each limit that exceeds this server's. The server's own limit then applies."""
    if wanted is None:
        return []
    given = (
        ("timeout_s", wanted.timeout_s, timeout_s, "HOLDFAST_TOOL_TIMEOUT"),
        ("cpu_s", wanted.cpu_s, cpu_s, "HOLDFAST_TOOL_CPU_S"),
        ("memory_mb", wanted.memory_mb, memory_mb, "HOLDFAST_TOOL_MEMORY_MB"),
    )
    return [
        f"limits.{name} is {asked:g}, and this server gives a call {most:g} ({setting})"
        for name, asked, most, setting in given
        if asked is not None and asked > most
    ]


def refuse_network(wanted: Literal["none", "host"] | None, allowed_hosts: str) -> None:
    """Raises `InvalidRequest` if a tool asks for network access and the operator allows no host."""
    if wanted == "host" and not allowed_hosts:
        raise InvalidRequest(
            "network: this server gives tools no network; its operator can allow hosts with HOLDFAST_TOOL_NETWORK",
            field="network",
        )


# Clients' calls of an agent's tools, on Letta's wire.


class ToolRunRequest(BaseModel):
    """The arguments of a tool call."""

    args: dict[str, Any] = Field(default_factory=dict[str, Any])

    def arguments(self) -> str:
        """The arguments as JSON, in the form of a model's call."""
        return msgspec.json.encode(self.args).decode()


def wire_tool_result(result: ToolReturn) -> dict[str, Any]:
    """The result of a call. A failed call has no return value: its error is the last line of its stderr."""
    failed = result.status == "error"
    complaints = result.stderr
    if failed:
        complaints = [*(complaints or ()), result.text]
    return {
        "status": result.status,
        "func_return": None if failed else _returned(result),
        "agent_state": None,
        "stdout": result.stdout,
        "stderr": complaints,
        "sandbox_config_fingerprint": None,
        **outcome_field(result),
    }


def _returned(result: ToolReturn) -> Any:
    """The tool's return value, as far as JSON can represent it."""
    if result.is_text:
        return result.text
    if result.text == "None":
        return None
    try:
        return msgspec.json.decode(result.text)
    except (msgspec.DecodeError, RecursionError):
        return result.text


TOOL_TYPES = (
    "custom", "letta_core", "letta_memory_core", "letta_multi_agent_core", "letta_sleeptime_core",
    "letta_voice_sleeptime_core", "letta_builtin", "letta_files_core", "external_langchain", "external_composio",
    "external_mcp",
)  # fmt: skip
"""The wire's types of tools, by which a list can be filtered. A project has the types of `BASE_TOOLS`, custom tools,
and tools of MCP servers."""

_WARNINGS = "schema_warnings"
_AS_IS = (
    "default_requires_approval",
    "enable_parallel_execution",
    "return_char_limit",
    "tags",
    "pip_requirements",
    "npm_requirements",
    "args_json_schema",
    "idempotent",
    "network",
    "scratch",
    "approval_expires_s",
    "on_approval_expiry",
)


def _well_formed(json_schema: dict[str, Any]) -> dict[str, Any]:
    for name, kind, said in (("name", str, "string"), ("description", str, "string"), ("parameters", dict, "object")):
        if not isinstance(json_schema.get(name), kind | None):
            raise InvalidRequest(f"json_schema.{name}: it must be a JSON {said}", field=f"json_schema.{name}")
    return json_schema


def refuse_costly(parameters: dict[str, Any], name: str) -> None:
    """Raises `InvalidRequest` for a schema that is too large to check arguments with. `name` is its field."""
    flaw = schema_flaw(parameters)
    if flaw is not None:
        raise InvalidRequest(f"{name}: {flaw}", field=name)


def read_source(
    source: str, source_type: str, name: str | None, modules: Collection[str] | None = None
) -> ToolDeclaration:
    """The description of the function `name` from the source. `modules`: the modules that the source may import besides
    the standard library; None for a source that was accepted earlier. Raises `InvalidToolSource`."""
    if source_type == TYPESCRIPT:
        return read_typescript_source(source, name)
    if modules is not None:
        refuse_missing_modules(source, modules)
    return read_tool_source(source, name)


class ToolFields(BaseModel):
    """A client's fields of a tool. The last fields are Holdfast's own."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    description: Description | None = None
    json_schema: dict[str, Any] | None = None
    args_json_schema: dict[str, Any] | None = None
    source_type: str | None = None
    tags: Tags | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = None
    return_char_limit: int | None = Field(default=None, ge=1, le=1_000_000)
    pip_requirements: Objects | None = None
    npm_requirements: Objects | None = None
    metadata: Metadata | None = Field(default=None, alias="metadata_")

    idempotent: bool | None = None
    limits: LimitsIn | None = None
    network: Literal["none", "host"] | None = None
    scratch: Literal["call", "run"] | None = None
    approval_expires_s: Waiting | None = None
    on_approval_expiry: Literal["keep", "deny", "cancel"] | None = None

    def apply(self, tool: Tool, source_code: str | None, packages: ToolPackages | None = None) -> Tool:
        """The tool after the change, with this source if there is a new one. `packages`: the packages of
        `pip_requirements`.

        Raises `InvalidToolSource` or `InvalidRequest`.
        """
        if tool.tool_type == MCP_TYPE:
            self._refuse_what_servers_say(tool, source_code)
            return kept_source(tool, self._with_options(tool, packages))
        changed = self._with_schema(self._with_options(tool, packages), source_code)
        _refuse_in_typescript(changed)
        return changed

    def _refuse_what_servers_say(self, tool: Tool, source_code: str | None) -> None:
        """Raises `InvalidRequest` for a change of fields that an MCP server sets: the next refresh would revert it.
        Values that the client sends back unchanged are no change."""
        shown = {"description": tool.description, "json_schema": tool.json_schema}
        given = {name: value for name in shown if (value := getattr(self, name)) is not None}
        changed = next((name for name, value in given.items() if value != shown[name]), None)
        for name in ("pip_requirements", "npm_requirements", "args_json_schema"):
            changed = name if getattr(self, name) else changed
        changed = "source_code" if source_code else changed
        if changed is not None:
            raise InvalidRequest(
                f"{changed}: the MCP server runs and describes its tool {tool.name!r}; change it there and refresh the "
                "server, or give a tool of your own another name",
                field=changed,
            )

    def _with_options(self, tool: Tool, packages: ToolPackages | None) -> Tool:
        _refuse_language(self.source_type)
        if self.source_type in LANGUAGES and self.source_type != tool.source_type:
            if is_base_tool(tool) or "source_code" not in self.model_fields_set:
                raise InvalidRequest(
                    "source_type: a tool changes its language together with its source_code", field="source_type"
                )
            tool = replace(tool, source_type=self.source_type)
        changes: dict[str, Any] = dict.fromkeys(self.model_fields_set & {"approval_expires_s"})
        changes |= {name: value for name in _AS_IS if (value := getattr(self, name)) is not None}
        if "idempotent" in (self.tags or ()):
            changes.setdefault("idempotent", True)
        if "limits" in self.model_fields_set:
            changes["limits"] = None if self.limits is None else ToolLimits(**self.limits.model_dump())
        if self.metadata is not None:
            changes["metadata"] = self.metadata
        if self.pip_requirements is not None:
            changes["packages"] = packages
        return replace(tool, **changes)

    def _with_schema(self, tool: Tool, source_code: str | None) -> Tool:
        if source_code is None and not (self.json_schema or self.args_json_schema or self.description):
            return tool
        if source_code is None and is_base_tool(tool):
            raise InvalidRequest(f"{tool.name!r} comes with the server: to change it, make a tool of its name (PUT)")
        given = _well_formed(self.json_schema or {})
        # Fields of this request win over its source, and a new source wins over fields of an earlier request.
        before = tool.json_schema if source_code is None else {}
        source = tool.source_code if source_code is None else source_code
        name = given.get("name") or before.get("name")
        modules = tool.packages.modules if tool.packages else ()
        read = read_source(source, tool.source_type, name, modules=modules if source_code is not None else None)
        described = self.description or given.get("description") or before.get("description") or read.description
        parameters = given.get("parameters") or self.args_json_schema or before.get("parameters") or read.parameters
        refuse_costly(parameters, "json_schema.parameters")
        metadata = {key: value for key, value in tool.metadata.items() if key != _WARNINGS}
        return replace(
            tool,
            source_code=source,
            tool_type=CUSTOM if source_code is not None else tool.tool_type,
            name=read.name,
            description=described,
            json_schema={**given, "name": read.name, "description": described, "parameters": parameters},
            metadata=metadata | ({_WARNINGS: list(read.warnings)} if read.warnings else {}),
        )


class ToolCreate(ToolFields):
    """A tool to create, or changes to the existing tool of its name, in which omitted fields stay."""

    source_code: str
    source_type: str | None = PYTHON

    def named(self) -> str:
        """The name that the tool will have. Raises `InvalidToolSource` or `InvalidRequest`."""
        _refuse_language(self.source_type)
        source_type = TYPESCRIPT if self.source_type == TYPESCRIPT else PYTHON
        return read_source(self.source_code, source_type, _well_formed(self.json_schema or {}).get("name")).name

    def declared(self, tool: Tool, name: str) -> Tool:
        """The tool described by its schema alone, because this server cannot parse the source: clients run such tools.

        Raises `InvalidRequest`.
        """
        given = _well_formed(self.json_schema or {})
        refuse_costly(given.get("parameters") or {}, "json_schema.parameters")
        described = self.description or given.get("description") or ""
        return replace(
            self._with_options(tool, None),
            source_code=self.source_code,
            tool_type=CUSTOM,
            name=name,
            description=described,
            json_schema={**given, "name": name, "description": described},
        )


class ToolUpdate(ToolFields):
    """The changes to a tool. An omitted field stays."""

    source_code: str | None = None


def blank_tool(project_id: ProjectId, ids: IdMaker, now: datetime) -> Tool:
    """A tool without any fields set."""
    return Tool(
        id=ids.tool(),
        project_id=project_id,
        name="",
        description="",
        source_code="",
        json_schema={},
        return_char_limit=DEFAULT_RETURN_CHAR_LIMIT,
        created_at=now,
        updated_at=now,
    )


def _refuse_language(source_type: str | None) -> None:
    if source_type not in (None, "json", *LANGUAGES):
        raise InvalidRequest(
            f"source_type {source_type!r}: Holdfast runs tools written in {' and '.join(LANGUAGES)}",
            field="source_type",
        )


def _refuse_in_typescript(tool: Tool) -> None:
    if tool.source_type != TYPESCRIPT:
        return
    if tool.network == "host":
        raise InvalidRequest("network: a tool in TypeScript has none; write it in Python", field="network")
    if tool.packages is not None:
        raise InvalidRequest(
            "pip_requirements: a tool in TypeScript has no packages; write it in Python", field="pip_requirements"
        )


def refuse_tool_of_clients(tool: Tool) -> None:
    """Raises `InvalidRequest` for a tool whose source this server cannot parse: clients run such tools."""
    if is_base_tool(tool) or tool.tool_type == MCP_TYPE:
        return
    try:
        read_source(tool.source_code, tool.source_type, tool.name)
    except InvalidToolSource as error:
        raise InvalidRequest(f"the tool {tool.name!r} cannot run on this server, only at a client: {error}") from error


def wire_tool(tool: Tool) -> dict[str, Any]:
    """The wire's tool."""
    return {
        "id": tool.id,
        "tool_type": tool.tool_type,
        "description": tool.description,
        "source_type": tool.source_type,
        "name": tool.name,
        "tags": tool.tags,
        "source_code": tool.source_code or None,
        "json_schema": tool.json_schema,
        "args_json_schema": tool.args_json_schema or {},
        "return_char_limit": tool.return_char_limit,
        "pip_requirements": tool.pip_requirements,
        "npm_requirements": tool.npm_requirements,
        "packages": tool.packages.pins if tool.packages else None,
        "default_requires_approval": tool.default_requires_approval,
        "enable_parallel_execution": tool.enable_parallel_execution,
        "created_by_id": None,
        "last_updated_by_id": None,
        "metadata_": {**tool.metadata, "tool_hash": _hash_of(tool)},
        "project_id": None,
        "idempotent": tool.idempotent,
        "limits": None if tool.limits is None else to_builtins(tool.limits),
        "network": tool.network,
        "scratch": tool.scratch,
        "approval_expires_s": tool.approval_expires_s,
        "on_approval_expiry": tool.on_approval_expiry,
    }


def without_source(tool: dict[str, Any]) -> dict[str, Any]:
    """The wire's tool for a caller that may see the tool, but not its source."""
    shown = {"id", "name", "description", "tool_type", "source_type", "return_char_limit", "default_requires_approval"}
    return {name: value if name in shown else _EMPTY.get(name) for name, value in tool.items()}


_EMPTY: dict[str, Any] = {"tags": [], "args_json_schema": {}, "metadata_": {}}


def _hash_of(tool: Tool) -> str:
    return hashlib.sha256(tool.source_code.encode()).hexdigest()[:12]


class FilledIn(BaseModel):
    """Arguments that a rule adds to the calls of a tool."""

    name: str
    args: dict[str, Any] | None = None


class ToolRule(BaseModel):
    """A rule for one of the agent's tools; each type has its own fields."""

    model_config = ConfigDict(extra="allow")

    tool_name: str
    type: Literal[
        "requires_approval",
        "run_first",
        "exit_loop",
        "continue_loop",
        "constrain_child_tools",
        "conditional",
        "max_count_per_step",
        "parent_last_tool",
        "required_before_exit",
    ]
    prompt_template: str | None = None
    args: dict[str, Any] | None = None
    children: Names | None = None
    child_arg_nodes: Annotated[list[FilledIn], Field(max_length=MOST_ENTRIES)] | None = None
    child_output_mapping: Annotated[dict[str, str], Few] | None = None
    default_child: str | None = None
    require_output_mapping: bool | None = None
    max_count_limit: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _has_its_cases(self) -> Self:
        if self.type == "conditional" and not self.child_output_mapping:
            raise ValueError("child_output_mapping must name a tool for at least one result")
        return self

    def document(self) -> dict[str, Any]:
        """The rule as the server stores and shows it: with only the fields that its author sent."""
        return {"prompt_template": None, **self.model_dump(exclude_unset=True)}
