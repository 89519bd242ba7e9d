"""An MCP server as a process on this machine. Each message is one line of JSON on its standard input or output.

The package's own transport would give the server this process's variables, and read lines of any length.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from shared.domain.mcp_servers import McpTarget
from shared.mcp.guarded_http import ANSWER_BYTES

ENDS_S = 1.0
"""Seconds for a server to end after its input has been closed, and again after SIGTERM."""

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_streams(target: McpTarget, broken: Callable[[str], None]) -> AsyncGenerator[Streams]:
    """Runs the target's command for the block, in its own process group, and kills the group at the end.

    The command inherits only PATH from this process's variables. `broken` is called, with the reason, when the process
    ends or writes an unreadable message. Raises `OSError` if the command cannot be started.
    """
    # A pipe of our own, which we can close: a child of the process may keep the other end open for ever.
    read_end, write_end = os.pipe()
    lines = asyncio.StreamReader(limit=ANSWER_BYTES)
    try:
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(read_end, "rb", 0)
        )
        try:
            process = await _started(target, write_end)
        except BaseException:
            pipe.close()
            raise
    finally:
        os.close(write_end)
    try:
        to_session, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        from_session, sent = anyio.create_memory_object_stream[SessionMessage](0)
        async with to_session, received, from_session, sent, anyio.create_task_group() as group:
            group.start_soon(_read, lines, to_session, broken)
            group.start_soon(_write, process, sent, broken)
            try:
                yield received, from_session
            finally:
                group.cancel_scope.cancel()
    finally:
        pipe.close()
        await _end(process)


async def _started(target: McpTarget, output: int) -> Process:
    return await asyncio.create_subprocess_exec(
        target.command,
        *target.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.environ.get("PATH", _DEFAULT_PATH), **target.env},
        cwd=tempfile.gettempdir(),
        start_new_session=True,
    )


async def _read(
    lines: asyncio.StreamReader,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    broken: Callable[[str], None],
) -> None:
    async with to_session:
        while True:
            try:
                line = await lines.readline()
            except ValueError:
                broken(f"it wrote a line of more than {ANSWER_BYTES} bytes")
                return
            if not line:
                broken("its process has ended, or has closed its output")
                return
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError:
                # Programs also print texts for people to their output. Such a line must not break a call.
                continue
            try:
                await to_session.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


async def _write(
    process: Process, sent: MemoryObjectReceiveStream[SessionMessage], broken: Callable[[str], None]
) -> None:
    if process.stdin is None:
        return
    async with sent:
        async for message in sent:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
            except (OSError, RuntimeError):
                broken("its process has ended, or reads no input")
                return


async def _end(process: Process) -> None:
    """Ends the process and its children: closes their input, then sends SIGTERM, then SIGKILL. A cancellation sends
    SIGKILL at once."""
    try:
        if process.stdin is not None:
            process.stdin.transport.abort()
        if not await _has_ended(process):
            _signal(process, signal.SIGTERM)
            await _has_ended(process)
    finally:
        _signal(process, signal.SIGKILL)
    await _has_ended(process)


async def _has_ended(process: Process) -> bool:
    """Waits for the process only: its children may keep its pipes open."""
    deadline = asyncio.get_running_loop().time() + ENDS_S
    while process.returncode is None:
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def _signal(process: Process, number: signal.Signals) -> None:
    # The group has the process's number, even after the process has ended.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
