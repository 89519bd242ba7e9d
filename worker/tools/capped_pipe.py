"""The worker's ends of the pipes to a tool's process: bounded memory whatever the other side does, and no threads."""

import asyncio
import contextlib
import os
from typing import Self

CHUNK_BYTES = 1 << 16
LAST_READS = 64
"""More than any pipe holds by default; a writer that outlived its call must not keep the reader busy."""


class CappedPipe:
    """Reads all that arrives, keeps the first `limit` bytes. Drains without waiting for an end of file that a stray
    process could hold back for ever."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._kept = bytearray()
        self._read_end = self.child_end = -1
        self.received = 0

    def __enter__(self) -> Self:
        self._read_end, self.child_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_reading()

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)

    def drain(self) -> None:
        """Takes what is still in the pipe after the last writer has died."""
        for _ in range(LAST_READS):
            before = self.received
            self._read()
            if self.received == before:
                return

    def _read(self) -> None:
        if self._read_end < 0:
            return
        try:
            data = os.read(self._read_end, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._stop_reading()
            return
        self.received += len(data)
        self._kept += data[: self._limit - len(self._kept)]

    def _stop_reading(self) -> None:
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1


class PayloadPipe:
    """Writes one payload as fast as the child takes it, then ends the file."""

    def __init__(self, payload: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._rest = memoryview(payload)
        self._write_end = self.child_end = -1

    def __enter__(self) -> Self:
        self.child_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_writing()

    def send(self) -> None:
        self._loop.add_writer(self._write_end, self._write)

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                self._rest = self._rest[os.write(self._write_end, self._rest) :]
            except BrokenPipeError:  # the child died before it read everything: its exit tells
                self._rest = self._rest[:0]
            if not self._rest:
                self._stop_writing()

    def _stop_writing(self) -> None:
        if self._write_end >= 0:
            self._loop.remove_writer(self._write_end)
            os.close(self._write_end)
            self._write_end = -1
