"""A library's private names that the product uses nevertheless: found in the source, and listed by hand.

A name with an underscore is found by rule. A name without one is private when it comes from a module that its library
does not document, or from an object of such a module; names that only a reader can recognise are listed as well.
"""

import ast
import asyncio
from collections.abc import Iterator, Mapping

from tests.kit.project.source_tree import Source, dotted_name, imported_modules

Listed = Mapping[str, Mapping[str, list[str]]]
"""For each library, and each file of ours that uses its private names: those names."""

PUBLIC = frozenset({"_asdict", "_fields", "_make", "_replace", "_value_", "_exit"})
"""Python documents these: of named tuples, of enumerations, and of `os`."""

BY_NAME = ("getattr", "hasattr", "setattr")

UNDOCUMENTED = frozenset(
    {
        "fakeredis.aioredis.AsyncFakeSocket",
        "fakeredis.model",
        "fastapi.dependencies.models",
        "uvicorn.protocols.http.httptools_impl",
    }
)
"""Modules, and names in them, that their libraries do not document, though they have no underscore."""


def listed_names(listed: Listed) -> set[tuple[str, str]]:
    """Each library with each name of its own that is used anywhere."""
    return {(library, name) for library, files in listed.items() for names in files.values() for name in names}


def used_private_names(source: Source, modules: Mapping[str, Source]) -> Iterator[tuple[ast.AST, str]]:
    """Each use of another library's private name, as far as the source shows it. `modules` are all of ours: a
    class has the names of its bases, which its file imports."""
    bases = [modules[name] for name in imported_modules(source, modules)]
    own = _bound_names(source).union(*map(_bound_names, bases))
    for node in source.nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                is_foreign = _is_private(name) and name not in own
            case ast.Attribute(attr=name):
                is_foreign = _is_private(name)
            case ast.Call(func=ast.Name(id=called), args=[_, ast.Constant(value=str(name)), *_]) if called in BY_NAME:
                is_foreign = _is_private(name) and name not in own
            case _:
                continue
        if is_foreign:
            yield node, name
    yield from _imported_private_names(source)
    yield from _names_of_undocumented_bases(source, _bound_names(source))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def _bound_names(source: Source) -> set[str]:
    """The names that the file itself defines: functions, classes, variables, and attributes of its objects."""
    names: set[str] = set()
    for node in source.nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return names


def _imported_private_names(source: Source) -> Iterator[tuple[ast.AST, str]]:
    for node in source.nodes:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            is_private = any(map(_is_private, full.split(".")))
            if is_private or node.module in UNDOCUMENTED or full in UNDOCUMENTED:
                yield node, alias.name


def _names_of_undocumented_bases(source: Source, own: set[str]) -> Iterator[tuple[ast.AST, str]]:
    """The names that a class uses from an undocumented base: by `self` those that the file does not define, by
    `super()` whatever it is. The names of every asyncio protocol are documented there."""
    undocumented = {
        alias.asname or alias.name
        for node in source.nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module in UNDOCUMENTED or f"{node.module}.{alias.name}" in UNDOCUMENTED
    }
    for kind in source.nodes:
        if not isinstance(kind, ast.ClassDef) or not {dotted_name(base) for base in kind.bases} & undocumented:
            continue
        for node in ast.walk(kind):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name) if name not in own:
                    yield node, name
                case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if not _is_of_asyncio(name):
                    yield node, name
                case _:
                    pass


def _is_of_asyncio(name: str) -> bool:
    return hasattr(asyncio.Protocol, name)


def named_in(source: Source) -> set[str]:
    """Every name that the file uses from other modules or redefines: attributes, imported names, methods."""
    names = {node.attr for node in source.nodes if isinstance(node, ast.Attribute)}
    names |= {function.name for function in source.functions}
    imported = (node for node in source.nodes if isinstance(node, ast.ImportFrom))
    return names | {alias.name for node in imported for alias in node.names}
