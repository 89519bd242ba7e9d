"""The command `holdfast`. It parses the command line; an error ends it with one line and an exit status."""

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cli.command_table import COMMANDS, CommandTable
from cli.printable import FAILURE, MISTAKE, OK, event_line, printable
from shared.domain.errors import HoldfastError, Unavailable, Unusable
from shared.process.importing import VERSION

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
"""The values that pydantic reads as true in a setting."""

_OF_ARGUMENT = re.compile(r"Invalid value for '(?P<name>[^' ]+)[^']*': (?:Value error, )?")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command. It prints an error that the user can fix in one line, without a traceback. Exit status 2: the
    command or the settings must change. Exit status 1: anything else."""
    mistake: BaseException | None = None
    status: object = OK
    _open_closed_streams()
    try:
        status = _root()(arguments, prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
    except* HoldfastError as group:
        # An error of a task group, such as one about a callback's key, arrives wrapped in exception groups.
        mistake = group
        while isinstance(mistake, BaseExceptionGroup):
            mistake = mistake.exceptions[0]
    except* typer.TyperException as group:
        _refuse(group)
    except* (EOFError, typer.Abort):
        status = FAILURE
    except* OSError as group:
        _refuse_full_disk(group)
    if isinstance(mistake, HoldfastError):
        may_pass = isinstance(mistake, Unavailable) and not isinstance(mistake, Unusable)
        status = FAILURE if may_pass else MISTAKE
        _say(mistake.message, status)
    if isinstance(status, int) and status != OK:
        sys.exit(status)


def _open_closed_streams() -> None:
    """Opens each standard stream that the caller has closed, as for `>&-`. Otherwise the first file or socket would get
    its number, and what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the process ends


def _refuse_full_disk(group: BaseExceptionGroup[OSError]) -> NoReturn:
    """Prints that there is no room for the output, or for a file, and exits. Raises any other error again."""
    error: OSError | BaseExceptionGroup[OSError] = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error.errno != errno.ENOSPC:
        raise group
    _say(f"{error.filename or 'the output'} cannot be written: {error.strerror}", FAILURE)
    os._exit(FAILURE)  # the interpreter would try to write the rest, and complain again


def _refuse(group: BaseExceptionGroup[typer.TyperException]) -> NoReturn:
    """Prints one line about the fault of the arguments, and exits."""
    error = group.exceptions[0]
    said = _OF_ARGUMENT.sub(r"argument \g<name>: ", str(getattr(error, "format_message", lambda: error)()))
    context = getattr(error, "ctx", None)
    path = "holdfast" if context is None else str(context.command_path)
    line = " ".join(said.split()).rstrip(".")
    _say(f"{line}; `{path} --help` shows the arguments", MISTAKE)
    sys.exit(MISTAKE)


def _say(mistake: str, status: int) -> None:
    """Prints why the command failed. It reads HOLDFAST_LOG_JSON itself, because the settings may be the error."""
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
    root.callback(epilog="Example: holdfast agents create first --model builtin/slow")(_holdfast)
    for name, place in COMMANDS.items():
        root.command(name, help=place.help, rich_help_panel=place.panel)(_listed)
    return typer.main.get_command(root)


def _listed() -> None:
    """A placeholder in the list of commands, which `CommandTable` replaces with the command itself."""


def _holdfast(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    """Background agent runs that survive. Servers read their settings from HOLDFAST_… variables (docs/settings.md);
    commands that call a server read HOLDFAST_URL and HOLDFAST_API_KEY (docs/command-line.md)."""
    if version:
        print(f"holdfast {VERSION}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
