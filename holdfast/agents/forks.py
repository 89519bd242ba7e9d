"""The end of a process that code of an agent has forked: only its parent belongs to the run."""

import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def only_here() -> Generator[None]:
    """Ends a process that is forked within the block when it leaves the block, as Python ends one: it would otherwise
    tell the worker the end of the run's own call, over the socket that it shares with its parent."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            _end(error)
        raise
    if os.getpid() != process:
        _end(None)


def _end(error: BaseException | None) -> None:
    status = error.code if isinstance(error, SystemExit) else error
    if isinstance(error, SystemExit) and isinstance(status, str):
        sys.stderr.write(f"{status}\n")
    elif error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else status is not None)
