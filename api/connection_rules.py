"""Limits on the cost of one connection to the API, and on the number of connections."""

import resource
from typing import NamedTuple

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FILES_FOR_OTHERS = 128
"""Open files that connections leave free for the database, Redis, tools and logs."""


class ConnectionRules(NamedTuple):
    """Time limits of one connection."""

    timeout_s: float
    """For a request to arrive, and for the client to read a whole answer at `SLOWEST_READER`."""
    reader_timeout_s: float = 300.0
    """For the client of a stream to read one buffer."""
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
