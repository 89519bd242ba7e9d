"""The directory of one tool call among the machine's files: made before it, and gone behind it, whatever is in it."""

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import structlog

from shared.concurrency import whole
from shared.domain.ids import ProjectId, RunId
from worker.tools.outcomes import ToolInvocation

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a folder is opened, and nothing that leads elsewhere."""


async def remove_in_thread(top: Path) -> None:
    """As `remove_tree`, to its end whatever happens. A cancellation of the waiting task is raised when it is gone."""
    await whole(asyncio.get_running_loop().run_in_executor(None, remove_tree, top))


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
            raise NotADirectoryError(emptied.name)  # another process has moved the folder: its parent is not ours
        with suppress(OSError):
            os.rmdir(emptied.name, dir_fd=self._here)

    def _move_to(self, descriptor: int) -> None:
        os.close(self._here)
        self._here = descriptor


def _identity(descriptor: int) -> tuple[int, int]:
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino


# An eye on a tool's folder that lies among the machine's files, where no file system of its own bounds it.
#
# The kernel bounds each file that a call writes, but not how many. So the worker looks now and then, and has the call
# killed when it has gone over. Between two looks a call can write more; what it has deleted and still holds open is not
# seen. A directory that cannot be looked through counts as too full: an honest call has no use for one.


LOOK_EVERY_S = 0.1
RESTS_FOR = 3
"""Times as long as the last look took: a folder that is nearly full of small files must not keep a processor busy."""
MOST_ENTRIES = 16384
"""As many as the file system has that other calls get for themselves."""


class ScratchWatch:
    """Looks for as long as the block lasts."""

    def __init__(
        self, directory: str, most_bytes: int, kill: Callable[[str], None], *, name: str = "its scratch directory"
    ) -> None:
        """`kill` gets the reason. `name`: what the tool knows the directory as."""
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
        """In a thread only if there is something to look at."""
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
    """In words."""
    return f"{most_bytes >> 20} MB, {MOST_ENTRIES} files"


def is_empty(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def is_too_full(directory: str, most_bytes: int) -> bool:
    """Whether there is more on the disk below it, or in more pieces, than there may be."""
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
    """Bytes on the disk of everything below it. Ignores files that are removed meanwhile."""
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


# Where files of tools lie on a machine: a folder for each worker, and in it one for each call and each run.
#
# A worker has its folder's lock for as long as it lives, and the system takes the lock from it however it dies. So the
# next worker that starts on the machine knows whose files nobody needs any more.


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PREFIX = "holdfast-worker-"
LOCK = "lock"
VARIABLE = "HOLDFAST_RUN_FOLDER"
MOST_REMOVALS = 4
"""Of folders of calls that have ended, at once: each takes a thread."""
ENTERED = 0o711
"""Of folders in which another user, as whom tools run, has one: it can enter, and see no names."""


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
        """A new folder for the block. Raises `OSError` when it cannot be made.

        What a call leaves in it is removed behind the call, which does not wait for that: the removal of thousands of
        folders takes seconds, and the call would keep its place for them. While `MOST_REMOVALS` are under way, a call
        does wait, so that tools do not leave more than can be removed.
        """
        async with scratch_directory(self._owner, self._top, remove=self._remove) as directory:
            yield directory

    async def _remove(self, directory: Path) -> None:
        if len(self._removals) >= MOST_REMOVALS:
            await remove_in_thread(directory)
            return
        removal = asyncio.get_running_loop().run_in_executor(None, remove_tree, directory)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    @asynccontextmanager
    async def of_run(self, run_id: RunId) -> AsyncGenerator[None]:
        """Calls of the run may share a folder during the block. Behind it the folder is gone, unless the run is in
        another block too: a run that was lost and came back is for a moment here twice."""
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
        """The run's folder, made for its first call; None for a call that has none. Raises `OSError` when it cannot be
        made, `KeyError` outside of `of_run`."""
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
        """The folder in which a project's runs have theirs. It stays: walls that were built around it know it."""
        found = self._projects.get(project_id)
        if found is None:
            found = Path(tempfile.mkdtemp(prefix="holdfast-runs-", dir=self._top))
            found.chmod(ENTERED)
            self._projects[project_id] = found
        return found

    async def aclose(self) -> None:
        """Removes every folder. No call uses them any more."""
        if self._removals:
            await asyncio.wait(self._removals)
        for folder in self._projects.values():
            await remove_in_thread(folder)
        self._projects.clear()


def with_run_folder(invocation: ToolInvocation, path: str) -> ToolInvocation:
    """The call, with the path under which it finds its run's folder among its variables."""
    return msgspec.structs.replace(invocation, environment=invocation.environment | {VARIABLE: path})


@contextmanager
def worker_folder(above: Path | None = None) -> Generator[Path]:
    """A folder of this worker's own for the block, below `above` or the system's folder for temporary files; locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
        lock = _locked(folder)
        if lock is not None:
            break
    try:
        folder.chmod(ENTERED)
        yield folder
    finally:
        # After the removal, so that no other process begins to remove it too.
        remove_tree(folder)
        os.close(lock)


def remove_left_folders(above: Path | None = None) -> int:
    """Removes the folders of workers of this user that do not live any more; how many. Slow if they left much."""
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
    """The descriptor that holds the folder's lock; None when another has it, or the folder is gone.

    A folder is there for a moment before its worker has locked it. Who removes it then has made the lock's file and
    has the lock, or has removed the file: the worker finds that, and makes itself another folder.
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
