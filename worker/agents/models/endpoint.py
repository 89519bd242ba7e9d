"""The endpoint at which agents' processes call the worker's models: HTTP on a Unix socket, in OpenAI's dialects.

Only the worker's user can open the socket, and every run has a token of its own. The token gives access to the models
for that run, whose budget pays, until the run leaves the worker. The providers' keys stay in the worker.
"""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

import h11
import msgspec
import structlog

from shared.concurrency import background
from shared.domain.errors import InvalidRequest, ModelError, ModelErrorType, RunInterrupted, UnknownHandle
from worker.agents.models.answers import ChatAnswer, ResponseAnswer
from worker.agents.models.requests import Dialect, ModelRequest, read_request
from worker.agents.models.run_models import JournaledAnswer, RunModels, StepsUsedUp
from worker.models.registry import Models
from worker.run.run_handle import RunHandle

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LARGEST_REQUEST = 64_000_000
"""Bytes. A request may contain images."""

LINGER_S = 1.0
"""Seconds for which an answer continues after its process has given it up: the process may ask again, or have died."""

CONNECTIONS = 1000
NO_ROOM_S = 0.2

_DIALECTS: Mapping[str, Dialect] = {"/v1/chat/completions": "chat", "/v1/responses": "responses"}

_STATUSES: Mapping[ModelErrorType, int] = {
    ModelErrorType.RATE_LIMIT: 429,
    ModelErrorType.TIMEOUT: 504,
    ModelErrorType.BAD_REQUEST: 400,
    ModelErrorType.CONTEXT_WINDOW: 400,
    ModelErrorType.INSTRUCTIONS: 400,
}
"""Any other error is a 502: if a provider refuses the worker's key, that is not the program's key."""

_CODES: Mapping[str, str] = {
    ModelErrorType.RATE_LIMIT: "rate_limit_exceeded",
    ModelErrorType.CONTEXT_WINDOW: "context_length_exceeded",
}
"""Errors for which OpenAI has a code that programs check."""


class _Refused(Exception):
    """An error for the program, in OpenAI's form."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class _Request(NamedTuple):
    method: str
    path: str
    token: str
    body: bytes
    """Empty if it is too large."""
    size: int
    """Bytes of the body."""


class ModelEndpoint:
    """The endpoint of one worker, for all of its runs."""

    def __init__(self, models: Models, path: str, *, linger_s: float = LINGER_S) -> None:
        self._models = models
        self._path = path
        self._linger_s = linger_s
        self._runs: dict[str, RunModels] = {}
        self._places = asyncio.Semaphore(CONNECTIONS)

    @classmethod
    @asynccontextmanager
    async def serving(cls, models: Models, path: str, *, linger_s: float = LINGER_S) -> AsyncGenerator["ModelEndpoint"]:
        """Serves the endpoint for the block, on a socket at this path."""
        endpoint = cls(models, path, linger_s=linger_s)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.setblocking(False)
            listening.bind(path)
            os.chmod(path, 0o600)  # noqa: PTH101 - of a path that is a text, here and in the frames
            listening.listen(CONNECTIONS)
            async with background(endpoint.serve(listening), name="endpoint of models"):
                yield endpoint

    @asynccontextmanager
    async def of_run(self, handle: RunHandle, *, serves_all: bool) -> AsyncGenerator[RunModels]:
        """Yields the models of a run, to which it has access for the block."""
        token = f"hf-run-{secrets.token_urlsafe(32)}"
        access = {"socket": self._path, "token": token}
        opened = RunModels.of_run(handle, self._models, access, linger_s=self._linger_s, serves_all=serves_all)
        async with opened as models:
            self._runs[token] = models
            try:
                yield models
            finally:
                del self._runs[token]

    async def serve(self, listening: socket.socket) -> None:
        """Answers until it is cancelled, which closes its connections."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                await self._places.acquire()
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError as error:
                    log.warning("model_connection_not_accepted", error=error.strerror)
                    self._places.release()
                    await asyncio.sleep(NO_ROOM_S)  # the process has no descriptor left, so the connection waits
                    continue
                group.create_task(self._serve_one(accepted), name="connection of an agent")

    async def _serve_one(self, accepted: socket.socket) -> None:
        try:
            with accepted, contextlib.suppress(OSError, h11.ProtocolError, RunInterrupted):
                await self._serve_connection(accepted)
        except Exception:
            log.exception("model_connection_failed")
        finally:
            self._places.release()

    async def _serve_connection(self, accepted: socket.socket) -> None:
        async with _Connection.of(accepted) as connection:
            while connection.is_usable and (request := await connection.receive()) is not None:
                async with background(connection.until_left(), name="end of an agent's connection"):
                    await self._answer(connection, request)
            await connection.close()

    async def _answer(self, connection: "_Connection", request: _Request) -> None:
        try:
            await self._serve_run(connection, request)
        except _Refused as error:
            await connection.send_json(error.status, error.body)
        except InvalidRequest as error:
            await connection.send_json(400, _Refused(400, error.message, "invalid_argument", error.field).body)
        except UnknownHandle as error:
            await connection.send_json(404, _Refused(404, error.message, "model_not_found", "model").body)
        except StepsUsedUp:
            said = "The run has used up its steps: raise max_steps, or end with what there is."
            await connection.send_json(429, _Refused(429, said, "steps_used_up").body)

    async def _serve_run(self, connection: "_Connection", request: _Request) -> None:
        run = self._runs.get(request.token)
        if run is None:
            raise _Refused(401, "The key is no key of a run that this worker executes.", "invalid_api_key")
        path = request.path.partition("?")[0]
        if (request.method, path) == ("GET", "/v1/models"):
            models = [{"id": one, "object": "model", "created": 0, "owned_by": "holdfast"} for one in run.known]
            await connection.send_json(200, {"object": "list", "data": models})
            return
        if request.method != "POST" or path not in _DIALECTS:
            known = ", ".join(f"POST {one}" for one in _DIALECTS)
            raise _Refused(404, f"There are {known} and GET /v1/models.", "path_not_found")
        if request.size > LARGEST_REQUEST:
            said = (
                f"The request to the model has {request.size} bytes, and it may have {LARGEST_REQUEST}: shorten its "
                "messages, or leave images and files out that the model has answered."
            )
            raise _Refused(413, said, "request_too_large")
        asked = read_request(_DIALECTS[path], request.body)
        with run.asking(asked) as answer:
            await _show(connection, asked, answer)


