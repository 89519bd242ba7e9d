"""The agent's tool rules: which tools the model may call, given the tools that the run has called so far."""

from collections.abc import Sequence
from typing import Any

Rule = dict[str, Any]


def offered_tools(rules: Sequence[Rule], names: Sequence[str], called: Sequence[str]) -> set[str]:
    """The names of the tools that the model may call next.

    `run_first` limits the first call, `constrain_child_tools` the call after a tool, `max_count_per_step` how often a
    tool may be called in one run, `parent_last_tool` what may come only after its parent.
    """
    allowed = set(names)
    first = {rule["tool_name"] for rule in rules if rule.get("type") == "run_first"}
    if first and not called:
        allowed &= first
    for rule in rules:
        allowed -= _forbidden(rule, called)
        if rule.get("type") == "constrain_child_tools" and called and called[-1] == rule["tool_name"]:
            allowed &= set(_children(rule))
    return allowed


def _forbidden(rule: Rule, called: Sequence[str]) -> set[str]:
    match rule.get("type"):
        case "max_count_per_step":
            used_up = called.count(rule["tool_name"]) >= int(rule.get("max_count_limit") or 1)
            return {rule["tool_name"]} if used_up else set()
        case "parent_last_tool":
            came_first = bool(called) and called[-1] == rule["tool_name"]
            return set() if came_first else set(_children(rule))
        case _:
            return set()


def _children(rule: Rule) -> list[str]:
    children: list[str] = rule.get("children") or []
    return children


def ends_turn(rules: Sequence[Rule], called_now: Sequence[str]) -> bool:
    """Whether one of the tools that were just called ends the run by rule (`exit_loop`)."""
    exits = {rule["tool_name"] for rule in rules if rule.get("type") == "exit_loop"}
    return not exits.isdisjoint(called_now)
