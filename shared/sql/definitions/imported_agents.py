"""Prepares and stores imported agents. One transaction stores all of them with their tools, blocks and histories, or
nothing."""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.agents import Agent, Block, with_default_approvals
from shared.domain.groups import Group
from shared.domain.ids import IdMaker, MessageId, ProjectId
from shared.domain.mcp_servers import MCP_TYPE
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    ImportedMessage,
    MessageBody,
    NewMessage,
    Summary,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.domain.settling import OpenCalls, close_calls
from shared.domain.tool_catalog import is_base_tool
from shared.domain.tools import Rule, Tool
from shared.secret_keys import NO_KEYS, SecretKeys
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.definitions.agent_changes import agent_values, begin_history, link_agent
from shared.sql.definitions.agents import block_values, definitions_lock, load_blocks, tool_of, tool_values
from shared.sql.definitions.groups import insert_group
from shared.sql.engine import Database
from shared.sql.history.messages import import_history
from shared.sql.tables import agents, blocks, made_of, tools

# Imported agents with their tools, memory and history, before they are stored.


class ImportedTool(msgspec.Struct, frozen=True):
    """A tool of the file, for the project that imports the agents."""

    new: Tool
    """The tool to store if the project has none of this name."""
    change: Callable[[Tool], Tool]
    """The change to the project's own tool of this name. Quick and pure."""

    def in_place_of(self, own: Tool) -> Tool:
        """Returns the changed tool of the project. Its calls still require approval if they did before: a file may make
        a project more careful, but not less."""
        changed = self.change(own)
        return replace(changed, default_requires_approval=True) if own.default_requires_approval else changed

    def opens(self, own: Tool) -> bool:
        """Whether the file would let calls run without the approval that this project requires."""
        return bool(own.default_requires_approval) and not self.change(own).default_requires_approval


class ImportedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that is to be stored, without tools."""

    agent: Agent
    tool_names: list[str]
    """The names of its tools. Tools that the project does not have are left out."""
    system_message_id: MessageId
    history: list[ImportedMessage]


class ImportBundle(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an import that one transaction stores."""

    agents: list[ImportedAgent]
    groups: list[Group] = []
    """Sleep-time groups of these agents."""
    blocks: list[Block]
    tools: list[ImportedTool]
    replace_tools: bool
    """Whether a tool replaces a different one of its name."""


class ImportReport(msgspec.Struct, frozen=True):
    """The outcome for each tool, by name."""

    replaced: list[str]
    guarded: list[str]
    """Tools whose calls still require approval in the project, although the file does not require it."""
    kept: list[str]
    """Tools of the project that stayed although the file's differ."""
    missing: list[str]


NOT_DECIDED = "the agent was copied while this call waited for a decision"


