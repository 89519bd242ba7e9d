"""Points in time, as Letta's wire writes them."""

from datetime import UTC, datetime
from typing import overload


@overload
def wire_time(moment: datetime) -> str: ...
@overload
def wire_time(moment: None) -> None: ...
def wire_time(moment: datetime | None) -> str | None:
    """UTC with a Z, microseconds where there are any."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
