"""The tools of a client: the names by which models call them, and texts in arguments."""

import json

import pytest

from api.openai.client_tools import CalledTool, arguments_with, called_tools, function_name, text_in


@pytest.mark.parametrize("text", ["", 'a\n"b" \\ 🎉', '{"input": "nested"}'])
def test_a_text_survives_as_an_argument(text: str) -> None:
    assert text_in(arguments_with(text)) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", ""),
        ("{}", ""),
        ('{"inp', ""),
        ('{"input": "half a wo', "half a wo"),
        ("plain words", "plain words"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 7}', '{"input": 7}'),
        ("[1]", "[1]"),
    ],
)
def test_arguments_that_are_cut_or_odd_have_a_text_too(arguments: str, text: str) -> None:
    assert text_in(arguments) == text


def test_a_long_name_was_refused_by_providers() -> None:
    names = {function_name(f"tool_{number}" + "x" * 60, "server") for number in range(20)}
    assert len(names) == 20
    assert {len(name) for name in names} == {64}
    assert function_name("x" * 80, None) == "x" * 80, "a name that the client chose for the model stays"


def test_calls_get_the_names_that_the_client_declared() -> None:
    inner = [{"type": "function", "name": "f" * 80}, {"type": "custom", "name": "say"}]
    echoed = [{"type": "function", "name": "f"}, {"type": "namespace", "name": "n", "tools": inner}]
    found = called_tools(json.loads(json.dumps(echoed)))
    assert found["f"] == CalledTool("f", None, takes_text=False)
    assert found["n__say"] == CalledTool("say", "n", takes_text=True)
    assert found[function_name("f" * 80, "n")] == CalledTool("f" * 80, "n", takes_text=False)
