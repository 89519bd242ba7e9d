"""The fields that every message of the wire has, in the wire's order, and its part ids."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, overload
from uuid import UUID


def envelope(
    message_type: str,
    *,
    message_id: str,
    date: str,
    otid: str | None = None,
    name: str | None = None,
    sender_id: str | None = None,
    step_id: str | None = None,
    run_id: str | None = None,
    seq_id: int | None = None,
) -> dict[str, Any]:
    """The common head of a message; a message's own fields follow it."""
    return {
        "id": message_id,
        "date": date,
        "name": name,
        "message_type": message_type,
        "otid": otid,
        "sender_id": sender_id,
        "step_id": step_id,
        "is_err": None,
        "seq_id": seq_id,
        "run_id": run_id,
    }


def whole_seconds(moment: datetime) -> str:
    """The `date` of a message."""
    return moment.astimezone(UTC).replace(microsecond=0).isoformat()


@lru_cache(256)
def date_of(at_s: int) -> str:
    """The `date` at this Unix time, s. All tokens of a second have the same."""
    return whole_seconds(datetime.fromtimestamp(at_s, UTC))


@lru_cache(4096)
def part_otid(message_id: str, part: int) -> str:
    """The otid of one part of a message: the message's UUID with the low seven bits of its last byte set to `part`.
    Every token of a part asks for it."""
    whole = UUID(message_id.partition("-")[2])
    last = (whole.bytes[-1] & 0x80) | (part & 0x7F)
    return str(UUID(bytes=whole.bytes[:-1] + bytes([last])))


@overload
def wire_time(moment: datetime) -> str: ...
@overload
def wire_time(moment: None) -> None: ...
def wire_time(moment: datetime | None) -> str | None:
    """UTC with a Z, microseconds where there are any."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def in_utc(moment: datetime) -> datetime:
    """A moment that a client named; without a zone it is UTC. Raises `ValueError` for one that UTC does not have."""
    try:
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the moment is outside the years 1 to 9999 of UTC") from error
