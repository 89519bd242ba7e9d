"""Parses a source into a syntax tree, and finds the function that is the tool."""

import ast
import json
import sys
import textwrap
import warnings
from collections.abc import Collection, Iterator
from enum import Enum, auto
from typing import Any

from shared.domain.errors import InvalidToolSource

MAX_SOURCE_CHARS = 128 * 1024
MAX_NODES = 50_000

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def parse_source(source: str) -> ast.Module:
    """The tree of a whole source, which may be indented like the block from which it was copied."""
    if len(source) > MAX_SOURCE_CHARS:
        raise InvalidToolSource(
            f"The source has {len(source)} characters, {MAX_SOURCE_CHARS} are allowed: move data out of the tool."
        )
    try:
        tree = parse_quietly(textwrap.dedent(source))
    except SyntaxError as error:
        where = f" (line {error.lineno})" if error.lineno else ""
        raise InvalidToolSource(f"The source is not valid Python: {error.msg}{where}.") from error
    except ValueError as error:
        raise InvalidToolSource(f"The source is not valid Python: {error}.") from error
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise InvalidToolSource(f"The source has more than {MAX_NODES} syntax nodes: make the tool smaller.")
    return tree


def parse_quietly(text: str) -> ast.Module:
    """Parses without warnings: Python would print warnings about a tenant's escape sequences on our standard error, or
    raise them, depending on the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def tool_function(tree: ast.Module, name: str | None) -> FunctionNode:
    """The function called `name`, else the last public one: helper functions come first or begin with `_`."""
    functions = [node for node in tree.body if isinstance(node, FunctionNode)]
    if not functions:
        raise InvalidToolSource("The source defines no function at its top level: send the source of one function.")
    if name is None:
        return ([node for node in functions if not node.name.startswith("_")] or functions)[-1]
    named = [node for node in functions if node.name == name]
    if not named:
        known = ", ".join(dict.fromkeys(node.name for node in functions[:20]))
        raise InvalidToolSource(f"The source defines no function {name!r} at its top level, only: {known}.")
    return named[-1]


def last_name(node: ast.expr) -> str:
    """The last name of an expression: `Optional` for both `Optional` and `typing.Optional`, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def assigned_names(tree: ast.Module) -> dict[str, ast.expr]:
    """Module-level names with their values: type aliases and constants."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found.update({target.id: node.value for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


# Literal values of a source, as far as JSON can represent them. Other values stay unknown: nothing is computed.


class Unknown(Enum):
    """Replaces a value that only an execution of the source could compute."""

    VALUE = auto()


def literal(node: ast.expr, names: dict[str, ast.expr]) -> Any:
    """The value of a literal, or of a module-level name for one; `Unknown.VALUE` for the rest."""
    if isinstance(node, ast.Name):
        node = names.get(node.id, node)
    try:
        value = ast.literal_eval(node)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Unknown.VALUE
    return value


def text_of(node: ast.expr, names: dict[str, ast.expr]) -> str | None:
    """The literal if it is a string."""
    value = literal(node, names)
    return value if isinstance(value, str) else None


# The budget and the warnings of one parsed source: a small hostile text must not cause much work.


MAX_TYPES = 2_000
MAX_DEPTH = 64
MAX_WARNINGS = 50


class ReadState:
    """Passed through one call of `read_tool_source`."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._types_left = MAX_TYPES

    def warn(self, text: str) -> None:
        """Records a warning for the author: the model may see this part differently from the author's intention."""
        if text not in self.warnings and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)

    def spend(self, depth: int) -> None:
        """Counts one more type. A type that is used twice counts twice, because the schema repeats it."""
        self._types_left -= 1
        if self._types_left < 0:
            raise InvalidToolSource(f"The parameters' types have more than {MAX_TYPES} parts: use simpler types.")
        if depth > MAX_DEPTH:
            raise InvalidToolSource(f"A parameter's type is nested deeper than {MAX_DEPTH} levels: flatten it.")


# The imports of a source, and whether the interpreter of tools has them.


CATCHES = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
"""Exceptions that a source catches if it works without the module."""


def refuse_missing_modules(source: str, of_packages: Collection[str] = ()) -> None:
    """Raises `InvalidToolSource` for a module that the tool cannot import: each call would fail. Tools have Python's
    standard library and the modules of their packages. An import may fail if the source catches the failure, or if it
    is for type checkers only."""
    present = sys.stdlib_module_names.union(of_packages)
    missing = dict.fromkeys(name for name in _imported(parse_source(source)) if name not in present)
    if missing:
        raise InvalidToolSource(
            f"The source imports {', '.join(missing)}, and tools have Python's standard library, with the packages of "
            "their pip_requirements where the server installs any (HOLDFAST_PACKAGE_INDEX): name the package there, do "
            "without (urllib instead of requests, for example), or let the client run the tool (client_tools)."
        )


def _imported(node: ast.AST) -> Iterator[str]:
    """The required modules, by their top-level names."""
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module.partition(".")[0]
    for child in _needed(node):
        yield from _imported(child)


def _needed(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node without those that may fail, or never run."""
    if isinstance(node, ast.Try | ast.TryStar) and any(map(_catches_imports, node.handlers)):
        yield from (*node.handlers, *node.orelse, *node.finalbody)
    elif isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING":
        yield from node.orelse
    else:
        yield from ast.iter_child_nodes(node)


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(one is None or last_name(one) in CATCHES for one in caught)
