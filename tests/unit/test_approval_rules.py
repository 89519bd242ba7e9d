"""Which tool calls wait for a person, and that the newest word wins."""

from typing import Any

from shared.domain.agents import requires_approval, with_approval_override, with_default_approvals, with_tool_rules
from tests.kit.runs.definitions import some_agent, some_tool


def rule(tool_name: str) -> dict[str, Any]:
    return {"tool_name": tool_name, "type": "requires_approval", "prompt_template": None}


def test_a_tools_default_becomes_a_rule_once() -> None:
    tools = [some_tool("careful", default_requires_approval=True), some_tool("plain")]

    agent = with_default_approvals(with_default_approvals(some_agent(), tools), tools)

    assert agent.tool_rules == [rule("careful")]


def test_a_tool_that_was_set_free_stays_free_when_it_is_attached_again() -> None:
    careful = some_tool("careful", default_requires_approval=True)
    free = with_approval_override(with_default_approvals(some_agent(), [careful]), "careful", required=False)

    again = with_default_approvals(free, [careful])

    assert again.tool_rules == []
    assert not requires_approval(again, "careful", default=True)


def test_a_rule_that_is_set_later_beats_the_override() -> None:
    free = with_approval_override(some_agent(), "careful", required=False)

    ruled = with_tool_rules(free, [rule("careful")])

    assert requires_approval(ruled, "careful", default=False)


def test_rules_that_are_taken_away_take_their_override_along() -> None:
    careful = with_approval_override(some_agent(), "careful", required=True)
    assert requires_approval(careful, "careful", default=False)

    assert not requires_approval(with_tool_rules(careful, []), "careful", default=False)


def test_other_rules_are_left_alone() -> None:
    other = {"type": "exit_loop", "tool_name": "careful"}
    agent = with_approval_override(some_agent(tool_rules=[other]), "careful", required=True)

    assert agent.tool_rules == [other, rule("careful")]
    assert with_approval_override(agent, "careful", required=False).tool_rules == [other]
