"""Prints the output of commands: tables and text for people, JSON for programs."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TextIO

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.client.server import Record
from cli.printable import printable, printable_json
from shared.domain.errors import InvalidRequest

COLOURS = {
    "running": "cyan",
    "created": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "requires_approval": "magenta",
}

OWN_IDS = ("id", "call_id")
"""The columns that people copy: a row's own id is never wrapped."""

WIDE = 500
"""The width, in columns, of output to a file or pipe, so that programs get whole lines."""


def console(file: TextIO | None = None) -> Console:
    """Returns a console for a file (default: standard output). It has colours only on a terminal, and none if NO_COLOR
    is set."""
    width = None if sys.stdout.isatty() else WIDE
    return Console(file=file, highlight=False, markup=False, emoji=False, width=width)


def hint(text: str) -> None:
    """Prints a note for the person at the terminal on standard error; results alone go to standard output."""
    Console(stderr=True, highlight=False, markup=False, emoji=False).print(printable(text), style="dim", soft_wrap=True)


def is_interactive() -> bool:
    """Returns whether a person can answer questions."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def confirm(question: str) -> None:
    """Returns if a person agrees. Raises `typer.Exit` if not, and `InvalidRequest` where no person can answer."""
    if not is_interactive():
        raise InvalidRequest("this is no terminal, so the command cannot ask whether to delete it: give --yes")
    if not typer.confirm(printable(question)):
        raise typer.Exit(2)


def print_deleted(kind: str, found: Record, name: object, *, as_json: bool) -> None:
    """Prints that a record is deleted."""
    if as_json:
        print_json({"id": found["id"], "deleted": True})
    else:
        print(printable(f"holdfast {kind}: {found['id']} ({name}) is deleted"))


def print_json(record: object) -> None:
    """Prints one line of JSON. It is safe for terminals, and for programs that split lines as Unicode does."""
    print(printable_json(msgspec.json.encode(record).decode()), flush=True)


def print_all(records: Iterable[Record], columns: Sequence[str], *, as_json: bool, nothing: str) -> None:
    """Prints a table of these fields of the records, or JSON objects, one per line. `nothing`: the hint for no rows."""
    found = list(records)
    if as_json:
        for record in found:
            print_json(record)
    elif not found:
        hint(nothing)
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            width = max(len(str(record.get(column))) for record in found) if column in OWN_IDS else None
            table.add_column(column.removesuffix("_id").upper().replace("_", " "), overflow="fold", min_width=width)
        for record in found:
            table.add_row(*(cell(record, column) for column in columns))
        console().print(table)


def print_fields(record: Record, names: Sequence[str]) -> None:
    """Prints the fields that have a value, one line each."""
    shown = console()
    width = max(map(len, names))
    for name in names:
        value = cell(record, name)
        if str(value):
            shown.print(Text(f"{name.replace('_', ' '):<{width}}  ", style="bold").append_text(value))


def cell(record: Record, column: str) -> Text:
    """Renders a field: times in UTC, statuses in their colour."""
    value = record.get(column)
    if value is None:
        return Text("")
    if column.endswith("_at") and isinstance(value, str):
        return Text(second(value))
    if isinstance(value, (dict, list)):
        return Text(printable(msgspec.json.encode(value).decode()))
    text = printable(str(value))
    return Text(text, style=COLOURS.get(text, "") if column in ("status", "stop_reason") else "")


def second(moment: str) -> str:
    """Renders a time of the API in UTC, to the second."""
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return printable(moment)
    return f"{found.astimezone(UTC) if found.tzinfo else found:%Y-%m-%d %H:%M:%S}"
