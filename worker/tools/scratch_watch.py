"""An eye on a tool's folder that lies among the machine's files, where no file system of its own bounds it.

The kernel bounds each file that a call writes, but not how many. So the worker looks now and then, and has the call
killed when it has gone over. Between two looks a call can write more; what it has deleted and still holds open is not
seen. A directory that cannot be looked through counts as too full: an honest call has no use for one.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self

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
        """`kill` is told why. `name`: what the tool knows the directory as."""
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
    """Bytes on the disk of everything below it. What is removed meanwhile is passed over."""
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
