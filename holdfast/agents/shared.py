"""A process with the bodies of several runs, for deployments where memory matters more than that a crash ends nobody
else's process.

Each run has a socket of its own and says what it says in a process of its own. When a body has ended, its process says
whether something of it goes on, because that could only be ended together with the other runs. A body that waits for
what comes in another process is frozen where it is: the loop calls nothing of it any more, so its code does nothing,
not even what stands in `finally`.
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
"""Threads for the functions of all runs that are not async."""

END_S = 1.0
"""Seconds for tasks that a body has left behind to end."""


class _Work:
    """What one body has begun in this process."""

    def __init__(self) -> None:
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.jobs: set[Future[Any]] = set()
        """Of the loop's threads."""
        self.is_frozen = False
        """The loop calls nothing of it any more."""
        self._before = set(threading.enumerate())

    async def end(self) -> None:
        """Cancels the tasks that are left, and gives them a moment."""
        if left := [task for task in self.tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=END_S)

    def goes_on(self, ours: set[threading.Thread]) -> bool:
        """Whether something of it may go on. Nobody knows whose a thread is that a library has started meanwhile, or a
        process, so any counts."""
        return (
            any(not task.done() for task in self.tasks if not self.is_frozen)
            or bool(self.jobs)
            or any(one.name != FORWARDER for one in set(threading.enumerate()) - self._before - ours)
            or _has_children()
        )


_WORK: contextvars.ContextVar[_Work | None] = contextvars.ContextVar("holdfast_work", default=None)


class _Loop(asyncio.SelectorEventLoop):
    """A loop that stops to call what belongs to a frozen body: its tasks, its timers and its callbacks."""

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(_unless_frozen(callback, context), *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon_threadsafe(_unless_frozen(callback, context), *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return super().call_at(when, _unless_frozen(callback, context), *args, context=context)


def _unless_frozen(callback: Any, context: contextvars.Context | None) -> Any:
    """The callback, which does nothing when the body is frozen that it belongs to."""
    work = _WORK.get() if context is None else context.get(_WORK)
    if work is None:
        return callback

    def called(*args: Any) -> None:
        if not work.is_frozen:
            callback(*args)

    return called


class _Threads(Threads):
    """The loop's threads. They note whose job each of them does."""

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
    """Executes the bodies that come over this socket, each with a socket of its own, until the worker hangs up."""
    begin_sharing()
    try:
        # No `asyncio.run`: at its end it cancels what is left, which would execute what bodies do in `finally`.
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
            # The worker has left the body where it waits, and the journal goes on elsewhere. Ending the body here would
            # execute what it does in `finally`, as no killed process does.
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
    """A task that its body's work knows of."""
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
