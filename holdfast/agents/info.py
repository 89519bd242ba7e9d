"""The agent whose run a body executes, as clients configured it: its instructions, memory, tools and data."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from holdfast.agents.frames import Frame


@dataclass(frozen=True)
class BlockInfo:
    """A block of the agent's memory."""

    label: str
    value: str
    description: str | None
    limit: int
    """The most characters that `value` may have."""
    read_only: bool
    """Whether the agent's tools may not change it."""


@dataclass(frozen=True)
class ToolInfo:
    """A tool that is attached to the agent: `Run.call_tool` calls it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments."""


@dataclass(frozen=True)
class AgentInfo:
    """The agent at the beginning of the turn. It is the same in every attempt, whatever has changed since."""

    id: str
    name: str
    description: str | None
    system: str
    """Its instructions, with those of the request. The memory is not in them."""
    blocks: Mapping[str, BlockInfo]
    """Its memory, by label, in the order in which the blocks were attached."""
    tools: Mapping[str, ToolInfo]
    """The attached tools, by name."""
    metadata: Mapping[str, Any]
    model_settings: Mapping[str, Any]
    """The settings that were set: `temperature`, `top_p`, `max_output_tokens`, `reasoning_effort` and others."""


def agent_of(frame: Frame) -> AgentInfo:
    """Returns the agent that the worker has sent. Raises `ValueError` with the worker's reason if there is none."""
    if "error" in frame:
        raise ValueError(frame["error"])
    tools = [ToolInfo(one["name"], one["description"], MappingProxyType(one["parameters"])) for one in frame["tools"]]
    return AgentInfo(
        id=frame["id"],
        name=frame["name"],
        description=frame["description"],
        system=frame["system"],
        blocks=MappingProxyType({one["label"]: BlockInfo(**one) for one in frame["blocks"]}),
        tools=MappingProxyType({one.name: one for one in tools}),
        metadata=MappingProxyType(frame["metadata"]),
        model_settings=MappingProxyType(frame["model_settings"]),
    )
