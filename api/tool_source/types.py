"""The types of a Python function's arguments as JSON Schemas, parsed from its source without running it."""

import ast
import datetime
import decimal
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional, Union, cast

import msgspec
from pydantic import Field, PydanticUserError, TypeAdapter, create_model
from pydantic_core import SchemaError

from api.tool_source.syntax import (
    ReadState,
    Unknown,
    assigned_names,
    is_ellipsis,
    last_name,
    literal,
    parse_quietly,
    text_of,
)

# One parameter or class attribute: its type, whether it may be omitted, and its description.


CONSTRAINTS = {"ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern", "examples"}
WRAPPERS = {"Annotated", "NotRequired", "Required", "ReadOnly", "Final"}
MAX_PATTERN_CHARS = 200


class Options(msgspec.Struct):
    """The combined options of `Field(…)`, `field(…)`, `Annotated[…]` and a default."""

    required: bool = True
    default: Any = Unknown.VALUE
    description: str | None = None
    alias: str | None = None
    constraints: dict[str, Any] = {}

    def set_default(self, value: Any) -> None:
        self.required = False
        self.default = value


class FieldReader:
    """Parses the fields of one source. `read_type` converts an annotation at a depth to a type."""

    def __init__(self, state: ReadState, names: dict[str, ast.expr], read_type: Callable[[ast.expr, int], Any]) -> None:
        self._state = state
        self._names = names
        self._read_type = read_type

    def definition(
        self,
        name: str,
        annotation: ast.expr | None,
        default: ast.expr | None,
        *,
        depth: int = 0,
        about: str | None = None,
    ) -> tuple[Any, Any]:
        """The field in the form of `create_model`. The code's own description precedes `about`, the docstring's."""
        options = Options()
        kind: Any = Any
        if annotation is None:
            self._state.warn(f"{name} has no type annotation: the model may send any value")
        else:
            core = self._metadata(annotation, options)
            kind = self._read_type(core, depth)
        if default is not None:
            self._default(default, options, name)
        return kind, self._field(name, kind, options, about)

    def annotated(self, node: ast.Subscript, depth: int) -> Any:
        """An `Annotated` inside another type, as in `list[Annotated[int, "seconds"]]`."""
        options = Options()
        kind = self._read_type(self._metadata(node, options), depth)
        settings = self._fitting(kind, options, "a type")
        return cast("Any", Annotated)[kind, Field(description=options.description, **settings)]

    def _metadata(self, annotation: ast.expr, options: Options) -> ast.expr:
        """Removes the wrappers of an annotation and collects their options."""
        while isinstance(annotation, ast.Subscript):
            wrapper = last_name(annotation.value)
            parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            if wrapper not in WRAPPERS or not parts:
                break
            if wrapper == "NotRequired":
                options.set_default(None)
            self._notes(parts[1:], options)
            annotation = parts[0]
        return annotation

    def _notes(self, notes: list[ast.expr], options: Options) -> None:
        for note in notes:
            if isinstance(note, ast.Call) and last_name(note) == "Field":
                self._call(note, options)
            elif isinstance(note, ast.Call) and last_name(note) == "Doc" and note.args:
                options.description = text_of(note.args[0], self._names) or options.description
            else:
                options.description = text_of(note, self._names) or options.description

    def _default(self, node: ast.expr, options: Options, name: str) -> None:
        if isinstance(node, ast.Call) and last_name(node) in {"Field", "field"}:
            self._call(node, options)
            return
        value = literal(node, self._names)
        if value is Unknown.VALUE:
            self._state.warn(f"the default of {name} is not a literal: it applies, but the model does not see it")
        options.set_default(value)

    def _call(self, call: ast.Call, options: Options) -> None:
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        if call.args:
            given.setdefault("default", call.args[0])
        for key, node in given.items():
            value = literal(node, self._names)
            match key:
                case "default_factory":
                    options.set_default(Unknown.VALUE)
                case "default" if not is_ellipsis(node):
                    options.set_default(value)
                case "description" | "alias" if isinstance(value, str):
                    setattr(options, key, value)
                case _ if key in CONSTRAINTS and value is not Unknown.VALUE:
                    options.constraints = {**options.constraints, key: value}
                case _:
                    continue

    def _field(self, name: str, kind: Any, options: Options, about: str | None) -> Any:
        settings: dict[str, Any] = {
            "alias": options.alias or name,
            "description": options.description or about or None,
            **self._fitting(kind, options, name),
        }
        if options.required:
            return Field(**settings)
        if options.default is Unknown.VALUE or options.default is None:  # null only means that it may be omitted
            return Field(default_factory=lambda: None, **settings)
        return Field(default=options.default, **settings)

    def _fitting(self, kind: Any, options: Options, name: str) -> dict[str, Any]:
        """The constraints, unless pydantic cannot apply them to this type (or Rust does not support the regular
        expression)."""
        if not options.constraints or len(str(options.constraints.get("pattern", ""))) > MAX_PATTERN_CHARS:
            return {}
        try:
            TypeAdapter(cast("Any", Annotated)[kind, Field(**options.constraints)])
        except (TypeError, ValueError, SchemaError, PydanticUserError):
            self._state.warn(f"the constraints of {name} do not fit its type: the model does not see them")
            return {}
        return options.constraints


# Classes that a source defines and uses as types: pydantic models, typed dicts, dataclasses, enums.


ENUMS = {"Enum", "StrEnum", "IntEnum"}
RECORDS = {"BaseModel", "TypedDict"}

FieldParts = tuple[ast.expr, ast.expr | None]


class ClassReader:
    """Builds a model of our own with the same fields for each used class. It never creates the class itself."""

    def __init__(self, tree: ast.Module, state: ReadState, fields: FieldReader) -> None:
        self._state = state
        self._fields = fields
        self._nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._made: dict[str, Any] = {}
        self._open: set[str] = set()

    def defines(self, name: str) -> bool:
        return name in self._nodes

    def read(self, name: str, depth: int) -> Any:
        """The class as a type. Each class is built once, so its fields appear once, under `$defs`."""
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
        """The class after its bases in the same source, the farthest base first."""
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
        return Literal[tuple(values)]


def _is_class_variable(annotation: ast.expr) -> bool:
    return last_name(annotation.value if isinstance(annotation, ast.Subscript) else annotation) == "ClassVar"


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
    """Converts the annotations of one source to types that pydantic can describe."""

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
    """`a | b | c` in order. The tree nests to the left, with a level for each alternative."""
    found: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        found.append(node.right)
        node = node.left
    return [node, *reversed(found)]
