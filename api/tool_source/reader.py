"""Converts a tool's source text to its declaration. Every failure is an `InvalidToolSource` that names the fix."""

import ast
import re
from collections import Counter
from typing import Any, cast

import msgspec
from pydantic import PydanticUserError, create_model
from pydantic_core import SchemaError

from api.tool_source.syntax import FunctionNode, ReadState, parse_source, tool_function
from api.tool_source.types import TypeReader
from shared.domain.errors import InvalidToolSource

# The parameters of a function as a JSON Schema, as simple as the function itself.


NAMED_SCHEMAS = {"properties", "$defs"}
VALUES = {"default", "enum", "const", "examples", "required"}


def parameters_schema(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` in the form of `create_model`, under neutral names: the parameters' own names are the aliases, because
    pydantic gives names such as `model_config` or `_x` a meaning."""
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
    """Removes additions of pydantic that no model needs: generated titles, "anything else is allowed", null
    defaults."""
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


MAX_PARAMETERS = 256
RESERVED = {"self", "cls", "agent_state", "agent_id", "client", "idempotency_key"}
"""Parameters that the model does not fill."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""Names of functions and parameters that every provider accepts."""


class ToolDeclaration(msgspec.Struct, frozen=True):
    """The model's view of a tool, and the warnings for its author."""

    name: str
    description: str
    parameters: dict[str, Any]
    warnings: list[str]


def read_tool_source(source: str, name: str | None = None) -> ToolDeclaration:
    """Parses the function called `name`, else the last public one. Executes nothing of the source."""
    try:
        tree = parse_source(source)
        declaration = _declaration(tree, tool_function(tree, name))
    except (RecursionError, MemoryError) as error:
        raise InvalidToolSource("The source is nested too deeply to be read: make it flatter.") from error
    refuse_unstorable(declaration)
    return declaration


def _declaration(tree: ast.Module, function: FunctionNode) -> ToolDeclaration:
    # Imported here: griffe takes as long as all other parsers, and a server may never get a source.
    from api.tool_source.docstrings import read_docstring

    state = ReadState()
    documentation = read_docstring(ast.get_docstring(function) or "")
    if not documentation.text:
        state.warn("the function has no docstring: the model gets only its name")
    require_name(function.name, "function")
    reader = TypeReader(tree, state)
    fields: dict[str, Any] = {}
    for parameter, default in _parameters(function):
        if parameter.arg in RESERVED:
            continue
        require_name(parameter.arg, "parameter")
        fields[f"p{len(fields)}"] = reader.fields.definition(
            parameter.arg, parameter.annotation, default, about=documentation.parameters.get(parameter.arg)
        )
    if function.args.vararg or function.args.kwarg:
        state.warn("*args and **kwargs are not offered to the model")
    return ToolDeclaration(
        name=function.name,
        description=documentation.text or f"The {function.name} tool.",
        parameters=parameters_schema(fields),
        warnings=state.warnings,
    )


def _parameters(function: FunctionNode) -> list[tuple[ast.arg, ast.expr | None]]:
    """Every parameter with its default, in order."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    required = len(positional) - len(given.defaults)
    found: list[tuple[ast.arg, ast.expr | None]] = list(zip(positional[:required], [None] * required, strict=True))
    found += zip(positional[required:], given.defaults, strict=True)
    found += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    if len(found) > MAX_PARAMETERS:
        raise InvalidToolSource(f"The function has {len(found)} parameters, {MAX_PARAMETERS} are allowed: group them.")
    for name, count in Counter(parameter.arg for parameter, _ in found).items():
        if count > 1:
            raise InvalidToolSource(f"The function has two parameters called {name!r}: rename one.")
    return found


def require_name(name: str, kind: str) -> None:
    """Raises `InvalidToolSource` for a name that a provider would refuse. `kind`: the object with that name."""
    if not NAME.fullmatch(name):
        raise InvalidToolSource(
            f"The {kind} {name[:80]!r} cannot be offered to a model: use at most 64 ASCII letters, digits and _."
        )


def refuse_unstorable(declaration: ToolDeclaration) -> None:
    """Raises `InvalidToolSource` for a text that no database can store."""
    try:
        encoded = msgspec.json.encode(declaration)
    except UnicodeEncodeError as error:
        raise InvalidToolSource("A text of the tool contains half a surrogate pair: remove it.") from error
    if b"\\u0000" in encoded.replace(b"\\\\", b""):
        raise InvalidToolSource("A text of the tool contains a NUL character: remove it.")
