"""Converts a TypeScript source to its declaration. Every failure is an `InvalidToolSource` that names the fix."""

import json
import re
from typing import Any

from tree_sitter import Node

from api.tool_source.reader import MAX_PARAMETERS, ToolDeclaration, refuse_unstorable, require_name
from api.tool_source.syntax import ReadState
from shared.domain.effects import PROBE
from shared.domain.errors import InvalidToolSource
from shared.typescript import (
    FoundFunction,
    functions_of,
    line,
    parameter_name,
    parse,
    text_of,
    tool_function,
    tool_module,
    walk,
)

# TypeScript's types as JSON Schema. Where a schema cannot express a type, the model may send anything, with a warning.


DEEPEST = 24
MOST = 2000
"""Types in a schema. A type of the source counts each time that it is used."""
PLAIN: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "object": {"type": "object"},
    "any": {},
    "unknown": {},
}
LISTS = ("Array", "ReadonlyArray")
NOTHING = {"null", "undefined", "void"}

Schema = dict[str, Any]


class TypeScriptTypes:
    """The types of one source, including those that it defines at its top level."""

    def __init__(self, root: Node, state: ReadState) -> None:
        self._state = state
        self._left = MOST
        self._open: set[str] = set()
        self._defined: dict[str, Node] = {}
        for statement in root.named_children:
            declared = statement.child_by_field_name("declaration") or statement
            if declared.type in ("interface_declaration", "type_alias_declaration"):
                self._defined[text_of(declared.child_by_field_name("name"))] = declared

    def schema(self, annotation: Node | None, deep: int = 0) -> Schema:
        """The schema of a type, or of the annotation that contains it."""
        if annotation is None:
            return {}
        node = annotation.named_children[0] if annotation.type == "type_annotation" else annotation
        self._left -= 1
        if self._left < 0:
            raise InvalidToolSource(f"The parameters have more than {MOST} types in them: use simpler types.")
        if deep > DEEPEST:
            return self._anything(node, "is nested too deeply")
        if node.type == "predefined_type" and text_of(node) in PLAIN:
            return dict(PLAIN[text_of(node)])
        if node.type in ("parenthesized_type", "readonly_type"):
            return self.schema(node.named_children[-1], deep + 1)
        return self._composed(node, deep)

    def _composed(self, node: Node, deep: int) -> Schema:
        match node.type:
            case "literal_type":
                return self._literal(node)
            case "array_type":
                return {"type": "array", "items": self.schema(node.named_children[0], deep + 1)}
            case "union_type":
                return self._union(node, deep)
            case "object_type" | "interface_body":
                return self._object(node, deep)
            case "generic_type":
                return self._generic(node, deep)
            case "type_identifier":
                return self._named(node, deep)
            case "template_literal_type":
                return {"type": "string"}
            case _:
                return self._anything(node, "is not known")

    def _anything(self, node: Node, why: str) -> Schema:
        self._state.warn(f"the type {text_of(node)[:80]!r} {why}: the model may send anything")
        return {}

    def _literal(self, node: Node) -> Schema:
        value = literal(node.children[0])
        return {"enum": [value]} if value is not None else self._anything(node, "is not known")

    def _union(self, node: Node, deep: int) -> Schema:
        parts: list[Node] = []
        waiting = [node]
        while waiting:
            part = waiting.pop()
            if part.type == "union_type":
                waiting.extend(reversed(part.named_children))
            else:
                parts.append(part)
        present = [part for part in parts if text_of(part) not in NOTHING]
        schemas = [self.schema(part, deep + 1) for part in present]
        values = [schema["enum"][0] for schema in schemas if list(schema) == ["enum"]]
        if values and len(values) == len(schemas):
            kind: Schema = {"type": "string"} if all(isinstance(value, str) for value in values) else {}
            schemas = [kind | {"enum": values}]
        if any(text_of(part) == "null" for part in parts):
            schemas.append({"type": "null"})
        if {} in schemas:
            return {}
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _object(self, node: Node, deep: int) -> Schema:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for member in node.named_children:
            if member.type == "index_signature":
                values = member.child_by_field_name("type")
                return {"type": "object", "additionalProperties": self.schema(values, deep + 1)}
            if member.type != "property_signature":
                continue
            name = text_of(member.child_by_field_name("name")).strip("'\"")
            properties[name] = self.schema(member.child_by_field_name("type"), deep + 1)
            if not any(child.type == "?" for child in member.children):
                required.append(name)
        return {"type": "object", "properties": properties, "required": required}

    def _generic(self, node: Node, deep: int) -> Schema:
        name = text_of(node.child_by_field_name("name"))
        arguments: list[Node] = []
        for child in node.children:
            arguments += child.named_children if child.type == "type_arguments" else []
        if name in LISTS and len(arguments) == 1:
            return {"type": "array", "items": self.schema(arguments[0], deep + 1)}
        if name == "Record" and len(arguments) == 2:
            return {"type": "object", "additionalProperties": self.schema(arguments[1], deep + 1)}
        if name in ("Partial", "Readonly", "Required") and len(arguments) == 1:
            inner = self.schema(arguments[0], deep + 1)
            if name == "Readonly" or "properties" not in inner:
                return inner
            required: list[str] = [] if name == "Partial" else list(inner["properties"])
            return inner | {"required": required}
        return self._anything(node, "is not known")

    def _named(self, node: Node, deep: int) -> Schema:
        name = text_of(node)
        declared = self._defined.get(name)
        if declared is None:
            return self._anything(node, "is not defined in the source")
        if declared.child_by_field_name("type_parameters") is not None:
            return self._anything(node, "has parameters of its own")
        if name in self._open:
            return self._anything(node, "is part of itself")
        self._open.add(name)
        found = self._definition(declared, deep)
        self._open.discard(name)
        return found

    def _definition(self, declared: Node, deep: int) -> Schema:
        if declared.type == "type_alias_declaration":
            return self.schema(declared.child_by_field_name("value"), deep + 1)
        own = self._object(declared.named_children[-1], deep)
        for clause in (child for child in declared.named_children if child.type == "extends_type_clause"):
            for above in clause.named_children:
                wider = self.schema(above, deep + 1)
                own["properties"] = wider.get("properties", {}) | own.get("properties", {})
                own["required"] = list(dict.fromkeys([*wider.get("required", []), *own.get("required", [])]))
        return own


