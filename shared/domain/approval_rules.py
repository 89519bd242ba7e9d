"""Changes to the rules that say which tool calls wait for a person. `agents.requires_approval` reads them.

Two things can say it: a `requires_approval` rule among the agent's tool rules, and an override that was set for one
tool. The newest word wins, so that what a client set last is what holds.
"""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from shared.domain.agents import Agent
from shared.domain.tools import Tool

OVERRIDES = "approval_overrides"
"""Key of `Agent.extra`: tool name to whether its calls wait."""


def with_default_approvals(agent: Agent, tools: Iterable[Tool]) -> Agent:
    """The agent with a rule for each of `tools` that asks for approval by default and that nothing is said about."""
    settled = _ruled(agent.tool_rules) | set(_overrides(agent))
    new = [tool.name for tool in tools if tool.default_requires_approval and tool.name not in settled]
    return replace(agent, tool_rules=[*agent.tool_rules, *map(_rule, new)]) if new else agent


def with_approval_override(agent: Agent, tool_name: str, *, required: bool) -> Agent:
    """The agent with calls of `tool_name` waiting for a person, or not, whatever the tool's own default is."""
    rules = [rule for rule in agent.tool_rules if not _asks(rule, tool_name)]
    if required:
        rules.append(_rule(tool_name))
    return replace(agent, tool_rules=rules, extra=agent.extra | {OVERRIDES: _overrides(agent) | {tool_name: required}})


def with_tool_rules(agent: Agent, rules: list[dict[str, Any]]) -> Agent:
    """The agent with these rules instead of its own; overrides that they contradict fall away."""
    ruled = _ruled(rules)
    kept = {name: required for name, required in _overrides(agent).items() if required == (name in ruled)}
    return replace(agent, tool_rules=rules, extra=agent.extra | {OVERRIDES: kept})


def _rule(tool_name: str) -> dict[str, Any]:
    return {"tool_name": tool_name, "type": "requires_approval", "prompt_template": None}


def _asks(rule: dict[str, Any], tool_name: str) -> bool:
    return rule.get("type") == "requires_approval" and rule.get("tool_name") == tool_name


def _ruled(rules: Iterable[dict[str, Any]]) -> set[str]:
    return {rule["tool_name"] for rule in rules if rule.get("type") == "requires_approval"}


def _overrides(agent: Agent) -> dict[str, bool]:
    return agent.extra.get(OVERRIDES, {})
