"""The function of a TypeScript tool, and the modules that a worker passes to Node.js."""

from collections.abc import Iterator

import msgspec
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser

from shared.domain.effects import PROBE
from shared.domain.errors import InvalidToolSource

# Parses TypeScript source into a tree. Errors name the line.


MAX_SOURCE_CHARS = 128 * 1024
MAX_NODES = 400_000


def parse(source: str) -> Node:
    """The root of the source's tree. Raises `InvalidToolSource` if the source is too long or invalid."""
    if len(source) > MAX_SOURCE_CHARS:
        raise InvalidToolSource(
            f"The source has {len(source)} characters, {MAX_SOURCE_CHARS} are allowed: move data out of the tool."
        )
    try:
        text = source.encode()
    except UnicodeEncodeError as error:
        raise InvalidToolSource("The source contains half a surrogate pair: remove it.") from error
    root = Parser(Language(tree_sitter_typescript.language_typescript())).parse(text).root_node
    if root.has_error:
        wrong = next((node for node in walk(root) if node.is_error or node.is_missing), root)
        raise InvalidToolSource(f"Line {line(wrong)} cannot be read as TypeScript: mend the syntax.")
    return root


def walk(root: Node) -> Iterator[Node]:
    """Every node below, in the order of the text. To skip a node's children: see `as_javascript`."""
    waiting = [root]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))
    raise InvalidToolSource("The source has too many parts to be read: make it shorter.")


def line(node: Node) -> int:
    return node.start_point.row + 1


