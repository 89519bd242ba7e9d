"""Where files of tools lie on a machine: a folder for each worker, and in it one for each call and each run.

A worker has its folder's lock for as long as it lives, and the system takes the lock from it however it dies. So the
next worker that starts on the machine knows whose files nobody needs any more.
"""

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import structlog

from shared.domain.ids import ProjectId, RunId
from worker.tools.invocation import ToolInvocation
from worker.tools.scratch import remove_in_thread, remove_tree, scratch_directory

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
        # Behind the removal, so that nobody else begins to remove it too.
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
