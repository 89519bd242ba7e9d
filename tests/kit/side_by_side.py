"""Tests in processes that are forked once the tests are known: `pytest --processes 5`.

To collect the tests costs seconds of work, most of it imports and parameters. Plugins that start interpreters collect
anew in each of them, and compare what they found. Here the session collects once and forks: its processes begin with
everything imported, share that memory, and a process that died is forked anew.

Each process begins with a part of the tests, in their order, so that what a module's tests share is made once. Whoever
has finished takes the second half of the longest part that is left.
"""

import multiprocessing
import os
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import pytest
from _pytest.capture import CaptureManager

from tests.kit.process_number import PROCESS

WORK_WITH_TESTS = frozenset({"session", "logging-plugin"})
"""Plugins of pytest that hear of results and have work with the tests themselves. All others show or keep results."""

Message = (
    tuple[Literal["next", "begun", "ended"], int]
    | tuple[Literal["report"], dict[str, Any]]
    | tuple[Literal["broken"], str]
)
"""What a process says: it wants the item behind this one, has begun or ended one, one of its phases has a report, or
the process cannot go on, with the traceback."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="run the tests in N processes that are forked when the tests are known (default: %(default)s)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Replaces pytest's loop if several processes were asked for. What it looks at first is looked at here too."""
    count: int = min(session.config.option.processes, len(session.items))
    options = session.config.option
    if count < 2 or options.collectonly:
        return None
    if session.testsfailed and not options.continue_on_collection_errors:
        return None  # pytest's own loop says so
    _Crew(session, count).run()
    return True


@dataclass(eq=False)
class _Worker:
    """A process of tests, as the session sees it."""

    number: int
    process: BaseProcess
    part: deque[int]
    """Indexes of the items that it is to be given."""
    running: int | None = None
    given: deque[int] = field(default_factory=deque[int])
    """Items that it has been given and has not begun."""


class _Crew:
    """The session's side: gives items to processes and shows what they report."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session, self._hook = session, session.config.hook
        self._workers: dict[Connection, _Worker] = {}
        self._parts = [deque(part) for part in parts(len(session.items), count)]

    def run(self) -> None:
        """Returns when each item has been run. Raises what pytest's loop raises when a failure ends it early."""
        for number, part in enumerate(self._parts):
            self._start(number, part)
        try:
            while self._workers:
                for connection in wait(list(self._workers)):
                    assert isinstance(connection, Connection)
                    self._hear(connection, self._workers[connection])
        finally:
            for connection, worker in self._workers.items():  # there are some only if the session was interrupted
                connection.close()
                worker.process.terminate()
                worker.process.join()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _start(self, number: int, part: deque[int]) -> None:
        ours, theirs = multiprocessing.Pipe()
        # The pipes of the others are open in it as well: it must not hold one whose process has died.
        not_its = [ours, *self._workers]
        process = multiprocessing.get_context("fork").Process(
            target=_work, args=(self._session, number, theirs, not_its), name=f"tests {number}"
        )
        process.start()
        theirs.close()
        self._workers[ours] = _Worker(number, process, part)

    def _hear(self, connection: Connection, worker: _Worker) -> None:
        match _received(connection):
            case None:
                self._is_gone(connection, worker)
            case ("next", _):
                self._give(connection, worker)
            case ("begun", index):
                assert worker.given.popleft() == index
                worker.running = index
            case ("ended", index):
                worker.running = None
                item = self._session.items[index]
                self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            case ("report", data):
                report = self._hook.pytest_report_from_serializable(config=self._session.config, data=data)
                self._hook.pytest_runtest_logreport(report=report)
            case ("broken", why):
                raise RuntimeError(f"The process of tests {worker.number} cannot go on:\n{why}")

    def _give(self, connection: Connection, worker: _Worker) -> None:
        if self._session.shouldfail or self._session.shouldstop:
            connection.send(None)
            return
        if not worker.part:
            self._take_over(worker)
        index = worker.part.popleft() if worker.part else None
        if index is not None:
            worker.given.append(index)
        connection.send(index)

    def _take_over(self, worker: _Worker) -> None:
        """Half of the longest part that is left, from where a module begins."""
        longest = max((other.part for other in self._workers.values()), key=len)
        paths = [self._session.items[index].path for index in longest]
        for _ in range(len(longest) - middle(paths)):
            worker.part.appendleft(longest.pop())

    def _is_gone(self, connection: Connection, worker: _Worker) -> None:
        del self._workers[connection]
        connection.close()
        worker.process.join()
        status = worker.process.exitcode
        if status == 0 and worker.running is None:
            return
        if worker.running is None:
            raise RuntimeError(f"The process of tests {worker.number} ended with {status} and had no test in hand")
        item = self._session.items[worker.running]
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"Its process ended with {status} in the middle of {item.nodeid}",
            when="call",
        )
        self._hook.pytest_runtest_logreport(report=report)
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._start(worker.number, deque([*worker.given, *worker.part]))


def _received(connection: Connection) -> Message | None:
    """What the process at the other end says; None when it has ended."""
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        return None


def parts(items: int, processes: int) -> list[range]:
    """The indexes of the items in parts of the same length, but for one, in their order."""
    ends = [items * number // processes for number in range(processes + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]


def middle(paths: Sequence[object]) -> int:
    """Where to cut a part, of whose items these are the modules: where one begins behind its middle, else there."""
    half = (len(paths) + 1) // 2
    return next((at for at in range(half, len(paths)) if at and paths[at] != paths[at - 1]), half)


def _work(session: pytest.Session, number: int, connection: Connection, not_ours: list[Connection]) -> None:
    """Runs in the process of tests, until no item is left for it."""
    for other in not_ours:
        other.close()
    os.environ[PROCESS] = str(number)

    def following(index: int) -> int | None:
        connection.send(("next", index))
        return connection.recv()

    try:
        _report_to(connection, session)
        index = following(-1)
        while index is not None:
            # Fixtures that the next one does not use are torn down with this one, so it must be known.
            next_index = following(index)
            connection.send(("begun", index))
            next_item = None if next_index is None else session.items[next_index]
            session.config.hook.pytest_runtest_protocol(item=session.items[index], nextitem=next_item)
            connection.send(("ended", index))
            index = next_index
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        os._exit(1)  # the session has been interrupted, and says so
    except BaseException:
        connection.send(("broken", traceback.format_exc()))
        raise


def _report_to(connection: Connection, session: pytest.Session) -> None:
    """Whoever shows results does it in the session's process. What is caught of a test goes to a file of our own."""
    manager, hook = session.config.pluginmanager, session.config.hook
    for implementation in hook.pytest_runtest_logreport.get_hookimpls():
        if implementation.plugin_name not in WORK_WITH_TESTS:
            manager.unregister(implementation.plugin)
    manager.register(_Reports(connection, session.config))
    capture = manager.getplugin("capturemanager")
    if isinstance(capture, CaptureManager):
        capture.stop_global_capturing()
        if session.config.option.capture == "fd":
            # Between two tests nothing is caught. What a thread that still ends writes there belongs to no test.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        capture.start_global_capturing()


class _Reports:
    def __init__(self, connection: Connection, config: pytest.Config) -> None:
        self._connection, self._config = connection, config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))
