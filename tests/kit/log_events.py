"""The log events of the product, for tests that wait until something has happened inside it."""

from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.contextvars import get_contextvars


class LogEvents:
    """The events that were logged in this process."""

    def __init__(self) -> None:
        self._seen: list[dict[str, Any]] = []

    def has(self, event: str, **fields: Any) -> bool:
        """Whether the product has logged such an event."""
        wanted = {"event": event, **fields}.items()
        return any(wanted <= seen.items() for seen in self._seen)

    def all(self, event: str) -> list[dict[str, Any]]:
        """Returns every such event, with its fields."""
        return [seen for seen in self._seen if seen["event"] == event]

    def note(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        self._seen.append({**get_contextvars(), **event})
        return event


@contextmanager
def log_events() -> Generator[LogEvents]:
    """Records the log events during the block, which reach the log as well."""
    events = LogEvents()
    processors = structlog.get_config()["processors"]
    processors.insert(0, events.note)
    try:
        yield events
    finally:
        processors.remove(events.note)
