"""The state of an agent, as Letta's wire answers it."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from api.letta.agents import NOTED, SHAPES_NOTHING
from api.letta.blocks import wire_block
from api.letta.compaction import wire_settings
from api.letta.envelope import wire_time
from api.letta.model_settings import wire_embedding_config, wire_llm_config, wire_model_settings
from api.letta.tools import wire_tool, without_source
from shared.domain.agents import Agent
from shared.domain.model_providers import PROVIDERS, can_embed, split_handle
from shared.sql.definitions.agents import AgentDetails

SECRETS = "agent.secrets"
"""Value of `include` that asks for the secrets, with their values for a caller who may see them."""
PENDING_APPROVAL = "agent.pending_approval"
"""The other one. Everything else that can be included is always there."""

_MILLISECOND = timedelta(milliseconds=1)


class ShownSecret(NamedTuple):
    """A secret as a client gets it: its name, and its value or an empty text."""

    name: str
    value: str = ""
    description: str | None = None
    """Why the value is not there."""


def wire_agent(
    details: AgentDetails,
    environment: Mapping[str, str],
    *,
    secrets: Sequence[ShownSecret] = (),
    pending_approval: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The wire's agent state. `pending_approval` is the wire's approval request message, where one waits."""
    agent, last = details.agent, details.last_run
    blocks = [wire_block(block) for block in details.blocks]
    variables = [_variable(agent, secret) for secret in secrets]
    return {
        "created_by_id": None,
        "last_updated_by_id": None,
        "created_at": wire_time(agent.created_at),
        "updated_at": wire_time(agent.updated_at),
        "id": agent.id,
        "name": agent.name,
        "tool_rules": agent.tool_rules,
        "message_ids": details.message_ids,
        "system": agent.system,
        "agent_type": agent.agent_type,
        "llm_config": wire_llm_config(agent, environment),
        "embedding_config": wire_embedding_config(agent.embedding, environment),
        "model": agent.model,
        "embedding": agent.embedding,
        "model_settings": wire_model_settings(agent),
        "compaction_settings": wire_settings(agent.extra, agent.model),
        "response_format": agent.options.response_format,
        "description": agent.description,
        "metadata": agent.metadata,
        "memory": {
            "agent_type": agent.agent_type,
            "git_enabled": False,
            "blocks": blocks,
            "file_blocks": [],
            "prompt_template": "",
        },
        "blocks": blocks,
        "tools": [wire_tool(tool) for tool in details.tools],
        "sources": [],
        "tags": agent.tags,
        "tool_exec_environment_variables": variables,
        "secrets": variables,
        "pending_approval": pending_approval,
        "last_stop_reason": agent.last_stop_reason,
        "last_run_completion": wire_time(last.completed_at if last else None),
        "last_run_duration_ms": round((last.completed_at - last.submitted_at) / _MILLISECOND) if last else None,
        "timezone": agent.timezone,
        "approval_expires_s": agent.approval_expires_s,
        "on_approval_expiry": agent.on_approval_expiry,
        "not_acted_on": list(_notes_on(agent, environment)),
        **_echoed(agent.extra),
    }


def without_instructions(state: dict[str, Any]) -> dict[str, Any]:
    """The state for a caller who talks with the agent and may not see what the project has written into it. Fields that
    clients require are there, and empty."""
    return {
        **state,
        "system": "",
        "tools": [without_source(tool) for tool in state["tools"]],
        "tool_rules": [],
        "compaction_settings": None,
        "response_format": None,
        "metadata": None,
        "tool_exec_environment_variables": [],
        "secrets": [],
    }


def _echoed(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "project_id": None,
        "template_id": extra.get("template_id"),
        "base_template_id": extra.get("base_template_id"),
        "deployment_id": None,
        "entity_id": None,
        "identity_ids": extra.get("identity_ids") or [],
        "identities": [],
        "message_buffer_autoclear": bool(extra.get("message_buffer_autoclear")),
        "enable_sleeptime": extra.get("enable_sleeptime"),
        "multi_agent_group": None,
        "managed_group": None,
        "max_files_open": extra.get("max_files_open") or 10,
        "per_file_view_window_char_limit": extra.get("per_file_view_window_char_limit") or 25_000,
        "hidden": extra.get("hidden"),
    }


def _variable(agent: Agent, secret: ShownSecret) -> dict[str, Any]:
    moment = wire_time(agent.updated_at)
    return {
        "agent_id": agent.id,
        "key": secret.name,
        "value": secret.value,
        "id": None,
        "description": secret.description,
        "value_enc": None,
        "created_at": moment,
        "updated_at": moment,
        "created_by_id": None,
        "last_updated_by_id": None,
    }


def _notes_on(agent: Agent, environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each field of the agent that is kept and not acted on, with the field's name before it. A request
    with one is answered with a `Warning` header, too, which clients drop."""
    if agent.extra.get("enable_sleeptime"):
        yield "enable_sleeptime: no agent works while this one sleeps"
    for name in agent.extra.get(NOTED, ()):
        if name in SHAPES_NOTHING:
            yield f"{name}: {SHAPES_NOTHING[name]}"
    if agent.embedding is not None and not _can_be_asked(agent.embedding, environment):
        yield (
            f"embedding: this server cannot ask {agent.embedding!r}, so archival memory is searched by words; "
            "GET /v1/models/embedding lists the models that it can ask"
        )


def _can_be_asked(handle: str, environment: Mapping[str, str]) -> bool:
    return can_embed(handle) and PROVIDERS[split_handle(handle)[0]].is_configured(environment)
