"""Tools whose schema as a whole no provider takes, and objects that may have any property."""

from typing import Any

import pytest

from worker.models.provider import ToolSpec
from worker.models.tool_schema import chat_tool, for_openai, parameters_of

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
ARGUMENTS = {"Args": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}}


def tool(parameters: dict[str, Any], *, strict: bool | None = None) -> ToolSpec:
    return ToolSpec("look", "Look.", parameters, strict)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {"type": "object", "properties": {}}),
        (
            {"properties": {"a": TEXT}, "required": ["a"]},
            {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
        ),
        (
            {
                "type": "object",
                "properties": {"a": TEXT, "b": TEXT},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": []},
        ),
        (
            {
                "oneOf": [
                    {"type": "object", "properties": {"kind": TEXT, "a": TEXT}, "required": ["kind", "a"]},
                    {"type": "object", "properties": {"kind": TEXT, "b": NUMBER}, "required": ["kind"]},
                ],
            },
            {"type": "object", "properties": {"kind": TEXT, "b": NUMBER, "a": TEXT}, "required": ["kind"]},
        ),
        (
            {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": NUMBER}, "required": ["b"]}], "$defs": {"A": {}}},
            {"type": "object", "properties": {"b": NUMBER}, "required": ["b"], "$defs": {"A": {}}},
        ),
        (
            {
                "$ref": "#/$defs/Args",
                "$defs": {"Args": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}},
            },
            {
                "type": "object",
                "properties": {"a": TEXT},
                "required": ["a"],
                "$defs": {"Args": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}},
            },
        ),
    ],
)
def test_a_schema_that_is_no_object_at_the_top_was_refused_with_all_other_tools(
    given: dict[str, Any], sent: dict[str, Any]
) -> None:
    made = parameters_of(tool(given))
    assert made == sent
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & made.keys()


def test_a_schema_that_every_provider_takes_is_sent_as_it_is() -> None:
    given = {"type": "object", "properties": {"a": {"anyOf": [TEXT, NUMBER]}}, "required": ["a"]}
    assert parameters_of(tool(given)) is given


ODD: list[dict[str, Any]] = [
    {"anyOf": 5},
    {"oneOf": [5]},
    {"$ref": "#"},
    {"$ref": "#/x/y"},
    {"properties": [], "required": [{}, []]},
]


@pytest.mark.parametrize("odd", ODD)
def test_a_schema_of_another_kind_is_sent_as_an_object(odd: dict[str, Any]) -> None:
    assert parameters_of(tool(odd))["type"] == "object"


FREE = {"type": "object", "description": "Any fields."}


@pytest.mark.parametrize("place", ["property", "items", "union"])
def test_an_object_that_may_have_any_property_was_closed(place: str) -> None:
    """So OpenAI's models could fill it with nothing."""
    inner = {
        "property": FREE,
        "items": {"type": "array", "items": FREE},
        "union": {"anyOf": [FREE, {"type": "null"}]},
    }[place]
    given = {"type": "object", "properties": {"filter": inner}, "required": ["filter"]}
    sent = chat_tool(tool(given), follows_references=True)["function"]
    assert '"additionalProperties": False' not in str(sent["parameters"]["properties"]).replace("'", '"')
    assert "strict" not in sent, "the model would be held to an empty object"
    assert for_openai(tool(given))["properties"]["filter"] != inner


def test_a_client_that_wants_a_strict_tool_gets_the_closed_object() -> None:
    given = {"type": "object", "properties": {"filter": FREE}, "required": ["filter"]}
    sent = chat_tool(tool(given, strict=True), follows_references=True)["function"]
    assert sent["parameters"]["properties"]["filter"]["additionalProperties"] is False


def test_a_tool_without_parameters_stays_closed() -> None:
    none: list[dict[str, Any]] = [{}, {"type": "object"}, {"type": "object", "properties": {}}]
    for parameters in none:
        sent = chat_tool(tool(parameters), follows_references=True)["function"]
        assert sent["parameters"]["additionalProperties"] is False
