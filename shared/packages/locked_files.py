"""Locks of the file system, which end with their process however it ends, and folders that are worked in.

A lock stands on an open file. Whoever inherits the descriptor holds the lock too, so a program that outlives its
starter for a moment keeps others away from what it still writes.
"""

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

WORK = "work-"
"""How the names of folders begin that are worked in."""


def try_lock(path: Path, *, is_shared: bool = False) -> int | None:
    """A descriptor that holds the lock on this file, which is made if it is not there; None when others hold it.

    To close the descriptor ends the lock. Any number of holders can have it shared, at the same time. Raises `OSError`.
    """
    return _locked(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), path, is_shared=is_shared)


def _locked(descriptor: int, path: Path, *, is_shared: bool) -> int | None:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # Who held it before may have removed the file: then this is a lock on nothing.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


class WorkFolder(NamedTuple):
    """A folder that only its maker works in."""

    path: Path
    lock: int
    """A descriptor; while it is open in any process, nobody takes the folder for a leftover."""

    @property
    def home(self) -> Path:
        """Where programs begin, and keep what they need for a while."""
        return self.path / "home"


@asynccontextmanager
async def work_folder(parent: Path) -> AsyncGenerator[WorkFolder]:
    """A new folder for the block, for its user alone. Removes those of processes that were killed. Raises `OSError`."""
    await asyncio.to_thread(remove_leftovers, parent)
    made = _new_folder(parent)
    while made is None:  # a cleaning process was quicker than our lock
        made = _new_folder(parent)
    try:
        made.home.mkdir()
        yield made
    finally:
        os.close(made.lock)
        await asyncio.to_thread(remove_tree, made.path)


def _new_folder(parent: Path) -> WorkFolder | None:
    path = Path(tempfile.mkdtemp(prefix=WORK, dir=parent))
    with suppress(FileNotFoundError):
        lock = _locked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path, is_shared=False)
        return None if lock is None else WorkFolder(path, lock)
    return None


def remove_leftovers(parent: Path) -> None:
    """Removes the folders that nobody works in any more."""
    for path in parent.glob(f"{WORK}*"):
        with suppress(FileNotFoundError):
            lock = _locked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path, is_shared=False)
            if lock is not None:
                remove_tree(path)
                os.close(lock)


def remove_tree(top: Path) -> None:
    """Removes a folder, and in it what was made read-only. What cannot be removed is left."""
    for folder, _, _ in os.walk(top):
        with suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(top, ignore_errors=True)
