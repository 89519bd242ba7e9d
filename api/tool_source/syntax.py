"""From text to a syntax tree, and to the function in it that is the tool."""

import ast
import textwrap
import warnings

from shared.domain.errors import InvalidToolSource

MAX_SOURCE_CHARS = 128 * 1024
MAX_NODES = 50_000

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def parse_source(source: str) -> ast.Module:
    """The tree of a whole source, which may be indented as a block was where it was cut out."""
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
    """Python warns about a tenant's odd escapes on our standard error, or raises, as the process is set up: neither."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def tool_function(tree: ast.Module, name: str | None) -> FunctionNode:
    """The function called `name`, else the last public one: helpers stand before their user or start with `_`."""
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
    """The name that an expression ends with: `Optional` for both `Optional` and `typing.Optional`, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def assigned_names(tree: ast.Module) -> dict[str, ast.expr]:
    """Module-level names with what they stand for: type aliases and constants."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found.update({target.id: node.value for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found
