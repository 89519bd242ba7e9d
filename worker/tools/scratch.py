"""The directory of one tool call among the machine's files: made before it, and gone behind it, whatever is in it."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path


@asynccontextmanager
async def scratch_directory(owner: tuple[int, int] | None = None, above: Path | None = None) -> AsyncGenerator[str]:
    """A new directory for the block, of the user and group `owner`, in the folder `above` or that for temporary files.
    Raises `OSError` when it cannot be made."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-tool-", dir=above))
    try:
        if owner is not None:
            os.chown(directory, *owner)
        yield str(directory)
    finally:
        await _remove(directory)


async def _remove(directory: Path) -> None:
    """In a thread only if the tool left something in it."""
    try:
        os.rmdir(directory)  # noqa: PTH106 - as a rule it is empty, and then no thread is worth it
    except OSError:
        await remove_in_thread(directory)


async def remove_in_thread(top: Path) -> None:
    """As `remove_tree`, to its end whatever happens. A cancellation of the waiting task is raised when it is gone."""
    removal = asyncio.get_running_loop().run_in_executor(None, remove_tree, top)
    cancellation: asyncio.CancelledError | None = None
    while not removal.done():
        try:
            await asyncio.wait([removal])
        except asyncio.CancelledError as error:
            cancellation = error
    removal.result()
    if cancellation is not None:
        raise cancellation


def remove_tree(top: Path) -> None:
    """Removes a directory of any depth, whose tool is dead. What is deep is moved up, so that no path gets too long and
    nothing calls itself. What cannot be removed is left."""
    if top.is_symlink():  # a tool without walls can put a link to anything in its directory's place
        with suppress(OSError):
            top.unlink()
        return
    numbers = count()
    changed = True
    while changed and (folders := _remove_files(top)):
        changes = [_remove_or_empty(folder, top, numbers) for folder in folders]
        changed = any(changes)
    with suppress(OSError):
        top.rmdir()


def _remove_files(directory: Path) -> list[Path]:
    """The folders that are left in it."""
    with suppress(OSError):
        directory.chmod(0o700)  # a tool can make folders that nobody may enter
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return []
    folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for entry in entries:
        with suppress(OSError):
            os.unlink(entry.path)  # noqa: PTH108 - a folder may hold a million files, and each path would be an object
    return folders


def _remove_or_empty(folder: Path, top: Path, numbers: "count[int]") -> bool:
    """Whether something has changed."""
    changed = False
    for inner in _remove_files(folder):
        with suppress(OSError):
            inner.chmod(0o700)  # who moves a folder writes in it
            inner.rename(top / f".removed-{next(numbers)}")
            changed = True
    try:
        folder.rmdir()
    except OSError:
        return changed
    return True
