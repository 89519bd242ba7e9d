"""The floor of agents in code: a worker, a host that forks, and a body, with only the standard library.

The worker answers frames of JSON over asyncio's streams, and keeps a journal in SQLite. It matches a call with its
journal by name and number, and has no runs, leases, fences, logs, readers, cancels or decisions: these account for the
additional cost of agents in the product. `python -m bench.bare_agents` prints its figures as JSON.
"""

import asyncio
import gc
import hashlib
import json
import os
import signal
import socket
import sqlite3
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil

EMPTY, STEPS, TOKENS = 30, 300, 20_000
YIELDS_EVERY = 50
"""Tokens after which a body lets its loop send them."""

Frame = dict[str, Any]


class BareFigures(NamedTuple):
    """The cost of the floor: microseconds for each of many operations, and MB."""

    step: tuple[float, float, float]
    """Wall time, and the processor time of the body and of the worker."""
    tool: tuple[float, float, float]
    replayed: tuple[float, float, float]
    token: tuple[float, float, float]
    empty_s: list[float]
    """Seconds of each process that did nothing."""
    memory_mb: float


async def measured() -> BareFigures:
    """Measures the floor in a process of its own, which has nothing else in its memory."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.bare_agents", stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise OSError(f"the floor of agents in code ended with {process.returncode}")
    return BareFigures(**json.loads(said))


class _Journal:
    """The entries of one turn; one transaction for each change."""

    def __init__(self, place: Path) -> None:
        self._database = sqlite3.connect(place, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute("CREATE TABLE steps (slot TEXT PRIMARY KEY, hash TEXT, state TEXT, value BLOB)")
        self.values: dict[str, Any] = {}
        """The values of ended calls, by slot."""

    def start(self, slot: str, content: str) -> None:
        """Stores that a tool is about to start."""
        self._database.execute("INSERT INTO steps VALUES (?, ?, 'started', NULL)", (slot, content))

    def end(self, slot: str, content: str, value: Any) -> None:
        """Stores the value of a call."""
        self.values[slot] = value
        self._database.execute(
            "INSERT INTO steps VALUES (?, ?, 'done', ?)"
            " ON CONFLICT (slot) DO UPDATE SET state = 'done', value = excluded.value",
            (slot, content, zlib.compress(json.dumps(value).encode(), 1)),
        )

    def close(self) -> None:
        """Closes its database."""
        self._database.close()


class _Worker:
    """Executes bodies, one after the other."""

    def __init__(self, control: socket.socket, directory: Path) -> None:
        self._control = control
        self._directory = directory

    async def run(self, body: str, count: int) -> tuple[float, float, float]:
        """Executes a body until it returns. Returns the cost of each of `count` operations."""
        number = len([*self._directory.iterdir()])
        with closing(_Journal(self._directory / f"{number}.db")) as journal:
            attempt = 1
            while True:
                before = time.process_time()
                report = await self._attempt(journal, body, count, attempt)
                used_s = time.process_time() - before
                if report is not None:
                    us = 1e6 / count
                    return report["wall_s"] * us, report["cpu_s"] * us, used_s * us
                attempt += 1

    async def empty_s(self) -> float:
        """The seconds from the request for a process to its end, if its body does nothing."""
        began = time.monotonic()
        pid, reader, writer = await self._forked()
        _send(writer, {"body": "empty", "count": 0, "attempt": 1})
        await _received(reader)
        self._bury(pid)
        writer.close()
        return time.monotonic() - began

    async def memory_mb(self) -> float:
        """Returns the MB that the process of a waiting body has for itself."""
        with closing(_Journal(self._directory / "waits.db")) as journal:
            pid, reader, writer = await self._forked()
            _send(writer, {"body": "waits", "count": 1, "attempt": 1})
            while (frame := await _received(reader)) is not None and frame["t"] != "waits":
                _answer(writer, frame, journal)
            size = psutil.Process(pid).memory_full_info().uss / 1e6
            self._bury(pid)
            writer.close()
        return size

    async def _attempt(self, journal: _Journal, body: str, count: int, attempt: int) -> dict[str, float] | None:
        """Returns the costs that the body reports; None if it has ended its process."""
        pid, reader, writer = await self._forked()
        _send(writer, {"body": body, "count": count, "attempt": attempt})
        report, shown = None, list[str]()
        while (frame := await _received(reader)) is not None:
            if frame["t"] == "returned":
                report = frame["report"]
                break
            if frame["t"] == "text":
                shown.append(frame["text"])
            else:
                _answer(writer, frame, journal)
        self._bury(pid)
        writer.close()
        return report

    async def _forked(self) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
        pid = int(self._control.recv(100))
        return pid, *await asyncio.open_unix_connection(sock=ours)

    def _bury(self, pid: int) -> None:
        self._control.send(str(pid).encode())
        self._control.recv(100)


def _answer(writer: asyncio.StreamWriter, frame: Frame, journal: _Journal) -> None:
    slot, content = frame["slot"], frame["hash"]
    answer: Frame = {"t": "stored", "at": time.time()}
    if frame["t"] == "end":
        journal.end(slot, content, frame["value"])
    elif slot in journal.values:
        answer |= {"t": "result", "value": journal.values[slot]}
    else:
        if frame["kind"] == "tool":
            journal.start(slot, content)
        answer["t"] = "go"
    _send(writer, {**answer, "id": frame["id"]})


class _Body:
    """The body's side: calls that are journaled, and tokens."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self._number = 0
        self._ordinals = Counter[str]()

    async def call(self, kind: str, name: str, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Calls the function once, or takes its value from the journal."""
        content = hashlib.sha256(json.dumps(args).encode()).hexdigest()
        slot = f"{kind}:{name}#{self._ordinals[name]}"
        self._ordinals[name] += 1
        entry = {"kind": kind, "slot": slot, "hash": content}
        answer = await self._ask({"t": "begin", **entry})
        if answer["t"] == "result":
            return answer["value"]
        value = json.loads(json.dumps(await function(*args)))
        await self._ask({"t": "end", **entry, "value": value})
        return value

    def tell(self, frame: Frame) -> None:
        """Sends a frame that has no answer."""
        _send(self._writer, frame)

    async def listen(self) -> None:
        """Takes answers until the worker hangs up."""
        while (frame := await _received(self._reader)) is not None:
            self._asked[frame["id"]].set_result(frame)

    async def _ask(self, frame: Frame) -> Frame:
        self._number = number = self._number + 1
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.tell({**frame, "id": number})
        try:
            return await answer
        finally:
            del self._asked[number]


async def _execute(connection: socket.socket) -> None:
    """Executes one body, in a process that was forked for it."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    wish = await _received(reader)
    if wish is None:
        return
    body, count = _Body(reader, writer), wish["count"]
    listening = asyncio.create_task(body.listen(), name="answers")
    wall, cpu = time.monotonic(), time.process_time()
    match wish["body"]:
        case "steps" | "tools":
            await _call(body, wish["body"].removesuffix("s"), count)
        case "replays":
            await _call(body, "step", count)
            if wish["attempt"] == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        case "tokens":
            for number in range(count):
                body.tell({"t": "text", "text": f"token {number} "})
                if number % YIELDS_EVERY == 0:
                    await asyncio.sleep(0)
        case "waits":
            await _call(body, "step", 1)
            body.tell({"t": "waits"})
            await listening
        case _:
            pass
    report = {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu}
    body.tell({"t": "returned", "report": report})
    await listening


async def _call(body: _Body, kind: str, count: int) -> None:
    for _ in range(count):
        await body.call(kind, "one", _nothing)


async def _nothing() -> None:
    """The function of each call. It does nothing."""


def _send(writer: asyncio.StreamWriter, frame: Frame) -> None:
    data = json.dumps(frame, separators=(",", ":")).encode()
    writer.write(len(data).to_bytes(4, "big") + data)


async def _received(reader: asyncio.StreamReader) -> Frame | None:
    try:
        return json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _host(control: socket.socket) -> None:
    """Forks and buries bodies on the worker's requests, until the worker is gone."""
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 100, 1)
        if not data:
            return
        if data != b"fork":
            os.kill(int(data), signal.SIGKILL)
            os.waitpid(int(data), 0)
            control.send(b"gone")
        elif pid := os.fork():
            os.close(descriptors[0])
            control.send(str(pid).encode())
        else:
            control.close()
            asyncio.run(_execute(socket.socket(fileno=descriptors[0])))
            os._exit(0)


async def _all_of(control: socket.socket) -> BareFigures:
    with TemporaryDirectory(prefix="bare-agents-") as place:
        worker = _Worker(control, Path(place))
        return BareFigures(
            step=await worker.run("steps", STEPS),
            tool=await worker.run("tools", STEPS),
            replayed=await worker.run("replays", STEPS),
            token=await worker.run("tokens", TOKENS),
            empty_s=[await worker.empty_s() for _ in range(EMPTY)],
            memory_mb=await worker.memory_mb(),
        )


def main() -> None:
    """Forks the host before the worker has a loop, as the product starts it in a process of its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _host(theirs)
        os._exit(0)
    theirs.close()
    with ours:
        print(json.dumps(asyncio.run(_all_of(ours))._asdict()))
    os.wait()


if __name__ == "__main__":
    main()
