"""Lines of the log that a process writes before it has a log, or without one: in the form of all others, as JSON."""

from datetime import UTC, datetime

import msgspec


def event_line(event: str, level: str, **facts: object) -> str:
    """One event, as `HOLDFAST_LOG_JSON` asks for it."""
    moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"event": event, **facts, "level": level, "logger": "holdfast", "timestamp": moment}
    return msgspec.json.encode(line).decode()
