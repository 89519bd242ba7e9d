"""Sleep-time agents on Letta's wire: their groups, and the template of a new sleep-time agent."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import BaseModel, Field

from api.errors import Refused
from api.input_limits import Description
from shared.concurrency import Clock
from shared.domain.agents import Agent, Block
from shared.domain.errors import ErrorCode, InvalidRequest
from shared.domain.groups import (
    MOST_SLEEPERS,
    MOST_TURNS,
    PERSONA,
    PERSONA_DESCRIPTION,
    PERSONA_LABEL,
    SLEEPTIME,
    SLEEPTIME_AGENT,
    SYSTEM,
    Group,
    Sleeper,
    first_counter,
)
from shared.domain.ids import UUID4_PATTERN, AgentId, IdMaker, ProjectId, ToolId
from shared.domain.tool_catalog import base_tool_rules, default_base_tools
from shared.sql.definitions.agent_changes import MakeSleeper
from shared.sql.definitions.tools import BaseToolSeeder, ToolStore

ManagerType = Literal["round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime", "swarm"]

_CHATS = "agents do not chat in groups here: a program sends each agent its messages, and decides who is next"
NO_SUCH_MANAGER: dict[str, str] = {
    "round_robin": _CHATS,
    "supervisor": _CHATS,
    "dynamic": _CHATS,
    "swarm": _CHATS,
    "voice_sleeptime": "there are no voice agents here: make a sleeptime group",
}
"""The reasons why Holdfast refuses groups with these managers."""

GroupAgentId = Annotated[AgentId, Field(pattern=f"^agent-{UUID4_PATTERN}$")]


class GroupManager(BaseModel):
    """The rule by which the agents of a group start to work."""

    manager_type: ManagerType
    manager_agent_id: GroupAgentId | None = None
    sleeptime_agent_frequency: Annotated[int, Field(ge=0, le=MOST_TURNS)] | None = None
    """The agents work after every n-th turn of the manager. Omitted in a new group: after each turn; 0: never."""

    def refuse_others(self) -> None:
        """Raises `Refused` for a manager type that Holdfast lacks."""
        why = NO_SUCH_MANAGER.get(self.manager_type)
        if why is not None:
            said = f"NOT_IMPLEMENTED: manager_type {self.manager_type!r}: {why}"
            raise Refused(501, ErrorCode.NOT_IMPLEMENTED, said, field="manager_config.manager_type")


class GroupCreate(BaseModel):
    """A group to create."""

    agent_ids: Annotated[list[GroupAgentId], Field(max_length=MOST_SLEEPERS)]
    description: Description
    manager_config: GroupManager = GroupManager(manager_type="round_robin")
    hidden: bool | None = None

    def group(self, project_id: ProjectId, ids: IdMaker, now: datetime) -> Group:
        """The group that the request describes. Raises `Refused` and `InvalidRequest`."""
        manager = self.manager_config
        manager.refuse_others()
        if manager.manager_agent_id is None:
            raise InvalidRequest(
                "manager_config.manager_agent_id is missing: name the agent whose turns the others think about",
                field="manager_config.manager_agent_id",
            )
        return Group(
            id=ids.group(),
            project_id=project_id,
            manager_agent_id=manager.manager_agent_id,
            agent_ids=list(dict.fromkeys(self.agent_ids)),
            description=self.description,
            frequency=manager.sleeptime_agent_frequency,
            hidden=self.hidden,
            created_at=now,
            updated_at=now,
        )


class GroupUpdate(BaseModel):
    """The changes to a group. A field that is omitted or null stays."""

    agent_ids: Annotated[list[GroupAgentId], Field(max_length=MOST_SLEEPERS)] | None = None
    description: Description | None = None
    manager_config: GroupManager | None = None

    def apply(self, group: Group) -> Group:
        """The group after the change. Raises `InvalidRequest` for another manager type."""
        manager = self.manager_config
        if manager is not None and manager.manager_type != SLEEPTIME:
            raise InvalidRequest(
                f"manager_config.manager_type: the group is {SLEEPTIME!r}, and stays so: make another group",
                field="manager_config.manager_type",
            )
        given = {
            "agent_ids": None if self.agent_ids is None else list(dict.fromkeys(self.agent_ids)),
            "description": self.description,
            "manager_agent_id": manager and manager.manager_agent_id,
            "frequency": None if manager is None else manager.sleeptime_agent_frequency,
        }
        return replace(group, **{name: value for name, value in given.items() if value is not None})


def wire_group(group: Group) -> dict[str, Any]:
    """The wire's group."""
    return {
        "id": group.id,
        "manager_type": SLEEPTIME,
        "agent_ids": group.agent_ids,
        "description": group.description,
        "project_id": None,
        "template_id": None,
        "base_template_id": None,
        "deployment_id": None,
        "shared_block_ids": [],
        "manager_agent_id": group.manager_agent_id,
        "termination_token": None,
        "max_turns": None,
        "sleeptime_agent_frequency": group.frequency,
        "turns_counter": group.turns_counter,
        "last_processed_message_id": group.last_message_id,
        "max_message_buffer_length": None,
        "min_message_buffer_length": None,
        "hidden": group.hidden,
    }


@dataclass(frozen=True, kw_only=True)
class SleeperMaker:
    """Prepares the parts of a project's new sleep-time agents."""

    base_tools: BaseToolSeeder
    tools: ToolStore
    clock: Clock
    ids: IdMaker

    async def maker(self, project_id: ProjectId) -> MakeSleeper:
        """Returns a function that creates sleep-time agents for agents of this project."""
        await self.base_tools.fill(project_id)
        names = default_base_tools(SLEEPTIME_AGENT, enable_sleeptime=False)
        tool_ids = await self.tools.ids_by_name(project_id, (), if_there=names)
        return partial(new_sleeper, tool_ids=tool_ids, names=names, ids=self.ids, now=self.clock.now())


def new_sleeper(
    agent: Agent, *, tool_ids: Sequence[ToolId], names: Sequence[str], ids: IdMaker, now: datetime
) -> Sleeper:
    """The sleep-time agent for an agent. It uses the same model with the same options."""
    sleeper = Agent(
        id=ids.agent(),
        project_id=agent.project_id,
        name=f"{agent.name}-sleeptime",
        model=agent.model,
        embedding=agent.embedding,
        options=replace(agent.options, response_format=None),
        system=SYSTEM,
        agent_type=SLEEPTIME_AGENT,
        tool_ids=list(tool_ids),
        tool_rules=base_tool_rules(names),
        timezone=agent.timezone,
        created_at=now,
        updated_at=now,
    )
    persona = Block(
        id=ids.block(),
        project_id=agent.project_id,
        label=PERSONA_LABEL,
        value=PERSONA,
        description=PERSONA_DESCRIPTION,
        created_at=now,
        updated_at=now,
    )
    group = Group(
        id=ids.group(),
        project_id=agent.project_id,
        manager_agent_id=agent.id,
        agent_ids=[sleeper.id],
        created_at=now,
        updated_at=now,
    )
    return Sleeper(sleeper, persona, ids.message(), replace(group, turns_counter=first_counter(group.frequency)))
