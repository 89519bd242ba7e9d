"""One connection to an MCP server. A task of its own opens, keeps and closes it.

A caller can stop waiting for an answer at any time. The rest of its request then ends in the background, and so does
the connection. This module imports the protocol's package, which takes a second, so other modules import it at the
first call of a server.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar, cast

import httpx2
from mcp import Client, ClientSession, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    PaginatedRequestParams,
)
from pydantic import TypeAdapter, ValidationError

from shared.concurrency import AnswerTimeout
from shared.domain.mcp_servers import IDEMPOTENCY_KEY, McpTarget, RemoteResult, RemoteTool
from shared.mcp.contents import error_text, remote_result, remote_tools, size_of, with_probes
from shared.mcp.failures import AN_ERROR, Bounds, Deadline, ServerFailure
from shared.mcp.guarded_http import (
    ANSWER_BYTES,
    FORBIDDEN,
    LOST,
    NOT_SENT,
    OWN_ERRORS,
    REFUSED,
    STEP_S,
    UNAUTHORIZED,
    Broken,
    GuardedTransport,
)
from shared.mcp.stdio import stdio_streams
from shared.network.addresses import ForbiddenAddress
from shared.network.checked_http import Unreachable, callers_client
from shared.process.importing import VERSION

# The package logs the servers' messages, which contain tenants' data. Callers get the important part as an error.
logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)

Answer = TypeVar("Answer")

_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


class _Outcome(NamedTuple, Generic[Answer]):
    answer: Answer | None
    error: Exception | None


class Connection:
    """Works as long as `run`, which its owner starts as a task. Callers `enter` it, send requests, and `leave` it."""

    def __init__(self, target: McpTarget, http: httpx2.AsyncBaseTransport, bounds: Bounds) -> None:
        self._target = target
        self._http = http
        self._bounds = bounds
        self._opened = asyncio.Event()
        self._stopped = asyncio.Event()
        self._session: ClientSession | None = None
        self._group: asyncio.TaskGroup | None = None
        self._asked: set[asyncio.Task[Any]] = set()
        self._failure: ServerFailure | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.project_id = target.project_id
        self.users = 0
        self.used_at = time.monotonic()
        self.is_retired = False
        """It accepts no further requests: the next one gets another connection."""

    async def run(self) -> None:
        """Opens the connection and keeps it until it is stopped or breaks. Raises only cancellations."""
        loop = asyncio.get_running_loop()
        try:
            async with (
                asyncio.timeout(self._bounds.connect_s) as limit,
                _session(self._target, self._http, self._broke) as session,
                asyncio.TaskGroup() as group,
            ):
                limit.reschedule(None)
                self._session, self._group = session, group
                self._opened.set()
                await self._stopped.wait()
                limit.reschedule(loop.time() + self._bounds.close_s)
                for asked in self._asked:
                    asked.cancel()
        except Exception as error:  # noqa: BLE001 - whatever the package raises ends this connection, and callers get the error
            self._fail(_failure_of(_first(error), self._bounds))
        finally:
            self.is_retired = True
            self._opened.set()

    def stop(self) -> None:
        """Closes the connection in the background, within its time limit."""
        self.is_retired = True
        self._stopped.set()

    def enter(self) -> None:
        """Keeps the connection open for a caller."""
        self.users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def leave(self) -> None:
        """Ends a caller's use. An idle connection is closed after a while, a retired one at once."""
        self.users -= 1
        self.used_at = time.monotonic()
        if self.users:
            return
        if self.is_retired:
            self.stop()
        else:
            self._idle = asyncio.get_running_loop().call_later(self._bounds.idle_s, self.stop)

    async def call_tool(self, name: str, arguments: dict[str, Any], deadline: Deadline, key: str = "") -> RemoteResult:
        """Calls a tool, once. `key`: the call's idempotency key, if it has one. Raises `ServerFailure`."""
        params = CallToolRequestParams(name=name, arguments=arguments)
        if key:
            params = params.model_copy(update={"meta": {IDEMPOTENCY_KEY: key}})

        def call(session: ClientSession) -> Coroutine[Any, Any, CallToolResult | InputRequiredResult]:
            # Not through the package's `call_tool`: it validates results against the server's schemas, requests these
            # after the call, and sends a call again.
            return session.send_request(CallToolRequest(params=params), _RESULT)

        try:
            result = await self._ask(call, deadline)
        except _HeadersMismatch as error:
            await self.list_tools(deadline)
            raise ServerFailure(
                REFUSED, "it needs headers by the tool's schema, which was read anew: call the tool again"
            ) from error
        if isinstance(result, InputRequiredResult):
            raise ServerFailure(
                AN_ERROR, "it asks for a person's or a model's input in the middle of a call, which it does not get"
            )
        return remote_result(result)

    async def list_tools(self, deadline: Deadline) -> list[RemoteTool]:
        """Returns the tools that the server has now, each name once, and those with a problem last. Raises
        `ServerFailure`."""
        tools: dict[str, RemoteTool] = {}
        unusable: list[RemoteTool] = []
        cursors: set[str] = set()
        cursor: str | None = None
        characters = 0
        for _ in range(self._bounds.most_pages):
            params = PaginatedRequestParams(cursor=cursor)
            page = await self._ask(lambda session, params=params: session.list_tools(params=params), deadline)
            listed = await asyncio.to_thread(remote_tools, page.tools)
            characters += sum(map(size_of, listed))
            tools = {tool.name: tool for tool in listed if not tool.problem} | tools
            unusable += [tool for tool in listed if tool.problem]
            if len(tools) + len(unusable) > self._bounds.most_tools or characters > self._bounds.most_characters:
                raise ServerFailure(REFUSED, f"it lists more than {self._bounds.most_tools} tools, or too long ones")
            cursor = page.next_cursor
            if not cursor:
                return [*with_probes(tools), *unusable]
            if cursor in cursors:
                raise ServerFailure(REFUSED, "its list of tools has no end: a page leads back to an earlier one")
            cursors.add(cursor)
        raise ServerFailure(REFUSED, f"its list of tools has more than {self._bounds.most_pages} pages")

    async def _ask(self, what: Callable[[ClientSession], Coroutine[Any, Any, Answer]], deadline: Deadline) -> Answer:
        """Returns the answer to one request. Raises `ServerFailure`."""
        try:
            async with asyncio.timeout_at(deadline.at):
                await self._opened.wait()
        except TimeoutError as error:
            text = f"its connection was not ready within {deadline.seconds:g} s"
            raise ServerFailure(NOT_SENT, text) from error
        if self._session is None or self._group is None or self._stopped.is_set() or self._failure is not None:
            raise self._failure or ServerFailure(NOT_SENT, "its connection has ended")
        asked = self._group.create_task(_outcome(what(self._session)), name="mcp request")
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        try:
            # The wait was not over because this process stood still: the answer may have arrived without being read.
            async with AnswerTimeout(deadline.left_s):
                await asyncio.wait([asked])
        except TimeoutError as error:
            raise ServerFailure(LOST, f"it has not answered within {deadline.seconds:g} s") from error
        finally:
            if not asked.done():
                # An abandoned request may block the connection's writer, so the next caller gets another connection.
                self.is_retired = True
                asked.cancel()
        if asked.cancelled():
            raise self._lost()
        outcome = asked.result()
        if outcome.error is not None:
            raise self._failure_for(outcome.error)
        return cast("Answer", outcome.answer)

    def _failure_for(self, error: Exception) -> Exception:
        """Returns the failure of one request."""
        if isinstance(error, MCPError) and error.code == HEADER_MISMATCH:
            return _HeadersMismatch()
        failure = _failure_of(error, self._bounds)
        if failure.code != FORBIDDEN and failure.code in OWN_ERRORS:
            self.is_retired = True
        closed = isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
        return self._lost() if closed and self._failure is not None else failure

    def _lost(self) -> ServerFailure:
        said = self._failure.text if self._failure is not None else "its connection has ended"
        return ServerFailure(LOST, said)

    def _broke(self, reason: str, code: int = NOT_SENT) -> None:
        self._fail(ServerFailure(code, reason))
        self.stop()

    def _fail(self, failure: ServerFailure) -> None:
        """Keeps the first failure: later ones follow from it."""
        if self._failure is None:
            self._failure = failure


