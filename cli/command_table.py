"""Every command and its module, which is imported only when that command is given.

The server's modules take a second to import and the client's a third of one. `holdfast --help`, a mistyped command, a
wrong setting and a shell's completion need neither.
"""

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

OF_CLIENTS = ("HOLDFAST_URL", "HOLDFAST_API_KEY")
OF_OPERATORS = "cli.operator."


def load(module: str) -> ModuleType:
    """Imports the module of this dotted name."""
    with without_collections():
        if module.startswith(OF_OPERATORS):
            with _without_rich():
                import_module("structlog")
        return import_module(module)


@contextmanager
def _without_rich() -> Generator[None]:
    """Hides rich from structlog, which would import it for tracebacks that our logs never show. That takes as long as
    importing a server's own models. Python finds no module for a name with None in `sys.modules`."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = cast("ModuleType", None)
    try:
        yield
    finally:
        del sys.modules["rich"]


def refuse_unknown_settings() -> None:
    """Raises `InvalidRequest` for HOLDFAST_ variables that are not settings. It names the nearest setting of each."""
    if not any(_may_be_wrong(os.environ)):
        return
    unknown: list[str] = load("shared.process.settings").unknown_names(os.environ)
    if unknown:
        raise InvalidRequest("; ".join(unknown))


def _may_be_wrong(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name.startswith("HOLDFAST_") and name not in OF_CLIENTS)


ASK, SERVE, KEEP = "Ask a server", "Run a server", "Keep a server"


class Place(NamedTuple):
    """The module of a command, and its help and panel in the list of all commands."""

    module: str
    help: str
    panel: str


COMMANDS: dict[str, Place] = {
    "run": Place("cli.client.runs", "Send a message to an agent, and follow the run.", ASK),
    "chat": Place("cli.client.chat", "Talk with an agent.", ASK),
    "runs": Place("cli.client.runs", "List, show, watch, cancel and steer runs.", ASK),
    "logs": Place("cli.client.runs", "Show the events of a run.", ASK),
    "agents": Place("cli.client.agents", "List, show, make and delete agents.", ASK),
    "mcp": Place("cli.client.mcp", "List, show, add, refresh and delete MCP servers.", ASK),
    "approvals": Place("cli.client.approvals", "List and decide tool calls that wait for approval.", ASK),
    "top": Place("cli.client.top", "Watch a deployment: queue, workers, runs.", ASK),
    "dev": Place("cli.operator.servers", "Run everything in one process, with embedded services.", SERVE),
    "api": Place("cli.operator.servers", "Serve the API.", SERVE),
    "openapi": Place("cli.operator.servers", "Print the OpenAPI document of this version.", SERVE),
    "worker": Place("cli.operator.servers", "Execute runs.", SERVE),
    "migrate": Place("cli.operator.maintenance", "Migrate the database to the schema of this version.", SERVE),
    "doctor": Place("cli.operator.maintenance", "Check this machine and its settings for problems.", KEEP),
    "status": Place("cli.operator.maintenance", "Check whether database, Redis and workers answer.", KEEP),
    "keys": Place("cli.operator.keys", "Make, list, rotate and revoke API keys.", KEEP),
    "secrets": Place("cli.operator.maintenance", "Make a key for agents' secrets, or re-encrypt them.", KEEP),
    "budgets": Place("cli.operator.maintenance", "Show what the budgets' accounts used on a day.", KEEP),
    "audit": Place("cli.operator.maintenance", "Show who did what.", KEEP),
    "prune": Place("cli.operator.maintenance", "Delete the data of runs that ended long ago.", KEEP),
}


class CommandTable(TyperGroup):
    """The group of all commands. It lists them from the table, and imports a module to run its command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return (name, found, rest) if name is None else (name, loaded(name), rest)


def loaded(name: str) -> Any:
    """Returns the command of this name. `commands` of its module is that command, or a group that contains it."""
    found: Any = typer.main.get_command(load(COMMANDS[name].module).commands)
    return getattr(found, "commands", {}).get(name, found)
