"""Writes agents as Letta's agent files (`.af`), which Letta's servers and ours can read.

Ids are local to the file: `agent-0`, `tool-3`. The values of secrets and the addresses of model servers are never
written. Letta's schemas refuse unknown fields, so Holdfast's own fields go into `metadata`.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple

from msgspec import to_builtins

from api.letta.agents import wire_agent
from api.letta.context import SETTINGS as COMPACTION
from api.letta.context import answer_content, function_calls, text_part
from api.letta.memory import wire_block
from api.letta.model_settings import KEPT_SETTINGS
from api.letta.packed_texts import packed_result, packed_summary
from api.letta.tools import wire_tool
from shared.domain.agents import Agent, Block, zone_of
from shared.domain.groups import SLEEPTIME, Group
from shared.domain.mcp_servers import McpServer
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    ContentPart,
    Decision,
    ImageContent,
    Message,
    Summary,
    SystemMessage,
    TextContent,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.domain.tools import Tool
from shared.sql.definitions.agents import AgentDetails

OURS = "holdfast"
"""Key of `metadata` for settings without a field in Letta's format."""

OURS_OF_AGENTS = ("approval_expires_s", "on_approval_expiry")
OURS_OF_TOOLS = ("idempotent", "limits", "network", "scratch", "approval_expires_s", "on_approval_expiry")
_COPIED = (
    "agent_type", "description", "hidden", "max_files_open", "message_buffer_autoclear", "name",
    "per_file_view_window_char_limit", "response_format", "system", "tags", "timezone", "tool_rules",
)  # fmt: skip
_EMPTY = (
    "base_template_id", "context_window_limit", "embedding", "embedding_chunk_size", "folder_ids", "from_template",
    "identity_ids", "initial_message_sequence", "max_reasoning_tokens", "max_tokens", "memory_variables", "model",
    "model_settings", "parallel_tool_calls", "project", "project_id", "reasoning", "template_id",
)  # fmt: skip
_FALSE = (
    "enable_reasoner", "include_base_tool_rules", "include_base_tools", "include_default_source",
    "include_multi_agent_tools", "template",
)  # fmt: skip
_LISTS = ("files_agents", "group_ids", "memory_blocks", "source_ids", "tools")


class ExportedAgent(NamedTuple):
    """An agent for a file, and its history, which begins with its instructions."""

    details: AgentDetails
    history: Sequence[Message]


def agent_file(
    exported: Sequence[ExportedAgent],
    *,
    servers: Sequence[McpServer],
    skills: Sequence[dict[str, Any]],
    generator: str,
    now: datetime,
) -> dict[str, Any]:
    """The file of an agent, followed by the other agents of its group."""
    tools = {tool.id: tool for one in exported for tool in one.details.tools}
    blocks = {block.id: block for one in exported for block in one.details.blocks}
    ids: dict[str, str] = {
        **{one.details.agent.id: f"agent-{number}" for number, one in enumerate(exported)},
        **{tool_id: f"tool-{number}" for number, tool_id in enumerate(tools)},
        **{block_id: f"block-{number}" for number, block_id in enumerate(blocks)},
    }
    numbers = count()
    groups = [group for one in exported if (group := one.details.group) is not None]
    return {
        "agents": [_agent(one, ids, numbers) for one in exported],
        "groups": [_group(group, number, ids) for number, group in enumerate(groups)],
        "blocks": [_block(one, ids[one.id]) for one in sorted(blocks.values(), key=lambda block: block.label)],
        "files": [],
        "sources": [],
        "tools": [_tool(tool, ids[tool.id]) for tool in sorted(tools.values(), key=lambda tool: tool.name)],
        "mcp_servers": [_server(server, number) for number, server in enumerate(servers)],
        "skills": list(skills),
        "metadata": {"generator": generator},
        "created_at": now.isoformat(),
    }


