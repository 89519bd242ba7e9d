"""The JSON Schema of a tool's parameters in the form that suits OpenAI's API best, and whether it allows strict mode.

In strict mode arguments always match the schema, but it supports only a part of JSON Schema
(https://developers.openai.com/api/docs/guides/structured-outputs#supported-schemas). A tool whose schema is within that
part is declared strict; the meaning of other schemas stays unchanged.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from worker.models.provider import ModelCall, ToolSpec

_WITHOUT_MEANING = frozenset({"title", "$schema", "discriminator"})
_NOT_IN_STRICT_MODE = frozenset(
    {
        *("default", "oneOf", "minLength", "maxLength", "patternProperties", "unevaluatedProperties", "propertyNames"),
        *("minProperties", "maxProperties", "unevaluatedItems", "contains", "minContains", "maxContains"),
        "uniqueItems",
    }
)
_FORMATS_IN_STRICT_MODE = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_OF_OBJECTS = ("properties", "required", "additionalProperties")
_IN_CLAUDES_FORMATS = frozenset({"type", "title", "description", "enum", "const", "items", "anyOf", *_OF_OBJECTS})
_LOOKAROUND = re.compile(r"\(\?<?[=!]")
_TYPED = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
_DEFINITION = re.compile(r"#(/(\$defs|definitions)/[^/]+)?")
_MOST_LEVELS = 10
_MOST_PROPERTIES = 5000
_UNIONS = ("allOf", "anyOf", "oneOf")
_ALTERNATIVES = (*_UNIONS, "$ref")
_LISTS = (*_UNIONS, "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("additionalProperties", "items")

_Schema = dict[str, Any]

NO_PARAMETERS: _Schema = {"type": "object", "properties": {}}


def parameters_of(tool: ToolSpec) -> _Schema:
    """A tool's parameters as one object without alternatives: every provider demands that of the schema as a whole.
    The worker checks the arguments of a call against the tool's own schema."""
    schema = tool.parameters or NO_PARAMETERS
    if schema.get("type") == "object" and not any(kind in schema for kind in _ALTERNATIVES):
        return schema
    whole = {key: value for key, value in schema.items() if key not in _ALTERNATIVES}
    properties, required = _object(whole.get("properties")), set(map(str, _list(whole.get("required"))))
    for kind in _ALTERNATIVES:
        parts = _parts_of(schema, kind)
        for part in parts:
            properties = {**_object(part.get("properties")), **properties}
        needed = [set(map(str, _list(part.get("required")))) for part in parts]
        is_all = kind == "allOf" or not needed
        required |= set[str]().union(*needed) if is_all else needed[0].intersection(*needed)
    named = [name for name in properties if name in required]
    return {**whole, "type": "object", "properties": properties, "required": named}


def _parts_of(schema: _Schema, kind: str) -> list[_Schema]:
    """The alternatives of one kind, with definitions in place of references to them."""
    found: list[_Schema] = []
    for part in [{kind: schema.get(kind)}] if kind == "$ref" else map(_object, _list(schema.get(kind))):
        *_, place, name = ("", "", *str(part.get("$ref", "")).split("/"))
        found.append(_object(_object(schema.get(place)).get(name)) or part)
    return found


def _object(value: Any) -> _Schema:
    return cast("_Schema", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def for_openai(tool: ToolSpec) -> _Schema:
    """The parameters, with every object without named properties opened: OpenAI's form would close it."""
    return parameters_of(tool) if tool.strict else _with_parts(parameters_of(tool), _opened)


def _opened(schema: _Schema) -> _Schema:
    whole = _with_parts(schema, _opened)
    if whole.get("type") == "object" and not whole.get("properties"):
        whole.setdefault("additionalProperties", True)
    return whole


def chat_tool(tool: ToolSpec, *, follows_references: bool) -> _Schema:
    """A tool in the form of OpenAI's chat completions. `follows_references`: the model understands `$ref`."""
    parameters, strict = for_openai(tool), tool.strict
    if follows_references:
        schema = tool_schema(parameters)
        parameters, strict = schema.parameters, (schema.is_strict or None) if strict is None else strict
    else:
        parameters, strict = inlined(parameters), strict is not False
    said = {} if strict is None else {"strict": strict}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters, **said}
    return {"type": "function", "function": function}


def chat_choice(call: ModelCall) -> str | _Schema:
    """Whether the answer may or must call a tool, in the form of OpenAI's chat completions."""
    if not call.may_call:
        return "none"
    if call.must_call and call.forced_tool:
        return {"type": "function", "function": {"name": call.forced_tool}}
    return "required" if call.must_call else "auto"


def schema_of(response_format: Mapping[str, Any] | None) -> _Schema | None:
    """The JSON Schema that an answer has to match, in the form of OpenAI's chat completions; None for another
    format."""
    said = (response_format or {}).get("json_schema")
    schema: Any = cast("_Schema", said).get("schema") if isinstance(said, dict) else None
    return cast("_Schema", schema) if isinstance(schema, dict) else None


def is_claudes_format(schema: _Schema) -> bool:
    """Whether Anthropic's API certainly takes the schema as an answer's format: it refuses open objects, bounds and
    recursion, and takes few optional properties."""
    return all(
        _IN_CLAUDES_FORMATS.issuperset(one)
        and (("properties" not in one and "object" not in str(one.get("type"))) or _is_closed(one))
        for one in _within(schema)
    )


class ToolSchema(NamedTuple):
    """A tool's parameters in a request."""

    parameters: _Schema
    is_strict: bool


