"""The command `holdfast`: reads the command line, and ends with one line and a status where something is wrong."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn

import typer

from cli.command_table import COMMANDS, CommandTable
from cli.printable import FAILURE, MISTAKE, OK, event_line, printable
from shared.domain.errors import HoldfastError, Unavailable, Unusable
from shared.process.importing import VERSION

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
"""As pydantic reads a setting."""

_OF_ARGUMENT = re.compile(r"Invalid value for '(?P<name>[^' ]+)[^']*': ")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command. What somebody can mend is said in one line, without a traceback: a status of 2 asks for
    something else, 1 means that something else is amiss."""
    mistakes: list[HoldfastError] = []
    status: object = OK
    try:
        status = _root()(arguments, prog_name="holdfast", standalone_mode=False)
    except* HoldfastError as group:
        # From what runs beside others, such as a callback's key, it comes inside of groups.
        mistakes = _leaves(group)
    except* typer.TyperException as group:
        _refuse(group)
    except* (EOFError, typer.Abort):
        status = FAILURE
    if mistakes:
        may_pass = isinstance(mistakes[0], Unavailable) and not isinstance(mistakes[0], Unusable)
        status = FAILURE if may_pass else MISTAKE
        _say(mistakes[0].message, status)
    if isinstance(status, int) and status != OK:
        sys.exit(status)


def _leaves(group: BaseExceptionGroup[HoldfastError]) -> list[HoldfastError]:
    found: list[HoldfastError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _refuse(group: BaseExceptionGroup[typer.TyperException]) -> NoReturn:
    """Says in one line what is wrong with the arguments."""
    error = group.exceptions[0]
    said = _OF_ARGUMENT.sub(r"argument \g<name>: ", str(getattr(error, "format_message", lambda: error)()))
    context = getattr(error, "ctx", None)
    path = "holdfast" if context is None else str(context.command_path)
    line = " ".join(said.split()).rstrip(".")
    _say(f"{line}; `{path} --help` shows what can be given", MISTAKE)
    sys.exit(MISTAKE)


def _say(mistake: str, status: int) -> None:
    """Says why the command has come to nothing. The variable is read here, because settings may be what is wrong."""
    is_json = os.environ.get("HOLDFAST_LOG_JSON", "").lower() in _TRUE
    text = f"holdfast: {printable(mistake)}"
    line = event_line("command_failed", "error", reason=mistake, status=status) if is_json else text
    print(line, file=sys.stderr, flush=True)


def _root() -> Callable[..., object]:
    root = typer.Typer(
        cls=CommandTable,
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    root.callback(epilog="Example: holdfast dev, and in another terminal: holdfast agents create first")(_holdfast)
    for name, place in COMMANDS.items():
        root.command(name, help=place.help, rich_help_panel=place.panel)(_listed)
    return typer.main.get_command(root)


def _listed() -> None:
    """Stands for a command in the list; `CommandTable` puts the command itself in its place."""


def _holdfast(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    """Background agent runs that survive. A server's settings are HOLDFAST_… variables (docs/settings.md); what asks a
    server takes HOLDFAST_URL and HOLDFAST_API_KEY (docs/command-line.md)."""
    if version:
        print(f"holdfast {VERSION}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
