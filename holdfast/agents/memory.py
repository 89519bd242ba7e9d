"""Measures the memory that a process has for itself, and finds processes that exceed their limit.

A forked process shares unchanged memory with its host, so neither its resident nor its virtual memory shows its cost.
The kernel counts the memory that no other process has, and the host reads that number. A limit that the kernel enforces
would count addresses, including those of threads' stacks, and not memory.
"""

import time
from collections.abc import Iterable
from pathlib import Path

LOOKS_EVERY_S = 0.2
"""Seconds between two measurements. One costs 50 us for each process that is far below its limit."""

_PRIVATE = ("Private_Clean:", "Private_Dirty:", "Swap:")


class MemoryWatch:
    """Measures processes, each of which may have this many bytes for itself. 0: any number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._next = time.monotonic() + LOOKS_EVERY_S

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next measurement; None if there is no limit."""
        return max(0.0, self._next - time.monotonic()) if self._most else None

    def too_large(self, processes: Iterable[int]) -> dict[int, int]:
        """Returns the processes above the limit, with their bytes; empty if no measurement is due."""
        if not self._most or time.monotonic() < self._next:
            return {}
        self._next = time.monotonic() + LOOKS_EVERY_S
        sizes = {pid: self._size(pid) for pid in processes}
        return {pid: size for pid, size in sizes.items() if size > self._most}

    def _size(self, pid: int) -> int:
        """Returns the bytes that only this process has. The total is quicker to read, and an upper bound."""
        try:
            if _sum_of(Path(f"/proc/{pid}/status"), ("VmRSS:", "VmSwap:")) <= self._most:
                return 0
            return private_bytes(pid)
        except OSError:
            return 0  # the process has ended


def private_bytes(pid: int | str) -> int:
    """Returns the bytes that the process shares with no other one, in memory or swapped out. Raises `OSError` if it has
    ended, or if the kernel does not report them."""
    return _sum_of(Path(f"/proc/{pid}/smaps_rollup"), _PRIVATE)


def _sum_of(file: Path, names: tuple[str, ...]) -> int:
    lines = (line.split() for line in file.read_text(encoding="ascii", errors="replace").splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line and line[0] in names)
