"""A model's arguments are checked against the tool's schema before anything starts."""

from typing import Any

import pytest

from shared.tool_arguments import RefusedArguments, read_arguments

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"sides": {"type": "integer", "minimum": 2}, "label": {"type": "string"}},
    "required": ["sides"],
}
FREE: dict[str, Any] = {"type": "object", "properties": {}}


def refusal(text: str, schema: dict[str, Any]) -> str:
    found = read_arguments(text, schema)
    assert isinstance(found, RefusedArguments)
    return found.text


def test_fitting_arguments_come_back_as_an_object() -> None:
    assert read_arguments('{"sides": 6, "label": "d6"}', SCHEMA) == {"sides": 6, "label": "d6"}


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_no_text_is_no_arguments(text: str) -> None:
    assert read_arguments(text, FREE) == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not valid JSON"),
        ('{"sides": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("1" * 5_000, "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("{}", "'sides' is a required property"),
        ('{"sides": "six"}', "sides: 'six' is not of type 'integer'"),
        ('{"sides": 1, "label": 2}', "label: 2 is not of type 'string'"),
        ('{"sides": "' + "x" * 10_000 + '"}', "..."),
        (" " * 1_000_001, "longer than 1000000 characters"),
    ],
)
def test_a_refusal_names_the_problem_in_bounded_space(text: str, complaint: str) -> None:
    found = refusal(text, SCHEMA)
    assert complaint in found
    assert found.startswith("Error: ")
    assert len(found) < 1_000


def test_several_complaints_are_told_at_once() -> None:
    found = refusal('{"sides": 1, "label": 2}', SCHEMA)
    assert "sides: 1 is less than the minimum of 2" in found
    assert "label: 2 is not of type 'string'" in found


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": 5}, "schema is not valid"),
        ({"type": "object", "required": 3}, "schema is not valid"),
        ({"$ref": "http://127.0.0.1:9/schema"}, "refers to nothing known"),
        ({"$ref": "#/$defs/absent"}, "refers to nothing known"),
        ({"$ref": "#"}, "without end"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "$ref": "#"}, "without end"),
    ],
)
def test_a_broken_schema_is_a_refusal(schema: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal("{}", schema)


def test_references_that_fan_out_exponentially_end() -> None:
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": {}}
    assert "without end" in refusal("{}", {"$ref": "#/$defs/d0", "$defs": definitions})


def test_a_schema_that_nests_too_deep_is_a_refusal() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"not": schema}
    assert refusal("{}", schema)


def test_a_schemas_regular_expressions_are_never_run() -> None:
    slow = "^(a+)+$"
    schema: dict[str, Any] = {
        "type": "object",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {
            "text": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": slow},
        },
        "patternProperties": {slow: {"type": "integer"}},
        "additionalProperties": False,
        "propertyNames": {"pattern": slow},
    }
    attack = "a" * 60 + "!"
    assert read_arguments(f'{{"text": "{attack}", "{attack}": 1}}', schema) == {"text": attack, attack: 1}


def test_references_inside_the_schema_work() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/Node"}},
        "$defs": {
            "Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}
        },
    }
    assert read_arguments('{"tree": {"next": {"next": null}}}', schema) == {"tree": {"next": {"next": None}}}
    assert "tree.next" in refusal('{"tree": {"next": 1}}', schema)
