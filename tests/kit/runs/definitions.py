"""Agents, tools, blocks and servers for tests. The functions fill in the fields that a test does not name."""

from datetime import UTC, datetime
from typing import Any

from shared.domain.agents import Agent, Block
from shared.domain.ids import IdMaker, ProjectId
from shared.domain.mcp_servers import McpServer
from shared.domain.tools import Tool

PROJECT = ProjectId("ours")
OTHER_PROJECT = ProjectId("theirs")
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def some_agent(**fields: Any) -> Agent:
    defaults: dict[str, Any] = {
        "id": IdMaker().agent(),
        "project_id": PROJECT,
        "name": "Ada",
        "model": "builtin/echo",
        "system": "Be brief.",
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Agent(**(defaults | fields))


def some_tool(name: str = "roll_dice", **fields: Any) -> Tool:
    defaults: dict[str, Any] = {
        "id": IdMaker().tool(),
        "project_id": PROJECT,
        "name": name,
        "description": "Rolls dice.",
        "source_code": f"def {name}(): ...",
        "json_schema": {"name": name, "parameters": {"type": "object", "properties": {}}},
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Tool(**(defaults | fields))


def some_block(label: str = "human", **fields: Any) -> Block:
    defaults: dict[str, Any] = {
        "id": IdMaker().block(),
        "project_id": PROJECT,
        "label": label,
        "value": "Likes tea.",
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Block(**(defaults | fields))


def some_server(name: str = "weather", **fields: Any) -> McpServer:
    defaults: dict[str, Any] = {
        "id": IdMaker().mcp_server(),
        "project_id": PROJECT,
        "name": name,
        "transport": "streamable_http",
        "url": "https://mcp.example.com/mcp",
        "created_at": NOW,
        "updated_at": NOW,
    }
    return McpServer(**(defaults | fields))
