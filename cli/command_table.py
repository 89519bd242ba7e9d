"""Every command, with the module that it is in. A module is loaded when its command is given, and no other one is."""

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, cast

import typer
from typer.core import TyperGroup

from shared.domain.errors import InvalidRequest
from shared.process.importing import without_collections

# Loads a module by its name, when a command needs it.
#
# The server's modules take a second to import and the client's a third of one. `holdfast --help`, a mistyped command, a
# wrong setting and the completion of a shell need neither.


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
    unknown: list[str] = load("shared.process.settings").unknown_names(os.environ)
    if unknown:
        raise InvalidRequest("; ".join(unknown))


def _may_be_wrong(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name.startswith("HOLDFAST_") and name not in OF_CLIENTS)


ASK, SERVE, KEEP = "Ask a server", "Run a server", "Keep a server"


class Place(NamedTuple):
    """Where a command is, and what the list of all says of it."""

    module: str
    help: str
    panel: str


COMMANDS: dict[str, Place] = {
    "run": Place("cli.client.run", "Send a message to an agent, and follow the run.", ASK),
    "chat": Place("cli.client.chat", "Talk with an agent.", ASK),
    "runs": Place("cli.client.runs", "List, show, watch, cancel and steer runs.", ASK),
    "logs": Place("cli.client.logs", "Show the events of a run.", ASK),
    "agents": Place("cli.client.agents", "List, show, make and delete agents.", ASK),
    "approvals": Place("cli.client.approvals", "List and decide calls that wait for a person.", ASK),
    "top": Place("cli.client.top", "Watch a deployment: queue, workers, runs.", ASK),
    "dev": Place("cli.operator.servers", "Run everything in one process, on embedded parts.", SERVE),
    "api": Place("cli.operator.servers", "Serve the API.", SERVE),
    "openapi": Place("cli.operator.servers", "Print the OpenAPI document of this version.", SERVE),
    "worker": Place("cli.operator.servers", "Execute runs.", SERVE),
    "migrate": Place("cli.operator.upkeep", "Migrate the database to the schema of this version.", SERVE),
    "doctor": Place("cli.operator.upkeep", "Find what is wrong with a machine and its settings.", KEEP),
    "status": Place("cli.operator.upkeep", "Say whether database, Redis and workers answer.", KEEP),
    "keys": Place("cli.operator.keys", "Make, list, rotate and revoke keys of the API.", KEEP),
    "secrets": Place("cli.operator.secrets", "Make a key for agents' secrets, or encrypt them anew.", KEEP),
    "budgets": Place("cli.operator.upkeep", "Show the usage of a day.", KEEP),
    "audit": Place("cli.operator.upkeep", "Show who did what.", KEEP),
    "prune": Place("cli.operator.upkeep", "Delete the data of runs that ended long ago.", KEEP),
}


class CommandTable(TyperGroup):
    """The group of all commands. What it lists are names; the command itself comes from its module."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return (name, found, rest) if name is None else (name, loaded(name), rest)


def loaded(name: str) -> Any:
    """The command of this name, ready to be invoked. The `commands` of its module is that command, or has it."""
    found: Any = typer.main.get_command(load(COMMANDS[name].module).commands)
    return getattr(found, "commands", {}).get(name, found)
