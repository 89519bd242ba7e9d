"""The process of one body: it communicates with the worker over one socket, and executes the body once."""

import asyncio
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from holdfast.agents.errors import StepFailed, error_fields, sole
from holdfast.agents.forks import only_here
from holdfast.agents.frames import Frame, packed, read_frame
from holdfast.agents.registry import REGISTERED
from holdfast.agents.run import Run
from holdfast.agents.values import Answer, plain

MOST_FRAMES_NAMED = 5
"""The functions of the program that an error names, the innermost last."""

RESTS, REST_S = 10, 0.005
"""A body that waits for a person is at rest after this number of turns of its loop, with these seconds between them.
Calls that begin to wait meanwhile are asked for together."""


LONGEST_TRACEBACK = 50_000
"""Characters."""


class Threads(ThreadPoolExecutor):
    """The loop's threads, for functions that are not async."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Calls the function in a thread."""
        return super().submit(_ended, fn, *args, **kwargs)


def _ended(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the function. An exception that asyncio cannot pass on becomes a `RuntimeError` that names it: before
    Python 3.12, a task waits for `StopIteration` for ever, and in a framework's task `sys.exit` ends the process."""
    try:
        with only_here():
            return function(*args, **kwargs)
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        kind, text = error_fields(error).values()
        raise RuntimeError(f"the function raised {kind}" + (f": {text}" if text else "")) from error


class WorkerConnection:
    """The worker, at the other end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self._number = 0
        self._resting: asyncio.Task[None] | None = None
        self.run: Run | None = None
        """The run, once its body has begun."""

    async def hello(self) -> Frame | None:
        """Returns the first frame; None if the worker is gone."""
        return await read_frame(self._reader)

    async def ask(self, frame: Frame) -> Frame:
        """Sends a frame and returns the answer to it."""
        if asyncio.get_running_loop() is not self._loop:  # that of an `asyncio.run` in a thread
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.ask(frame), self._loop))
        self._number = number = self._number + 1
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.tell({**frame, "id": number})
        try:
            return await answer
        finally:
            del self._asked[number]

    def tell(self, frame: Frame) -> None:
        """Sends a frame that has no answer. Raises as `packed`."""
        self.send(packed(frame))

    def send(self, data: bytes) -> None:
        """Sends packed frames. Does nothing if the worker has hung up."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def _rest(self, number: int) -> None:
        """Reports that the process is at rest, after all tasks that could continue at once have continued."""
        for _ in range(RESTS):
            await asyncio.sleep(REST_S)
        self.tell({"t": "rested", "number": number})

    def hang_up(self) -> None:
        """Ends the connection."""
        self._writer.close()

    async def listen(self, body: "asyncio.Task[Any]") -> None:
        """Handles the worker's frames until it hangs up or leaves the body. The body has begun."""
        while (frame := await read_frame(self._reader)) is not None:
            if frame["t"] == "leave":
                return
            if frame["t"] == "cancel":
                if self.run is not None:
                    self.run.cancelled, self.run.cancel_reason = True, frame["reason"]
                body.cancel()
            elif frame["t"] == "rest":
                self._resting = asyncio.create_task(self._rest(frame["number"]), name="rest")
            elif (answer := self._asked.get(frame["id"])) is not None and not answer.done():
                answer.set_result(frame)
        self.hang_up()


_EXITS: list[BaseException] = []  # with which tasks of the body have stopped the loop, as by `sys.exit`


def execute(name: str, connection: socket.socket) -> None:
    """Executes the body of the agent `name` and ends this process."""
    loop = asyncio.new_event_loop()
    execution = loop.create_task(_execute(name, connection))
    while not execution.done():
        try:
            loop.run_until_complete(execution)
        except (SystemExit, KeyboardInterrupt) as error:  # of a task beside the body: it has stopped the loop
            _EXITS.append(error)
            execution.cancel()  # cancels the body, and not the tasks that bring the worker's answers
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the body would delay an ordinary exit. They end with the run.
    os._exit(0)


async def _execute(name: str, connection: socket.socket) -> None:
    asyncio.get_running_loop().set_default_executor(Threads())
    worker = WorkerConnection(*await asyncio.open_unix_connection(sock=connection))
    hello = await worker.hello()
    if hello is None:
        return
    body = asyncio.create_task(execute_body(name, worker, hello), name=f"run {hello['id']}")
    listening = asyncio.create_task(worker.listen(body), name="frames of the worker")
    # The worker's first frame may be malformed. Then this raises, so that the process ends, and does not wait for ever.
    worker.send(await body)
    await listening


async def execute_body(name: str, worker: WorkerConnection, hello: Frame) -> bytes:
    """Executes the body of a run, in a task of its own. Returns the last frame for the worker, packed."""
    run = worker.run = Run(worker, hello, cast("asyncio.Task[Any]", asyncio.current_task()))
    if REGISTERED[name].models == "worker":
        run.models.take_all()
    try:
        with only_here():
            value = await REGISTERED[name].body(run)
        if isinstance(value, Answer) and not run.has_said(value):
            run.emit_text(f"\n\n{value}" if run.has_spoken else value)
        return packed({"t": "returned", "text": _answer_of(value), "state": _state_of(run)})
    except asyncio.CancelledError as error:
        # Code that awaits a cancelled task of its own is cancelled as well, without a request to cancel the run.
        return packed({"t": "stopped"} if run.cancelled else _raised(_EXITS[0] if _EXITS else error))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the run fails with it
        return packed(_raised(error))


def _answer_of(value: Any) -> str:
    """Returns the return value of a body as text: a value that is not text becomes JSON, as in a tool's result. Raises
    as `plain`."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(plain(value, "what the agent has returned"), ensure_ascii=False)


def _state_of(run: Run) -> dict[str, Any]:
    """Returns the state as JSON. Raises `TypeError` if it is not a dictionary, which no later run could read, and as
    `plain`."""
    state: Any = run.state
    if not isinstance(state, dict):
        raise TypeError(f"run.state is a {type(state).__name__}: it has to stay a dictionary")
    return plain(state, "run.state")


def _raised(raised: BaseException) -> Frame:
    """Returns the error without paths, and its traceback for the worker's log."""
    error = sole(raised)
    kind, text = error_fields(error).values()
    if isinstance(error, StepFailed):
        kind, text = error.error_type, f"{error.text} (in {error.name!r})"
    elif isinstance(error, asyncio.CancelledError):
        text = f"{text or 'the code was cancelled'}, and nobody has cancelled its run"
    own = str(Path(__file__).parent)
    places = [_innermost(error)] if error is raised else [raised, _innermost(error)]
    frames = [frame for one in places for frame in traceback.extract_tb(one.__traceback__)]
    named = [frame.name for frame in frames if not frame.filename.startswith(own)][-MOST_FRAMES_NAMED:]
    trace = "".join(traceback.format_exception(type(raised), raised, raised.__traceback__))[-LONGEST_TRACEBACK:]
    return {"t": "raised", "type": kind, "text": text, "functions": named, "traceback": trace}


def _innermost(error: BaseException) -> BaseException:
    return error.__cause__ if isinstance(error, StepFailed) and error.__cause__ is not None else error
