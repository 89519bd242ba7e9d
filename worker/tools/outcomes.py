"""What a tool's process has written, as an outcome. All of it is tenant data: nothing in it is trusted."""

import asyncio
import contextlib
import json
import os
import signal
import textwrap
from typing import Any, Self

import msgspec
import structlog

from worker.tools.invocation import CallLimits, ToolInvocation, ToolOutcome

# The worker's ends of the pipes to a tool's process: bounded memory whatever the other side does, and no threads.


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


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_RESULT_CHARS = 1_000_000
BYTES_PER_CHAR = 6
"""The widest that JSON writes one character of valid text: a control character as an escape."""
SHUTTING_DOWN = ToolOutcome("error", "Error: the tool was not started, because the worker is shutting down")


NO_NODE = ToolOutcome("error", "Error: this worker has no Node.js, which runs JavaScript and TypeScript: use Python")


class Frame(msgspec.Struct):
    """What the child writes on the result's descriptor; any tool can write there too."""

    status: str
    text: str
    truncated: bool = False
    is_text: bool = True


def text_limit(invocation: ToolInvocation) -> int:
    """Characters of the result that are kept."""
    return max(0, min(invocation.return_char_limit, MAX_RESULT_CHARS))


def result_bytes(invocation: ToolInvocation) -> int:
    """The longest frame that is read."""
    return text_limit(invocation) * BYTES_PER_CHAR + 1024


def payload(invocation: ToolInvocation, limits: CallLimits) -> bytes:
    """What the call's process reads first."""
    call: dict[str, Any] = {
        "source": textwrap.dedent(invocation.source_code),
        "function": invocation.function,
        "arguments": invocation.arguments,
        "parameters": invocation.parameters,
        "argument_schema": invocation.argument_schema,
        "agent": invocation.agent,
        "environment": invocation.environment,
        "folders": invocation.folders,
        "limits": msgspec.to_builtins(limits),
        "text_limit": text_limit(invocation),
    }
    return json.dumps(call).encode()


def not_started(error: OSError) -> ToolOutcome:
    """The machine's fault, not the tool's; but the run can go on, and the result says so to the model."""
    log.error("tool_process_not_started", reason=str(error))
    return ToolOutcome("error", f"Error: the tool was not started: {error.strerror or error}")


def refused(reason: str) -> ToolOutcome:
    """The call asks for something that it does not get here."""
    return ToolOutcome("error", f"Error: the tool was not started: {reason}")


def read_frame(pipe: CappedPipe) -> Frame | None:
    """The frame, if there is a whole and readable one."""
    length, body = int.from_bytes(pipe.kept[:4], "big"), pipe.kept[4:]
    if not 0 < length <= len(body):
        return None
    try:
        return msgspec.json.decode(body[:length], type=Frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def outcome(frame: Frame, limit: int, stdout: CappedPipe, stderr: CappedPipe) -> ToolOutcome:
    """The frame and the output, within their limits."""
    text = printable(frame.text)
    if frame.truncated or len(text) > limit:
        notice = f"NOTE: function output was truncated since it exceeded the character limit of {limit}"
        text = f"{text[:limit]}... [{notice}]"
    status = "success" if frame.status == "success" else "error"
    return ToolOutcome(status, text, lines(stdout), whole(stderr), is_text=frame.is_text)


def how_it_ended(status: int) -> str:
    """In words: an exit status as a watcher reports it."""
    killer = -status if status < 0 else status - 128
    if killer in {known.value for known in signal.Signals}:
        return f"the tool's process was killed by {signal.Signals(killer).name}"
    return f"the tool's process ended with status {status}"


def printable(text: str) -> str:
    """NUL is the one character that a database refuses to store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def lines(pipe: CappedPipe) -> list[str]:
    """Captured output, with a last line that says how much is missing."""
    found = printable(pipe.kept.decode("utf-8", "replace")).splitlines()
    missing = pipe.received - len(pipe.kept)
    return [*found, f"... [{missing} more bytes dropped]"] if missing else found


def whole(pipe: CappedPipe) -> list[str]:
    """The same as one text, which is how clients read what a tool complained of: a traceback is one thing."""
    text = "\n".join(lines(pipe))
    return [text] if text else []