def literal(node: Node) -> str | float | bool | None:
    """The value of a literal that JSON can represent; None for other nodes."""
    text = text_of(node)
    if node.type == "string":
        text = '"' + text[1:-1].replace("\\'", "'").replace('"', '\\"') + '"' if text.startswith("'") else text
    if node.type not in ("string", "number", "true", "false", "unary_expression"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str | int | float | bool) else None


NEXT_TAG = re.compile(r"\n(?=@\w)|[ \t]+(?=@(?:param|arg|argument|returns?)\b)")
"""The end of a part of a comment: tags begin a line, or follow the text in a one-line comment."""

TAG = re.compile(r"^@(\w+)\s*(.*)$", re.DOTALL)
PARAMETER = re.compile(r"^(?:\{[^}]*\}\s*)?\[?([\w$]+)[^\]\s]*\]?\s*(?:-\s*)?(.*)$", re.DOTALL)
BUILTIN = frozenset({
    "assert", "async_hooks", "buffer", "console", "constants", "crypto", "diagnostics_channel", "events", "fs", "os",
    "path", "perf_hooks", "process", "punycode", "querystring", "readline", "stream", "string_decoder", "timers", "url",
    "util", "v8", "vm", "worker_threads", "zlib", "child_process", "dgram", "dns", "http", "http2", "https", "net",
    "tls", "module",
})  # fmt: skip
"""Node.js' own modules."""


def read_typescript_source(source: str, name: str | None = None) -> ToolDeclaration:
    """Parses the function called `name`, else the last exported one. Executes nothing of the source."""
    root = parse(source)
    function = tool_function(root, name)
    require_name(function.name, "function")
    _refuse_missing_modules(root)
    tool_module(source, function.name)  # a source that cannot become JavaScript is refused now, not at the first call
    for probe in functions_of(root):
        if probe.name == PROBE + function.name:
            list(map(parameter_name, probe.parameters))  # refuses parameters that no call could fill
    state = ReadState()
    described, parameters = _documentation(function)
    if not described:
        state.warn("the function has no comment /** … */ before it: the model gets only its name")
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
    """The text of the comment before the function, and of its `@param` tags."""
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
    """Raises `InvalidToolSource` for an import of a module that is not part of Node.js."""
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