class _HeadersMismatch(Exception):
    """The server refused a call because of the headers that its tool's schema demands."""


@asynccontextmanager
async def _session(target: McpTarget, http: httpx2.AsyncBaseTransport, broken: Broken) -> AsyncGenerator[ClientSession]:
    """Connects within the block: by the newest version of the protocol that both sides know."""
    about = Implementation(name="holdfast", version=VERSION)
    async with AsyncExitStack() as stack:
        if target.transport == "stdio":
            client = Client(
                stdio_streams(target, lambda reason: broken(reason, NOT_SENT)), cache=None, client_info=about
            )
            yield (await stack.enter_async_context(client)).session
            return
        has_channel = target.transport == "sse"
        guarded = GuardedTransport(http, broken, has_event_channel=has_channel)
        # A compressed answer would grow beyond the counted bytes.
        headers = {**target.headers, "Accept-Encoding": "identity"}
        own = callers_client(guarded, timeout_s=STEP_S, headers=headers)

        def made(*_: Any, **__: Any) -> httpx2.AsyncClient:
            return own

        if has_channel:
            streams = sse_client(target.url, httpx_client_factory=made)
        else:
            await stack.enter_async_context(own)
            streams = streamable_http_client(target.url, http_client=own, max_sse_event_size=ANSWER_BYTES)
        # Servers of the protocol's first version do not know the request of the newest one.
        client = Client(streams, mode="legacy" if has_channel else "auto", cache=None, client_info=about)
        session = (await stack.enter_async_context(client)).session
        guarded.settle()
        yield session


