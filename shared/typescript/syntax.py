"""A TypeScript source as a tree, with its faults named by their lines."""

from collections.abc import Iterator

import tree_sitter_typescript
from tree_sitter import Language, Node, Parser

from shared.domain.errors import InvalidToolSource

MAX_SOURCE_CHARS = 128 * 1024
MAX_NODES = 400_000


def parse(source: str) -> Node:
    """The root of the source's tree. Raises `InvalidToolSource` when the source is too long or cannot be read."""
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
    """Every node below, in the order of the text. A node whose children are not wanted: see `as_javascript`."""
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
