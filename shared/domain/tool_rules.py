"""The rules for an agent's tools: which calls may come next, which must, and whether a run may end.

The rules are the wire's (`{"type": "run_first", "tool_name": …}`). They look at the calls of one turn: what a run has
called, and what the run had called that it continues.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shared.domain.errors import InvalidRequest
from shared.domain.messages import AssistantMessage, MessageBody, ToolReturns

Rule = dict[str, Any]


class TurnSoFar(msgspec.Struct, frozen=True):
    """What the rules know of a turn."""

    called: Sequence[str] = ()
    """Names of the tools whose results are there, in order."""
    last_result: str = ""
    answered: bool = False
    """The model has answered without calling a tool, and was told that the turn goes on."""

    def and_then(self, body: MessageBody) -> "TurnSoFar":
        """The turn after one more message."""
        match body:
            case ToolReturns(returns=returns):
                names = [result.tool_name for result in returns]
                last = returns[-1].text if returns else self.last_result
                return TurnSoFar([*self.called, *names], last, self.answered)
            case AssistantMessage(tool_calls=[]):
                return TurnSoFar(self.called, self.last_result, answered=True)
            case _:
                return self


NOTHING_YET = TurnSoFar()


def turn_so_far(bodies: Iterable[MessageBody]) -> TurnSoFar:
    """The turn with these messages, in order."""
    turn = NOTHING_YET
    for body in bodies:
        turn = turn.and_then(body)
    return turn


class NextCalls(msgspec.Struct, frozen=True):
    """The calls that the rules leave to the next answer."""

    allowed: frozenset[str]
    forced: bool = False
    """The answer must call one of them."""


def next_calls(rules: Sequence[Rule], names: Iterable[str], turn: TurnSoFar) -> NextCalls:
    """Which of the tools of these names may be called next, and whether one must be.

    `run_first` says which come first; `constrain_child_tools` and `conditional` what comes after a tool;
    `parent_last_tool` what may come only after its parent; `max_count_per_step` how often a tool may be called;
    `required_before_exit` what must be called once the model has answered without it.
    """
    available = frozenset(names)
    first = available & {rule["tool_name"] for rule in rules if rule.get("type") == "run_first"}
    if first and not turn.called:
        return NextCalls(first, forced=True)
    allowed, forced = available, False
    for rule in rules:
        left = _left_by(rule, available, turn)
        allowed &= left
        forced |= rule.get("type") in _FORCING and _is_last(rule, turn) and left != available
    missing = allowed.intersection(missing_calls(rules, available, turn)) if turn.answered else frozenset[str]()
    if missing:
        return NextCalls(missing, forced=True)
    return NextCalls(allowed, forced=forced and bool(allowed))


_FORCING = ("constrain_child_tools", "conditional", "parent_last_tool")


def _left_by(rule: Rule, available: frozenset[str], turn: TurnSoFar) -> frozenset[str]:
    """What one rule leaves of the available tools."""
    match rule.get("type"):
        case "constrain_child_tools":
            return available.intersection(_children(rule)) if _is_last(rule, turn) else available
        case "parent_last_tool":
            children = available.intersection(_children(rule))
            return children if _is_last(rule, turn) else available - children
        case "conditional":
            return _left_by_result(rule, available, turn.last_result) if _is_last(rule, turn) else available
        case "max_count_per_step":
            most = rule.get("max_count_limit")
            used_up = turn.called.count(rule["tool_name"]) >= (1 if most is None else int(most))
            return available - {rule["tool_name"]} if used_up else available
        case _:
            return available


def _left_by_result(rule: Rule, available: frozenset[str], result: str) -> frozenset[str]:
    mapping: dict[str, str] = rule.get("child_output_mapping") or {}
    for case, child in mapping.items():
        if _is_case(result, case):
            return available & {child}
    if rule.get("require_output_mapping"):
        return frozenset()
    default = rule.get("default_child")
    return available & {default} if default else available


def _is_case(result: str, case: str) -> bool:
    """Whether a tool's result is a case of the mapping, whose keys JSON has as text: `true`, `1` and `1.0` too."""
    if result == case:
        return True
    try:
        said, wanted = json.loads(result.lower()), json.loads(case.lower())
    except ValueError:
        return False
    return isinstance(said, bool | int | float) and type(said) is type(wanted) and said == wanted


def _is_last(rule: Rule, turn: TurnSoFar) -> bool:
    return bool(turn.called) and turn.called[-1] == rule["tool_name"]


def _children(rule: Rule) -> list[str]:
    children: list[str] = rule.get("children") or []
    return children


def missing_calls(rules: Sequence[Rule], names: Iterable[str], turn: TurnSoFar) -> list[str]:
    """The tools that a turn must still call before it may end (`required_before_exit`)."""
    available = frozenset(names)
    wanted = [rule["tool_name"] for rule in rules if rule.get("type") == "required_before_exit"]
    return [name for name in dict.fromkeys(wanted) if name in available and name not in turn.called]


def ends_turn(rules: Sequence[Rule], called_now: Iterable[str]) -> bool:
    """Whether one of the tools that were just called ends the run by rule (`exit_loop`)."""
    exits = {rule["tool_name"] for rule in rules if rule.get("type") == "exit_loop"}
    return not exits.isdisjoint(called_now)


def filled_in(rules: Sequence[Rule], name: str, turn: TurnSoFar) -> dict[str, Any]:
    """The arguments that rules give to a call of this tool now, whatever the model writes: `args` of `run_first`, and
    `child_arg_nodes` of the parent that was called last."""
    given: dict[str, Any] = {}
    for rule in rules:
        if rule.get("type") == "run_first" and rule["tool_name"] == name and not turn.called:
            given |= rule.get("args") or {}
        if rule.get("type") == "constrain_child_tools" and _is_last(rule, turn):
            nodes: list[dict[str, Any]] = rule.get("child_arg_nodes") or []
            for node in nodes:
                given |= (node.get("args") or {}) if node.get("name") == name else {}
    return given


def filled_arguments(rules: Sequence[Rule], name: str, turn: TurnSoFar, arguments: str) -> str:
    """The arguments that the model wrote, with what rules give to the call. A text that is no JSON object stays: the
    check before the call says what is wrong with it."""
    filled = filled_in(rules, name, turn)
    if not filled:
        return arguments
    try:
        written = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return arguments
    return msgspec.json.encode(written | filled).decode()


def _named(rule: Rule) -> list[str]:
    mapping: dict[str, str] = rule.get("child_output_mapping") or {}
    default: str | None = rule.get("default_child")
    return [rule["tool_name"], *_children(rule), *mapping.values(), *([default] if default else [])]


def refuse_foreign_rules(rules: Iterable[Rule], names: Iterable[str]) -> None:
    """Raises `InvalidRequest` for a rule about a tool that the agent does not have: it would do nothing, in silence."""
    known = set(names)
    for rule in rules:
        for name in _named(rule):
            if name not in known:
                raise InvalidRequest(
                    f"tool_rules: a rule of type {rule.get('type')!r} names the tool {name!r}, which the agent does "
                    f"not have. It has: {', '.join(sorted(known)) or 'none'}. Attach the tool, or leave the rule out",
                    field="tool_rules",
                )
