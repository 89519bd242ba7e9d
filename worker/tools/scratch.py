"""The directory of one tool call among the machine's files: made before the call, and removed with its files after."""

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import structlog

from shared.concurrency import whole
from shared.domain.ids import ProjectId, RunId
from worker.tools.outcomes import ToolInvocation

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a folder, and no link that leads elsewhere."""


async def remove_in_thread(top: Path) -> None:
    """Runs `remove_tree` to its end in any case, and only then raises a cancellation of the waiting task."""
    await whole(asyncio.get_running_loop().run_in_executor(None, remove_tree, top))


def remove_tree(top: Path) -> None:
    """Removes a directory of any depth, whose tool is dead. Files that cannot be removed stay."""
    if top.is_symlink():  # a tool without isolation can replace its directory by a link to anything
        with suppress(OSError):
            top.unlink()
        return
    with suppress(OSError):
        top.chmod(0o700)  # a tool can make folders that no user may enter
        _Removal(os.open(top, FOLDER)).to_its_end()
    with suppress(OSError):
        top.rmdir()


class _Level(NamedTuple):
    name: str
    identity: tuple[int, int]
    folders: list[str]
    """Names of the subfolders that are not removed yet."""


class _Removal:
    """The removal of a folder's contents. It moves down and up by descriptors, of which one is open at a time. So no
    path gets too long, no function recurses, and a folder costs the same at any depth."""

    def __init__(self, descriptor: int) -> None:
        self._here = descriptor
        self._levels: list[_Level] = []

    def to_its_end(self) -> None:
        """Removes everything, and closes the folder. Raises `OSError` where it cannot continue."""
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
            os.fchmod(self._here, 0o700)  # otherwise its contents could not be removed
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
            raise NotADirectoryError(emptied.name)  # another process has moved the folder: its parent is not ours
        with suppress(OSError):
            os.rmdir(emptied.name, dir_fd=self._here)

    def _move_to(self, descriptor: int) -> None:
        os.close(self._here)
        self._here = descriptor


def _identity(descriptor: int) -> tuple[int, int]:
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino


# Watches a tool's folder that lies among the machine's files, where no file system of its own bounds it.
#
# The kernel bounds each file that a call writes, but not their number. So the worker measures the folder regularly, and
# kills a call that has exceeded its limit. Between two measurements a call can write more, and files that it has
# deleted but holds open are not seen. An unreadable directory counts as too full: an honest call has no use for one.


LOOK_EVERY_S = 0.1
RESTS_FOR = 3
"""The pause, in measurement times: a folder that is nearly full of small files must not keep a processor busy."""
MOST_ENTRIES = 16384
"""The limit of the file system that other calls have for themselves."""


class ScratchWatch:
    """Measures the folder for as long as the block lasts."""

    def __init__(
        self, directory: str, most_bytes: int, kill: Callable[[str], None], *, name: str = "its scratch directory"
    ) -> None:
        """`kill` gets the reason. `name`: the tool's name for the directory."""
        self._name = name
        self._began = 0.0
        self._directory = directory
        self._most_bytes = most_bytes
        self._kill = kill
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def __enter__(self) -> Self:
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, took_s: float = 0.0) -> None:
        self._timer = self._loop.call_later(max(LOOK_EVERY_S, RESTS_FOR * took_s), self._look)

    def _look(self) -> None:
        """Measures in a thread, but only if the folder has entries."""
        if is_empty(self._directory):
            self._wait()
            return
        self._began = self._loop.time()
        looked = self._loop.run_in_executor(None, is_too_full, self._directory, self._most_bytes)
        looked.add_done_callback(self._decide)

    def _decide(self, looked: asyncio.Future[bool]) -> None:
        if self._is_over or looked.cancelled():
            return
        if looked.result():
            self._kill(f"the tool wrote more than {self._name} may hold ({room(self._most_bytes)}) and ended")
        else:
            self._wait(self._loop.time() - self._began)


def room(most_bytes: int) -> str:
    """Describes the limits in words."""
    return f"{most_bytes >> 20} MB, {MOST_ENTRIES} files"


