"""The project's own source, read once and parsed, for the tests of the style rules."""

import ast
import io
import tokenize
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PRODUCT_PACKAGES = ("api", "cli", "worker", "shared")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One Python file. `path` is relative to the project, with forward slashes.

    Lookups that many rules need are made once: to walk through every file for each rule took most of the rules' time.
    """

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node, in the order of `ast.walk`."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def functions(self) -> tuple[FunctionNode, ...]:
        """Every function and method, also those inside others."""
        return tuple(node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        """Every call."""
        return tuple(node for node in self.nodes if isinstance(node, ast.Call))

    @cached_property
    def within(self) -> dict[ast.AST, str]:
        """For each node the dotted name of the innermost function around it; nodes outside functions are absent."""
        return _enclosing_functions(self.tree)

    @cached_property
    def docstrings(self) -> frozenset[ast.AST]:
        """The string nodes that are documentation: alone on their line, said and not used."""
        return frozenset(
            node.value
            for node in self.nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )

    @cached_property
    def tokens(self) -> tuple[tokenize.TokenInfo, ...]:
        """Names, strings and comments, in their order."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return tuple(token for token in tokens if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT))

    @property
    def module(self) -> str:
        """The dotted name that others import it by."""
        dotted = self.path.removesuffix(".py").replace("/", ".")
        return dotted.removesuffix(".__init__")

    @property
    def package(self) -> str:
        """The first part of the path."""
        return self.path.split("/", 1)[0]

    def is_in(self, places: tuple[str, ...]) -> bool:
        """Whether the file is one of `places`, or inside one that ends with a slash."""
        return any(self.path.startswith(place) if place.endswith("/") else self.path == place for place in places)

    def at(self, node: ast.AST, finding: str) -> str:
        """A finding as a line that an editor can jump to."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {finding}"


def _read(folders: tuple[str, ...]) -> tuple[Source, ...]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return tuple(Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)


@cache
def product_sources() -> tuple[Source, ...]:
    """`api`, `cli`, `worker` and `shared`."""
    return _read(PRODUCT_PACKAGES)


@cache
def suite_sources() -> tuple[Source, ...]:
    """`tests`."""
    return _read(("tests",))


@cache
def bench_sources() -> tuple[Source, ...]:
    """`bench`."""
    return _read(("bench",))


def expect_none(findings: Iterable[str]) -> None:
    """Fail the test with one finding per line."""
    found = list(findings)
    assert not found, "\n" + "\n".join(found)


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Every call."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def dotted_name(node: ast.AST) -> str:
    """`a.b.c` for a chain of names, with `()` where a link is a call; "" for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted_name(value)}.{attr}"
        case ast.Call(func=function):
            return f"{dotted_name(function)}()"
        case _:
            return ""


def _enclosing_functions(tree: ast.Module) -> dict[ast.AST, str]:
    names: dict[ast.AST, str] = {}

    def visit(node: ast.AST, scope: str, inside: bool) -> None:
        if inside:
            names[node] = scope
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    visit(child, f"{scope}.{name}".lstrip("."), inside=True)
                case ast.ClassDef(name=name):
                    visit(child, f"{scope}.{name}".lstrip("."), inside=inside)
                case _:
                    visit(child, scope, inside)

    visit(tree, "", inside=False)
    return names


def imported_names(source: Source, packages: tuple[str, ...]) -> set[str]:
    """The local names that an import from one of `packages` binds."""
    names: set[str] = set()
    for node in source.nodes:
        match node:
            case ast.Import(names=aliases):
                found = [alias for alias in aliases if alias.name.split(".")[0] in packages]
                names |= {alias.asname or alias.name.split(".")[0] for alias in found}
            case ast.ImportFrom(module=str(module), level=0, names=aliases) if module.split(".")[0] in packages:
                names |= {alias.asname or alias.name for alias in aliases}
            case _:
                pass
    return names


def imports(source: Source, *, without: Container[ast.AST] = ()) -> Iterator[tuple[ast.AST, str]]:
    """Every import with the dotted name that it asks for; `from a import b` asks for `a.b`. `without`: statements that
    do not count."""
    for node in source.nodes:
        if node in without:
            continue
        match node:
            case ast.Import(names=aliases):
                yield from ((node, alias.name) for alias in aliases)
            case ast.ImportFrom(names=aliases):
                origin = _origin(source, node)
                yield from ((node, f"{origin}.{alias.name}") for alias in aliases)
            case _:
                pass


def _origin(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = source.module.split(".")
    climbs = node.level - source.path.endswith("__init__.py")
    return ".".join([*package[: len(package) - climbs], *([node.module] if node.module else [])])


def imported_modules(
    source: Source, modules: Mapping[str, Source], *, without: Container[ast.AST] = ()
) -> Iterator[str]:
    """The modules among `modules` that the source imports, without itself."""
    for _, name in imports(source, without=without):
        target = name if name in modules else name.rpartition(".")[0]
        if target in modules and target != source.module:
            yield target
