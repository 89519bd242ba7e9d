"""Annotations as types, from a closed set: what a name means is looked up here and in the source, never imported."""

import ast
import datetime
import decimal
import uuid
from typing import Any, Literal, Optional, Union, cast

from api.tool_source.classes import ClassReader
from api.tool_source.fields import FieldReader
from api.tool_source.literals import literal
from api.tool_source.read_state import ReadState
from api.tool_source.syntax import assigned_names, is_ellipsis, last_name, parse_quietly

MAX_STRING_ANNOTATION = 2_000
KNOWN: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "bytes": bytes,
    "None": type(None),
    "NoneType": type(None),
    "Any": Any,
    "object": Any,
    "LiteralString": str,
    "AnyStr": str,
    "Path": str,
    "PathLike": str,
    **dict.fromkeys(("dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"), dict),
    **dict.fromkeys(("list", "List", "Sequence", "MutableSequence", "Iterable", "Collection", "deque"), list),
    **dict.fromkeys(("set", "Set", "frozenset", "FrozenSet", "AbstractSet", "MutableSet"), set),
    "tuple": tuple,
    "Tuple": tuple,
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
    "datetime": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
}
TRANSPARENT = {"Required", "NotRequired", "ReadOnly", "Final", "ClassVar"}


class TypeReader:
    """Turns the annotations of one source into types that pydantic can describe."""

    def __init__(self, tree: ast.Module, state: ReadState) -> None:
        self._state = state
        self._names = assigned_names(tree)
        self._aliases_open: set[str] = set()
        self.fields = FieldReader(state, self._names, self.read)
        self._classes = ClassReader(tree, state, self.fields)

    def read(self, node: ast.expr, depth: int = 0) -> Any:
        self._state.spend(depth)
        match node:
            case ast.Constant():
                return self._constant(node, depth)
            case ast.Name() | ast.Attribute():
                return self._name(last_name(node), depth)
            case ast.BinOp(op=ast.BitOr()):
                return Union[tuple(self.read(part, depth + 1) for part in _alternatives(node))]  # noqa: UP007 - a union of values, not of names
            case ast.Subscript():
                return self._subscript(node, depth)
            case ast.Call(args=[_, parent]) if last_name(node) == "NewType":
                return self.read(parent, depth + 1)
            case _:
                return self._any(f"an annotation in line {node.lineno} is not a type")

    def _any(self, why: str) -> Any:
        self._state.warn(f"{why}: the model may send any value")
        return Any

    def _constant(self, node: ast.Constant, depth: int) -> Any:
        if node.value is None:
            return type(None)
        if not isinstance(node.value, str) or len(node.value) > MAX_STRING_ANNOTATION:
            return self._any(f"an annotation in line {node.lineno} is not a type")
        try:
            body = parse_quietly(node.value.strip()).body
        except (SyntaxError, ValueError):
            return self._any(f"the annotation {node.value[:60]!r} does not parse")
        if len(body) != 1 or not isinstance(body[0], ast.Expr):
            return self._any(f"the annotation {node.value[:60]!r} is not a type")
        return self.read(body[0].value, depth + 1)

    def _name(self, name: str, depth: int) -> Any:
        if self._classes.defines(name):
            return self._classes.read(name, depth + 1)
        if name in self._names and name not in self._aliases_open:
            self._aliases_open.add(name)
            try:
                return self.read(self._names[name], depth + 1)
            finally:
                self._aliases_open.discard(name)
        if name in KNOWN:
            return KNOWN[name]
        return self._any(f"the type {name} is not known here")

    def _subscript(self, node: ast.Subscript, depth: int) -> Any:
        name = last_name(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match name:
            case "Literal":
                return self._literal(parts)
            case "Annotated" if parts:
                return self.fields.annotated(node, depth + 1)
            case "Optional" if len(parts) == 1:
                return Optional[self.read(parts[0], depth + 1)]  # noqa: UP045 - a value, not a name
            case "Union" if parts:
                return Union[tuple(self.read(part, depth + 1) for part in parts)]  # noqa: UP007 - a union of values
            case _ if name in TRANSPARENT and len(parts) == 1:
                return self.read(parts[0], depth + 1)
            case _:
                return self._generic(name, parts, depth)

    def _literal(self, parts: list[ast.expr]) -> Any:
        values = [literal(part, {}) for part in parts]
        if not values or not all(value is None or isinstance(value, str | int) for value in values):
            return self._any("a Literal holds something else than texts and whole numbers")
        for _ in values:
            self._state.spend(0)
        return Literal[tuple(values)]

    def _generic(self, name: str, parts: list[ast.expr], depth: int) -> Any:
        container = KNOWN.get(name)
        if container not in (tuple, dict, list, set):
            return self._any(f"the type {name}[…] is not known here" if name else "an annotation is not a type")
        open_ended = container is tuple and len(parts) == 2 and is_ellipsis(parts[1])
        inner = [self.read(part, depth + 1) for part in (parts[:1] if open_ended else parts)]
        if container is tuple and inner:
            return cast("Any", tuple)[(inner[0], ...) if open_ended else tuple(inner)]
        if container is dict and len(inner) == 2:
            return cast("Any", dict)[inner[0], inner[1]]
        if container in (list, set) and len(inner) == 1:
            return cast("Any", container)[inner[0]]
        return self._any(f"the type {name} does not take {len(inner)} parameters")


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """`a | b | c` in order; the tree leans to the left, as deep as there are alternatives."""
    found: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        found.append(node.right)
        node = node.left
    return [node, *reversed(found)]