def tool_schema(parameters: _Schema) -> ToolSchema:
    """The parameters without meaningless keywords, and with the keywords that OpenAI demands."""
    plain = _plain(parameters)
    is_strict = all(_fits_strict_mode(schema) for schema in _within(plain)) and not _is_too_big(plain)
    return ToolSchema(plain, is_strict)


def _plain(schema: _Schema) -> _Schema:
    plain = {key: value for key, value in schema.items() if key not in _WITHOUT_MEANING}
    plain = _with_parts(plain, _plain)
    if plain.get("type") == "object":
        plain.setdefault("properties", {})
        if plain.get("additionalProperties") is None:
            plain["additionalProperties"] = False
    plain = _without_unions_of_one(plain)
    if "$ref" in plain and len(plain) > 1:
        # Keywords beside a reference are ignored; beside a union they count.
        plain["anyOf"] = [{"$ref": plain.pop("$ref")}]
    return plain


def _with_parts(schema: _Schema, change: Callable[[_Schema], _Schema]) -> _Schema:
    """The schema, with each direct subschema changed."""

    def changed(part: Any) -> Any:
        return change(cast("_Schema", part)) if isinstance(part, dict) else part

    whole = dict(schema)
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            whole[key] = {name: changed(part) for name, part in cast("_Schema", value).items()}
        elif key in (*_LISTS, *_SINGLE):
            whole[key] = (
                [changed(part) for part in cast("list[Any]", value)] if isinstance(value, list) else changed(value)
            )
    return whole


def _without_unions_of_one(schema: _Schema) -> _Schema:
    if "type" in schema:
        return schema
    for kind in _UNIONS:
        members = cast("list[Any]", schema.get(kind) or [])
        if len(members) == 1 and isinstance(members[0], dict):
            rest = {key: value for key, value in schema.items() if key != kind}
            return cast("_Schema", members[0]) | rest
    return schema


def _within(schema: _Schema) -> Iterator[_Schema]:
    """The schema and every schema in it."""
    yield schema
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            parts = list(cast("_Schema", value).values())
        elif key in (*_LISTS, *_SINGLE):
            parts = cast("list[Any]", value) if isinstance(value, list) else [value]
        else:
            continue
        for part in parts:
            if isinstance(part, dict):
                yield from _within(cast("_Schema", part))


def _fits_strict_mode(schema: _Schema) -> bool:
    if not _NOT_IN_STRICT_MODE.isdisjoint(schema) or schema.get("format", "time") not in _FORMATS_IN_STRICT_MODE:
        return False
    reference, pattern = schema.get("$ref"), schema.get("pattern")
    if isinstance(reference, str) and reference.startswith("#/") and not _DEFINITION.fullmatch(reference):
        return False
    if isinstance(pattern, str) and _LOOKAROUND.search(pattern):
        return False
    match schema.get("type"):
        case "object":
            return _is_closed(schema)
        case "array":
            items = schema.get("items")
            return bool(schema.get("prefixItems")) or (
                isinstance(items, dict) and not _TYPED.isdisjoint(cast("_Schema", items))
            )
        case _:
            return True


def _is_closed(schema: _Schema) -> bool:
    """Whether the object always has all of its properties, and no others."""
    properties, required = schema.get("properties"), schema.get("required")
    return (
        schema.get("additionalProperties") is False
        and isinstance(properties, dict)
        and isinstance(required, list)
        and set(cast("_Schema", properties)) <= set(map(str, cast("list[object]", required)))
    )


def _is_too_big(schema: _Schema) -> bool:
    """Checks the schema and each of its definitions separately, without following references."""
    definitions = [*schema.get("$defs", {}).values(), *schema.get("definitions", {}).values()]
    for part in (schema, *definitions):
        sizes = list(_object_sizes(part, 1))
        if max((level for level, _ in sizes), default=0) > _MOST_LEVELS:
            return True
        if sum(size for _, size in sizes) > _MOST_PROPERTIES:
            return True
    return False


def _object_sizes(node: Any, level: int) -> Iterator[tuple[int, int]]:
    """For each object: its depth, and the number of its properties."""
    if not isinstance(node, dict):
        return
    schema = cast("_Schema", node)
    below = [schema.get("items"), *schema.get("anyOf", [])]
    properties = schema.get("properties")
    if isinstance(properties, dict):
        yield level, len(cast("_Schema", properties))
        below.extend(cast("_Schema", properties).values())
        level += 1
    for part in below:
        yield from _object_sizes(part, level)


def inlined(schema: _Schema) -> _Schema:
    """The parameters with each definition in place of its references, for models that do not follow references.

    If definitions refer to each other in a circle, the references stay.
    """
    definitions = cast("_Schema", schema.get("$defs") or {})
    whole = {key: value for key, value in schema.items() if key != "$defs"}
    try:
        return _with_definitions(whole, definitions, ()) if definitions else schema
    except _Circle:
        return schema


class _Circle(Exception):
    """A definition refers to itself."""


def _with_definitions(schema: _Schema, definitions: _Schema, inside: tuple[str, ...]) -> _Schema:
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in inside:
        raise _Circle(name)
    definition = definitions.get(name)
    if isinstance(definition, dict):
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema, inside = {**cast("_Schema", definition), **beside}, (*inside, name)
    return _with_parts(schema, lambda part: _with_definitions(part, definitions, inside))


def without_titles(schema: _Schema) -> _Schema:
    """The parameters without the titles that schema generators add."""
    plain = {key: value for key, value in schema.items() if key not in ("title", "$schema")}
    return _without_unions_of_one(_with_parts(plain, without_titles))
