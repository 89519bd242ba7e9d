"""Which calls the tool rules leave to a model, and which they force."""

from typing import Any

import pytest

from shared.domain.errors import InvalidRequest
from shared.domain.messages import AssistantMessage, ToolCall, ToolReturn, ToolReturns, UserMessage
from shared.domain.tools import (
    NOTHING_YET,
    TurnSoFar,
    ends_turn,
    filled_arguments,
    filled_in,
    missing_calls,
    next_calls,
    refuse_foreign_rules,
    turn_so_far,
)

TOOLS = ("look", "book", "pay")


def rule(kind: str, name: str = "look", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "tool_name": name, **fields}


def after(*called: str, result: str = "", answered: bool = False) -> TurnSoFar:
    return TurnSoFar(called, result, answered)


CHILDREN = rule("constrain_child_tools", children=["book"])
PARENT = rule("parent_last_tool", children=["pay"])
CASES = rule("conditional", child_output_mapping={"yes": "book", "true": "pay", "2": "pay"})

TABLE: list[tuple[list[dict[str, Any]], TurnSoFar, set[str], bool]] = [
    ([], NOTHING_YET, {"look", "book", "pay"}, False),
    ([rule("run_first")], NOTHING_YET, {"look"}, True),
    ([rule("run_first")], after("look"), {"look", "book", "pay"}, False),
    ([rule("run_first", "gone")], NOTHING_YET, {"look", "book", "pay"}, False),
    ([CHILDREN], NOTHING_YET, {"look", "book", "pay"}, False),
    ([CHILDREN], after("look"), {"book"}, True),
    ([CHILDREN], after("look", "book"), {"look", "book", "pay"}, False),
    ([PARENT], NOTHING_YET, {"look", "book"}, False),
    ([PARENT], after("look"), {"pay"}, True),
    ([CASES], after("look", result="yes"), {"book"}, True),
    ([CASES], after("look", result="True"), {"pay"}, True),
    ([CASES], after("look", result="2"), {"pay"}, True),
    ([CASES], after("look", result="no"), {"look", "book", "pay"}, False),
    ([CASES | {"default_child": "pay"}], after("look", result="no"), {"pay"}, True),
    ([CASES | {"require_output_mapping": True}], after("look", result="no"), set(), False),
    ([rule("max_count_per_step", max_count_limit=2)], after("look"), {"look", "book", "pay"}, False),
    ([rule("max_count_per_step", max_count_limit=2)], after("look", "look"), {"book", "pay"}, False),
    ([rule("max_count_per_step", max_count_limit=0)], NOTHING_YET, {"book", "pay"}, False),
    ([rule("max_count_per_step")], NOTHING_YET, {"look", "book", "pay"}, False),
    ([rule("max_count_per_step", max_count_limit=None)], after("look"), {"book", "pay"}, False),
    ([rule("required_before_exit", "pay")], NOTHING_YET, {"look", "book", "pay"}, False),
    ([rule("required_before_exit", "pay")], after(answered=True), {"pay"}, True),
    ([rule("required_before_exit", "pay")], after("pay", answered=True), {"look", "book", "pay"}, False),
    ([rule("continue_loop"), rule("exit_loop")], after("look"), {"look", "book", "pay"}, False),
]


@pytest.mark.parametrize(("rules", "turn", "allowed", "forced"), TABLE)
def test_what_may_come_next(rules: list[dict[str, Any]], turn: TurnSoFar, allowed: set[str], forced: bool) -> None:
    found = next_calls(rules, TOOLS, turn)
    assert (found.allowed, found.forced) == (allowed, forced)


def test_a_turn_ends_by_rule_and_not_before_what_is_required() -> None:
    rules = [rule("exit_loop", "book"), rule("required_before_exit", "pay"), rule("required_before_exit", "gone")]
    assert ends_turn(rules, ["look", "book"])
    assert not ends_turn(rules, ["look"])
    assert missing_calls(rules, TOOLS, after("book")) == ["pay"]
    assert missing_calls(rules, TOOLS, after("pay")) == []


def test_rules_fill_in_arguments_where_they_stand() -> None:
    rules = [
        rule("run_first", args={"city": "Rome"}),
        CHILDREN | {"child_arg_nodes": [{"name": "book", "args": {"seats": 2}}, {"name": "pay"}]},
    ]
    assert filled_in(rules, "look", NOTHING_YET) == {"city": "Rome"}
    assert filled_in(rules, "look", after("look")) == {}
    assert filled_in(rules, "book", after("look")) == {"seats": 2}
    assert filled_in(rules, "pay", after("look")) == {}


def test_the_turn_is_read_from_its_messages() -> None:
    call = ToolCall(id="1", name="look", arguments="{}")
    turn = turn_so_far(
        [
            UserMessage("Hi"),
            AssistantMessage(tool_calls=[call]),
            ToolReturns([ToolReturn("1", "look", "success", "found"), ToolReturn("2", "pay", "error", "no")]),
            AssistantMessage(text="So."),
        ]
    )
    assert turn == TurnSoFar(["look", "pay"], "no", answered=True)


@pytest.mark.parametrize(
    "foreign",
    [
        rule("run_first", "gone"),
        CHILDREN | {"children": ["book", "gone"]},
        CASES | {"child_output_mapping": {"x": "gone"}},
        CASES | {"default_child": "gone"},
    ],
)
def test_a_rule_about_a_tool_that_the_agent_lacks_is_refused(foreign: dict[str, Any]) -> None:
    refuse_foreign_rules([CHILDREN, PARENT, CASES], TOOLS)
    with pytest.raises(InvalidRequest, match="names the tool 'gone', which the agent does not have"):
        refuse_foreign_rules([foreign], TOOLS)


@pytest.mark.parametrize("written", ["[" * 5000, '{"a":' * 5000, '{"a": ' + "[" * 5000 + "]" * 5000 + "}"])
def test_arguments_in_thousands_of_brackets_ended_a_run_whose_rule_fills_some_in(written: str) -> None:
    rules = [rule("run_first", args={"place": "Rome"})]
    assert filled_in(rules, "look", NOTHING_YET)
    assert filled_arguments(rules, "look", NOTHING_YET, written) == written


def test_a_result_in_thousands_of_brackets_ended_a_run_whose_rule_reads_it() -> None:
    turn = TurnSoFar(called=["look"], last_result="[" * 50_000)
    found = next_calls([CASES | {"child_output_mapping": {"true": "book"}, "default_child": "pay"}], TOOLS, turn)
    assert found.allowed == {"pay"}
