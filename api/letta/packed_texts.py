"""Texts that Letta packs into JSON before it stores them: results of tools, and summaries.

A text that is not packed, or packed in an unknown form, is used unchanged.
"""

import json
from datetime import datetime, tzinfo
from typing import Any

import msgspec

from shared.domain.messages import CompactionStats, CompactionTrigger, Summary
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
    stats = summary.stats
    counts: dict[str, Any] = {}
    if stats is not None:
        counts["compaction_stats"] = {
            "trigger": stats.trigger,
            "context_tokens_before": stats.tokens_before,
            "context_tokens_after": stats.tokens_after,
            "messages_count_before": stats.messages_before,
            "messages_count_after": stats.messages_after,
            "context_window": stats.context_window,
        }
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


class _Stats(msgspec.Struct):
    messages_count_before: int
    messages_count_after: int
    context_window: int
    trigger: CompactionTrigger = "request"
    context_tokens_before: int | None = None
    context_tokens_after: int | None = None


def _stats(said: dict[str, Any]) -> CompactionStats | None:
    try:
        stats = msgspec.convert(said, _Stats)
    except msgspec.ValidationError:
        return None
    return CompactionStats(
        messages_before=stats.messages_count_before,
        messages_after=stats.messages_count_after,
        context_window=stats.context_window,
        trigger=stats.trigger,
        tokens_before=stats.context_tokens_before,
        tokens_after=stats.context_tokens_after,
    )
