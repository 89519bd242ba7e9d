"""The directory of one tool call among the machine's files: made before it, and gone behind it, whatever is in it."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a folder is opened, and nothing that leads elsewhere."""


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


@asynccontextmanager
async def scratch_directory(
    owner: tuple[int, int] | None = None,
    above: Path | None = None,
    *,
    remove: Callable[[Path], Awaitable[None]] = remove_in_thread,
) -> AsyncGenerator[str]:
    """A new directory for the block, of the user and group `owner`, in the folder `above` or that for temporary files.
    `remove` is for one in which something was left. Raises `OSError` when it cannot be made."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-tool-", dir=above))
    try:
        if owner is not None:
            os.chown(directory, *owner)
        yield str(directory)
    finally:
        try:
            os.rmdir(directory)  # noqa: PTH106 - as a rule it is empty, and then no thread is worth it
        except OSError:
            await remove(directory)


def remove_tree(top: Path) -> None:
    """Removes a directory of any depth, whose tool is dead. What cannot be removed is left."""
    if top.is_symlink():  # a tool without walls can put a link to anything in its directory's place
        with suppress(OSError):
            top.unlink()
        return
    with suppress(OSError):
        top.chmod(0o700)  # a tool can make folders that nobody may enter
        _Removal(os.open(top, FOLDER)).to_its_end()
    with suppress(OSError):
        top.rmdir()


class _Level(NamedTuple):
    name: str
    identity: tuple[int, int]
    folders: list[str]
    """Names of those that are left in it."""


class _Removal:
    """The removal of what is in a folder. It goes down and up by descriptors, of which one is open at a time: no path
    gets too long, nothing calls itself, and a folder costs the same however deep it lies."""

    def __init__(self, descriptor: int) -> None:
        self._here = descriptor
        self._levels: list[_Level] = []

    def to_its_end(self) -> None:
        """Closes the folder, too. Raises `OSError` where it cannot go on."""
        try:
            self._begin("")
            while self._levels[-1].folders or len(self._levels) > 1:
                if self._levels[-1].folders:
                    self._go_down(self._levels[-1].folders.pop())
                else:
                    self._go_up()
        finally:
            os.close(self._here)

    def _begin(self, name: str) -> None:
        with suppress(OSError):
            os.fchmod(self._here, 0o700)  # or nothing could be removed from it
        entries = list(os.scandir(self._here))
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for entry in entries:
            with suppress(OSError):
                os.unlink(entry.name, dir_fd=self._here)
        self._levels.append(_Level(name, _identity(self._here), folders))

    def _go_down(self, name: str) -> None:
        with suppress(OSError):
            os.rmdir(name, dir_fd=self._here)
            return
        try:
            inner = os.open(name, FOLDER, dir_fd=self._here)
        except PermissionError:
            os.chmod(name, 0o700, dir_fd=self._here)
            inner = os.open(name, FOLDER, dir_fd=self._here)
        self._move_to(inner)
        self._begin(name)

    def _go_up(self) -> None:
        emptied = self._levels.pop()
        self._move_to(os.open("..", FOLDER, dir_fd=self._here))
        if _identity(self._here) != self._levels[-1].identity:
            raise NotADirectoryError(emptied.name)  # somebody has moved the folder: what is above it is not ours
        with suppress(OSError):
            os.rmdir(emptied.name, dir_fd=self._here)

    def _move_to(self, descriptor: int) -> None:
        os.close(self._here)
        self._here = descriptor


def _identity(descriptor: int) -> tuple[int, int]:
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino
