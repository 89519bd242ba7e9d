"""Lists and calls the tools of MCP servers. All requests to such a server go through this module.

Callers share a connection per server, which stays open for a while. A call is sent at most once, whatever happens to
its connection. Only a server that has lost the session, and so has done nothing, gets the call again. An error names
the server, the problem, and whether the call may have had its effect.
"""

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
import structlog

from shared.domain.errors import HoldfastError, InvalidRequest, McpSignInNeeded, Unavailable
from shared.domain.ids import ProjectId
from shared.domain.mcp_servers import McpTarget, RemoteResult, RemoteTool
from shared.mcp.commands import NO_COMMANDS, AllowedCommands
from shared.mcp.failures import AN_ERROR, BOUNDS, Bounds, Deadline, ServerFailure
from shared.mcp.guarded_http import FORBIDDEN, LOST, REFUSED, SESSION_GONE, UNAUTHORIZED
from shared.network.checked_http import CheckedTransport, NetworkRules

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Answer = TypeVar("Answer")

SHORTEST_SECRET = 8
"""Characters. Shorter values are ordinary words, which occur in any text."""

_NOT_CALLED = "The tool was not called."
_KNOWN: Mapping[int, str] = {LOST: "Whether the tool did its work is not known.", AN_ERROR: ""}
"""The effect of a call after a failure that does not prove that the server did nothing."""


class ServerConnection(Protocol):
    """The part of `shared.mcp.connection.Connection` that this module uses."""

    project_id: ProjectId
    users: int
    used_at: float
    is_retired: bool

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    async def call_tool(
        self, name: str, arguments: dict[str, Any], deadline: Deadline, key: str = ""
    ) -> RemoteResult: ...

    async def list_tools(self, deadline: Deadline) -> list[RemoteTool]: ...


Connect = Callable[[McpTarget, CheckedTransport, Bounds], ServerConnection]


