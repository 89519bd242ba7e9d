"""What a tool's process has written, as an outcome. All of it is tenant data: nothing in it is trusted."""

import json
import signal
import textwrap
from typing import Any

import msgspec
import structlog

from worker.tools.capped_pipe import CappedPipe
from worker.tools.invocation import CallLimits, ToolInvocation, ToolOutcome

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
    """The machine's fault, not the tool's; but the run can go on and the model can be told."""
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
