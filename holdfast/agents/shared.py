"""A process with the bodies of several runs, for deployments that save memory even if a crash then ends several runs'
process.

Each run has a socket of its own, as in a process of its own. When a body has ended, its process reports whether a part
of it continues, because only the end of the whole process could end that part. A body that waits for something that
another process will get is frozen: the loop calls nothing of it any longer, so none of its code runs, not even in
`finally`.
"""

import asyncio
import contextvars
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from weakref import WeakSet

from holdfast.agents.adapters import begin_sharing
from holdfast.agents.child import Threads, WorkerConnection, execute_body
from holdfast.agents.models import FORWARDER

LONGEST_REQUEST = 65536

THREADS = 64
"""Threads for functions of all runs that are not async."""

END_S = 1.0
"""Seconds for tasks that a body has left behind to end."""


class _Work:
    """The tasks and jobs that one body has begun in this process."""

    def __init__(self) -> None:
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.jobs: set[Future[Any]] = set()
        """Jobs of the loop's threads."""
        self.is_frozen = False
        """Whether the loop calls nothing of the body any longer."""
        self._before = set(threading.enumerate())

    async def end(self) -> None:
        """Cancels the remaining tasks, and waits a moment for their end."""
        if left := [task for task in self.tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=END_S)

    def goes_on(self, ours: set[threading.Thread]) -> bool:
        """Whether a part of the body may continue. The body of a thread or process that a library has started meanwhile
        is unknown, so any such thread or process counts."""
        return (
            any(not task.done() for task in self.tasks if not self.is_frozen)
            or bool(self.jobs)
            or any(one.name != FORWARDER for one in set(threading.enumerate()) - self._before - ours)
            or _has_children()
        )


_WORK: contextvars.ContextVar[_Work | None] = contextvars.ContextVar("holdfast_work", default=None)


class _Loop(asyncio.SelectorEventLoop):
    """A loop that no longer calls the tasks, timers and callbacks of frozen bodies."""

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(_unless_frozen(callback, context), *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon_threadsafe(_unless_frozen(callback, context), *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return super().call_at(when, _unless_frozen(callback, context), *args, context=context)


def _unless_frozen(callback: Any, context: contextvars.Context | None) -> Any:
    """Returns the callback, which does nothing if its body is frozen."""
    work = _WORK.get() if context is None else context.get(_WORK)
    if work is None:
        return callback

    def called(*args: Any) -> None:
        if not work.is_frozen:
            callback(*args)

    return called


class _Threads(Threads):
    """The loop's threads. They record the body of each job."""

    def __init__(self) -> None:
        self.all: set[threading.Thread] = set()
        super().__init__(THREADS, initializer=lambda: self.all.add(threading.current_thread()))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        job = super().submit(fn, *args, **kwargs)
        if (work := _WORK.get()) is not None:
            work.jobs.add(job)
            job.add_done_callback(work.jobs.discard)
        return job


def execute_several(control: socket.socket) -> None:
    """Executes the bodies that arrive over this socket, each with a socket of its own, until the worker hangs up."""
    begin_sharing()
    try:
        # Not `asyncio.run`: at its end it cancels the remaining tasks, which would execute the bodies' `finally`.
        _Loop().run_until_complete(_Bodies(control).execute())
    except BaseException:  # noqa: BLE001 - as of a body that calls `sys.exit`
        traceback.print_exc()
        _exit(1)
    _exit(0)


def _exit(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class _Bodies:
    """The bodies that this process executes."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._threads = _Threads()
        self._kept: set[asyncio.Task[Any]] = set()
        self._is_over = asyncio.Event()

    async def execute(self) -> None:
        """Returns when the worker has hung up."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_noted_task)
        loop.set_default_executor(self._threads)
        self._control.setblocking(False)
        loop.add_reader(self._control, self._begin)
        await self._is_over.wait()

    def _begin(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, LONGEST_REQUEST, 1)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            self._is_over.set()
            return
        name, connection = json.loads(data)["agent"], socket.socket(fileno=descriptors[0])
        task = asyncio.create_task(self._execute(name, connection), name=f"a run of {name}")
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def _execute(self, name: str, connection: socket.socket) -> None:
        worker = WorkerConnection(*await asyncio.open_unix_connection(sock=connection))
        try:
            await self._converse(name, worker)
        except Exception:  # noqa: BLE001 - the worker finds that it has hung up, and ends this process
            traceback.print_exc()
            worker.hang_up()

    async def _converse(self, name: str, worker: WorkerConnection) -> None:
        hello = await worker.hello()
        if hello is None:
            return
        work, context = _Work(), contextvars.copy_context()
        context.run(_WORK.set, work)
        body = context.run(asyncio.create_task, execute_body(name, worker, hello), name=f"run {hello['id']}")
        listening = asyncio.create_task(worker.listen(body), name="frames of the worker")
        await asyncio.wait([body, listening], return_when=asyncio.FIRST_COMPLETED)
        if not body.done():
            # The worker has left the body where it waits, and the journal continues elsewhere. Ending the body here
            # would execute its `finally`, which a killed process never does.
            work.is_frozen = True
            self._kept |= {body, *work.tasks}
            worker.tell({"t": "left", "goes_on": work.goes_on(self._threads.all)})
            await asyncio.Event().wait()
        ended = body.result()
        await work.end()
        worker.tell({"t": "left", "goes_on": work.goes_on(self._threads.all)})
        worker.send(ended)
        await listening


def _noted_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    """Creates a task that its body's work knows."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    if (work := _WORK.get()) is not None:
        work.tasks.add(task)
    return task


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