class McpClient:
    """The connections of one process. The owner closes it once."""

    def __init__(
        self, network: NetworkRules, commands: AllowedCommands = NO_COMMANDS, *, bounds: Bounds = BOUNDS
    ) -> None:
        self._network = network
        self._commands = commands
        self._bounds = bounds
        self._tls: ssl.SSLContext | None = None
        self._connections: dict[bytes, ServerConnection] = {}
        self._owners: dict[asyncio.Task[None], ServerConnection] = {}
        self._is_closed = False

    @property
    def connections(self) -> int:
        """The number of connections, including those that are opening or closing."""
        return len(self._owners)

    async def list_tools(self, target: McpTarget) -> list[RemoteTool]:
        """Returns the tools that the server has now, those with a problem last.

        Raises `Unavailable` if the server does not answer, `McpSignInNeeded` if it does not accept the credentials, and
        `InvalidRequest` if the server's other settings, or its list, must be changed.
        """
        deadline = Deadline.after(self._bounds.list_s)
        try:
            return await self._asked(target, lambda connection: connection.list_tools(deadline))
        except ServerFailure as failure:
            raise _error_of(target, failure, "") from failure

    async def call_tool(
        self, target: McpTarget, name: str, arguments: dict[str, Any], *, timeout_s: float, key: str = ""
    ) -> RemoteResult:
        """Calls a tool at most once, within `timeout_s` seconds. A tool's own error is a result. `key`: the call's
        idempotency key, for servers that know it.

        Raises the errors that `list_tools` raises. Their text says whether the tool may have done its work.
        """
        deadline = Deadline.after(timeout_s)
        try:
            result = await self._asked(target, lambda connection: connection.call_tool(name, arguments, deadline, key))
        except ServerFailure as failure:
            raise _error_of(target, failure, _KNOWN.get(failure.code, _NOT_CALLED)) from failure
        return msgspec.structs.replace(result, text=_without(target, result.text))

    async def aclose(self) -> None:
        """Closes every connection. A connection that does not close in time is cancelled, and then abandoned."""
        self._is_closed = True
        for connection in self._owners.values():
            connection.stop()
        waiting = set(self._owners)
        for _ in range(2):
            if waiting:
                _, waiting = await asyncio.wait(waiting, timeout=self._bounds.close_s + 1)
            for task in waiting:
                task.cancel()
        if waiting:
            log.error("mcp_connections_not_closed", connections=len(waiting))

    async def _asked(self, target: McpTarget, ask: Callable[[ServerConnection], Coroutine[Any, Any, Answer]]) -> Answer:
        """Returns the server's answer to one request. A server that was restarted has lost the connection's session and
        done nothing, so it gets the request once more, by a new connection. Raises `ServerFailure`."""
        # The protocol's package is imported on a thread: that takes a second, and most processes call no MCP server.
        connect = await asyncio.to_thread(_imported)
        try:
            with self._connected(target, connect) as connection:
                return await ask(connection)
        except ServerFailure as failure:
            if failure.code != SESSION_GONE:
                raise
        with self._connected(target, connect) as connection:
            return await ask(connection)

    @contextmanager
    def _connected(self, target: McpTarget, connect: Connect) -> Generator[ServerConnection]:
        """Yields an open connection, or a new one, for the block. Raises `InvalidRequest` for a command that is not
        allowed, and `Unavailable` if there are too many connections."""
        if target.transport == "stdio":
            self._commands.refuse_others(target.command, target.args, target.env)
        key = hashlib.sha256(msgspec.json.encode(target, order="deterministic")).digest()
        connection = self._connections.get(key)
        if connection is None or connection.is_retired:
            connection = self._connections[key] = self._new(target, key, connect)
        connection.enter()
        try:
            yield connection
        finally:
            connection.leave()

    def _new(self, target: McpTarget, key: bytes, connect: Connect) -> ServerConnection:
        if self._is_closed:
            raise Unavailable("this process is ending and asks no MCP server any more")
        self._make_room(target.project_id)
        self._tls = self._tls or self._network.tls()
        http = CheckedTransport(self._network, tls=self._tls, kept_s=self._bounds.kept_s)
        connection = connect(target, http, self._bounds)
        task = asyncio.get_running_loop().create_task(connection.run(), name="mcp connection")
        self._owners[task] = connection
        task.add_done_callback(lambda ended: self._forget(ended, key))
        return connection

    def _forget(self, task: asyncio.Task[None], key: bytes) -> None:
        if self._connections.get(key) is self._owners.pop(task):
            del self._connections[key]

    def _make_room(self, project_id: ProjectId) -> None:
        """Closes the longest idle connection if the limit is reached. A project may use at most as many connections as
        it leaves free, so that it never has all of them. Raises `Unavailable`."""
        most = self._bounds.most_connections
        taken = [one for one in self._owners.values() if one.users or one.is_retired]
        own = sum(one.project_id == project_id for one in taken)
        if own >= most - len(taken):
            said = f"this process has {len(taken)} connections to MCP servers in use, {own} of them for this project"
            raise Unavailable(f"{said}: try again later")
        idle = [one for one in self._owners.values() if one not in taken]
        if len(self._owners) >= most:
            min(idle, key=lambda connection: connection.used_at).stop()


def _imported() -> Connect:
    from shared.mcp.connection import Connection

    return Connection


def _error_of(target: McpTarget, failure: ServerFailure, known: str) -> HoldfastError:
    """The error for callers. It names the server and the problem, and says whether the call may have had its effect."""
    wrong = failure.text.rstrip(".")
    text = f"The MCP server {target.server_name!r} ({_place(target)}) does not serve: {wrong}. {known}".strip()
    text = _without(target, text)
    if failure.code == UNAUTHORIZED:
        return McpSignInNeeded(text)
    return InvalidRequest(text) if failure.code in (AN_ERROR, FORBIDDEN, REFUSED) else Unavailable(text)


def _place(target: McpTarget) -> str:
    """The host or the command, without possible secrets."""
    if target.transport == "stdio":
        return target.command.rpartition("/")[2]
    try:
        parts = urlsplit(target.url)
        port = parts.port
    except ValueError:
        return "an address that cannot be read"
    return parts.hostname or "no host" if port is None else f"{parts.hostname}:{port}"


def _without(target: McpTarget, text: str) -> str:
    """The text without the values of the server's headers and variables, which may be secrets."""
    for names in (target.headers, target.env):
        for name, value in _longest_first(names):
            text = text.replace(value, f"[secret {name}]")
    return text


def _longest_first(values: Mapping[str, str]) -> list[tuple[str, str]]:
    spellings = {(name, way) for name, value in values.items() for way in (value, value.rpartition(" ")[2])}
    return sorted((one for one in spellings if len(one[1]) >= SHORTEST_SECRET), key=lambda one: (-len(one[1]), one))
