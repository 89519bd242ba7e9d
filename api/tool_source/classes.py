"""Classes that a source defines and uses as types: pydantic models, typed dicts, dataclasses, enums."""

import ast
from typing import Any, Literal

from pydantic import create_model

from api.tool_source.fields import FieldReader
from api.tool_source.literals import Unknown, literal
from api.tool_source.read_state import ReadState
from api.tool_source.syntax import last_name

ENUMS = {"Enum", "StrEnum", "IntEnum"}
RECORDS = {"BaseModel", "TypedDict"}

FieldParts = tuple[ast.expr, ast.expr | None]


class ClassReader:
    """Builds, of each class that is used, a model of our own with the same fields. Never the class itself."""

    def __init__(self, tree: ast.Module, state: ReadState, fields: FieldReader) -> None:
        self._state = state
        self._fields = fields
        self._nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._made: dict[str, Any] = {}
        self._open: set[str] = set()

    def defines(self, name: str) -> bool:
        return name in self._nodes

    def read(self, name: str, depth: int) -> Any:
        """The class as a type. Each class is built once, so its fields are told once, under `$defs`."""
        if name in self._made:
            return self._made[name]
        if name in self._open:
            self._state.warn(f"the class {name} contains itself: the inner one may be any object")
            return dict[str, Any]
        self._open.add(name)
        try:
            self._made[name] = self._build(name, depth)
        finally:
            self._open.discard(name)
        return self._made[name]

    def _build(self, name: str, depth: int) -> Any:
        node = self._nodes[name]
        ancestors = self._ancestors(name)
        bases = {last_name(base) for ancestor in ancestors for base in self._nodes[ancestor].bases}
        if bases & ENUMS:
            return self._enum(node, bases)
        decorators = {last_name(item) for ancestor in ancestors for item in self._nodes[ancestor].decorator_list}
        if not bases & RECORDS and "dataclass" not in decorators:
            self._state.warn(f"the class {name} is no model, typed dict, dataclass or enum: any value")
            return Any
        fields: dict[str, Any] = {}
        for label, (annotation, default) in self._record_fields(ancestors).items():
            self._state.spend(depth)
            fields[f"f{len(fields)}"] = self._fields.definition(label, annotation, default, depth=depth + 1)
        return create_model(name, __doc__=ast.get_docstring(node), **fields)

    def _ancestors(self, name: str) -> list[str]:
        """The class after its bases of the same source, the farthest first."""
        found: list[str] = []
        waiting = [name]
        while waiting:
            current = waiting.pop(0)
            if current not in found and current in self._nodes:
                self._state.spend(0)
                found.append(current)
                waiting.extend(last_name(base) for base in self._nodes[current].bases)
        return found[::-1]

    def _record_fields(self, ancestors: list[str]) -> dict[str, FieldParts]:
        found: dict[str, FieldParts] = {}
        for node in (self._nodes[name] for name in ancestors):
            optional = any(
                keyword.arg == "total" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                for keyword in node.keywords
            )
            for item in node.body:
                if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                    continue
                if item.target.id.startswith("_") or _is_class_variable(item.annotation):
                    continue
                found[item.target.id] = (item.annotation, item.value or (ast.Constant(None) if optional else None))
        return found

    def _enum(self, node: ast.ClassDef, bases: set[str]) -> Any:
        values: list[Any] = []
        for item in node.body:
            if not isinstance(item, ast.Assign) or not isinstance(item.targets[0], ast.Name):
                continue
            self._state.spend(0)
            label = item.targets[0].id
            if isinstance(item.value, ast.Call) and last_name(item.value) == "auto":
                values.append(label.lower() if "StrEnum" in bases else len(values) + 1)
            elif not label.startswith("_"):
                values.append(literal(item.value, {}))
        if not values or not all(isinstance(value, str | int) for value in values):
            self._state.warn(f"the enum {node.name} has values that are no texts or whole numbers: any value")
            return Any
        return Literal[tuple(value for value in values if value is not Unknown.VALUE)]


def _is_class_variable(annotation: ast.expr) -> bool:
    return last_name(annotation.value if isinstance(annotation, ast.Subscript) else annotation) == "ClassVar"
