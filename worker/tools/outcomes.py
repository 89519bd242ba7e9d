"""The output of a tool's process as an outcome. All of it is tenant data, and none of it is trusted.

`ToolInvocation` is a tool call as the sandbox gets it: the interface behind which isolation can be strengthened.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import textwrap
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, Self

import msgspec
import structlog
from msgspec.structs import replace

from shared.domain.ids import ProjectId, RunId
from shared.domain.tools import DEFAULT_RETURN_CHAR_LIMIT, ToolLimits
from shared.json_limits import printable


class ToolInvocation(msgspec.Struct, frozen=True):
    """One call: source and arguments travel over a pipe, never pasted into code."""

    project_id: ProjectId
    """The project of the call: calls of two projects share no process."""
    source_code: str
    function: str
    arguments: dict[str, Any]
    argument_schema: dict[str, Any] | None = None
    """JSON Schema of the arguments, if the client has sent one. Arguments that `$defs` describes become objects."""
    environment: dict[str, str] = {}
    """Variables that this tool may see; it sees no others."""
    agent: dict[str, Any] | None = None
    """The agent and its memory as JSON, for a function with a parameter `agent_state`. None: the function gets None."""
    folders: tuple[str, ...] = ()
    """Folders of packages that this tool may import from. It can only read them."""
    language: Literal["python", "javascript"] = "python"
    """A source in JavaScript is a module that exports the function. If `function` is empty, the source is a program,
    whose value is its default export."""
    parameters: tuple[str, ...] = ()
    """The order of the arguments, for a language without named arguments."""
    has_network: bool = False
    """The call may connect to the hosts that the operator allows."""
    run_id: RunId | None = None
    """The run whose folder the call shares with other calls, within `ToolSandbox.of_run`; None: it has no folder."""
    idempotency_key: str = ""
    """The call's key, which is the same in every attempt. The function gets it if it has a parameter of this name."""
    is_probe: bool = False
    """The function gets only the arguments for which it has parameters."""
    timeout_s: float = 180.0
    limits: ToolLimits = ToolLimits()
    """The tool's own limits, if they are lower."""
    return_char_limit: int = DEFAULT_RETURN_CHAR_LIMIT

    @property
    def longest_s(self) -> float:
        """Seconds after which the call is stopped."""
        return self.timeout_s if self.limits.timeout_s is None else min(self.timeout_s, self.limits.timeout_s)

    @property
    def limited_by(self) -> str:
        """The source of `longest_s`: the tool, or the server's setting if the tool has no limit or a longer one."""
        own = self.limits.timeout_s
        return "limits.timeout_s of the tool" if own is not None and own <= self.timeout_s else "HOLDFAST_TOOL_TIMEOUT"


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one call, which the kernel enforces."""

    memory_bytes: int
    """Address space."""
    processor_s: int
    file_bytes: int
    """The longest file that the call may write."""
    threads: int = 1024
    """Where a call has no user of its own, all threads of its user count, so this can only stop a runaway."""

    def narrowed(self, wanted: ToolLimits) -> "CallLimits":
        """Returns these limits, or the tool's where they are lower."""
        memory_bytes = self.memory_bytes if wanted.memory_mb is None else min(self.memory_bytes, wanted.memory_mb << 20)
        processor_s = self.processor_s if wanted.cpu_s is None else min(self.processor_s, wanted.cpu_s)
        return msgspec.structs.replace(self, memory_bytes=memory_bytes, processor_s=processor_s)


class ToolOutcome(msgspec.Struct, frozen=True):
    """The outcome of the call. It is tenant data, and none of it is trusted."""

    status: Literal["success", "error"]
    text: str
    stdout: list[str] = []
    stderr: list[str] = []
    is_text: bool = True
    """As in `ToolReturn`."""


