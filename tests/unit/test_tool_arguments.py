"""A model's arguments are checked against the tool's schema before anything starts."""

import asyncio
import json
import time
from typing import Any

import pytest

from shared.json_limits import MAX_SCHEMA_CHARS, MAX_SCHEMA_VALUES, schema_flaw
from shared.tool_arguments import RefusedArguments, as_object, check_arguments, read_arguments
from tests.kit.wait_until import wait_until

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


def test_a_name_without_end_was_told_to_the_model_in_full() -> None:
    """Found by fuzzing with seed 100: only what is wrong was shortened, not where."""
    name = "9" * 100_000
    assert len(refusal(json.dumps({"sides": 6}), {"properties": {name: {"minimum": 2**64}}})) < 1_000
    assert len(refusal(json.dumps({name: "six"}), {"properties": {name: {"type": "integer"}}})) < 1_000


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


OBJECTS: dict[str, Any] = {"rows": [{}] * 20_000}
LARGE = [[[n] * 9] * 9 for n in range(30)]
NUMBERS = {"rows": list(range(20_000))}
EXPENSIVE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "many checks of each item": ({"items": {"allOf": [{"minimum": 0}] * 100}}, NUMBERS),
    "many properties of each item": ({"items": {"properties": {f"p{n}": {} for n in range(2_900)}}}, OBJECTS),
    "words that mean nothing": ({"items": {f"x-{n}": 1 for n in range(2_900)} | {"minimum": -1}}, NUMBERS),
    "many choices for each item": ({"items": {"enum": list(range(-2_900, 0))}}, {"rows": [-1] * 20_000}),
    "large choices for each item": ({"items": {"enum": LARGE}}, {"rows": LARGE[-1:] * 999}),
    "long errors": ({"anyOf": [{"type": "string"}] * 900}, {"rows": ["x" * 900] * 900}),
    "one of many": ({"items": {"oneOf": [{"minimum": 0}] * 500}}, NUMBERS),
    "references": ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"allOf": [{"type": "integer"}] * 500}}}, NUMBERS),
    "one that fits": ({"contains": {"allOf": [{"type": "string"}] * 500}}, NUMBERS),
}  # fmt: skip


@pytest.mark.parametrize("name", list(EXPENSIVE))
def test_a_schema_that_multiplies_with_its_arguments_is_given_up(name: str) -> None:
    """40 kB of arguments held everybody up for nine seconds, and a megabyte would have for twenty minutes."""
    rows, arguments = EXPENSIVE[name]
    schema = {"type": "object", "properties": {"rows": rows}, "$defs": rows.get("$defs", {})}
    began = time.process_time()
    found = refusal(json.dumps(arguments), schema)
    assert time.process_time() - began < 5
    assert "so many arguments cannot be checked" in found


TOO_LARGE: list[dict[str, Any]] = [
    {"type": "object", "properties": {f"p{n}": {} for n in range(MAX_SCHEMA_VALUES)}},
    {"type": "object", "description": "x" * MAX_SCHEMA_CHARS},
]


@pytest.mark.parametrize("schema", TOO_LARGE)
def test_a_schema_that_is_too_large_is_not_even_checked(schema: dict[str, Any]) -> None:
    """A schema of 20,000 properties took nine seconds to check, for every call anew."""
    found = refusal("{}", schema)
    assert "schema cannot be used: Schema has more than" in found
    assert str(schema_flaw(schema)) in found


async def test_others_go_on_while_arguments_are_checked() -> None:
    rows, arguments = EXPENSIVE["many checks of each item"]
    checking = check_arguments(json.dumps(arguments), {"type": "object", "properties": {"rows": rows}})
    turns: list[int] = []
    async with asyncio.TaskGroup() as group:
        check = group.create_task(checking)

        def is_done() -> bool:
            turns.append(1)
            return check.done()

        await wait_until(is_done, description="the check to end")
    assert isinstance(check.result(), RefusedArguments)
    assert len(turns) > 2


def test_large_arguments_for_an_ordinary_schema_are_checked() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": row}, "text": {"type": "string"}}}
    arguments: dict[str, Any] = {"rows": [{"id": n, "name": "x"} for n in range(5_000)], "text": "x" * 800_000}
    assert read_arguments(json.dumps(arguments), schema) == arguments
    arguments["rows"][4_999]["id"] = "four"
    assert "rows[4999].id: 'four' is not of type 'integer'" in refusal(json.dumps(arguments), schema)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (json.dumps('{"sides": 6}'), '{"sides": 6}'),
        (f" {json.dumps('{}')}", "{}"),
        ("null", "{}"),
        (" null\n", "{}"),
        ('{"sides": 6}', '{"sides": 6}'),
        ("", ""),
        ("nullify", "nullify"),
        ('"{', '"{'),
        ('"six"', "six"),
    ],
)
def test_an_object_that_was_written_as_a_text_was_refused_again_and_again(written: str, meant: str) -> None:
    """Some models write every call so, and none for a tool without parameters."""
    assert as_object(written) == meant
