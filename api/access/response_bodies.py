"""What the bodies of OpenAI's Responses and conversations name, and which of their fields a key of single agents may
not send. Pure.

Here `model` names an agent or a model without one, and every response may bring instructions, tools and options of its
own. Such a key says what its user says, and nothing in the name of others: neither instructions, nor answers that the
agent has not given.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from shared.domain.ids import is_id

_RESPONSES = re.compile(r"(?:/openai)?/v1/responses(?:/input_tokens|/compact)?")
_CONVERSATIONS = re.compile(r"/openai/v1/conversations(?:/[^/]+)?(?:/items)?")
_BEGINS_CONVERSATION = "/openai/v1/conversations"

OF_THE_AGENT = frozenset(
    [
        *("instructions", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p"),
        *("max_output_tokens", "reasoning", "text", "context_management"),
    ]
)
"""They replace what the agent has, or add to it. A value that asks for nothing but what is usual is taken."""

_USUAL: Mapping[str, Sequence[Any]] = {
    "parallel_tool_calls": (True,),
    "tool_choice": ("auto",),
    "text": ({"format": {"type": "text"}},),
}

_OWN_ITEMS = ("function_call_output", "mcp_approval_response")
_PASSED_OVER = ("reasoning", "mcp_approval_request", "mcp_list_tools")


def is_about_responses(path: str) -> bool:
    """Whether a body that is sent to this path has the fields that are known here."""
    return bool(_RESPONSES.fullmatch(path) or _CONVERSATIONS.fullmatch(path))


def named_in(path: str, fields: Mapping[str, Any]) -> list[object]:
    """What the body names that belongs to an agent: ids of agents, responses and conversations."""
    if _RESPONSES.fullmatch(path):
        conversation = fields.get("conversation")
        if isinstance(conversation, dict):
            conversation = cast("dict[str, Any]", conversation).get("id")
        named = [fields.get("model"), fields.get("previous_response_id"), conversation]
        return [one for one in named if one is not None]
    metadata = fields.get("metadata")
    if path == _BEGINS_CONVERSATION and isinstance(metadata, dict):
        agent_id = cast("dict[str, Any]", metadata).get("agent_id")
        return [] if agent_id is None else [agent_id]
    return []


def refused_in(path: str, fields: Mapping[str, Any]) -> str | None:
    """The first part of the body that such a key may not send, as a person would name it: its name comes first."""
    return next(_refused(path, fields), None)


def _refused(path: str, fields: Mapping[str, Any]) -> Iterator[str]:
    if _RESPONSES.fullmatch(path):
        model = fields.get("model")
        if isinstance(model, str) and not is_id(model, "agent"):
            yield f"model {model[:100]!r}, which is no agent's id,"
        yield from (name for name in fields if name in OF_THE_AGENT and _asks(name, fields[name]))
        yield from _items(fields.get("input"), "input")
        return
    if path == _BEGINS_CONVERSATION and not _has_agent(fields.get("metadata")):
        yield "metadata without agent_id"
    yield from _items(fields.get("items"), "items")


def _has_agent(metadata: object) -> bool:
    return isinstance(metadata, dict) and cast("dict[str, Any]", metadata).get("agent_id") is not None


def _asks(name: str, value: Any) -> bool:
    """Whether a field asks for something. Null, and what has nothing but null in it, do not."""
    if name == "reasoning":
        # A summary is shown or not, and the model thinks the same.
        return isinstance(value, dict) and cast("dict[str, Any]", value).get("effort") is not None
    if isinstance(value, dict):
        value = {key: one for key, one in cast("dict[str, Any]", value).items() if one is not None}
    return value not in (None, [], {}, "") and value not in _USUAL.get(name, ())


def _items(items: object, name: str) -> Iterator[str]:
    if not isinstance(items, list):
        return
    for number, item in enumerate(cast("list[Any]", items)):
        fields = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        # An item that has an id alone stands for another one, which may be another agent's.
        kind = fields.get("type") or ("message" if fields.keys() - {"id", "type"} else "item_reference")
        if kind == "message":
            role = fields.get("role", "user")
            if role != "user":
                yield f"{name}[{number}].role {str(role)[:50]!r}"
        elif kind not in _OWN_ITEMS and kind not in _PASSED_OVER:
            yield f"{name}[{number}].type {str(kind)[:50]!r}"
