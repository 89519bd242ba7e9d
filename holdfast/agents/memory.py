"""How much memory a process has for itself, and the end of one that has more than it may.

A forked process shares what it has not changed with its host, so neither its resident nor its virtual memory says what
it costs. The kernel counts what no other process has; the host looks at that, because a limit that the kernel itself
enforces counts addresses, also those of threads' stacks, and not memory.
"""

import time
from collections.abc import Iterable
from pathlib import Path

LOOKS_EVERY_S = 0.2
"""Seconds between two looks. A look costs 50 us for each process that is far below its limit."""

_PRIVATE = ("Private_Clean:", "Private_Dirty:", "Swap:")


class MemoryWatch:
    """Looks at processes, which may each have so many bytes for themselves. 0: any number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._next = time.monotonic() + LOOKS_EVERY_S

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next look. None: there is none."""
        return max(0.0, self._next - time.monotonic()) if self._most else None

    def too_large(self, processes: Iterable[int]) -> dict[int, int]:
        """The processes with more than they may have, and how many bytes these are; empty while no look is due."""
        if not self._most or time.monotonic() < self._next:
            return {}
        self._next = time.monotonic() + LOOKS_EVERY_S
        sizes = {pid: self._size(pid) for pid in processes}
        return {pid: size for pid, size in sizes.items() if size > self._most}

    def _size(self, pid: int) -> int:
        """The memory that the process shares with no other. The total is quicker to read, and is an upper bound."""
        try:
            if _sum_of(Path(f"/proc/{pid}/status"), ("VmRSS:", "VmSwap:")) <= self._most:
                return 0
            return private_bytes(pid)
        except OSError:
            return 0  # it has ended


def private_bytes(pid: int | str) -> int:
    """Bytes that the process shares with no other one, in memory or swapped out. Raises `OSError` if it has ended, or
    if the kernel does not say it."""
    return _sum_of(Path(f"/proc/{pid}/smaps_rollup"), _PRIVATE)


def _sum_of(file: Path, names: tuple[str, ...]) -> int:
    lines = (line.split() for line in file.read_text(encoding="ascii", errors="replace").splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line and line[0] in names)
