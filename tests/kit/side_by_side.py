"""Tests in processes that are forked once the tests are known: `pytest --processes 5`.

The collection of the tests costs seconds of work, mostly for imports and parameters. Plugins that start interpreters
collect again in each of them, and compare the results. Here the session collects once and forks: its processes begin
with everything imported and share that memory, and the session forks a process anew if it dies.

Each process begins with a part of the tests that is expected to take as long as any other's, module by module, so that
the shared fixtures of a module are made once. The modules with the longest tests come first. A process that has
finished takes the second half of the part that is expected to take longest.
"""

import multiprocessing
import os
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import pytest
from _pytest.capture import CaptureManager

from tests.kit.expected_times import ExpectedTimes, kept_times
from tests.kit.process_number import PROCESS

WORK_WITH_TESTS = frozenset({"session", "logging-plugin"})
"""Plugins of pytest that get results and also act on the tests. All others show or store results."""

Message = (
    tuple[Literal["next", "begun", "ended"], int]
    | tuple[Literal["report"], dict[str, Any]]
    | tuple[Literal["broken"], str]
)
"""The messages of a process: it wants the item after this one, it has begun or ended an item, a phase has a report, or
the process cannot continue, with the traceback."""


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
        nodeids = [item.nodeid for item in session.items]
        expected = ExpectedTimes(kept_times())
        self._seconds = [expected.of(nodeid) for nodeid in nodeids]
        self._parts = [deque(expected.longest_first(nodeids, part)) for part in parts(self._seconds, count)]

    def run(self) -> None:
        """Runs every item. Raises the exceptions of pytest's own loop if a failure ends it early."""
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
        # The child inherits the pipes of the others, and must not keep one open whose process has died.
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
        """Takes the second half, by time, of what another process is to do, from the beginning of a module."""
        longest = max((other.part for other in self._workers.values()), key=self._left)
        paths = [self._session.items[index].path for index in longest]
        for _ in range(len(longest) - middle(paths, [self._seconds[index] for index in longest])):
            worker.part.appendleft(longest.pop())

    def _left(self, part: deque[int]) -> float:
        return sum(self._seconds[index] for index in part)

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
    """The next message of the process at the other end; None when it has ended."""
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        return None


def parts(seconds: Sequence[float], processes: int) -> list[list[int]]:
    """The indexes of the items, which are expected to take so long, in parts that take equally long, in their order."""
    made: list[list[int]] = [[] for _ in range(processes)]
    total, before = sum(seconds), 0.0
    for index, taken in enumerate(seconds):
        made[min(processes - 1, int(processes * (before + taken / 2) / total))].append(index)
        before += taken
    return made


def middle(paths: Sequence[object], seconds: Sequence[float]) -> int:
    """The place to cut a part whose items are of these modules and take this long: where half of its time is over, or
    where a module begins behind that. The last item is behind the cut: the process that has the part has others in
    hand."""
    before = list(accumulate(seconds, initial=0.0))
    last = max(len(paths) - 1, 0)
    half = next((at for at in range(1, last) if 2 * before[at] >= before[-1]), last)
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
            # pytest tears down the fixtures that the next item does not use, so it must know that item.
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
    """Plugins that show results do so in the session's process. A test's captured output goes to a file of our own."""
    manager, hook = session.config.pluginmanager, session.config.hook
    for implementation in hook.pytest_runtest_logreport.get_hookimpls():
        if implementation.plugin_name not in WORK_WITH_TESTS:
            manager.unregister(implementation.plugin)
    manager.register(_Reports(connection, session.config))
    capture = manager.getplugin("capturemanager")
    if isinstance(capture, CaptureManager):
        capture.stop_global_capturing()
        if session.config.option.capture == "fd":
            # Between two tests nothing is captured. The output of a thread that still ends then belongs to no test.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        capture.start_global_capturing()


class _Reports:
    def __init__(self, connection: Connection, config: pytest.Config) -> None:
        self._connection, self._config = connection, config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))
