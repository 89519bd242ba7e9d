# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
"""LangChain's messages and objects in the journal's form, and in a run's."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from langchain_core.outputs import ChatGeneration
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.agents.models import Usage
from holdfast.agents.values import plain


def messages_of(entries: Sequence[Mapping[str, Any]]) -> list[BaseMessage]:
    """Converts the messages of `run.history` or `run.input` to LangChain's."""
    return [_message_of(entry) for entry in entries]


def _message_of(entry: Mapping[str, Any]) -> BaseMessage:
    match entry["role"]:
        case "assistant":
            calls = [
                {"id": one["id"], "name": one["name"], "args": _object(one["arguments"]), "type": "tool_call"}
                for one in entry.get("tool_calls", ())
            ]
            return AIMessage(entry["text"], tool_calls=calls)
        case "tool":
            return ToolMessage(entry["text"], tool_call_id=entry["tool_call_id"])
        case "system":
            return SystemMessage(entry["text"])
        case _:
            content = entry["content"]
            return HumanMessage(content if isinstance(content, str) else [_part(one) for one in content])


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] != "image":
        return {"type": "text", "text": part["text"]}
    if part.get("url"):
        return {"type": "image", "url": part["url"]}
    return {"type": "image", "base64": part["data"], "mime_type": part["media_type"]}


def _object(arguments: str) -> dict[str, Any]:
    """Returns a call's arguments as an object. A model may have written another value."""
    try:
        made = json.loads(arguments)
    except ValueError:
        return {}
    return made if isinstance(made, dict) else {}


def packed(value: Any) -> list[str]:
    """Returns an object of the graph as two texts. Raises `TypeError` for an object that LangGraph cannot store."""
    kind, data = JsonPlusSerializer().dumps_typed(value)
    return [kind, b64encode(data).decode()]


def unpacked(texts: Sequence[str]) -> Any:
    """Returns the object that `packed` has packed."""
    return JsonPlusSerializer().loads_typed((texts[0], b64decode(texts[1])))


def recorded_answer(generations: Sequence[Any]) -> list[Any]:
    """Returns a model's answer as JSON."""
    return [{"message": message_to_dict(one.message), "info": one.generation_info} for one in generations]


def answer_of(value: Sequence[Mapping[str, Any]]) -> list[ChatGeneration]:
    """Returns the answer that `recorded_answer` has made."""
    return [ChatGeneration(message=_message(one), generation_info=one["info"]) for one in value]


def _message(recorded: Mapping[str, Any]) -> Any:
    return messages_from_dict([recorded["message"]])[0]


def text_of(value: list[Any]) -> str:
    """Returns the text of a recorded answer."""
    return str(_message(value[0]).text)


def usage_of(value: list[Any]) -> Usage | None:
    """Returns the tokens of a recorded answer. None if its provider counts none."""
    used = value[0]["message"]["data"].get("usage_metadata")
    if not used:
        return None
    read, thought = used.get("input_token_details") or {}, used.get("output_token_details") or {}
    return Usage(
        used["input_tokens"], used["output_tokens"], read.get("cache_read") or 0, thought.get("reasoning") or 0
    )


def hashed(messages: Sequence[BaseMessage], parameters: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns the identity of a call, and the rest: instructions and settings."""
    said = [
        [one.type, one.content, getattr(one, "tool_calls", None), getattr(one, "tool_call_id", None)]
        for one in messages
        if not isinstance(one, SystemMessage)
    ]
    tools = [tool.get("function", tool).get("name") for tool in parameters.get("tools") or ()]
    instructions = [one.content for one in messages if isinstance(one, SystemMessage)]
    # Parameters may contain objects, whose text has their address in memory.
    settings = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(parameters, default=repr, sort_keys=True))
    return [plain(said), sorted(filter(None, tools))], [instructions, settings]
