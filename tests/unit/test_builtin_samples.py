"""What the built-in models make up where an answer has to fit a schema."""

import json
from typing import Any

import pytest

from shared.json_limits import MAX_SCHEMA_VALUES
from worker.models.builtin import LONGEST_SAMPLE, sample_of

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "sample"),
    [
        (TEXT, "said"),
        ({"type": "boolean"}, True),
        ({"type": "integer"}, 1),
        ({"type": "number"}, 1),
        ({"type": "null"}, None),
        ({"type": ["null", "string"]}, None),
        ({"type": "array", "items": TEXT}, ["said"]),
        ({"type": "array"}, ["said"]),
        ({"const": 7}, 7),
        ({"type": "integer", "default": 3}, 3),
        ({"enum": ["a", "b"]}, "a"),
        ({"examples": ["for example"], **TEXT}, "for example"),
        ({"anyOf": [{"type": "null"}, TEXT]}, None),
        ({"oneOf": [TEXT]}, "said"),
        ({"properties": {"a": TEXT, "b": {"properties": {}}}}, {"a": "said", "b": {}}),
        ({"type": "object"}, {}),
        ({"type": "object", "properties": ["a"]}, {}),
        ({"type": []}, "said"),
        ({"type": {}}, "said"),
        ({"type": "colour"}, "said"),
        ({"enum": []}, "said"),
        ({}, "said"),
        (True, "said"),
        (None, "said"),
    ],
)
def test_a_value_is_made_up_of_what_the_schema_says(schema: Any, sample: Any) -> None:
    assert sample_of(schema, "said") == sample


def test_no_schema_makes_it_endless_or_large() -> None:
    deep: dict[str, Any] = TEXT
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    wide = {"properties": {str(number): TEXT for number in range(MAX_SCHEMA_VALUES)}}

    assert json.dumps(sample_of(deep, "said")).count("[") < 100
    assert len(json.dumps(sample_of(wide, "x" * LONGEST_SAMPLE))) < 1_000_000