async def _outcome(asked: Coroutine[Any, Any, Answer]) -> _Outcome[Answer]:
    try:
        return _Outcome(await asked, None)
    except Exception as error:  # noqa: BLE001 - whatever the package raises is the outcome of this one request
        return _Outcome(None, error)


def _failure_of(error: Exception, bounds: Bounds) -> ServerFailure:
    """The failure that an error describes, without values of the server's headers."""
    match error:
        case ServerFailure():
            return error
        case MCPError():
            return _failure_by_code(error)
        case ForbiddenAddress():
            return ServerFailure(FORBIDDEN, str(error))
        case ValidationError():
            return ServerFailure(LOST, "its answer does not fit the protocol")
        case httpx2.HTTPStatusError() if error.response.status_code == HTTPStatus.UNAUTHORIZED:
            return ServerFailure(UNAUTHORIZED, _why_not_connected(error, bounds))
        case Unreachable() | TimeoutError() | httpx2.HTTPError() | OSError():
            return ServerFailure(NOT_SENT, _why_not_connected(error, bounds))
        case _:
            return ServerFailure(LOST, f"it does not keep to the protocol ({type(error).__name__})")


def _failure_by_code(error: MCPError) -> ServerFailure:
    said = error_text(error.error.message)
    if error.code in OWN_ERRORS:
        return ServerFailure(error.code, said)
    if error.code == PARSE_ERROR:
        return ServerFailure(LOST, "its answer is no JSON-RPC")
    if error.code == CONNECTION_CLOSED:
        return ServerFailure(LOST, f"its answer did not come: {said}")
    return ServerFailure(AN_ERROR, f"it answers with an error: {said}")


def _why_not_connected(error: Exception, bounds: Bounds) -> str:
    match error:
        case Unreachable():
            return str(error)
        case TimeoutError():
            return f"it does not answer within {bounds.connect_s:g} s"
        case httpx2.HTTPStatusError():
            return f"it answers with HTTP {error.response.status_code}"
        case httpx2.HTTPError():
            return "it cannot be reached"
        case _:
            return f"it cannot be started: {getattr(error, 'strerror', None) or type(error).__name__}"


def _first(raised: Exception) -> Exception:
    """The first error of a group; other errors unchanged."""
    error: BaseException = raised
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return cast("Exception", error)
