"""One process per data directory: the embedded Redis lives in its process, so a second one would not see the first."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from shared.domain.errors import Conflict


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
