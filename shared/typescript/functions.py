"""The function of a TypeScript tool, and the modules that a worker hands to Node.js."""

import msgspec
from tree_sitter import Node

from shared.domain.errors import InvalidToolSource
from shared.typescript.javascript import as_javascript
from shared.typescript.syntax import line, parse, text_of

FUNCTIONS = {"function_declaration", "generator_function_declaration"}
VALUES = {"arrow_function", "function_expression"}


class FoundFunction(msgspec.Struct, frozen=True):
    """One function of a source: its parts in the tree."""

    name: str
    statement: Node
    """The whole statement, `export` included."""
    parameters: tuple[Node, ...]
    is_exported: bool


class Module(msgspec.Struct, frozen=True):
    """What Node.js is given: a module, and the order of its function's arguments."""

    source: str
    parameters: tuple[str, ...] = ()


def tool_function(root: Node, name: str | None) -> FoundFunction:
    """The function called `name`; else the last one that is exported, else the last one whose name does not begin with
    `_`. Raises `InvalidToolSource`."""
    found = [function for statement in root.named_children for function in _functions(statement)]
    if name is not None:
        chosen = [function for function in found if function.name == name]
    else:
        exported = [function for function in found if function.is_exported]
        chosen = exported or [function for function in found if not function.name.startswith("_")]
    if not chosen:
        wanted = f"function {name}" if name else "function"
        raise InvalidToolSource(
            f"The source has no {wanted} at its top level: write `export function {name or 'f'}()`."
        )
    return chosen[-1]


def parameter_name(parameter: Node) -> str:
    """The parameter's name; empty for `this` and for what takes all that is left. Raises `InvalidToolSource`."""
    pattern = parameter.child_by_field_name("pattern")
    if pattern is None or pattern.type in ("this", "rest_pattern"):
        return ""
    if pattern.type != "identifier":
        raise InvalidToolSource(
            f"Line {line(parameter)}: the model fills parameters by name: take each by its name, not in a pattern."
        )
    return text_of(pattern)


def tool_module(source: str, name: str) -> Module:
    """The module of a tool. Raises `InvalidToolSource`."""
    function = tool_function(parse(source), name)
    parameters = tuple(found for node in function.parameters if (found := parameter_name(node)))
    exported = "" if function.is_exported else f"\nexport {{ {function.name} }};"
    return Module(as_javascript(source) + exported, parameters)


def program_module(code: str, *, is_typescript: bool) -> Module:
    """The module of a program: the value of a last expression is its default export. Raises `InvalidToolSource` for
    TypeScript that cannot be read; JavaScript that cannot be read is for Node.js to refuse."""
    try:
        text = _with_value(code)
        return Module(as_javascript(text) if is_typescript else text)
    except InvalidToolSource:
        if is_typescript:
            raise
        return Module(code)


def _with_value(code: str) -> str:
    root = parse(code)
    statements = [node for node in root.named_children if node.type != "comment"]
    if not statements or statements[-1].type != "expression_statement" or not statements[-1].named_children:
        return code
    if any(child.type == "default" for node in statements for child in node.children):
        return code
    value, text = statements[-1].named_children[0], code.encode()
    before, value_text, after = (
        text[: value.start_byte],
        text[value.start_byte : value.end_byte],
        text[value.end_byte :],
    )
    # An exported expression would have no line of its own in a trace.
    end = b"\nexport { lastValue as default };"
    return (before + b";const lastValue = (" + value_text + b")" + after + end).decode()


def _functions(statement: Node) -> list[FoundFunction]:
    declared = statement.child_by_field_name("declaration") if statement.type == "export_statement" else statement
    if declared is None:
        return []
    is_default = any(child.type == "default" for child in statement.children)
    is_exported = statement.type == "export_statement" and not is_default
    if declared.type in FUNCTIONS:
        return _found(declared.child_by_field_name("name"), declared, statement, is_exported=is_exported)
    if declared.type != "lexical_declaration":
        return []
    found: list[FoundFunction] = []
    for variable in declared.named_children:
        value = variable.child_by_field_name("value")
        if value is not None and value.type in VALUES:
            found += _found(variable.child_by_field_name("name"), value, statement, is_exported=is_exported)
    return found


def _found(name: Node | None, function: Node, statement: Node, *, is_exported: bool) -> list[FoundFunction]:
    if name is None or name.type != "identifier":
        return []
    listed = function.child_by_field_name("parameters")
    single = function.child_by_field_name("parameter")
    if single is not None:
        raise InvalidToolSource(f"Line {line(function)}: put the parameter in parentheses and say its type.")
    kinds = ("required_parameter", "optional_parameter")
    parameters = tuple(node for node in listed.named_children if node.type in kinds) if listed is not None else ()
    return [FoundFunction(text_of(name), statement, parameters, is_exported)]
