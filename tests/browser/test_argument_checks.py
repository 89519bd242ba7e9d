"""How edited arguments are checked against a tool's schema, and how a change is shown, by the page's own modules."""

from typing import Any

from tests.kit.browser.viewer import Viewer

TOOL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "minLength": 2},
        "amount": {"type": "integer", "minimum": 1, "maximum": 100},
        "rate": {"type": "number"},
        "unit": {"enum": ["euro", "dollar"]},
        "notes": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "place": {"$ref": "#/$defs/Place"},
        "due": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["to"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}


CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({"to": "Ada", "amount": 3, "rate": 1, "unit": "euro", "notes": ["a"], "due": None}, []),
    ({}, ["to is missing"]),
    ({"to": "A"}, ["to must have at least 2 characters"]),
    ({"to": "Ada", "amount": 1.5}, ["amount must be integer, is number"]),
    ({"to": "Ada", "amount": 101}, ["amount must be at most 100"]),
    ({"to": "Ada", "amount": True}, ["amount must be integer, is boolean"]),
    ({"to": "Ada", "unit": "yen"}, ['unit must be one of "euro", "dollar"']),
    ({"to": "Ada", "notes": ["a", 2]}, ["notes[1] must be string, is integer"]),
    ({"to": "Ada", "notes": ["a", "b", "c"]}, ["notes must have at most 2 items"]),
    ({"to": "Ada", "place": {}}, ["place.city is missing"]),
    ({"to": "Ada", "due": 7}, ["due must be string, is integer, or must be null, is integer"]),
    ({"to": "Ada", "labels": {"x": 1}}, ["labels.x must be string, is integer"]),
    (
        {"to": "Ada", "sum": 3},
        [
            "sum is not a parameter of this tool; it has: to, amount, rate, unit, notes, place, due, labels",
        ],
    ),
]


async def test_what_does_not_fit_is_named_by_its_field(viewer: Viewer) -> None:
    await viewer.open("/approvals")
    found = await viewer.page.evaluate(
        """async ([values, schema]) => {
          const { flawsOf } = await import("/console/lib/schema.js");
          return values.map((value) => flawsOf(value, schema).map((flaw) => `${flaw.field} ${flaw.text}`));
        }""",
        [[arguments for arguments, _ in CASES], TOOL],
    )
    assert found == [flaws for _, flaws in CASES]


async def test_a_schema_that_refers_to_itself_is_given_up_on(viewer: Viewer) -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}
    await viewer.open("/approvals")
    found = await viewer.page.evaluate(
        """async (schema) => (await import("/console/lib/schema.js")).flawsOf({}, schema)""", schema
    )
    assert found == []


async def test_a_change_is_shown_line_by_line(viewer: Viewer) -> None:
    await viewer.open("/approvals")
    found = await viewer.page.evaluate(
        """async () => {
          const { lineDiff } = await import("/console/lib/line_diff.js");
          return lineDiff("a\\nb\\nc\\nd\\ne", "a\\nc\\nx\\nd\\ne\\nf").map((line) => `${line.kind} ${line.text}`);
        }"""
    )
    assert found == ["same a", "removed b", "same c", "added x", "same d", "same e", "added f"]
