"""Loads a module by its name, when a command needs it.

The server's modules take seconds to import and the client's a third of one. `holdfast --help`, a mistyped command and
the completion of a shell need neither.
"""

import os
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

from shared.domain.errors import InvalidRequest

OF_CLIENTS = ("HOLDFAST_URL", "HOLDFAST_API_KEY")


def load(module: str) -> ModuleType:
    """The module of this dotted name."""
    return import_module(module)


def refuse_unknown_settings() -> None:
    """Raises `InvalidRequest` for a variable that looks like a setting and is none, with the nearest name."""
    if not any(_may_be_wrong(os.environ)):
        return
    unknown: list[str] = load("shared.process.wrong_settings").unknown_names(os.environ)
    if unknown:
        raise InvalidRequest("; ".join(unknown))


def _may_be_wrong(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name.startswith("HOLDFAST_") and name not in OF_CLIENTS)