def is_empty(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def is_too_full(directory: str, most_bytes: int) -> bool:
    """Whether the directory has more bytes on the disk, or more entries, than it may have."""
    taken = 0
    try:
        for number, size in enumerate(sizes(directory), start=1):
            taken += size
            if number > MOST_ENTRIES or taken > most_bytes:
                return True
    except OSError:
        return True
    return False


def sizes(directory: str) -> Iterator[int]:
    """Yields the bytes on the disk of each entry below it. Ignores files that are removed meanwhile."""
    waiting = [directory]
    while waiting:
        for entry in listed(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            yield disk_bytes(entry)


def listed(directory: str) -> Iterator["os.DirEntry[str]"]:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from entries


def disk_bytes(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0


# The places of tools' files on a machine: a folder for each worker, and in it one for each call and each run.
#
# A live worker holds its folder's lock, and the system releases the lock however the worker dies. So the next worker
# that starts on the machine finds the folders without an owner.


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PREFIX = "holdfast-worker-"
LOCK = "lock"
VARIABLE = "HOLDFAST_RUN_FOLDER"
MOST_REMOVALS = 4
"""The number of removals at once of folders of calls that have ended. Each removal takes a thread."""
ENTERED = 0o711
"""The mode of folders that contain one of the tools' user: that user can enter them, and see no names."""


class ToolFolders:
    """The folders of one sandbox, below the worker's. `owner`: user and group of the tools; None: the worker's own."""

    def __init__(self, top: Path, owner: tuple[int, int] | None = None) -> None:
        self._top = top
        self._owner = owner
        self._projects: dict[ProjectId, Path] = {}
        self._runs: dict[RunId, Path | None] = {}
        self._users: dict[RunId, int] = {}
        self._removals: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def of_call(self) -> AsyncGenerator[str]:
        """Yields a new folder of the tools' user. Raises `OSError` if it cannot be made.

        Files that a call leaves are removed after the call, which does not wait for that: the removal of thousands of
        folders takes seconds, during which the call would keep its place. While `MOST_REMOVALS` are under way, a call
        does wait, so that tools do not leave more files than the worker can remove.
        """
        directory = Path(tempfile.mkdtemp(prefix="holdfast-tool-", dir=self._top))
        try:
            if self._owner is not None:
                os.chown(directory, *self._owner)
            yield str(directory)
        finally:
            try:
                os.rmdir(directory)  # noqa: PTH106 - as a rule it is empty, and then no thread is worth it
            except OSError:
                await self._remove(directory)

    async def _remove(self, directory: Path) -> None:
        if len(self._removals) >= MOST_REMOVALS:
            await remove_in_thread(directory)
            return
        removal = asyncio.get_running_loop().run_in_executor(None, remove_tree, directory)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    @asynccontextmanager
    async def of_run(self, run_id: RunId) -> AsyncGenerator[None]:
        """Calls of the run may share a folder during the block. It is removed afterwards, unless the run has another
        block: a run that was lost and claimed again has two for a moment."""
        self._users[run_id] = self._users.get(run_id, 0) + 1
        self._runs.setdefault(run_id, None)
        try:
            yield
        finally:
            self._users[run_id] -= 1
            if not self._users[run_id]:
                del self._users[run_id]
                folder = self._runs.pop(run_id)
                if folder is not None:
                    await remove_in_thread(folder)

    def of_invocation(self, invocation: ToolInvocation) -> Path | None:
        """Returns the run's folder, which is made for its first call; None for a call that uses none. Raises `OSError`
        if it cannot be made, and `KeyError` outside of `of_run`."""
        run_id = invocation.run_id
        if run_id is None:
            return None
        found = self._runs[run_id]
        if found is None:
            found = Path(tempfile.mkdtemp(prefix="run-", dir=self._of_project(invocation.project_id)))
            self._runs[run_id] = found
            if self._owner is not None:
                os.chown(found, *self._owner)
        return found

    def _of_project(self, project_id: ProjectId) -> Path:
        """Returns the folder for the folders of a project's runs. It stays, because zygotes have mounted it."""
        found = self._projects.get(project_id)
        if found is None:
            found = Path(tempfile.mkdtemp(prefix="holdfast-runs-", dir=self._top))
            found.chmod(ENTERED)
            self._projects[project_id] = found
        return found

    async def aclose(self) -> None:
        """Removes every folder. No call uses them any longer."""
        if self._removals:
            await asyncio.wait(self._removals)
        for folder in self._projects.values():
            await remove_in_thread(folder)
        self._projects.clear()


def with_run_folder(invocation: ToolInvocation, path: str) -> ToolInvocation:
    """Returns the call with a variable that contains the path of its run's folder."""
    return msgspec.structs.replace(invocation, environment=invocation.environment | {VARIABLE: path})


@contextmanager
def worker_folder(above: Path | None = None) -> Generator[Path]:
    """Yields a locked folder of this worker's own, below `above` or the system's folder for temporary files."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
        lock = _locked(folder)
        if lock is not None:
            break
    try:
        folder.chmod(ENTERED)
        yield folder
    finally:
        # The lock is released after the removal, so that no other process begins to remove the folder too.
        remove_tree(folder)
        os.close(lock)


def remove_left_folders(above: Path | None = None) -> int:
    """Removes the folders of this user's dead workers. Returns their number. Slow if they contain much."""
    removed = 0
    for folder in Path(above or tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            state = folder.lstat()
            if state.st_uid != os.geteuid() or folder.is_symlink() or not folder.is_dir():
                continue
            lock = _locked(folder)
            if lock is None:
                continue
            remove_tree(folder)
            os.close(lock)
            removed += 1
    if removed:
        log.info("left_tool_folders_removed", folders=removed)
    return removed


def _locked(folder: Path) -> int | None:
    """Returns the descriptor that holds the folder's lock; None if another process holds it, or the folder is gone.

    A new folder is unlocked for a moment. A process that removes it then has made the lock's file and holds the lock,
    or has removed the file. The folder's worker notices that, and makes another folder.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held, there = os.fstat(descriptor), (folder / LOCK).stat()
        if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
