"""A process of a release that is yet to come: `holdfast worker` or `holdfast api`, with fields and events in logs, and
fields in stored runs, that this release does not know. Its workers take runs over from the others and they from it."""

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


def newer_json(value: Any) -> str:
    """`to_json` of a run's options, its input or its usage, with a field in each struct that this release does not
    know."""
    if isinstance(value, list):
        return f"[{','.join(map(newer_json, cast('list[Any]', value)))}]"
    return to_json({**msgspec.json.decode(to_json(value)), **UNKNOWN})


def work() -> None:
    """The command, which writes what the newer release does."""
    count_starts()
    for module in (publisher, orphans):
        setattr(module, LogWriter.__name__, NewerLogWriter)
    setattr(rows, to_json.__name__, newer_json)
    main()
