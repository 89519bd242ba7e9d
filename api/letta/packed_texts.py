"""Texts that Letta packs into JSON before it stores them: results of tools, and summaries.

A text that is not packed, or packed in an unknown form, is used unchanged.
"""

import json
from datetime import datetime, tzinfo
from typing import Any

import msgspec

from api.letta.messages import WIRE_STATS, wire_stats
from shared.domain.messages import CompactionStats, Summary
from shared.json_limits import flaw_of

_SUMMARY_ALERT = "system_alert"
_SAYS_SUMMARY = "summary of the previous"
"""Words of Letta's own note before a summary, which older servers store as a user's message."""


class _Packed(msgspec.Struct):
    message: str
    type: str | None = None
    status: str | None = None
    compaction_stats: dict[str, Any] | None = None


def packed_result(text: str, *, succeeded: bool, at: datetime, zone: tzinfo) -> str:
    """A tool's result in Letta's stored form."""
    return _packed({"status": "OK" if succeeded else "Failed", "message": text}, at, zone)


def unpacked_result(text: str) -> str:
    """The tool's own output."""
    packed = _unpacked(text)
    return text if packed is None or packed.status not in ("OK", "Failed") else packed.message


def packed_summary(summary: Summary, *, at: datetime, zone: tzinfo) -> str:
    """A summary in Letta's stored form."""
    counts = {} if summary.stats is None else {"compaction_stats": wire_stats(summary.stats)}
    return _packed({"type": _SUMMARY_ALERT, "message": summary.text}, at, zone, counts)


def unpacked_summary(text: str) -> Summary:
    """The summary in a message that is known to contain one."""
    packed = _unpacked(text)
    return Summary(text) if packed is None else Summary(packed.message, _stats(packed.compaction_stats or {}))


def is_packed_summary(text: str) -> bool:
    """Whether a user's message is a summary, as older servers store it."""
    packed = _unpacked(text)
    return packed is not None and packed.type == _SUMMARY_ALERT and _SAYS_SUMMARY in packed.message


def _packed(fields: dict[str, Any], at: datetime, zone: tzinfo, more: dict[str, Any] | None = None) -> str:
    moment = {"time": f"{at.astimezone(zone):%Y-%m-%d %I:%M:%S %p %Z%z}"}
    return json.dumps({**fields, **moment, **(more or {})}, indent=2, ensure_ascii=False)


def _unpacked(text: str) -> _Packed | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        packed = msgspec.json.decode(text, type=_Packed)
    except (msgspec.DecodeError, RecursionError):
        return None
    # JSON within JSON may contain texts that cannot be stored.
    return packed if flaw_of(packed.message) is None else None


def _stats(said: dict[str, Any]) -> CompactionStats | None:
    known = {field: said[name] for name, field in WIRE_STATS.items() if name in said}
    try:
        return msgspec.convert(known, CompactionStats)
    except msgspec.ValidationError:
        return None
