"""Runs each tool call in an interpreter of its own: bounded, without our environment, and gone when the call is over.

This keeps a tool's mistakes away from the worker. It is no wall against malice: a tool shares the machine's user, files
and network. Stronger isolation goes behind the same interface (`invocation.ToolSandbox`).
"""

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from typing import Any

import msgspec

from worker.tools.capped_pipe import CappedPipe
from worker.tools.invocation import ToolInvocation, ToolOutcome
from worker.tools.tool_process import ToolProcess

logger = logging.getLogger(__name__)

MAX_RESULT_CHARS = 1_000_000
BYTES_PER_CHAR = 6
"""The widest that JSON writes one character of valid text: a control character as an escape."""


class Frame(msgspec.Struct):
    """What the child writes on the result's descriptor; any tool can write there too."""

    status: str
    text: str
    truncated: bool = False
    is_text: bool = True


class ProcessSandbox:
    """A `ToolSandbox` with one process group per call."""

    def __init__(self, *, memory_mb: int, grace_s: float, python: str = sys.executable) -> None:
        """`memory_mb`: address space of one call, MiB. `grace_s`: from SIGTERM to SIGKILL."""
        self._memory_bytes = memory_mb << 20
        self._grace_s = grace_s
        self._python = python
        self._calls: dict[ToolProcess, asyncio.Event] = {}
        self._closed = False

    async def call(self, invocation: ToolInvocation) -> ToolOutcome:
        """See `ToolSandbox.call`. Every process of the call is dead when this returns or raises."""
        if self._closed:
            return ToolOutcome("error", "Error: the tool was not started, because the worker is shutting down")
        text_limit = max(0, min(invocation.return_char_limit, MAX_RESULT_CHARS))
        process = ToolProcess(
            payload=self._payload(invocation, text_limit),
            result_bytes=text_limit * BYTES_PER_CHAR + 1024,
            grace_s=self._grace_s,
        )
        try:
            directory = tempfile.mkdtemp(prefix="holdfast-tool-")
        except OSError as error:
            return not_started(error)
        self._calls[process] = asyncio.Event()
        timed_out = False
        try:
            async with asyncio.timeout(invocation.timeout_s):
                await process.start(self._python, directory)
                await process.exited()
        except TimeoutError:
            timed_out = True
        except OSError as error:
            return not_started(error)
        finally:
            process.stop()
            try:
                await process.wait_exited()
            finally:
                process.close()
                self._calls.pop(process).set()
                await remove(directory)
        return outcome(process, invocation, text_limit, timed_out=timed_out)

    async def aclose(self) -> None:
        """See `ToolSandbox.aclose`. The calls that still run get their grace, at the same time."""
        self._closed = True
        for process in self._calls:
            process.stop()
        for over in list(self._calls.values()):
            await over.wait()

    def _payload(self, invocation: ToolInvocation, text_limit: int) -> bytes:
        call: dict[str, Any] = {
            "source": textwrap.dedent(invocation.source_code),
            "function": invocation.function,
            "arguments": invocation.arguments,
            "argument_schema": invocation.argument_schema,
            "agent": invocation.agent,
            "environment": invocation.environment,
            "memory_bytes": self._memory_bytes,
            "text_limit": text_limit,
        }
        return json.dumps(call).encode()


def not_started(error: OSError) -> ToolOutcome:
    """The machine's fault, not the tool's; but the run can go on and the model can be told."""
    logger.error("could not start a process for a tool call: %s", error)
    return ToolOutcome("error", f"Error: the tool was not started: {error.strerror or error}")


def outcome(process: ToolProcess, invocation: ToolInvocation, text_limit: int, *, timed_out: bool) -> ToolOutcome:
    """What an ended call came to."""
    frame = read_frame(process.result)
    if timed_out:
        frame = Frame("error", f"Error: tool timed out after {invocation.timeout_s:g} s")
    elif process.stopped:
        frame = Frame("error", "Error: the tool was stopped, because the worker is shutting down")
    elif frame is None:
        ending = how_it_ended(process.exit_status)
        frame = Frame("error", f"Error executing function {invocation.function}: {ending} without a result")
    text = printable(frame.text)
    if frame.truncated or len(text) > text_limit:
        notice = f"NOTE: function output was truncated since it exceeded the character limit of {text_limit}"
        text = f"{text[:text_limit]}... [{notice}]"
    status = "success" if frame.status == "success" else "error"
    return ToolOutcome(status, text, lines(process.stdout), whole(process.stderr), is_text=frame.is_text)


def read_frame(pipe: CappedPipe) -> Frame | None:
    """The frame, if there is a whole and readable one."""
    length, body = int.from_bytes(pipe.kept[:4], "big"), pipe.kept[4:]
    if not 0 < length <= len(body):
        return None
    try:
        return msgspec.json.decode(body[:length], type=Frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def how_it_ended(status: int) -> str:
    """In words: an exit status as the watcher reports it."""
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


async def remove(directory: str) -> None:
    """Removes a call's directory; in a thread only if the tool left something in it."""
    try:
        os.rmdir(directory)  # noqa: PTH106 - as a rule it is empty, and then no thread is worth it
    except OSError:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
