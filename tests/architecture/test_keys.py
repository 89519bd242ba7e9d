"""Rule 6: a Redis key is spelled in `shared/redis/keys.py` only, where its type, its writer and its expiry are said.

Lua scripts get their keys in KEYS and say in their header what each is: a key that a script makes up is invisible to
a cluster and to the reader of `keys.py`.
"""

import ast
import re
from collections.abc import Iterator

from tests.kit.project.source_tree import ROOT, Source, expect_none, product_sources

KEYS = "shared/redis/keys.py"
LOOKS_LIKE_A_KEY = re.compile(r"(run|runs|agent|thread|worker|holdfast|arq):\S*")


def spelled_keys(source: Source) -> Iterator[str]:
    if source.path == KEYS:
        return
    documentation = source.docstrings
    parts = {part for node in source.nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in source.nodes:
        text = _text(node)
        if node not in documentation and node not in parts and text and LOOKS_LIKE_A_KEY.fullmatch(text):
            yield source.at(node, f"spells the key {text!r}; keys are spelled in {KEYS}")


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(raw)):
            return raw.decode("utf-8", "replace")
        case ast.JoinedStr(values=values):
            return "".join(_text(value) or "{}" for value in values)
        case _:
            return None


def keys_in_lua(path: str, script: str) -> Iterator[str]:
    header = [line for line in script.splitlines() if line.startswith("--")]
    if not script.startswith("--") or not any("KEYS[1]" in line for line in header):
        yield f"{path}:1: the header says no KEYS[1]; each script begins with the keys that it touches"
    for number, line in enumerate(script.splitlines(), 1):
        code = line.partition("--")[0]
        if any(LOOKS_LIKE_A_KEY.fullmatch(text) for text in re.findall(r"""["']([^"']*)["']""", code)):
            yield f"{path}:{number}: spells a key; a script gets its keys in KEYS"


def test_one_file_spells_keys() -> None:
    """No string in product code looks like one of our keys, but in `keys.py`."""
    expect_none(finding for source in product_sources() for finding in spelled_keys(source))


def test_scripts_get_their_keys() -> None:
    """Each Lua script names its keys in its header and spells none."""
    scripts = sorted((ROOT / "shared").rglob("*.lua"))
    expect_none(
        finding
        for script in scripts
        for finding in keys_in_lua(script.relative_to(ROOT).as_posix(), script.read_text(encoding="utf-8"))
    )
