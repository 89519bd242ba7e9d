"""The version of this package, and a faster way to import many modules."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version


@contextmanager
def without_collections() -> Generator[None]:
    """A block that imports modules without garbage collection. An import creates no garbage, and each collection would
    scan all existing objects, which took a quarter of a server's start.

    The objects at the end of the block live as long as the process. Later collections skip them too: a full collection
    would delay every stream by a fifth of a second.
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
        # The code runs from a checkout that was never installed.
        return "0+checkout"


VERSION = _installed_version()
