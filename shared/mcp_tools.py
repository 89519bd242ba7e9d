"""Turns the tools that an MCP server lists into tools of a project.

A server's descriptions are untrusted text: names are made legal, long descriptions are cut, and a tool whose schema
cannot check a call is left out, with its reason.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.domain.ids import ToolId
from shared.domain.mcp_servers import (
    HINTS,
    MCP_TYPE,
    McpServer,
    RemoteTool,
    ToolSource,
    is_servers_tag,
    source_metadata,
    tag_of,
    tool_source,
)
from shared.domain.tool_catalog import BASE_TOOLS
from shared.domain.tools import LONGEST_TOOL_NAME, Tool, legal_name
from shared.json_limits import flaw_of, schema_flaw

MOST_SERVERS = 50
"""Per project."""

MOST_TOOLS = 500
"""Imported tools per server. Models get no more either."""

LONGEST_DESCRIPTION = 10_000
"""Characters. Every request to a model contains the description."""

_DIGITS = 6
_RESERVED = frozenset(tool.name for tool in BASE_TOOLS)


class SkippedTool(msgspec.Struct, frozen=True):
    """A tool of the server that the project does not get."""

    name: str
    reason: str


class ToolChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to store so that a project has the tools that a server lists."""

    added: Sequence[Tool] = ()
    updated: Sequence[Tool] = ()
    deleted: Sequence[Tool] = ()
    skipped: Sequence[SkippedTool] = ()


def possible_names(server_name: str, tool_name: str) -> list[str]:
    """The names that a project may give to a server's tool; the first free one is used: the tool's own name, that with
    the server's name before it, and that with digits derived from both names. Each is legal for all providers."""
    both = f"{server_name}_{tool_name}"
    digits = hashlib.sha256(f"{server_name}\0{tool_name}".encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    return [legal_name(tool_name), legal_name(both), f"{legal_name(both)[: LONGEST_TOOL_NAME - _DIGITS - 1]}_{digits}"]


class TakeOver(msgspec.Struct, frozen=True, kw_only=True):
    """The import of a server's listed tools into a project."""

    remote: Sequence[RemoteTool]
    asks_always: bool = False
    """The operator demands approval for each call, whatever hints the server gives about the tool."""
    new_id: Callable[[], ToolId]
    now: datetime
    deletes: bool = True
    """Whether tools are deleted that the server no longer lists. False if only some of its tools are imported."""

    def names(self, server: McpServer) -> list[str]:
        """All names that the project may give to the listed tools."""
        return [name for tool in self.remote for name in possible_names(server.name, tool.name)]

    def changes(self, server: McpServer, own: Sequence[Tool], taken: Collection[str]) -> ToolChanges:
        """The changes to store. `own`: the server's tools in the project. `taken`: those of `names` that the project
        uses, `own` included."""
        known = {source.tool_name: tool for tool in own if (source := tool_source(tool)) is not None}
        used, listed = set(taken) | _RESERVED, set[str]()
        added, updated, skipped = list[Tool](), list[Tool](), list[SkippedTool]()
        # Sorted, so that the order of the list does not decide which of two tools gets a name.
        for remote in sorted(self.remote, key=lambda tool: tool.name):
            reason = "the server lists it twice" if remote.name in listed else _flaw(remote)
            before = known.get(remote.name)
            listed.add(remote.name)
            if reason is not None:
                skipped.append(SkippedTool(_shown(remote.name), reason))
            elif before is not None:
                after = self._refreshed(before, server, remote)
                updated += [after] if after != before else []
            else:
                name = next((name for name in possible_names(server.name, remote.name) if name not in used), None)
                if name is None:
                    skipped.append(SkippedTool(remote.name, "the project has other tools of each name for it"))
                    continue
                used.add(name)
                added.append(self._new(name, server, remote))
        gone = [tool for name, tool in known.items() if name not in listed] if self.deletes else []
        return ToolChanges(added=added, updated=updated, deleted=gone, skipped=skipped)

    def _new(self, name: str, server: McpServer, remote: RemoteTool) -> Tool:
        blank = Tool(
            id=self.new_id(),
            project_id=server.project_id,
            name=name,
            description="",
            source_code="",
            json_schema={},
            tool_type=MCP_TYPE,
            idempotent=_is_repeatable(remote),
            default_requires_approval=True if self.asks_always or remote.destructive else None,
            created_at=self.now,
            updated_at=self.now,
        )
        return _described(blank, server, remote)

    def _refreshed(self, before: Tool, server: McpServer, remote: RemoteTool) -> Tool:
        """The tool with the server's current description. Its owner's settings stay, unless the server now warns of the
        tool, or no longer declares calls repeatable: a server can make its tools more careful, but never less."""
        hints: dict[str, Any] = before.metadata.get(HINTS) or {}
        after = _described(before, server, remote)
        warns_now = remote.destructive is True and not hints.get("destructive")
        if self.asks_always or warns_now:
            after = replace(after, default_requires_approval=True)
        if after.idempotent and hints.get("read_only") and not _is_repeatable(remote):
            after = replace(after, idempotent=False)
        return after if after == before else replace(after, updated_at=self.now)


def _described(tool: Tool, server: McpServer, remote: RemoteTool) -> Tool:
    description = remote.description
    if len(description) > LONGEST_DESCRIPTION:
        description = f"{description[: LONGEST_DESCRIPTION - 1]}…"
    parameters: dict[str, Any] = {"type": "object", "properties": {}, **remote.input_schema}
    source = ToolSource(server.id, server.name, remote.name, remote.probe)
    hints = {name: value for name in ("read_only", "destructive", "idempotent") if (value := getattr(remote, name))}
    return replace(
        tool,
        description=description,
        json_schema={"name": tool.name, "description": description, "parameters": parameters},
        tags=[tag_of(server.name), *(tag for tag in tool.tags if not is_servers_tag(tool, tag))],
        metadata={**tool.metadata, **source_metadata(source), HINTS: hints},
    )


def renamed(tools: Iterable[Tool], server: McpServer, now: datetime) -> list[Tool]:
    """A server's tools after the server was renamed. Their own names stay, because agents and prompts use them."""
    after: list[Tool] = []
    for tool in tools:
        source = tool_source(tool)
        if source is None:
            continue
        tags = [tag_of(server.name), *(tag for tag in tool.tags if not is_servers_tag(tool, tag))]
        metadata = {**tool.metadata, **source_metadata(replace(source, server_name=server.name))}
        after.append(replace(tool, tags=tags, metadata=metadata, updated_at=now))
    return after


def _is_repeatable(remote: RemoteTool) -> bool:
    """Whether a call may be started again after a crash. A tool that only promises that a second call changes nothing
    further may still have effects that it does not count as changes, such as a log entry."""
    return remote.read_only is True


def _flaw(remote: RemoteTool) -> str | None:
    """Why the project cannot have the tool."""
    if remote.problem or not remote.name:
        return remote.problem or "it has no name"
    flaw = flaw_of([remote.name, remote.description])
    if flaw is not None:
        return flaw.text
    kind: Any = remote.input_schema.get("type", "object")
    if kind != "object":
        return f"its inputSchema is of the type {str(kind)[:50]!r}: arguments are an object"
    return schema_flaw(remote.input_schema)


def _shown(name: str) -> str:
    return name.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:LONGEST_TOOL_NAME]
