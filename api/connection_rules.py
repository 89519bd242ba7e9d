"""Limits on the cost of one connection to the API and on the number of connections, and the answers to requests that
these limits refuse."""

import json
import resource
from typing import NamedTuple

import structlog
from starlette.types import ASGIApp

from api.errors import plain_body
from shared.domain.errors import ErrorCode

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""The most bytes of the request line and all headers."""

MAX_URL_BYTES = 16 * 1024
MAX_HEADERS = 100

MAX_UNREAD_BYTES = 1_000_000
"""Bytes of a body that the server discards after its answer: a client that is still sending can then read it."""

MAX_UNANSWERED = 16
"""Requests of one connection that may wait for answers: the request that the application is answering, and those that
the client has sent behind it without waiting (HTTP pipelining). The server reads no further request, and closes the
connection after the last of these answers, so that the client knows which requests to send again (RFC 9112, 9.3.2)."""

MAX_AHEAD_BYTES = 64 * 1024
"""Bytes that the server reads behind a request that is being answered. Then the client has to wait."""

WITHOUT_CHUNKS = ("0.9", "1.0")
"""Versions of HTTP without transfer codings and without interim responses such as `100 Continue`. An answer without a
length ends with its connection (RFC 9112, 6.3)."""

EXCESS_S = 1.0
"""Seconds for which a connection over the limit stays open for its request, which gets a 503."""

SLOWEST_READER = 1000
"""Bytes per second. The server cuts off a client that reads a buffered answer more slowly."""

FILES_FOR_OTHERS = 128
"""Open files that connections leave free for the database, Redis, tools and logs."""


class ConnectionRules(NamedTuple):
    """Time limits of one connection."""

    timeout_s: float
    """Seconds for a request to arrive, and for the client to read a whole answer at `SLOWEST_READER`."""
    reader_timeout_s: float = 300.0
    """Seconds for the client of a stream to read one buffer."""
    max_connections: int = 1000


class ConnectionLimit:
    """Limits the number of connections, to `most` and to the files that this process may open."""

    def __init__(self, most: int) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        can_open = most if files == resource.RLIM_INFINITY else max(1, files - FILES_FOR_OTHERS)
        self.most = min(most, can_open)
        self._count = 0
        self._is_logged = False

    def enter(self) -> int:
        """Counts a new connection and returns by how many the limit is exceeded. It logs the first excess, and logs
        again after connections were below the limit."""
        self._count += 1
        if self._count <= self.most:
            self._is_logged = self._is_logged and self._count > self.most * 0.9
            return 0
        if not self._is_logged:
            self._is_logged = True
            log.warning(
                "connections_refused",
                most=self.most,
                reason="HOLDFAST_MAX_CONNECTIONS and the limit of open files (ulimit -n) allow no more",
            )
        return self._count - self.most

    def leave(self) -> None:
        """Counts a closed connection."""
        self._count -= 1


class ConnectionTerms(NamedTuple):
    """The objects that all connections of a server share."""

    app: ASGIApp
    rules: ConnectionRules
    limit: ConnectionLimit


class HeadRefusal(NamedTuple):
    """An answer to a request that never reaches the application."""

    status: str
    code: ErrorCode
    detail: str
    headers: str = ""

    def answer(self) -> bytes:
        """The bytes that the client reads before the connection ends."""
        said = json.dumps(plain_body(self.code, self.detail)).encode()
        head = (
            f"HTTP/1.1 {self.status}\r\n{self.headers}content-type: application/json\r\n"
            f"content-length: {len(said)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + said


HEAD_TOO_LONG = HeadRefusal(
    "431 Request Header Fields Too Large", ErrorCode.HEAD_TOO_LARGE, "The head of the request is too long"
)
URL_TOO_LONG = HeadRefusal("414 URI Too Long", ErrorCode.URL_TOO_LONG, "The URL is too long")
NO_HTTP = HeadRefusal("400 Bad Request", ErrorCode.INVALID_HTTP, "Invalid HTTP request received.")
TOO_MANY = HeadRefusal(
    "503 Service Unavailable",
    ErrorCode.TOO_MANY_CONNECTIONS,
    "This process has as many connections as HOLDFAST_MAX_CONNECTIONS and its limit of open files allow",
    "retry-after: 2\r\n",
)

TOO_MANY_AT_ONCE = HeadRefusal(
    "503 Service Unavailable",
    ErrorCode.TOO_MANY_CONNECTIONS,
    f"One connection has {MAX_UNANSWERED} requests at most that wait for answers",
)
"""For the log only: the connection ends after the last of the answers."""
