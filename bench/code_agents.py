"""The module of agents that the section `code-agents` measures. They measure themselves, and answer with the figures.

A message is JSON: `count` is the number of operations. An answer is JSON, too: `wall_s` and `cpu_s` of all of them.
"""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from holdfast.agents import Run, agent

YIELDS_EVERY = 50
"""Tokens after which an agent lets its loop send them."""

DEATHS = 5
"""The number of processes of `replays` that die. The same number replays."""


@contextmanager
def _measured(report: dict[str, float]) -> Generator[None]:
    wall, cpu = time.monotonic(), time.process_time()
    yield
    report["wall_s"], report["cpu_s"] = time.monotonic() - wall, time.process_time() - cpu


@agent("empty")
async def empty(_run: Run) -> str:
    """Does nothing."""
    return ""


@agent("steps")
async def steps(run: Run) -> str:
    """Takes steps that do nothing."""
    report: dict[str, float] = {}
    with _measured(report):
        await _take_steps(run)
    return json.dumps(report)


@agent("tools")
async def tools(run: Run) -> str:
    """Calls a tool that does nothing, which clients see."""
    report: dict[str, float] = {}
    with _measured(report):
        for _ in range(_count(run)):
            await run.tool("one", _nothing)
    return json.dumps(report)


@agent("replays")
async def replays(run: Run) -> str:
    """Takes steps that do nothing, dies `DEATHS` times, and measures how long the same steps take if the journal has
    them."""
    report: dict[str, float] = {}
    with _measured(report):
        await _take_steps(run)
    for _ in range(run.attempt):
        await run.step("again", _nothing)  # each process must add an entry to the journal
    if run.attempt <= DEATHS:
        os.kill(os.getpid(), signal.SIGKILL)
    return json.dumps(report)


@agent("tokens")
async def tokens(run: Run) -> str:
    """Emits tokens as fast as its worker takes them."""
    report: dict[str, float] = {}
    with _measured(report):
        for number in range(_count(run)):
            run.emit_text(f"token {number} ")
            if number % YIELDS_EVERY == 0:
                await asyncio.sleep(0)
    run.emit_text(json.dumps(report))
    return ""


@agent("waits")
async def waits(run: Run) -> str:
    """Takes a step, and waits for ever."""
    await run.step("first", _nothing)
    await asyncio.Event().wait()
    return ""


@agent("floor")
async def floor(run: Run) -> str:
    """Measures the cost of asyncio itself: frames of a step's size, there and back, both sides in this process."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    far_reader, far_writer = await asyncio.open_unix_connection(sock=theirs)

    async def answer() -> None:
        while (frame := await _read(far_reader)) is not None:
            _write(far_writer, {"t": "result", "value": frame["name"], "at": 1.0, "id": frame["id"]})

    answering = asyncio.create_task(answer())
    report: dict[str, float] = {}
    with _measured(report):
        for number in range(_count(run)):
            _write(writer, {"t": "begin", "kind": "step", "name": "one", "branch": "", "hash": "0" * 32, "id": number})
            await _read(reader)
    writer.close()
    await answering
    far_writer.close()
    return json.dumps(report)


async def _take_steps(run: Run) -> None:
    for _ in range(_count(run)):
        await run.step("one", _nothing)


async def _nothing() -> None:
    """The function of each step. It does nothing."""


def _count(run: Run) -> int:
    return json.loads(run.text)["count"]


def _write(writer: asyncio.StreamWriter, frame: dict[str, Any]) -> None:
    data = json.dumps(frame, separators=(",", ":")).encode()
    writer.write(len(data).to_bytes(4, "big") + data)


async def _read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    try:
        return json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
    except asyncio.IncompleteReadError:
        return None
