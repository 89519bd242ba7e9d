"""A call is refused for a name that its tool has not, before the tool starts."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shared.domain.ids import IdMaker, ProjectId
from shared.domain.tools import TYPESCRIPT, Tool
from shared.tool_arguments import RefusedArguments, read_arguments

PLAIN = {"type": "object", "properties": {"city": {"type": "string"}}}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def tool(source: str, parameters: dict[str, Any] | None = None, **fields: Any) -> Tool:
    return Tool(
        id=IdMaker().tool(),
        project_id=ProjectId("p"),
        name="weather",
        description="",
        source_code=source,
        json_schema={"name": "weather", "parameters": PLAIN if parameters is None else parameters},
        created_at=NOW,
        updated_at=NOW,
        **fields,
    )


def is_refused(one: Tool, text: str = '{"city": "Rome", "town": "Rome"}') -> bool:
    found = read_arguments(text, one.accepted_arguments)
    if isinstance(found, RefusedArguments):
        assert "'town'" in found.text
        return True
    return False


@pytest.mark.parametrize(
    "source",
    [
        "def weather(city: str) -> str:\n    return city",
        "def weather(city: str, *rest) -> int:\n    return 2 ** 3",
        "def weather(city):\n    return [x**2 for x in (1, 2)]",
    ],
)
def test_an_argument_that_the_tool_has_not_ended_in_a_type_error_of_the_tool(source: str) -> None:
    assert is_refused(tool(source))
    assert not is_refused(tool(source), '{"city": "Rome"}')


def test_a_typescript_tool_was_called_without_the_argument_that_it_has_not() -> None:
    assert is_refused(tool("export function weather(city: string) { return city }", source_type=TYPESCRIPT))


def test_a_tool_without_parameters_takes_none() -> None:
    assert is_refused(tool("def weather():\n    return 1", {"type": "object", "properties": {}}), '{"town": 1}')


@pytest.mark.parametrize("source", ["def weather(city, **rest): pass", "def weather(**kwargs: str): pass"])
def test_a_function_that_takes_any_name_gets_them(source: str) -> None:
    assert not is_refused(tool(source))


@pytest.mark.parametrize(
    "parameters",
    [
        {**PLAIN, "additionalProperties": True},
        {**PLAIN, "additionalProperties": {"type": "string"}},
        {**PLAIN, "patternProperties": {"^t": {"type": "string"}}},
        {"allOf": [PLAIN]},
        {"$ref": "#/$defs/it", "$defs": {"it": PLAIN}},
        {"type": "object"},
    ],
)
def test_a_schema_that_says_what_becomes_of_other_names_is_believed(parameters: dict[str, Any]) -> None:
    assert not is_refused(tool("def weather(city): pass", parameters))


def test_the_model_is_told_of_the_parameters_as_they_were_written() -> None:
    assert tool("def weather(city): pass").parameters == PLAIN
