"""What a client is told of a call: the value that the tool returned, or why it failed."""

import pytest

from api.letta.tools import ToolRunRequest, wire_tool_result
from shared.domain.messages import AssistantMessage, ToolReturn
from shared.domain.runs import asked_call
from tests.kit.runs.stored_runs import answer, call, said


def result(text: str, *, is_text: bool = False) -> ToolReturn:
    return ToolReturn(tool_call_id="a", tool_name="look", status="success", text=text, is_text=is_text)


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (result("3", is_text=True), "3"),
        (result("3"), 3),
        (result('{"a": [1, null]}'), {"a": [1, None]}),
        (result("None"), None),
        (result("NaN"), "NaN"),
        (result("1e999"), "1e999"),
        (result("<object>"), "<object>"),
        (result("[" * 5000), "[" * 5000),
        (result("[" * 5000 + "]" * 5000), "[" * 5000 + "]" * 5000),
        (result("[1, 2... [NOTE: function output was truncated]"), "[1, 2... [NOTE: function output was truncated]"),
    ],
)
def test_a_value_is_shown_as_it_was_returned(returned: ToolReturn, shown: object) -> None:
    assert wire_tool_result(returned)["func_return"] == shown


def test_a_failure_returns_nothing_and_says_why_last() -> None:
    plain = ToolReturn(tool_call_id="a", tool_name="look", status="error", text="why")
    told = ToolReturn(tool_call_id="a", tool_name="look", status="error", text="why", stderr=["Traceback"])
    assert [wire_tool_result(one)["func_return"] for one in (plain, told)] == [None, None]
    assert [wire_tool_result(one)["stderr"] for one in (plain, told)] == [["why"], ["Traceback", "why"]]


def test_the_arguments_are_written_as_a_model_would() -> None:
    assert ToolRunRequest().arguments() == "{}"
    assert ToolRunRequest(args={"city": "Tromsø", "days": 2}).arguments() == '{"city":"Tromsø","days":2}'


def test_the_input_of_such_a_run_is_its_call() -> None:
    given = answer("", call("a"))
    assert isinstance(given.body, AssistantMessage)
    assert asked_call([said("hi"), given]) == (given.id, call("a"))
    with pytest.raises(ValueError, match="no call"):
        asked_call([said("hi")])
