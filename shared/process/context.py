"""The things that every process is built from; the command line makes them once and hands them to the composition
roots.

The embedded Redis lives in its process. So there is a lock on the data directory: a second process would not see the
first.
"""

import fcntl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.clock import Clock
from shared.domain.errors import Conflict
from shared.domain.ids import IdMaker
from shared.process.settings import Settings
from shared.redis.connection import Redis
from shared.sql.engine import Database


@dataclass(frozen=True, kw_only=True)
class ProcessContext:
    """The settings, connections and sources of time and ids of one process."""

    settings: Settings
    database: Database
    redis: Redis
    is_embedded: bool
    """Redis lives in this process: nothing in it outlives the process, and no other process sees it."""
    clock: Clock
    ids: IdMaker
    environment: Mapping[str, str]
    """The process's environment variables, with the model providers' keys."""


@contextmanager
def only_process(data_dir: Path) -> Generator[None]:
    """Holds the directory for the block. Raises `Conflict` when another process has it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Conflict(
                f"another holdfast dev uses {data_dir}: the embedded Redis lives in one process only. Stop it, choose "
                "another --data-dir, or run holdfast api and holdfast worker with a Redis"
            ) from error
        yield
