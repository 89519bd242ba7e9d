"""The version of this package, and imports of many modules at once, as they cost least."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version


@contextmanager
def without_collections() -> Generator[None]:
    """A block that imports, and collects no garbage: an import makes none, and each collection would look through all
    that is there, which is a quarter of what a server's start took.

    What is there at the end of the block lives as long as the process, so later collections leave it out, too: a full
    one would hold up every stream for a fifth of a second.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def _installed_version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        # Run from a checkout that was never installed.
        return "0+checkout"


VERSION = _installed_version()