class ToolSandbox(Protocol):
    """Runs tool calls."""

    async def call(self, invocation: ToolInvocation) -> ToolOutcome:
        """Runs one call. A tool's own failure is an outcome, never an exception.

        When the awaiting task is cancelled, the tool gets its chance to clean up. The tool and every process that it
        has started are dead before the cancellation continues.
        """
        ...

    def of_run(self, run_id: RunId) -> AbstractAsyncContextManager[None]:
        """Calls of the run may share a folder within the block. The folder is deleted at its end."""
        ...

    async def aclose(self) -> None:
        """Ends every running call and frees the sandbox's resources."""
        ...


# Removes an agent's secrets from its tools' results and output, before the model, readers of the conversation or
# streams see them.
#
# This prevents accidents, such as a program that prints its settings or an error that quotes a request with its key. It
# does not stop a tool that leaks a secret on purpose: a secret that is spelled backwards, in pieces or encoded is not
# recognized.
#
# A tenant chooses the number and the text of secrets and the output of tools. So the cost of one result is bounded:
# each spelling is searched separately, in a time that grows with the text alone, and a text that is too long for the
# number of spellings loses its end.


SHORTEST = 8
"""Characters of the shortest value that is searched. Shorter values are words, which occur in any text."""

AT_ONCE = 500_000
"""Characters times spellings that are searched on the event loop: a millisecond; 30 for the worst of texts."""

MOST = 100_000_000
"""Characters times spellings that are searched at most: 0.2 s on a thread; some seconds for the worst of texts."""

CUT = "... [left out: too long to be looked through for the agent's secrets]"

_NOT_IN_A_NAME = re.compile(r"[^\w.-]")


async def without_secrets(outcome: ToolOutcome, secrets: Mapping[str, str]) -> ToolOutcome:
    """Returns the outcome with `[secret NAME]` in place of each value."""
    shown_as = dict(_spellings(secrets))
    if not shown_as:
        return outcome
    said = sum(map(len, (outcome.text, *outcome.stdout, *outcome.stderr)))
    if said * len(shown_as) <= AT_ONCE:
        return _redacted(outcome, shown_as)
    return await asyncio.to_thread(_redacted, outcome, shown_as)


def _redacted(outcome: ToolOutcome, shown_as: Mapping[str, str]) -> ToolOutcome:
    # Replace the longest first: a secret may be the beginning of another one.
    spellings = sorted(shown_as, key=len, reverse=True)
    longest = MOST // len(spellings)

    def redacted(text: str) -> str:
        text = text if len(text) <= longest else text[:longest] + CUT
        for spelling in spellings:
            text = text.replace(spelling, shown_as[spelling])
        return text

    return replace(
        outcome,
        text=redacted(outcome.text),
        stdout=redacted("\n".join(outcome.stdout)).split("\n") if outcome.stdout else [],
        stderr=[redacted(text) for text in outcome.stderr],
    )


