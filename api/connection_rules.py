"""What a connection to the API may cost, and how many there may be."""

import resource
from typing import NamedTuple

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FILES_FOR_OTHERS = 128
"""Open files that connections leave to the database, Redis, tools and logs."""


class ConnectionRules(NamedTuple):
    """What a connection may cost."""

    timeout_s: float
    """For a request to arrive, and for a whole answer to be taken at `SLOWEST_READER`."""
    reader_timeout_s: float = 300.0
    """For the client of a stream to take one buffer of it."""
    max_connections: int = 1000


class ConnectionLimit:
    """How many connections there may be at once: no more than `most`, nor than this process may open files."""

    def __init__(self, most: int) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        can_open = most if files == resource.RLIM_INFINITY else max(1, files - FILES_FOR_OTHERS)
        self.most = min(most, can_open)
        self._count = 0
        self._is_told = False

    def enter(self) -> int:
        """Counts one more connection; by how many there are too many. Says so in the log once, and again when there was
        room in between."""
        self._count += 1
        if self._count <= self.most:
            self._is_told = self._is_told and self._count > self.most * 0.9
            return 0
        if not self._is_told:
            self._is_told = True
            log.warning(
                "connections_refused",
                most=self.most,
                reason="HOLDFAST_MAX_CONNECTIONS and the limit of open files (ulimit -n) allow no more",
            )
        return self._count - self.most

    def leave(self) -> None:
        """Counts one connection less."""
        self._count -= 1
