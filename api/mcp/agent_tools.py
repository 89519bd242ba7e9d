"""Agents as tools: their names, their list, and the arguments and conversation of a call."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, ValidationError

from api.access.callers import Caller
from api.mcp.messages import INVALID_PARAMS, ClientRequest, RpcError
from api.runs.command import AgentThread, AgentThreads
from shared.concurrency import Clock
from shared.domain.agents import Agent
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, IdMaker, is_id
from shared.domain.threads import Conversation
from shared.sql.definitions.agents import EVERY_SHOWN, AgentFilter
from shared.sql.paging import Page

TOOLS_OF_A_PAGE = 100
LONGEST_DESCRIPTION = 2_000
LIST_KEPT_MS = 10_000
"""Milliseconds for which a client may keep the list of agents."""

_LONGEST_WORDS = 27
_DIGITS = 12
"""Hexadecimal digits of an agent's id in the name of its tool. Programs prefix the server's name, and model providers
allow 64 characters."""
_NAME = re.compile(rf"(?:[A-Za-z0-9_-]{{1,{_LONGEST_WORDS}}}_)?([0-9a-f]{{{_DIGITS}}})")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")

NEW = "new"
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "minLength": 1, "description": "What the agent is told or asked."},
        "conversation": {
            "type": "string",
            "description": (
                "Leave it out to talk in the agent's own history, which it remembers. 'new' begins a conversation "
                "beside it; the result names its id (conv-…), by which it goes on."
            ),
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}


class Arguments(BaseModel):
    """The arguments of a call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    message: str
    conversation: str | None = None


def tool_name(agent: Agent) -> str:
    """The name of the agent's tool: words of the agent's name, and digits of its id. The digits find the agent even
    after it was renamed."""
    words = _NOT_IN_NAMES.sub("_", agent.name).strip("_")[:_LONGEST_WORDS].strip("_")
    digits = agent.id.removeprefix("agent-").replace("-", "")[:_DIGITS]
    return f"{words}_{digits}" if words else digits


def wire_tool(agent: Agent) -> dict[str, Any]:
    """The agent in the form of a tool."""
    said = (agent.description or "").strip() or f"Sends a message to the agent {agent.name} and returns its answer."
    return {
        "name": tool_name(agent),
        "title": agent.name,
        "description": said if len(said) <= LONGEST_DESCRIPTION else f"{said[: LONGEST_DESCRIPTION - 1]}…",
        "inputSchema": SCHEMA,
        # An agent's effects depend on its own tools, so the hints promise nothing.
        "annotations": {
            "title": agent.name,
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": False,
            "openWorldHint": True,
        },
        "_meta": {"holdfast/agentId": agent.id},
    }


def arguments_of(asked: ClientRequest) -> Arguments:
    """Parses the arguments of a call. Raises `ValueError`, whose text explains the problem."""
    try:
        arguments = Arguments.model_validate(asked.params.get("arguments") or {})
    except ValidationError as error:
        flaws = error.errors(include_url=False, include_input=False)
        said = "; ".join(f"{'.'.join(map(str, flaw['loc']))}: {flaw['msg']}"[:200] for flaw in flaws[:5])
        raise ValueError(f"The arguments do not fit: {said}") from None
    if not arguments.message.strip():
        raise ValueError("message is empty: say what the agent is told or asked")
    named = arguments.conversation
    if named is not None and named != NEW and not is_id(named, "conv"):
        raise ValueError("conversation must be 'new', or the id of a conversation (conv-…) from an earlier result")
    return arguments


@dataclass(frozen=True, kw_only=True)
class AgentTools:
    """Finds the agents that a caller may call, and their conversations."""

    threads: AgentThreads
    clock: Clock
    ids: IdMaker

    async def listed(self, caller: Caller, cursor: str | None) -> dict[str, Any]:
        """Returns a page of the caller's tools, oldest agent first. Raises `RpcError` for an invalid cursor."""
        if cursor is not None and not is_id(cursor, "agent"):
            raise RpcError(INVALID_PARAMS, "params.cursor is no cursor of this server: begin the list again")
        page = Page(limit=TOOLS_OF_A_PAGE + 1, after=cursor, ascending=True)
        found = await self.threads.agents.list(caller.project_id, _seen_by(caller), page)
        shown = found[:TOOLS_OF_A_PAGE]
        further = {"nextCursor": shown[-1].id} if len(found) > len(shown) else {}
        return {"tools": list(map(wire_tool, shown)), **further}

    async def find(self, caller: Caller, name: str) -> Agent:
        """Returns the agent with this tool name. Raises `RpcError` if the caller has no such agent."""
        digits = _NAME.fullmatch(name)
        found = [] if digits is None else await self._with_digits(caller, digits[1])
        # If several agents have the same digits, the words decide.
        agent = found[0] if len(found) == 1 else next((one for one in found if tool_name(one) == name), None)
        if agent is None:
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:100]!r}. tools/list has the tools of this key")
        return agent

    async def thread(self, agent: Agent, named: str | None) -> AgentThread:
        """Returns the history that a call names. Raises `ValueError` if the agent has no such history."""
        if named is None:
            return AgentThread(agent)
        if named == NEW:
            return AgentThread(agent, await self._begun(agent))
        try:
            found = await self.threads.find(agent.project_id, named)
        except NotFound:
            found = None
        if found is None or found.agent.id != agent.id:
            raise ValueError(f"The agent has no conversation {named}: leave it out, or begin one with 'new'")
        return found

    async def _begun(self, agent: Agent) -> Conversation:
        now = self.clock.now()
        begun = Conversation(
            id=self.ids.conversation(), project_id=agent.project_id, agent_id=agent.id, created_at=now, updated_at=now
        )
        return await self.threads.conversations.create(begun, system_message_id=self.ids.message())

    async def _with_digits(self, caller: Caller, digits: str) -> list[Agent]:
        begins = f"agent-{digits[:8]}-{digits[8:]}"
        ends = AgentId(f"{begins}-0000-0000-000000000000"), AgentId(f"{begins}-ffff-ffff-ffffffffffff")
        wanted = replace(_seen_by(caller), between=ends)
        return await self.threads.agents.list(caller.project_id, wanted, Page(limit=10, ascending=True))


def _seen_by(caller: Caller) -> AgentFilter:
    agents = caller.scopes.agents
    return AgentFilter(ids=agents) if agents else EVERY_SHOWN
