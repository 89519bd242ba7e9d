"""The parameters of a function as the JSON Schema of the wire: as plain as a simple tool deserves."""

from typing import Any, cast

from pydantic import PydanticUserError, create_model
from pydantic_core import SchemaError

from shared.domain.errors import InvalidToolSource

NAMED_SCHEMAS = {"properties", "$defs"}
VALUES = {"default", "enum", "const", "examples", "required"}


def parameters_schema(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` as `create_model` takes them, under neutral names: the parameters' own names are the aliases, because
    a parameter called `model_config` or `_x` would mean something to pydantic."""
    try:
        schema = create_model("Parameters", **fields).model_json_schema()
    except (PydanticUserError, SchemaError, TypeError, ValueError, NameError) as error:
        reason = str(error).splitlines()[0][:300]
        raise InvalidToolSource(f"The parameters have no JSON schema: {reason}. Use simpler types.") from error
    plain = _plain(schema)
    found: dict[str, Any] = {"type": "object", "properties": plain.get("properties", {})}
    found["required"] = plain.get("required", [])
    if "$defs" in plain:
        found["$defs"] = plain["$defs"]
    return found


def _plain(schema: Any) -> Any:
    """Without what pydantic adds and no model needs: made-up titles, "anything else is allowed", null defaults."""
    if isinstance(schema, list):
        return [_plain(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    items = cast("dict[str, Any]", schema)
    found: dict[str, Any] = {"type": items["type"]} if "type" in items else {}
    for key, value in items.items():
        if key == "title" or (key == "additionalProperties" and value is True):
            continue
        if key in NAMED_SCHEMAS:
            found[key] = {name: _plain(inner) for name, inner in value.items()}
        else:
            found[key] = value if key in VALUES else _plain(value)
    return found
