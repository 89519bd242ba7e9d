"""A process of a made-up newer release: a worker or an API that writes fields and events into logs, and fields into
stored runs, that this release does not know. Workers of both releases take over runs from each other."""

from typing import Any, cast

import msgspec

from bench.chaos.counted_worker import count_starts
from cli.main import main
from shared.domain.log_writer import LogWriter
from shared.runs import orphans
from shared.sql.runs import rows
from shared.sql.tables import to_json
from worker.run import publisher

UNKNOWN_EVENT = b'{"type":"thought_of","at":1,"step_id":{"of":"another shape"},"what":["a list","of words"]}'
UNKNOWN = {"tone": {"of": "a newer release"}}
UNKNOWN_FIELD = b"," + msgspec.json.encode(UNKNOWN)[1:]
EVERY = 5
"""An unknown event precedes one of this many entries."""


class NewerLogWriter(LogWriter):
    """Numbers entries as this release does, and adds unknown fields and events."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._emitted = 0

    def emit(self, entry: bytes) -> None:
        """Adds the entry with an unknown field, and sometimes an unknown event before it. No event precedes an entry
        that names its predecessor, because readers would consider the event between the two lost."""
        self._emitted += 1
        if self._emitted % EVERY == 0 and b'"follows"' not in entry:
            super().emit(UNKNOWN_EVENT)
        super().emit(entry.removesuffix(b"}") + UNKNOWN_FIELD)


def newer_json(value: Any) -> str:
    """As `to_json` of a run's options, input or usage, with an unknown field in each struct."""
    if isinstance(value, list):
        return f"[{','.join(map(newer_json, cast('list[Any]', value)))}]"
    return to_json({**msgspec.json.decode(to_json(value)), **UNKNOWN})


def work() -> None:
    """Runs the command with the newer release's writers."""
    count_starts()
    for module in (publisher, orphans):
        setattr(module, LogWriter.__name__, NewerLogWriter)
    setattr(rows, to_json.__name__, newer_json)
    main()
