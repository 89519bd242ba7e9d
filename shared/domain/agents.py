"""Agents, as stored, with the memory blocks that are rendered into their instructions."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from shared.domain.ids import AgentId, BlockId, ProjectId, ToolId


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A labelled piece of memory that the model always sees."""

    id: BlockId
    project_id: ProjectId
    label: str
    value: str
    description: str | None = None
    limit: int = 100_000
    read_only: bool = False
    metadata: dict[str, Any] = {}
    tags: list[str] = []
    created_at: datetime
    updated_at: datetime


class ModelOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the model is asked. None: the provider's own default."""

    temperature: float | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool = True
    reasoning: bool = True
    """Ask for reasoning where the model has it."""
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = None
    context_window: int | None = None
    response_format: dict[str, Any] | None = None


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent: instructions, a model, tools and the rules for them."""

    id: AgentId
    project_id: ProjectId
    name: str
    model: str
    """Handle `provider/model`, split at the first slash."""
    system: str
    embedding: str | None = None
    agent_type: str = "letta_v1_agent"
    description: str | None = None
    options: ModelOptions = ModelOptions()
    tool_ids: list[ToolId] = []
    tool_rules: list[dict[str, Any]] = []
    """The wire's tool rules, e.g. `{"type": "requires_approval", "tool_name": …}`."""
    block_ids: list[BlockId] = []
    tags: list[str] = []
    metadata: dict[str, Any] | None = None
    tool_environment: dict[str, str] = {}
    """Variables that the agent's tools see; never logged."""
    timezone: str = "UTC"
    approval_expires_s: float | None = None
    on_approval_expiry: Literal["keep", "deny", "cancel"] | None = None
    extra: dict[str, Any] = {}
    """Fields of the wire that Holdfast keeps and gives back but does not act on."""
    last_stop_reason: str | None = None
    created_at: datetime
    updated_at: datetime


def requires_approval(agent: Agent, tool_name: str, default: bool | None) -> bool:
    """Whether a call of this tool waits for a person: the agent's own rule, else the tool's default.

    The rule `requires_approval` on the agent switches it on; `approval_override` in `extra` (set by
    `PATCH …/tools/approval/{name}`) decides in both directions.
    """
    override = agent.extra.get("approval_overrides", {}).get(tool_name)
    if override is not None:
        return bool(override)
    ruled = any(r.get("type") == "requires_approval" and r.get("tool_name") == tool_name for r in agent.tool_rules)
    return ruled or bool(default)