class ImportedHistory:
    """Converts messages of another server to a history that every provider accepts.

    Every call gets a result: its own, or the result for an unknown outcome. A call that waits for a person is denied,
    because no run waits for the decision here. Results and decisions that belong to no call are left out.
    """

    def __init__(self, ids: IdMaker) -> None:
        self._ids = ids
        self._placed: list[ImportedMessage] = []
        self._turn = 0
        self._in_context = True
        self._asking: AssistantMessage | None = None
        self._asked_at: datetime | None = None
        self._decided: ApprovalResponse | None = None
        self._results: dict[str, ToolReturn] = {}
        self.undecided = 0
        """Calls that waited for a person."""

    def add(self, body: MessageBody, created_at: datetime, *, in_context: bool = True) -> None:
        """Takes the next message."""
        if in_context != self._in_context:
            self._close()
            self._in_context = in_context
        match body:
            case ToolReturns(returns=returns):
                self._results.update((result.tool_call_id, result) for result in returns)
                self._asked_at = created_at
            case ApprovalResponse():
                self._decide(body, created_at)
            case AssistantMessage():
                self._answer(body, created_at)
            case _:
                self._close()
                self._place(body, created_at)

    def finish(self) -> list[ImportedMessage]:
        """The whole history."""
        self._close()
        return self._placed

    def _answer(self, body: AssistantMessage, created_at: datetime) -> None:
        first_half = self._first_half_of(body)
        if first_half is not None:
            last = self._placed.pop()
            self._asking = replace(
                first_half,
                tool_calls=[*first_half.tool_calls, *body.tool_calls],
                sibling_id=self._ids.message(),
                sibling_holds="approvals",
            )
            self._placed.append(replace(last, message=replace(last.message, body=self._asking)))
            return
        self._close()
        self._place(body, created_at)
        if body.tool_calls:
            self._asking, self._asked_at = body, created_at

    def _first_half_of(self, body: AssistantMessage) -> AssistantMessage | None:
        """The earlier part of this answer. An answer with some waiting calls is shown as two messages."""
        asking = self._asking
        if asking is None or self._placed[-1].message.body is not asking or body.text or body.reasoning is not None:
            return None
        waits = bool(body.tool_calls) and all(call.needs_approval for call in body.tool_calls)
        return asking if waits and not any(call.needs_approval for call in asking.tool_calls) else None

    def _decide(self, body: ApprovalResponse, created_at: datetime) -> None:
        if self._asking is None or self._decided is not None:
            return
        waiting = {call.id for call in self._asking.tool_calls if call.needs_approval}
        decisions = [decision for decision in body.decisions if decision.tool_call_id in waiting]
        if decisions:
            self._decided = ApprovalResponse(decisions)
            self._place(self._decided, created_at)

    def _close(self) -> None:
        """Gives every call of the last answer its result, in the order of the calls."""
        asking, decided, results, at = self._asking, self._decided, self._results, self._asked_at
        self._asking, self._decided, self._results = None, None, {}
        if asking is None or at is None:
            return
        calls = asking.tool_calls
        if all(call.id in results for call in calls):
            self._place(ToolReturns([results[call.id] for call in calls]), at)
            return
        waiting = [call for call in calls if call.needs_approval]
        self.undecided += 0 if decided else len(waiting)
        open_ = OpenCalls(
            step_id=None,
            calls=calls,
            decided=decided is not None or not waiting,
            decisions=decided.decisions if decided else [],
        )
        started = {call.id for call in calls}
        closing = close_calls(
            open_, known=results, started=started, why="error", reason=NOT_DECIDED, ids=self._ids, now=at
        )
        for message in closing:
            self._place(message.body, message.created_at)

    def _place(self, body: MessageBody, created_at: datetime) -> None:
        if isinstance(body, UserMessage):
            # Messages of one submission share its turn.
            follows_user = bool(self._placed) and isinstance(self._placed[-1].message.body, UserMessage)
            self._turn += 0 if follows_user and self._placed[-1].in_context == self._in_context else 1
        leads = isinstance(body, Summary) and not any(one.turn and one.in_context for one in self._placed)
        turn = 0 if leads and self._in_context else max(self._turn, 1)
        self._turn = max(self._turn, turn)
        message = NewMessage(id=self._ids.message(), created_at=created_at, body=body)
        self._placed.append(ImportedMessage(turn, message, self._in_context))


def without_missing(rules: Iterable[Rule], names: Container[str]) -> list[Rule]:
    """Returns the rules without the tools that the agent does not get: such a rule could leave it no tool to call.

    A rule that makes calls wait for a person stays: it can only make the agent more careful.
    """
    kept = (_without_missing(rule, names) for rule in rules)
    return [rule for rule in kept if rule is not None]


def _without_missing(rule: Rule, names: Container[str]) -> Rule | None:
    if rule["tool_name"] not in names:
        return rule if rule["type"] == "requires_approval" else None
    children: list[str] = rule.get("children") or []
    cases: dict[str, str] = rule.get("child_output_mapping") or {}
    default: str | None = rule.get("default_child")
    known: dict[str, Any] = {
        "children": [name for name in children if name in names],
        "child_output_mapping": {case: name for case, name in cases.items() if name in names},
        "default_child": default if default is not None and default in names else None,
    }
    if (children or cases) and not (known["children"] or known["child_output_mapping"]):
        return None
    return {key: known.get(key, value) for key, value in rule.items()}


# One transaction stores all of them.


TOOLS_AT_ONCE = 100
"""The limit for one statement, in rows: a tool's source may be long."""


