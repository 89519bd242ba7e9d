"""What the product imports comes with it, and what is for developers alone does not.

`make dev` and a wheel install what pyproject.toml lists without an extra. Here all extras are installed, so no other
test would notice an import of a package that only they bring.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kit.project.source_tree import PRODUCT_PACKAGES, ROOT, Source, product_sources

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"holdfast", *PRODUCT_PACKAGES}

OF_AN_EXTRA = {
    "worker/models/google_wire.py": "google",
    "shared/telemetry/otlp.py": "otel",
}
"""Files that are imported only where the extra is installed, or that say what is missing."""


def installed(requirements: Iterable[str]) -> set[str]:
    """The distributions that these requirements bring to this Python, with all that those need."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen or not _is_wanted(one, [""]):
            continue
        seen.add(key)
        needed = [Requirement(text) for text in metadata.requires(one.name) or []]
        waiting += [_without_extra(other) for other in needed if _is_wanted(other, ["", *one.extras])]
    return {name for name, _ in seen}


def _is_wanted(one: Requirement, extras: Iterable[str]) -> bool:
    return one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)


def _without_extra(one: Requirement) -> Requirement:
    """The requirement once its marker was found true: another extra is in force where it is looked at again."""
    one.marker = None
    return one


@cache
def owners() -> dict[str, str]:
    """Each module that is installed, as `package/module`, with the distribution that has it."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        for file in distribution.files or []:
            path = str(file)
            stem = re.sub(r"(/__init__)?(\.cpython-\w+-[\w-]+|\.abi3)?\.(py|so|pyd)$", "", path)
            if stem != path:
                found[stem] = canonicalize_name(distribution.metadata["Name"])
    return found


def owner(module: str) -> str | None:
    """The distribution of the longest part of a dotted name that is a module."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (found := owners().get("/".join(parts[:length]))) is not None:
            return found
    return None


def foreign_imports(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Each module of somebody else that a file imports, wherever in it, by its full name."""
    for node in ast.walk(source.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{one.name}" for one in node.names]
        for name in names:
            if name.partition(".")[0] not in sys.stdlib_module_names | OURS:
                assert isinstance(node, ast.Import | ast.ImportFrom)
                yield node, name


def findings(sources: Iterable[Source], dependencies: Iterable[str]) -> list[str]:
    """Imports of what the dependencies do not bring."""
    brought = installed(dependencies)
    with_extra = {
        extra: installed([*dependencies, *needed]) for extra, needed in PROJECT["optional-dependencies"].items()
    }
    found: list[str] = []
    for source in sources:
        there = with_extra[OF_AN_EXTRA[source.path]] if source.path in OF_AN_EXTRA else brought
        for node, name in foreign_imports(source):
            if owner(name) not in there:
                found.append(source.at(node, f"imports {name} of {owner(name)}"))
    return found


def test_the_product_imports_what_an_installation_without_extras_has() -> None:
    assert findings(product_sources(), PROJECT["dependencies"]) == []


@pytest.mark.parametrize(
    ("line", "distribution"),
    [
        ("import yaml", "pyyaml"),
        ("from google import genai", "google-genai"),
        ("from opentelemetry.sdk.trace import TracerProvider", "opentelemetry-sdk"),
        ("def late() -> None:\n    import psutil", "psutil"),
        ("import no_package_of_anybody", "None"),
    ],
)
def test_an_import_of_a_package_that_only_developers_have_is_found(line: str, distribution: str) -> None:
    source = Source("shared/concurrency.py", line)
    (found,) = findings([source], PROJECT["dependencies"])
    assert found.endswith(f"of {distribution}")


@pytest.mark.parametrize("dropped", ["fakeredis", "structlog", "pydantic-ai-slim"])
def test_a_dependency_that_was_dropped_is_missed(dropped: str) -> None:
    kept = [one for one in PROJECT["dependencies"] if Requirement(one).name != dropped]
    assert len(kept) < len(PROJECT["dependencies"])
    assert dropped in {line.rpartition(" ")[2] for line in findings(product_sources(), kept)}


def test_tools_of_developers_are_not_brought() -> None:
    brought = installed(PROJECT["dependencies"])
    developers = {canonicalize_name(Requirement(one).name) for one in PROJECT["optional-dependencies"]["dev"]}
    assert brought & (developers - {"certifi", "holdfast"}) == set()
