"""An agent file as a Letta server writes it, in parts that tests put together."""

import json
from typing import Any

SOURCE = '''
def note(text: str) -> str:
    """
    Writes a note down.

    Args:
        text (str): The note.
    """
    return "noted: " + text
'''


def text(said: str) -> list[dict[str, Any]]:
    """A message's content."""
    return [{"type": "text", "text": said, "signature": None}]


def message(number: int, role: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    """A message of the file."""
    return {
        "type": "message",
        "role": role,
        "content": text(content) if isinstance(content, str) else content or [],
        "id": f"message-{number}",
        "model": "gpt-4o-mini" if role in ("assistant", "approval") else None,
        "agent_id": "agent-0",
        "tool_returns": [],
        "approvals": [],
        "created_at": f"2025-11-29T02:5{number % 10}:00+00:00",
        **fields,
    }


def calls(*call_ids: str, name: str = "note") -> dict[str, Any]:
    """The calls of an answer."""
    function = {"arguments": '{"text": "tea"}', "name": name}
    return {"tool_calls": [{"id": call_id, "function": function, "type": "function"} for call_id in call_ids]}


def packed(said: str, status: str = "OK") -> str:
    """A tool's result as the file stores it."""
    return json.dumps({"status": status, "message": said, "time": "2025-11-29 02:52:18 AM UTC+0000"}, indent=2)


def result(call_id: str, said: str) -> dict[str, Any]:
    """The result of a call."""
    return {
        "tool_call_id": call_id,
        "status": "success",
        "stdout": None,
        "stderr": None,
        "func_response": packed(said),
    }


def custom_tool(**fields: Any) -> dict[str, Any]:
    """The tool `note`."""
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    return {
        "id": "tool-0",
        "tool_type": "custom",
        "name": "note",
        "description": "Writes a note down.",
        "source_type": "python",
        "source_code": SOURCE,
        "json_schema": {"name": "note", "description": "Writes a note down.", "parameters": parameters},
        "tags": [],
        "return_char_limit": 50_000,
        "default_requires_approval": None,
        "metadata_": {"tool_hash": "0123456789ab"},
        **fields,
    }


def their_tool(number: int, name: str, kind: str) -> dict[str, Any]:
    """A tool of Letta's own."""
    return {"id": f"tool-{number}", "tool_type": kind, "name": name, "source_code": None, "json_schema": {"name": name}}


def block(**fields: Any) -> dict[str, Any]:
    """The memory block `human`."""
    return {"id": "block-0", "label": "human", "value": "Likes tea.", "limit": 500, "metadata": {}, **fields}


def an_agent(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The agent, with these messages in its context."""
    return {
        "id": "agent-0",
        "name": "traveller",
        "agent_type": "letta_v1_agent",
        "system": "You travel.",
        "llm_config": {
            "handle": "openai/gpt-4o-mini",
            "model": "gpt-4o-mini",
            "model_endpoint_type": "openai",
            "context_window": 32_000,
            "temperature": 0.5,
            "enable_reasoner": True,
        },
        "enable_reasoner": False,
        "include_base_tools": False,
        "include_base_tool_rules": False,
        "memory_blocks": [],
        "tools": [],
        "tool_ids": ["tool-0"],
        "block_ids": ["block-0"],
        "tool_rules": [],
        "tags": ["origin:elsewhere"],
        "secrets": {"API_KEY": ""},
        "tool_exec_environment_variables": {"API_KEY": ""},
        "in_context_message_ids": [one["id"] for one in messages],
        "messages": list(messages),
        "files_agents": [],
        "group_ids": [],
        **fields,
    }


def a_file(*agents: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Returns the whole file. By default it has one agent without messages."""
    return {
        "agents": list(agents) or [an_agent(message(0, "system", "You travel."))],
        "groups": [],
        "blocks": [block()],
        "files": [],
        "sources": [],
        "tools": [custom_tool()],
        "mcp_servers": [],
        "skills": [],
        "metadata": {"revision_id": "b1c2d3e4f5a6"},
        "created_at": "2025-11-29T02:54:22.244058+00:00",
        **fields,
    }


def as_upload(file: Any) -> dict[str, Any]:
    """The file as part of a form."""
    return {"file": ("traveller.af", file if isinstance(file, bytes) else json.dumps(file).encode())}