def _agent(exported: ExportedAgent, ids: Mapping[str, str], numbers: Iterator[int]) -> dict[str, Any]:
    details = exported.details
    messages = [
        message | {"id": f"message-{next(numbers)}"}
        for stored in exported.history
        for message in _file_messages(details.agent, stored)
    ]
    return _settings(details) | {
        "id": ids[details.agent.id],
        "tool_ids": [ids[tool.id] for tool in details.tools],
        "block_ids": [ids[block.id] for block in details.blocks],
        "group_ids": [] if details.group is None else ["group-0"],
        "in_context_message_ids": [message["id"] for message in messages],
        "messages": messages,
    }


def _group(group: Group, number: int, ids: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": f"group-{number}",
        "agent_ids": [ids[agent_id] for agent_id in group.agent_ids],
        "description": group.description,
        "manager_config": {
            "manager_type": SLEEPTIME,
            "manager_agent_id": ids[group.manager_agent_id],
            "sleeptime_agent_frequency": group.frequency,
        },
        "project_id": None,
        "shared_block_ids": [],
        "hidden": group.hidden,
    }


def _server(server: McpServer, number: int) -> dict[str, Any]:
    """The server without its secrets."""
    command = {"server_name": server.name, "type": server.transport, "command": server.command, "args": server.args}
    return {
        "id": f"mcp_server-{number}",
        "server_type": server.transport,
        "server_name": server.name,
        "server_url": server.url or None,
        "stdio_config": command if server.command else None,
        "metadata_": None,
    }


def _settings(details: AgentDetails) -> dict[str, Any]:
    agent = details.agent
    # No environment: the address of a model server may contain a password.
    state = wire_agent(details, {})
    secrets = dict.fromkeys(agent.tool_environment, "")
    config = {name: value for name, value in state["llm_config"].items() if (name, value) != ("temperature", None)}
    # The stored setting, not the effective one: the importing server may know another limit.
    config["max_tokens"] = agent.options.max_output_tokens
    kept = agent.extra.get(KEPT_SETTINGS)
    return {
        **dict.fromkeys(_EMPTY),
        **dict.fromkeys(_FALSE, False),
        **{name: [] for name in _LISTS},
        **{name: state[name] for name in _COPIED},
        "enable_sleeptime": bool(agent.extra.get("enable_sleeptime")),
        "metadata": _with_ours(agent.metadata, agent, OURS_OF_AGENTS, None),
        "llm_config": config,
        "embedding_config": state["embedding_config"],
        # The stored setting, not the effective one: the importing server may choose another model.
        "compaction_settings": agent.extra.get(COMPACTION),
        "model_settings": state["model_settings"] if kept else None,
        "tool_exec_environment_variables": secrets,
        "secrets": secrets,
    }


def _with_ours(
    metadata: Mapping[str, Any] | None, noun: Agent | Tool, names: Sequence[str], otherwise: Any
) -> dict[str, Any] | None:
    """The metadata, with our own settings that differ from their defaults."""
    usual = {
        "idempotent": False,
        "limits": None,
        "network": "none",
        "scratch": "call",
        "approval_expires_s": None,
        "on_approval_expiry": otherwise,
    }
    ours = {name: to_builtins(getattr(noun, name)) for name in names if getattr(noun, name) != usual[name]}
    return {**(metadata or {}), OURS: ours} if ours else None if metadata is None else dict(metadata)


def _block(block: Block, file_id: str) -> dict[str, Any]:
    wire = wire_block(block)
    return {name: value for name, value in wire.items() if not name.endswith("_by_id")} | {"id": file_id}


def _tool(tool: Tool, file_id: str) -> dict[str, Any]:
    # The importing server resolves the packages' versions again: it has another index and another Python.
    wire = {name: value for name, value in wire_tool(tool).items() if name not in (*OURS_OF_TOOLS, "packages")}
    return wire | {"id": file_id, "metadata_": _with_ours(wire["metadata_"], tool, OURS_OF_TOOLS, "keep")}