async def _show(connection: "_Connection", asked: ModelRequest, answer: JournaledAnswer) -> None:
    """Sends the answer. Its status is known after the model's first event."""
    shown = (ChatAnswer if asked.dialect == "chat" else ResponseAnswer)(answer.entry, asked)
    try:
        await _take_all(answer, shown, connection if asked.streams else None)
    except ModelError as error:
        code = _CODES.get(error.error_type, error.error_type)
        refused = _Refused(_STATUSES.get(error.error_type, 502), error.message, code)
        if not connection.has_begun:
            raise refused from error
        # A piece with `error` makes clients raise, in both dialects.
        failed = {"type": "error", **refused.body, "message": error.message, "code": code, "param": None}
        await connection.send_piece(shown.framed(failed))
        await connection.end()
        return
    if not asked.streams:
        await connection.send_json(200, shown.whole())
        return
    for piece in shown.end:
        await connection.send_piece(piece)
    await connection.end()


async def _take_all(
    answer: JournaledAnswer, shown: ChatAnswer | ResponseAnswer, connection: "_Connection | None"
) -> None:
    frames = shown.begin()
    async with aclosing(answer.follow()) as events:
        async for event in events:
            frames += shown.take(event)
            if connection is not None and frames:
                await connection.send_piece(b"".join(map(shown.framed, frames)))
                frames = []


class _Connection:
    """One connection of a process. It serves one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)

    @classmethod
    @asynccontextmanager
    async def of(cls, accepted: socket.socket) -> AsyncGenerator["_Connection"]:
        reader, writer = await asyncio.open_unix_connection(sock=accepted)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    @property
    def is_usable(self) -> bool:
        """Whether the connection may carry another request."""
        return self._http.our_state in (h11.IDLE, h11.DONE)

    async def receive(self) -> _Request | None:
        """Returns the next request; None if there is none."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        head: h11.Request | None = None
        body, size = bytearray(), 0
        while True:
            event = self._http.next_event()
            match event:
                case h11.Request():
                    head = event
                case h11.Data():
                    size += len(event.data)
                    # The rest of a request that is too large is read and discarded: otherwise a client that is still
                    # sending would find its connection closed instead of the error.
                    if size <= LARGEST_REQUEST:
                        body += event.data
                    else:
                        body.clear()
                case h11.EndOfMessage() if head is not None:
                    token = dict(head.headers).get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
                    return _Request(head.method.decode(), head.target.decode("latin-1"), token, bytes(body), size)
                case h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(1 << 16))
                case _:
                    return None

    async def until_left(self) -> None:
        """Raises `ConnectionResetError` when the client hangs up."""
        while data := await self._reader.read(1 << 16):
            self._http.receive_data(data)
        raise ConnectionResetError

    async def close(self) -> None:
        """Sends the remaining bytes, and closes the connection."""
        self._writer.close()
        await self._writer.wait_closed()

    async def send_json(self, status: int, body: Mapping[str, Any]) -> None:
        """Sends an answer. Clients must not retry a failure: the worker has retried it already."""
        data = msgspec.json.encode(body)
        headers = [("content-type", "application/json"), ("content-length", str(len(data)))]
        self._put(h11.Response(status_code=status, headers=[*headers, ("x-should-retry", "false")]))
        self._put(h11.Data(data=data))
        await self.end()

    @property
    def has_begun(self) -> bool:
        """Whether a stream has begun."""
        return self._http.our_state is h11.SEND_BODY

    async def send_piece(self, data: bytes) -> None:
        """Sends a piece of a stream of events, with its head before the first."""
        if not self.has_begun:
            self._put(h11.Response(status_code=200, headers=[("content-type", "text/event-stream")]))
        self._put(h11.Data(data=data))
        await self._writer.drain()

    async def end(self) -> None:
        """Ends the answer."""
        self._put(h11.EndOfMessage())
        await self._writer.drain()

    def _put(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._writer.write(self._http.send(event) or b"")
