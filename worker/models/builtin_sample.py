"""What the built-in models answer when they have to call a tool: a value that fits its schema, made up from it.

It is for a first look and for tests: constants, enumerations, defaults and examples are taken as they are, and texts
are what the model would have said. Of a schema that asks for more than its shape (patterns, references, bounds), the
value may not fit. The size of the schema bounds the size of the value.
"""

from typing import Any, cast

LONGEST_SAMPLE = 200
"""Characters of a text: a schema may want thousands of them."""

_PLAIN: dict[str, Any] = {"boolean": True, "integer": 1, "number": 1, "null": None}
_MOST_LEVELS = 20


def sample_of(schema: object, text: str, *, level: int = 0) -> Any:
    """A value for the schema; `text` stands where it wants a text that it does not name."""
    if not isinstance(schema, dict) or level > _MOST_LEVELS:
        return text
    given = cast("dict[str, Any]", schema)
    for name in ("const", "default"):
        if name in given:
            return given[name]
    for name in ("enum", "examples", "anyOf", "oneOf"):
        if isinstance(given.get(name), list) and given[name]:
            first: Any = given[name][0]
            return sample_of(first, text, level=level + 1) if name.endswith("Of") else first
    kinds: Any = given.get("type", "object" if "properties" in given else "string")
    kind: object = cast("list[object]", kinds)[0] if isinstance(kinds, list) and kinds else cast("object", kinds)
    match kind:
        case "object":
            properties = given.get("properties")
            inside = cast("dict[str, Any]", properties).items() if isinstance(properties, dict) else ()
            return {key: sample_of(one, text, level=level + 1) for key, one in inside}
        case "array":
            return [sample_of(given.get("items"), text, level=level + 1)]
        case str():
            return _PLAIN.get(kind, text)
        case _:
            return text
