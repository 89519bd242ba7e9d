"""Values that a source spells out, as far as JSON can say them. Anything else stays unknown: nothing is computed."""

import ast
import json
from enum import Enum, auto
from typing import Any


class Unknown(Enum):
    """Stands for a value that cannot be told without running the source."""

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
