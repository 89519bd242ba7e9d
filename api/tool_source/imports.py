"""What a source imports, and whether the interpreter that runs tools has it."""

import ast
import sys
from collections.abc import Collection, Iterator

from api.tool_source.syntax import last_name, parse_source
from shared.domain.errors import InvalidToolSource

CATCHES = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
"""What a source catches that can do without the module."""


def refuse_missing_modules(source: str, of_packages: Collection[str] = ()) -> None:
    """Raises `InvalidToolSource` for a module that the tool cannot import: each call would fail. Tools have Python's
    standard library and the modules of their packages. An import whose failure the source catches, and one for type
    checkers only, may fail."""
    present = sys.stdlib_module_names.union(of_packages)
    missing = dict.fromkeys(name for name in _imported(parse_source(source)) if name not in present)
    if missing:
        raise InvalidToolSource(
            f"The source imports {', '.join(missing)}, and tools have Python's standard library, with the packages of "
            "their pip_requirements where the server installs any (HOLDFAST_PACKAGE_INDEX): name the package there, do "
            "without (urllib instead of requests, for example), or let the client run the tool (client_tools)."
        )


def _imported(node: ast.AST) -> Iterator[str]:
    """The modules that must be there, by the first part of their names."""
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
