"""Shows the progress of long work on standard error: a bar on a terminal, otherwise a line every five seconds."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

PROGRESS_S = 5.0


@contextmanager
def shown_progress(what: str) -> Generator[Callable[[int], None]]:
    """Yields a function that takes the count so far. `what` is its text: "holdfast prune: {:,} runs so far"."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            # The total is unknown: the database would need as long again to count it first.
            task = progress.add_task(what.format(0), total=None)
            yield lambda count: progress.update(task, description=what.format(count))
        return
    said_at = time.monotonic()

    def say(count: int) -> None:
        nonlocal said_at
        if time.monotonic() > said_at + PROGRESS_S:
            said_at = time.monotonic()
            print(what.format(count), file=sys.stderr, flush=True)

    yield say