class ImportedAgentStore:
    """Stores imported agents."""

    def __init__(self, database: Database, secret_keys: SecretKeys = NO_KEYS) -> None:
        self._database = database
        self._secret_keys = secret_keys

    async def store(self, project_id: ProjectId, bundle: ImportBundle) -> ImportReport:
        """Stores tools, blocks, agents and their histories in one transaction. Returns the outcome for each tool.

        A base tool of the project is never replaced, and neither is one of an MCP server. Raises `Conflict`
        for an agent with two blocks of one label, and `InvalidRequest` for a text that cannot be stored.
        """
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            wanted = {one.new.name for one in bundle.tools}.union(*(one.tool_names for one in bundle.agents))
            own = await _tools_by_name(connection, project_id, wanted)
            # Each tool is compared with the project's by the source of both, and a file may have thousands.
            met = await asyncio.to_thread(_met, bundle, own)
            await _store_tools(connection, project_id, met)
            if bundle.blocks:
                await connection.execute(sa.insert(blocks), [block_values(block) for block in bundle.blocks])
            for one in bundle.agents:
                await _store_agent(connection, one, met.present, self._secret_keys)
            for group in bundle.groups:
                await insert_group(connection, group)
            missing = sorted(wanted.difference(met.present))
            return ImportReport([tool.name for tool in met.replaced], met.guarded, met.kept, missing)


async def _tools_by_name(connection: Connection, project_id: ProjectId, names: set[str]) -> dict[str, Tool]:
    found = await connection.execute(sa.select(tools).where(tools.c.project_id == project_id, tools.c.name.in_(names)))
    return {tool.name: tool for tool in await made_of(found.mappings().all(), tool_of, "document")}


class _Met(NamedTuple):
    """The project's tools merged with those of a file."""

    present: dict[str, Tool]
    """The project's tools after the import, by name."""
    created: list[Tool]
    replaced: list[Tool]
    guarded: list[str]
    kept: list[str]
    """Names of the project's tools that stay although the file's differ."""


def _met(bundle: ImportBundle, own: Mapping[str, Tool]) -> _Met:
    met = _Met(dict(own), [], [], [], [])
    for one in bundle.tools:
        name = one.new.name
        before = met.present.get(name)
        if before is None:
            met.present[name] = one.new
            met.created.append(one.new)
            continue
        is_fixed = is_base_tool(before) or before.tool_type == MCP_TYPE
        changed = before if is_fixed else one.in_place_of(before)
        if is_fixed or (changed != before and not bundle.replace_tools):
            met.kept.append(name)
        elif changed != before:
            met.present[name] = replace(changed, updated_at=one.new.updated_at)
            met.replaced.append(met.present[name])
        if name in own and not is_fixed and one.opens(own[name]):
            met.guarded.append(name)
    return met


async def _store_tools(connection: Connection, project_id: ProjectId, met: _Met) -> None:
    for start in range(0, len(met.created), TOOLS_AT_ONCE):
        some = met.created[start : start + TOOLS_AT_ONCE]
        await connection.execute(sa.insert(tools), [tool_values(tool) for tool in some])
        await record(connection, project_id, "tool.created", *(tool.id for tool in some))
    for tool in met.replaced:
        await connection.execute(sa.update(tools).where(tools.c.id == tool.id).values(tool_values(tool)))
        await record(connection, project_id, "tool.changed", tool.id)


async def _store_agent(
    connection: Connection, imported: ImportedAgent, present: dict[str, Tool], secret_keys: SecretKeys
) -> None:
    given = [present[name] for name in dict.fromkeys(imported.tool_names) if name in present]
    rules = without_missing(imported.agent.tool_rules, [tool.name for tool in given])
    agent = replace(imported.agent, tool_ids=[tool.id for tool in given], tool_rules=rules)
    agent = with_default_approvals(agent, given)
    attached = await load_blocks(connection, agent.project_id, agent.block_ids)
    await connection.execute(sa.insert(agents).values(agent_values(agent, secret_keys)))
    await link_agent(connection, agent)
    begin_history(connection, agent, attached, imported.system_message_id, [])
    await import_history(connection, agent.id, imported.history)