def _spellings(secrets: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields each usual spelling of a value, with its replacement: the value itself, its JSON and Python forms, and
    each of its lines, because output is searched line by line."""
    for name, value in secrets.items():
        shown = f"[secret {_NOT_IN_A_NAME.sub('_', name)}]"
        for text in (value, *value.splitlines()):
            as_json = json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]
            ways = {text, text.strip(), *as_json, repr(text)[1:-1]}
            yield from ((way, shown) for way in ways if len(way) >= SHORTEST)


# The worker's ends of the pipes to a tool's process. They use no threads, and bounded memory whatever the tool does.


CHUNK_BYTES = 1 << 16
LAST_READS = 64
"""More than any pipe holds by default. A writer that has outlived its call must not keep the reader busy."""


class CappedPipe:
    """Reads all bytes that arrive, and keeps the first `limit`. Drains without waiting for an end of file, which a
    stray process could delay for ever."""

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
        """Reads the bytes that are left in the pipe after the last writer has died."""
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


@contextlib.contextmanager
def child_ends(pipes: contextlib.ExitStack, channels: Sequence["PayloadPipe | CappedPipe"]) -> Generator[list[int]]:
    """Opens the channels until `pipes` closes. Yields the child's ends, which this process closes after the block."""
    ends: list[int] = []
    try:
        for channel in channels:
            pipes.enter_context(channel)
            ends.append(channel.child_end)
        yield ends
    finally:
        for end in ends:
            os.close(end)


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
            except BrokenPipeError:  # the child died before it read everything; its exit status shows why
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
"""The most bytes in which JSON writes one character of valid text: a control character as an escape."""
SHUTTING_DOWN = ToolOutcome("error", "Error: the tool was not started, because the worker is shutting down")


NO_NODE = ToolOutcome("error", "Error: this worker has no Node.js, which runs JavaScript and TypeScript: use Python")


class Frame(msgspec.Struct):
    """The answer that the child writes on the result's descriptor; any tool can write there too."""

    status: str
    text: str
    truncated: bool = False
    is_text: bool = True


def text_limit(invocation: ToolInvocation) -> int:
    """Returns the number of the result's characters that are kept."""
    return max(0, min(invocation.return_char_limit, MAX_RESULT_CHARS))


def result_bytes(invocation: ToolInvocation) -> int:
    """Returns the bytes of the longest frame that is read."""
    return text_limit(invocation) * BYTES_PER_CHAR + 1024


def payload(invocation: ToolInvocation, limits: CallLimits) -> bytes:
    """Returns the bytes that the call's process reads first."""
    call: dict[str, Any] = {
        "source": textwrap.dedent(invocation.source_code),
        "function": invocation.function,
        "arguments": invocation.arguments,
        "parameters": invocation.parameters,
        "argument_schema": invocation.argument_schema,
        "agent": invocation.agent,
        "idempotency_key": invocation.idempotency_key,
        "is_probe": invocation.is_probe,
        "environment": invocation.environment,
        "folders": invocation.folders,
        "limits": msgspec.to_builtins(limits),
        "text_limit": text_limit(invocation),
    }
    return json.dumps(call).encode()


def not_started(error: OSError) -> ToolOutcome:
    """An error of the machine, not of the tool. The run can continue, and the model sees this result."""
    log.error("tool_process_not_started", reason=str(error))
    return ToolOutcome("error", f"Error: the tool was not started: {error.strerror or error}")


def refused(reason: str) -> ToolOutcome:
    """The call requires something that this worker does not provide."""
    return ToolOutcome("error", f"Error: the tool was not started: {reason}")


def read_frame(pipe: CappedPipe) -> Frame | None:
    """Returns the frame if it is complete and readable."""
    length, body = int.from_bytes(pipe.kept[:4], "big"), pipe.kept[4:]
    if not 0 < length <= len(body):
        return None
    try:
        return msgspec.json.decode(body[:length], type=Frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def outcome(frame: Frame, limit: int, stdout: CappedPipe, stderr: CappedPipe) -> ToolOutcome:
    """Returns the outcome with the frame and the output, within their limits."""
    text = printable(frame.text)
    if frame.truncated or len(text) > limit:
        notice = f"NOTE: function output was truncated since it exceeded the character limit of {limit}"
        text = f"{text[:limit]}... [{notice}]"
    status = "success" if frame.status == "success" else "error"
    return ToolOutcome(status, text, lines(stdout), whole(stderr), is_text=frame.is_text)


def how_it_ended(status: int) -> str:
    """Describes an exit status, in the form that a watcher reports."""
    killer = -status if status < 0 else status - 128
    if killer in {known.value for known in signal.Signals}:
        return f"the tool's process was killed by {signal.Signals(killer).name}"
    return f"the tool's process ended with status {status}"


def lines(pipe: CappedPipe) -> list[str]:
    """Returns captured output. Its last line states how much is missing."""
    found = printable(pipe.kept.decode("utf-8", "replace")).splitlines()
    missing = pipe.received - len(pipe.kept)
    return [*found, f"... [{missing} more bytes dropped]"] if missing else found


def whole(pipe: CappedPipe) -> list[str]:
    """Returns `lines` as one text, because clients read a tool's error output, such as a traceback, as a whole."""
    text = "\n".join(lines(pipe))
    return [text] if text else []
