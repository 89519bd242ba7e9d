"""A worker of a release that is yet to come: `holdfast worker`, with fields and events in its logs that the others do
not know. It takes runs over from them and they from it, as during an upgrade."""

from typing import Any

from bench.chaos.counted_worker import count_starts
from cli.main import main
from shared.domain.log_writer import LogWriter
from worker.run import publisher

UNKNOWN_EVENT = b'{"type":"thought_of","at":1,"step_id":{"of":"another shape"},"what":["a list","of words"]}'
UNKNOWN_FIELD = b',"tone":{"of":"a newer release"}}'
EVERY = 5
"""Of so many entries one is preceded by an event that nobody knows."""


class NewerLogWriter(LogWriter):
    """Numbers entries as this release does, and writes more than this release knows."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._emitted = 0

    def emit(self, entry: bytes) -> None:
        """Adds the entry with a field of its own, and at times an event of its own before it."""
        self._emitted += 1
        if self._emitted % EVERY == 0:
            super().emit(UNKNOWN_EVENT)
        super().emit(entry.removesuffix(b"}") + UNKNOWN_FIELD)


def work() -> None:
    """The command, with a publisher that writes what the newer release does."""
    count_starts()
    setattr(publisher, LogWriter.__name__, NewerLogWriter)
    main()