def text_of(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode()


# Converts TypeScript to JavaScript: replaces each type by spaces, so that lines and columns stay the same. Constructs
# that need generated code (enums, namespaces, parameter properties, decorators) are refused by name. Texts are bytes
# here, because the tree counts bytes.


REFUSED = {
    "enum_declaration": "enums make code: use a union of texts, or an object `as const`",
    "internal_module": "namespaces make code: use plain functions and objects",
    "module": "modules in modules make code: use plain functions and objects",
    "decorator": "decorators make code: call the function yourself",
    "import_require_clause": "use `import x from` instead of `import x = require`",
    "import_alias": "use a constant instead of `import x = y`",
}
PARAMETERS = ("required_parameter", "optional_parameter")
TYPES = {
    "type_annotation", "type_parameters", "type_arguments", "type_predicate_annotation", "asserts_annotation",
    "accessibility_modifier", "override_modifier", "implements_clause",
}  # fmt: skip
STATEMENTS = {"interface_declaration", "type_alias_declaration", "ambient_declaration", "function_signature"}
MEMBERS = {"abstract_method_signature", "method_signature", "index_signature"}
TOKENS = {
    ("?", "optional_parameter"), ("?", "public_field_definition"), ("?", "method_definition"),
    ("!", "public_field_definition"), ("!", "variable_declarator"), ("!", "non_null_expression"),
    ("readonly", "public_field_definition"), ("abstract", "abstract_class_declaration"), ("abstract", "class"),
}  # fmt: skip
"""Words and signs that only types need, each with a kind of node that contains it."""
ENDS = {
    "expression_statement", "lexical_declaration", "variable_declaration", "return_statement", "throw_statement",
    "public_field_definition",
}  # fmt: skip
CONTINUED = {"call_expression", "subscript_expression", "member_expression"}
LINE_ENDS = b"\r\n"
DEEPEST = 2000


class Place(msgspec.Struct, frozen=True):
    """A node with its ancestors, which a node itself does not know."""

    node: Node
    above: "Place | None" = None
    deep: int = 0

    @property
    def parent(self) -> Node | None:
        return None if self.above is None else self.above.node

    def is_in(self, *kinds: str) -> bool:
        """Whether it is a child of a node of these kinds."""
        return self.above is not None and self.above.node.type in kinds


def as_javascript(source: str) -> str:
    """The source in JavaScript. Raises `InvalidToolSource` if it is invalid, or would need generated code."""
    text = Blanks(source.encode("utf-8", "surrogatepass"))
    waiting = [Place(parse(source))]
    for _ in range(MAX_NODES):
        if not waiting:
            return text.result()
        place = waiting.pop()
        if place.deep > DEEPEST:
            raise InvalidToolSource(f"Line {line(place.node)} is nested too deeply to be read: make it flatter.")
        if not text.blank_types_of(place):
            waiting.extend(Place(child, place, place.deep + 1) for child in reversed(place.node.children))
    raise InvalidToolSource("The source has too many parts to be read: make it shorter.")


class Blanks:
    """A text whose types are being removed."""

    def __init__(self, text: bytes) -> None:
        self._text = bytearray(text)
        self._moved: list[tuple[int, int]] = []

    def result(self) -> str:
        for place, count in sorted(self._moved, reverse=True):
            self._text[place:place] = b"\n" * count
        return self._text.decode()

    def blank_types_of(self, place: Place) -> bool:
        """Whether the node is done, with all of its children."""
        node = place.node
        if node.type in REFUSED and node.is_named:
            raise InvalidToolSource(f"Line {line(node)}: {REFUSED[node.type]}.")
        if node.type in ("readonly", "accessibility_modifier") and place.is_in(*PARAMETERS):
            raise InvalidToolSource(f"Line {line(node)}: parameter properties make code: assign them yourself.")
        if _is_only_type(node):
            self._blank(node.start_byte, node.end_byte, first=b";")
            return True
        if _is_parameter(node, "this") or _is_import_of_type(node):
            self._blank(node.start_byte, _behind_comma(self._text, node.end_byte))
            return True
        if node.type in TYPES:
            if place.above is not None and place.is_in("arrow_function"):
                self._blank_before_arrow(node, place.above.node)
            else:
                self._blank_at_end(node.start_byte, place)
            return True
        if place.parent is not None and (node.type, place.parent.type) in TOKENS:
            self._blank_at_end(node.start_byte, place)
        elif node.type in ("as_expression", "satisfies_expression"):
            self._blank_cast(place)
        return False

    def _blank_cast(self, place: Place) -> None:
        node, parent = place.node, place.parent
        word = next(child for child in reversed(node.children) if child.type in ("as", "satisfies"))
        # Types are not called: a bracket after one is on the next line, and begins another statement.
        if parent is not None and parent.type in CONTINUED and parent.start_byte == node.start_byte:
            self._blank(word.start_byte, node.end_byte, first=b";")
        else:
            self._blank_at_end(word.start_byte, place)

    def _blank_before_arrow(self, node: Node, function: Node) -> None:
        """Removes line ends before the arrow, which JavaScript forbids, and puts them after it."""
        arrow = next(child for child in function.children if child.type == "=>")
        ends = self._text.count(b"\n", node.start_byte, arrow.start_byte) if node.type != "type_parameters" else 0
        self._blank(node.start_byte, node.end_byte)
        if ends:
            for place in range(node.start_byte, arrow.start_byte):
                if self._text[place] in LINE_ENDS:
                    self._text[place] = ord(" ")
            self._moved.append((arrow.end_byte, ends))

    def _blank_at_end(self, start: int, place: Place) -> None:
        """If the type ended a statement, the next line must not become its continuation."""
        node, above = place.node, place
        while above.above is not None and above.above.node.end_byte == node.end_byte and above.node.type not in ENDS:
            above = above.above
        ends = above is not place and above.node.type in ENDS
        self._blank(start, node.end_byte, first=b";" if ends else b"")

    def _blank(self, start: int, end: int, first: bytes = b"") -> None:
        for place in range(start, end):
            if self._text[place] not in LINE_ENDS:
                self._text[place] = ord(" ")
        if first:
            self._text[start : start + 1] = first


def _is_only_type(node: Node) -> bool:
    """Whether the node is a whole statement, or class member, of which nothing remains."""
    if node.type in STATEMENTS or node.type in MEMBERS:
        return True
    words = {child.type for child in node.children}
    if node.type == "import_statement":
        return "type" in words
    if node.type == "public_field_definition":
        return "declare" in words or "abstract" in words
    if node.type != "export_statement":
        return False
    declared = node.child_by_field_name("declaration")
    return "type" in words or (declared is not None and declared.type in STATEMENTS)


def _behind_comma(text: bytearray, place: int) -> int:
    """The place after a following comma, else the same place."""
    after = place
    while after < len(text) and text[after] in b" \t\r\n":
        after += 1
    return after + 1 if bytes(text[after : after + 1]) == b"," else place


def _is_parameter(node: Node, name: str) -> bool:
    pattern = node.child_by_field_name("pattern") if node.type == "required_parameter" else None
    return pattern is not None and pattern.type == name


def _is_import_of_type(node: Node) -> bool:
    return (
        node.type in ("import_specifier", "export_specifier")
        and node.children[0].type == "type"
        and (len(node.named_children) > 0 and len(node.children) > 1)
    )


FUNCTIONS = {"function_declaration", "generator_function_declaration"}
VALUES = {"arrow_function", "function_expression"}


class FoundFunction(msgspec.Struct, frozen=True):
    """One function of a source: its nodes."""

    name: str
    statement: Node
    """The whole statement, including `export`."""
    parameters: tuple[Node, ...]
    is_exported: bool


class Module(msgspec.Struct, frozen=True):
    """The input of Node.js: a module, and the order of its function's arguments."""

    source: str
    parameters: tuple[str, ...] = ()


def functions_of(root: Node) -> list[FoundFunction]:
    """The functions at the top level. Raises `InvalidToolSource`."""
    return [function for statement in root.named_children for function in _functions(statement)]


def tool_function(root: Node, name: str | None) -> FoundFunction:
    """The function called `name`; else the last exported one that is no probe; else the last one whose name does not
    begin with `_`. Raises `InvalidToolSource`."""
    found = functions_of(root)
    if name is not None:
        chosen = [function for function in found if function.name == name]
    else:
        exported = [function for function in found if function.is_exported and not function.name.startswith(PROBE)]
        chosen = exported or [function for function in found if not function.name.startswith("_")]
    if not chosen:
        wanted = f"function {name}" if name else "function"
        raise InvalidToolSource(
            f"The source has no {wanted} at its top level: write `export function {name or 'f'}()`."
        )
    return chosen[-1]


def parameter_name(parameter: Node) -> str:
    """The parameter's name; empty for `this` and for a rest parameter. Raises `InvalidToolSource`."""
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
    """The module of a program, whose default export is the value of its last expression. Raises `InvalidToolSource` for
    invalid TypeScript; Node.js reports errors in JavaScript."""
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
    # An exported expression would have no line of its own in a stack trace.
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
