"""The file in which agents under chaos note their actions. Standard library only: agents import it, too."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NOTES = "CHAOS_NOTES"
"""The variable that gives agents the path of the file."""


class Note(NamedTuple):
    """One line."""

    what: str
    """`begun`, `asked`, `got`, `taken`, `keyed`, `effect`, `denied` or `unknown`."""
    run_id: str
    """`-` in a tool, which does not know the run."""
    key: str
    """The number of a model call, or the key of a tool's call."""
    detail: str
    at: float
    """Seconds since the epoch."""


def write_note(path: str, what: str, run_id: str, key: str, detail: str) -> None:
    """Adds one line, at once."""
    notes = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(notes, "\t".join((what, run_id, key, detail, f"{time.time()}\n")).encode())
    os.close(notes)


def read_notes(path: Path) -> Iterator[Note]:
    """Yields all lines."""
    for line in path.read_text().splitlines():
        what, run_id, key, detail, at = line.split("\t")
        yield Note(what, run_id, key, detail, float(at))
