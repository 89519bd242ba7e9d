"""The project's documents as text: their code blocks, links and headings."""

import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_ANY_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


def documents() -> list[Path]:
    """Every document of the project."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/README.md")])


@cache
def written_openapi() -> dict[str, Any]:
    """docs/openapi.json. A test of its own holds it against the routes and types, so that others need not take seconds
    to make it again. Do not change it."""
    return json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))


def blocks(document: Path, language: str) -> list[str]:
    """The code blocks of one language, in order."""
    found = _BLOCK.finditer(document.read_text(encoding="utf-8"))
    return [block["code"] for block in found if block["language"] == language]


def links(document: Path) -> list[str]:
    """The targets of a document's links, without those in code."""
    prose = _ANY_BLOCK.sub("", document.read_text(encoding="utf-8"))
    return [link["target"] for link in _LINK.finditer(prose)]


def anchors(document: Path) -> set[str]:
    """The fragments by which a document's headings are linked to."""
    prose = _ANY_BLOCK.sub("", document.read_text(encoding="utf-8"))
    titles = (heading["title"].lower() for heading in _HEADING.finditer(prose))
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}


def table_rows(name: str, first_column: str) -> list[list[str]]:
    """The rows of the table of `docs/<name>` whose first column has this title, as the texts of their cells."""
    lines = iter((ROOT / "docs" / name).read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith(f"| {first_column} |"):
            next(lines)
            rows = itertools.takewhile(lambda row: row.startswith("|"), lines)
            return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    raise LookupError(f"docs/{name} has no table that begins with {first_column!r}")
