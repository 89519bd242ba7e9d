"""The tools that come with every project: an agent edits its memory and looks into its past with them.

A worker runs them itself: they have no source.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from shared.domain.tool_catalog import BASE_TOOLS, NOT_THERE, BaseTool
from shared.domain.tools import BASE_TYPES, Tool

JsonObject = dict[str, Any]

MEMORY_TOOLS = frozenset(
    {
        "core_memory_append", "core_memory_replace", "memory_insert", "memory_replace", "memory_apply_patch",
        "memory_rethink", "memory",
    }
)  # fmt: skip
"""Those that change memory blocks."""

SPEAKS = "send_message"
SEARCHES_MESSAGES = "conversation_search"
RUNS_CODE = "run_code"
RUNS_CODE_WITH_TOOLS = "run_code_with_tools"

REWRITING = frozenset({"memory_rethink"})
"""Those of them that write a whole block anew: what somebody else has written meanwhile would be lost."""

_CHAT = (SPEAKS, SEARCHES_MESSAGES)
_PRECISE = ("memory_insert", "memory_replace")
_WITHOUT_BASE_TOOLS = ("react_agent", "workflow_agent")
_MODELS_WITHOUT_RULES = ("claude-4-sonnet", "claude-3-5-sonnet", "gpt-5")
ENDS_TURN = frozenset({SPEAKS, "memory_finish_edits"})
"""The base rules of these end a run; those of the others say that it goes on."""


_BY_NAME: Mapping[str, BaseTool] = {tool.name: tool for tool in BASE_TOOLS}


def base_tool_arguments(tool: Tool) -> JsonObject:
    """The JSON Schema of the arguments of a base tool."""
    return _BY_NAME[tool.name].arguments if tool.name in _BY_NAME else tool.parameters


def runs_code(tool: Tool) -> bool:
    """Whether it is a base tool that runs a program of the model's."""
    return is_base_tool(tool) and tool.name in (RUNS_CODE, RUNS_CODE_WITH_TOOLS)


def runs_in_sandbox(tool: Tool) -> bool:
    """Whether a call of the tool runs code that is not the product's."""
    return not is_base_tool(tool) or runs_code(tool)


def is_base_tool(tool: Tool) -> bool:
    """Whether the worker runs the tool itself."""
    return tool.tool_type.startswith(BASE_TYPES)


def default_base_tools(agent_type: str, *, enable_sleeptime: bool) -> tuple[str, ...]:
    """The names of the tools that an agent of this type gets unless its creator says no, as on the wire."""
    if agent_type in _WITHOUT_BASE_TOOLS:
        return ()
    if agent_type == "sleeptime_agent":
        return (*_PRECISE, "memory_rethink", "memory_finish_edits")
    if enable_sleeptime:
        # Another agent edits the memory of this one.
        return _CHAT
    if agent_type == "letta_v1_agent":
        return ("conversation_search", *_PRECISE)
    if agent_type == "memgpt_v2_agent":
        return (*_CHAT, *_PRECISE)
    return (*_CHAT, "core_memory_append", "core_memory_replace", "memory", "memory_apply_patch")


def needs_base_rules(agent_type: str, handle: str) -> bool:
    """Whether an agent with this model gets the rules of its base tools unless its creator says otherwise.

    The wire goes by words in the model's name, and so do we.
    """
    model = handle.partition("/")[2]
    does_without = "mini" not in model and any(word in model for word in _MODELS_WITHOUT_RULES)
    return agent_type == "sleeptime_agent" or not does_without


def base_tool_rules(names: Iterable[str]) -> list[JsonObject]:
    """The wire's rules for base tools of these names: which calls end a run, and which do not."""
    known = {tool.name for tool in BASE_TOOLS if tool.kind != "letta_builtin"}
    return [
        {"tool_name": name, "type": "exit_loop" if name in ENDS_TURN else "continue_loop", "prompt_template": None}
        for name in names
        if name in known
    ]


def why_missing(names: Iterable[str]) -> list[str]:
    """What to do without those of these tools that programs know from Letta's server, each reason once."""
    reasons: dict[str, list[str]] = {}
    for name in names:
        if name in NOT_THERE:
            reasons.setdefault(NOT_THERE[name], []).append(name)
    return [f"{', '.join(known)}: {reason}." for reason, known in reasons.items()]
