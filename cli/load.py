"""Loads a module by its name, when a command needs it.

The server's modules take a second to import and the client's a third of one. `holdfast --help`, a mistyped command, a
wrong setting and the completion of a shell need neither.
"""

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import cast

from shared.domain.errors import InvalidRequest
from shared.process.importing import without_collections

OF_CLIENTS = ("HOLDFAST_URL", "HOLDFAST_API_KEY")


OF_OPERATORS = "cli.operator."


def load(module: str) -> ModuleType:
    """The module of this dotted name."""
    with without_collections():
        if module.startswith(OF_OPERATORS):
            with _without_rich():
                import_module("structlog")
        return import_module(module)


@contextmanager
def _without_rich() -> Generator[None]:
    """structlog imports rich where it finds it, to draw tracebacks that our logs never show; that takes as long as a
    server's own models. Python finds no module for a name with None in `sys.modules`."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = cast("ModuleType", None)
    try:
        yield
    finally:
        del sys.modules["rich"]


def refuse_unknown_settings() -> None:
    """Raises `InvalidRequest` for a variable that looks like a setting and is none, with the nearest name."""
    if not any(_may_be_wrong(os.environ)):
        return
    unknown: list[str] = load("shared.process.wrong_settings").unknown_names(os.environ)
    if unknown:
        raise InvalidRequest("; ".join(unknown))


def _may_be_wrong(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name.startswith("HOLDFAST_") and name not in OF_CLIENTS)
