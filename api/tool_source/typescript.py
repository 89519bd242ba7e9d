"""The way in for a source in TypeScript: to its declaration. Every failure is an `InvalidToolSource` with the fix."""

import re
from typing import Any

from tree_sitter import Node

from api.tool_source.read_state import ReadState
from api.tool_source.reader import MAX_PARAMETERS, ToolDeclaration, refuse_unstorable, require_name
from api.tool_source.typescript_types import TypeScriptTypes, literal
from shared.domain.errors import InvalidToolSource
from shared.typescript.functions import FoundFunction, parameter_name, tool_function, tool_module
from shared.typescript.syntax import line, parse, text_of, walk

NEXT_TAG = re.compile(r"\n(?=@\w)|[ \t]+(?=@(?:param|arg|argument|returns?)\b)")
"""Where a part of a comment ends: tags begin a line, and those of a comment of one line follow its text."""

TAG = re.compile(r"^@(\w+)\s*(.*)$", re.DOTALL)
PARAMETER = re.compile(r"^(?:\{[^}]*\}\s*)?\[?([\w$]+)[^\]\s]*\]?\s*(?:-\s*)?(.*)$", re.DOTALL)
BUILTIN = frozenset({
    "assert", "async_hooks", "buffer", "console", "constants", "crypto", "diagnostics_channel", "events", "fs", "os",
    "path", "perf_hooks", "process", "punycode", "querystring", "readline", "stream", "string_decoder", "timers", "url",
    "util", "v8", "vm", "worker_threads", "zlib", "child_process", "dgram", "dns", "http", "http2", "https", "net",
    "tls", "module",
})  # fmt: skip
"""Modules of Node.js itself."""


def read_typescript_source(source: str, name: str | None = None) -> ToolDeclaration:
    """Reads the function called `name`, else the last exported one. Executes nothing of the source."""
    root = parse(source)
    function = tool_function(root, name)
    require_name(function.name, "function")
    _refuse_missing_modules(root)
    tool_module(source, function.name)  # what has no JavaScript is refused now, not by the first call
    state = ReadState()
    described, parameters = _documentation(function)
    if not described:
        state.warn("the function has no comment /** … */ before it: the model is told its name only")
    declaration = ToolDeclaration(
        name=function.name,
        description=described or f"The {function.name} tool.",
        parameters=_parameters(function, TypeScriptTypes(root, state), parameters, state),
        warnings=state.warnings,
    )
    refuse_unstorable(declaration)
    return declaration


def _parameters(
    function: FoundFunction, types: TypeScriptTypes, described: dict[str, str], state: ReadState
) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    if len(function.parameters) > MAX_PARAMETERS:
        raise InvalidToolSource(
            f"The function has {len(function.parameters)} parameters, {MAX_PARAMETERS} are allowed: group them."
        )
    for parameter in function.parameters:
        name = parameter_name(parameter)
        if not name:
            state.warn("what takes all arguments that are left is not offered to the model")
            continue
        require_name(name, "parameter")
        annotation = parameter.child_by_field_name("type")
        if annotation is None and parameter.child_by_field_name("value") is None:
            state.warn(f"the parameter {name!r} has no type: the model may send anything")
        schema: dict[str, Any] = types.schema(annotation)
        value = parameter.child_by_field_name("value")
        default = literal(value) if value is not None else None
        if annotation is None and default is not None:
            kind = "string" if isinstance(default, str) else "boolean" if isinstance(default, bool) else "number"
            schema = {"type": kind}
        if default is not None:
            schema["default"] = default
        if name in described:
            schema["description"] = described[name]
        properties[name] = schema
        if parameter.type == "required_parameter" and value is None:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _documentation(function: FoundFunction) -> tuple[str, dict[str, str]]:
    """The text of the comment before the function, and what its `@param` say."""
    comment = function.statement.prev_named_sibling
    if comment is None or comment.type != "comment" or not text_of(comment).startswith("/**"):
        return "", {}
    if comment.end_point.row + 1 < function.statement.start_point.row:
        return "", {}
    lines = [one.strip().removeprefix("*").strip() for one in text_of(comment)[3:-2].splitlines()]
    parts = NEXT_TAG.split("\n".join(lines).strip())
    parameters: dict[str, str] = {}
    for part in parts:
        if (tag := TAG.match(part)) and tag[1] in ("param", "arg", "argument") and (said := PARAMETER.match(tag[2])):
            parameters[said[1]] = " ".join(said[2].split())
    return "" if parts[0].startswith("@") else parts[0].strip(), parameters


def _refuse_missing_modules(root: Node) -> None:
    """Raises `InvalidToolSource` for an import of what is not part of Node.js."""
    for node in walk(root):
        source = node.child_by_field_name("source") if node.type in ("import_statement", "export_statement") else None
        if source is None or any(child.type == "type" for child in node.children):
            continue
        module = text_of(source).strip("'\"")
        if module.removeprefix("node:").partition("/")[0] not in BUILTIN:
            raise InvalidToolSource(
                f"Line {line(node)}: the tool imports {module}, which is not there: a TypeScript tool has the "
                "modules of Node.js itself and no packages."
            )
