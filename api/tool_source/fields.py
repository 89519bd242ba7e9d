"""One parameter or class attribute: its type, whether it may be left out, and what it says about itself."""

import ast
from collections.abc import Callable
from typing import Annotated, Any, cast

import msgspec
from pydantic import Field, PydanticUserError, TypeAdapter
from pydantic_core import SchemaError

from api.tool_source.literals import Unknown, literal, text_of
from api.tool_source.read_state import ReadState
from api.tool_source.syntax import is_ellipsis, last_name

CONSTRAINTS = {"ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern", "examples"}
WRAPPERS = {"Annotated", "NotRequired", "Required", "ReadOnly", "Final"}
MAX_PATTERN_CHARS = 200


class Options(msgspec.Struct):
    """What `Field(…)`, `field(…)`, `Annotated[…]` and a default say, together."""

    required: bool = True
    default: Any = Unknown.VALUE
    description: str | None = None
    alias: str | None = None
    constraints: dict[str, Any] = {}

    def set_default(self, value: Any) -> None:
        self.required = False
        self.default = value


class FieldReader:
    """Reads fields of one source. `read_type` turns an annotation at a depth into a type."""

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
        """The field as `create_model` takes it. What the code says goes before `about`, the docstring's words."""
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
        """An `Annotated` that is part of another type, as in `list[Annotated[int, "seconds"]]`."""
        options = Options()
        kind = self._read_type(self._metadata(node, options), depth)
        settings = self._fitting(kind, options, "a type")
        return cast("Any", Annotated)[kind, Field(description=options.description, **settings)]

    def _metadata(self, annotation: ast.expr, options: Options) -> ast.expr:
        """Takes the wrappers off an annotation and notes what they say."""
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
            self._state.warn(f"the default of {name} is not a literal: it holds, but the model is not told")
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
        if options.default is Unknown.VALUE or options.default is None:  # null says no more than "may be left out"
            return Field(default_factory=lambda: None, **settings)
        return Field(default=options.default, **settings)

    def _fitting(self, kind: Any, options: Options, name: str) -> dict[str, Any]:
        """The constraints, unless pydantic cannot apply them to this type (or Rust has no such regular expression)."""
        if not options.constraints or len(str(options.constraints.get("pattern", ""))) > MAX_PATTERN_CHARS:
            return {}
        try:
            TypeAdapter(cast("Any", Annotated)[kind, Field(**options.constraints)])
        except (TypeError, ValueError, SchemaError, PydanticUserError):
            self._state.warn(f"the constraints of {name} do not fit its type: the model is not told")
            return {}
        return options.constraints
