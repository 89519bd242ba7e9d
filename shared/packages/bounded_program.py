"""Runs a helper program within limits of time and disk, and removes everything that it leaves behind."""

import asyncio
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from shared.concurrency import background
from shared.domain.errors import InvalidRequest
from shared.domain.tools import PackageRoom

# Locks of the file system, which end with their process in any case, and working folders. A lock belongs to an open
# file. A process that inherits the descriptor holds the lock too, so a program that outlives its parent for a moment
# keeps other processes away from the files that it still writes.


WORK = "work-"
"""Prefix of working folders' names."""


def try_lock(path: Path, *, is_shared: bool = False) -> int | None:
    """A descriptor that holds the lock on this file; the file is created if it is missing. None if other processes hold
    it.

    Closing the descriptor releases the lock. Any number of holders can share it at the same time. Raises `OSError`.
    """
    return _locked(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), path, is_shared=is_shared)


def _locked(descriptor: int, path: Path, *, is_shared: bool) -> int | None:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # The previous holder may have removed the file. The lock would then protect nothing.
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
    """A folder that only its creator uses."""

    path: Path
    lock: int
    """A descriptor. While any process has it open, no process removes the folder as a leftover."""

    @property
    def home(self) -> Path:
        """The working directory of programs, and the place of their temporary files."""
        return self.path / "home"


@asynccontextmanager
async def work_folder(parent: Path) -> AsyncGenerator[WorkFolder]:
    """A new folder for the block, which only its user can read. Removes the folders of killed processes. Raises
    `OSError`."""
    await asyncio.to_thread(remove_leftovers, parent)
    made = _new_folder(parent)
    while made is None:  # a cleaning process removed it before we got the lock
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
    """Removes the folders that no process uses any more."""
    for path in parent.glob(f"{WORK}*"):
        with suppress(FileNotFoundError):
            lock = _locked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path, is_shared=False)
            if lock is not None:
                remove_tree(path)
                os.close(lock)


def remove_tree(top: Path) -> None:
    """Removes a folder, including its read-only contents. Leaves files that cannot be removed."""
    for folder, _, _ in os.walk(top):
        with suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(top, ignore_errors=True)


LOOK_EVERY_S = 0.2
SAID_BYTES = 64 << 10
"""Bytes of a program's output that are read."""
SAID = "said"
NICE = 10
BOUNDED = """
import ctypes, os, resource, signal, sys
parent, nice, file_bytes, *command = sys.argv[1:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)
os.nice(int(nice))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), int(file_bytes)))
os.execv(command[0], command)
"""
"""A script that becomes the program, which then dies with its parent (PR_SET_PDEATHSIG) within the kernel's limits."""


class Finished(NamedTuple):
    """How a program ended. `status` is negative if a signal killed it."""

    status: int
    said: str


async def run_bounded(
    command: Sequence[str], work: WorkFolder, environment: Mapping[str, str], room: PackageRoom
) -> Finished:
    """Runs the program in the folder, to its end. Raises `InvalidRequest` if it writes more than there is room.

    When this returns or raises, all processes of the program are dead. They also die if this process is killed. Until
    then the folder stays locked.
    """
    bounded = [sys.executable, "-I", "-S", "-c", BOUNDED, str(os.getpid()), str(NICE), str(room.bytes_), *command]
    with (work.path / SAID).open("w+b") as said:
        async with background(_watched(work.path, room), name="watch the size of a build"):
            status = await _ended(bounded, work, environment, said.fileno())
        await _refuse_too_much(work.path, room)
        said.seek(0)
        return Finished(status, said.read(SAID_BYTES).decode("utf-8", "replace"))


async def _ended(command: Sequence[str], work: WorkFolder, environment: Mapping[str, str], said: int) -> int:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        pass_fds=(work.lock,),
        cwd=work.home,
        env={"HOME": str(work.home), "TMPDIR": str(work.home), **environment},
        start_new_session=True,
    )
    try:
        return await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _watched(folder: Path, room: PackageRoom) -> None:
    while True:
        await _refuse_too_much(folder, room)
        await asyncio.sleep(LOOK_EVERY_S)


async def _refuse_too_much(folder: Path, room: PackageRoom) -> None:
    taken = await asyncio.to_thread(taken_by, folder)
    if taken.bytes_ > room.bytes_:
        raise InvalidRequest(too_large(room.bytes_), field="pip_requirements")
    if taken.files > room.files:
        raise InvalidRequest(
            f"pip_requirements: the packages have more than {room.files} files (HOLDFAST_PACKAGE_FILES): ask for fewer",
            field="pip_requirements",
        )


def too_large(most_bytes: int) -> str:
    """The error text for packages that take more space."""
    return f"pip_requirements: the packages take more than {most_bytes >> 20} MB (HOLDFAST_PACKAGE_MB): ask for fewer"


def taken_by(top: Path) -> PackageRoom:
    """The disk space of the files below it, each counted once."""
    sizes: dict[int, int] = {}
    for folder, _, names in os.walk(top):
        for name in names:
            with suppress(OSError):
                found = (Path(folder) / name).lstat()
                sizes[found.st_ino] = found.st_blocks * 512
    return PackageRoom(sum(sizes.values()), len(sizes))
