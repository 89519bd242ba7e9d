"""TypeScript without its types: each is replaced by spaces, so that lines and columns stay what they are.

What TypeScript adds beyond types (enums, namespaces, parameter properties, decorators) would need code in its place,
and is refused by name. A text of TypeScript is bytes here, as the tree counts them.
"""

import msgspec
from tree_sitter import Node

from shared.domain.errors import InvalidToolSource
from shared.typescript.syntax import MAX_NODES, line, parse

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
"""Words and signs that only types need, each with the part of a program in which it does."""
ENDS = {
    "expression_statement", "lexical_declaration", "variable_declaration", "return_statement", "throw_statement",
    "public_field_definition",
}  # fmt: skip
CONTINUED = {"call_expression", "subscript_expression", "member_expression"}
LINE_ENDS = b"\r\n"
DEEPEST = 2000


class Place(msgspec.Struct, frozen=True):
    """A node and what is above it: a tree knows that only by looking from its root."""

    node: Node
    above: "Place | None" = None
    deep: int = 0

    @property
    def parent(self) -> Node | None:
        return None if self.above is None else self.above.node

    def is_in(self, *kinds: str) -> bool:
        """Whether it is a child of one of these."""
        return self.above is not None and self.above.node.type in kinds


def as_javascript(source: str) -> str:
    """The source in JavaScript. Raises `InvalidToolSource` for what cannot be read, or would need code."""
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
    """The text while it loses its types."""

    def __init__(self, text: bytes) -> None:
        self._text = bytearray(text)
        self._moved: list[tuple[int, int]] = []

    def result(self) -> str:
        for place, count in sorted(self._moved, reverse=True):
            self._text[place:place] = b"\n" * count
        return self._text.decode()

    def blank_types_of(self, place: Place) -> bool:
        """Whether there is nothing more to look at in it."""
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
        # No type is called: a bracket behind one is on the next line, and begins another statement.
        if parent is not None and parent.type in CONTINUED and parent.start_byte == node.start_byte:
            self._blank(word.start_byte, node.end_byte, first=b";")
        else:
            self._blank_at_end(word.start_byte, place)

    def _blank_before_arrow(self, node: Node, function: Node) -> None:
        """No line may end before the arrow: such ends go behind it."""
        arrow = next(child for child in function.children if child.type == "=>")
        ends = self._text.count(b"\n", node.start_byte, arrow.start_byte) if node.type != "type_parameters" else 0
        self._blank(node.start_byte, node.end_byte)
        if ends:
            for place in range(node.start_byte, arrow.start_byte):
                if self._text[place] in LINE_ENDS:
                    self._text[place] = ord(" ")
            self._moved.append((arrow.end_byte, ends))

    def _blank_at_end(self, start: int, place: Place) -> None:
        """Where the type was the end of a statement, the next line must not be taken for its continuation."""
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
    """A whole statement, or member of a class, of which nothing is left."""
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
    """The place behind a comma that follows, else the same place."""
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