def _file_messages(agent: Agent, message: Message) -> Iterator[dict[str, Any]]:
    """The file's messages for a stored message: two for an answer with waiting and other calls."""
    for fields in _by_kind(agent, message):
        yield {
            "type": "message",
            "role": None,
            "content": [],
            "name": None,
            "otid": None,
            "sender_id": None,
            "batch_item_id": None,
            "group_id": None,
            "id": None,
            "model": None,
            "agent_id": "agent-0",
            "tool_calls": None,
            "tool_call_id": None,
            "tool_returns": [],
            "created_at": message.created_at.isoformat(),
            "approve": None,
            "approval_request_id": None,
            "denial_reason": None,
            "approvals": [],
        } | fields


def _by_kind(agent: Agent, message: Message) -> Iterator[dict[str, Any]]:
    packing: dict[str, Any] = {"at": message.created_at, "zone": zone_of(agent.timezone)}
    match message.body:
        case SystemMessage(text):
            yield {"role": "system", "content": [text_part(text)]}
        case Summary() as body:
            yield {"role": "summary", "content": [text_part(packed_summary(body, **packing))]}
        case UserMessage() as body:
            yield {"role": body.role, "content": _parts(body.content), "name": body.name}
        case AssistantMessage() as body:
            yield from _answer(body)
        case ApprovalResponse(decisions):
            yield {"role": "approval", "approvals": [_decision(one, packing) for one in decisions]}
        case ToolReturns(returns):
            yield _results(returns, packing)


def _answer(body: AssistantMessage) -> Iterator[dict[str, Any]]:
    content = answer_content(body)
    waiting = [call for call in body.tool_calls if call.needs_approval]
    others = [call for call in body.tool_calls if not call.needs_approval]
    if others or not waiting:
        calls = function_calls(others) or None
        yield {"role": "assistant", "model": body.model, "content": content, "tool_calls": calls}
        content = []
    if waiting:
        first = {"tool_calls": function_calls(waiting), "tool_call_id": waiting[0].id}
        yield {"role": "approval", "model": body.model, "content": content, **first}


def _decision(decision: Decision, packing: Mapping[str, Any]) -> dict[str, Any]:
    if decision.kind == "tool":
        packed = _packed(decision.tool_return or "", decision, packing)
        lines = {"stdout": decision.stdout, "stderr": decision.stderr}
        return {"tool_call_id": decision.tool_call_id, "status": decision.status, **lines, "func_response": packed}
    said = {"approve": decision.approve, "reason": decision.reason}
    edited = {} if decision.edited_arguments is None else {"edited_arguments": decision.edited_arguments}
    return {"type": "approval", "tool_call_id": decision.tool_call_id, **said, **edited}


def _packed(text: str, result: Decision | ToolReturn, packing: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    """A result in the file's form: as parts if it has some, else as text."""
    if result.parts is not None:
        return _parts(result.parts)
    return packed_result(text, succeeded=result.status == "success", **packing)


def _results(returns: Sequence[ToolReturn], packing: Mapping[str, Any]) -> dict[str, Any]:
    packed = [_packed(one.text, one, packing) for one in returns]
    results = [
        {
            "tool_call_id": one.tool_call_id,
            "status": one.status,
            "stdout": one.stdout,
            "stderr": one.stderr,
            "func_response": text,
        }
        for one, text in zip(returns, packed, strict=True)
    ]
    first = {"tool_call_id": returns[0].tool_call_id, "name": returns[0].tool_name} if len(returns) == 1 else {}
    content = [text_part(packed[0])] if len(returns) == 1 and isinstance(packed[0], str) else []
    return {"role": "tool", "content": content, "tool_returns": results, **first}


def _parts(content: str | list[ContentPart]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [text_part(content)]
    return [text_part(part.text) if isinstance(part, TextContent) else _image_part(part) for part in content]


def _image_part(part: ImageContent) -> dict[str, Any]:
    if part.url is not None:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    source = {"type": "base64", "media_type": part.media_type, "data": part.data, "detail": None}
    return {"type": "image", "source": source}
