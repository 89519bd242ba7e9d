"""The shape of the product, as figures of its source, without executing it: how many files and imports there are,
how much two of them import, and how often a question occurs that one place should answer."""

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from tests.kit.project.private_names import listed_names
from tests.kit.project.source_tree import ROOT, Source, dotted_name, imported_modules, product_sources

SHAPE_FILE = ROOT / "tests/architecture/shape.toml"

DRIVER_FILES = tuple(f"shared/sql/{name}.py" for name in ("connection", "engine"))
"""The files that may test the database's kind: those that use its driver."""

MIDDLEWARES_FILE = "api/application.py"

TOLERANCE = 0.02
"""A figure that is lower than its limit by more than this share has become better, and so must its limit."""


@cache
def shape() -> Mapping[str, Any]:
    """The content of `shape.toml`."""
    return tomllib.loads(SHAPE_FILE.read_text(encoding="utf-8"))


def static_figures(sources: Iterable[Source]) -> dict[str, int]:
    """The figures of these sources, by the names that `[source]` in `shape.toml` has."""
    files = {source.path: source for source in sources}
    everything = tuple(files.values())
    return {
        "modules": len(everything),
        "lines": sum(len(source.text.splitlines()) for source in everything),
        "import_lines": sum(map(import_lines, everything)),
        "closure_of_routes_messages": len(closure("api.letta.routes.messages", everything)),
        "closure_of_execute_run": len(closure("worker.run.execute_run", everything)),
        "middlewares": middlewares(files[MIDDLEWARES_FILE]),
        "dialect_questions": sum(dialect_questions(one) for one in everything if one.path not in DRIVER_FILES),
        "private_names": len(listed_names(shape()["private"])),
    }


def product_figures() -> dict[str, int]:
    """The figures of the product."""
    return static_figures(product_sources())


def import_lines(source: Source) -> int:
    """Lines of import statements, anywhere in the files."""
    statements = (node for node in source.nodes if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in statements)


def closure(module: str, sources: Iterable[Source]) -> set[str]:
    """The modules that are imported with `module`, without itself. Imports inside functions count, those for
    the type checker alone do not; nor does a module that is chosen by its name while the program runs."""
    modules = {source.module: source for source in sources}
    found: set[str] = set()
    waiting = [module]
    while waiting:
        source = modules[waiting.pop()]
        new = set(imported_modules(source, modules, without=_for_types_alone(source))) - found
        found |= new
        waiting += new
    return found - {module}


def _for_types_alone(source: Source) -> set[ast.AST]:
    return {
        node
        for branch in source.nodes
        if isinstance(branch, ast.If) and dotted_name(branch.test).rpartition(".")[2] == "TYPE_CHECKING"
        for statement in branch.body
        for node in ast.walk(statement)
    }


def middlewares(source: Source) -> int:
    """The number of our own middlewares in the application: classes that do not come from a library."""
    foreign = {
        alias.asname or alias.name
        for node in source.nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("fastapi", "starlette")
        for alias in node.names
    }
    added = [call.args[0] for call in source.calls if dotted_name(call.func).endswith(".add_middleware") and call.args]
    return len({dotted_name(name) for name in added} - foreign)


def dialect_questions(source: Source) -> int:
    """How often the file tests the kind of its database: each read of `is_sqlite` or of a dialect's name."""
    return sum(map(_asks_for_dialect, source.nodes))


def _asks_for_dialect(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="is_sqlite" | "_is_sqlite", ctx=ast.Load()):
            return True
        case ast.Attribute(attr="is_sqlite" | "_is_sqlite", ctx=ast.Load()):
            return True
        case ast.Attribute(attr="name", value=ast.Name(id="dialect") | ast.Attribute(attr="dialect")):
            return True
        case _:
            return False


def beyond(
    figures: Mapping[str, int], limits: Mapping[str, int], table: str, *, may_fall: bool = False
) -> Iterator[str]:
    """For each figure that does not match its limit, a sentence with the remedy. `table` names the limits in
    `shape.toml`. A figure that `may_fall` by itself is compared with its limit from above alone."""
    for name in sorted(figures.keys() | limits.keys()):
        figure, limit = figures.get(name), limits.get(name)
        if figure is None:
            yield f"[{table}] {name} stands in shape.toml and is not measured: take the line out"
        elif limit is None:
            yield f"[{table}] {name} is {figure} and has no limit: write `{name} = {figure}` into shape.toml"
        elif figure > limit:
            yield f"[{table}] {name} is {figure}, its limit is {limit}: {_WHAT_TO_DO}"
        elif not may_fall and figure < limit * (1 - TOLERANCE):
            yield f"[{table}] {name} fell from {limit} to {figure}: write `{name} = {figure}` into shape.toml"


_WHAT_TO_DO = (
    "find a smaller shape for the change. A limit is raised only with a reason in the commit's message; "
    "`python -m bench.shape` shows all figures"
)
