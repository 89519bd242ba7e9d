"""Times as people and models write them, in the time zone of an agent."""

import re
from datetime import UTC, datetime, time, tzinfo
from zoneinfo import ZoneInfo

from shared.domain.errors import InvalidRequest

LONGEST_NAME = 100
"""Characters of the name of a time zone."""

_DATE = re.compile(r"\d{4}-?\d{2}-?\d{2}")


def moment_of(text: str, timezone: str, name: str, *, is_end: bool = False) -> datetime:
    """The moment that a client or a model means by an ISO 8601 text. Without an offset it is in the agent's timezone.

    A date alone is the beginning of the day, or its last moment for the end of a span. `name` is that of the field.
    Raises `InvalidRequest`.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(
            f"{name} is no moment: {text[:50]!r}. Give ISO 8601, such as 2024-01-15 or 2024-01-15T14:30"
        ) from error
    if is_end and _DATE.fullmatch(text):
        moment = datetime.combine(moment, time.max)
    return moment if moment.tzinfo else moment.replace(tzinfo=zone_of(timezone))


def zone_of(timezone: str) -> tzinfo:
    """The zone of this name; UTC where there is none, because agents may have any text as their timezone."""
    if len(timezone) > LONGEST_NAME:
        return UTC  # it would be looked for among files
    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        return UTC
