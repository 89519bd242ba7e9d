"""Compaction: a summary takes the place of messages that no longer fit into the context."""

from typing import Literal

import msgspec

from shared.domain.ids import MessageId
from shared.domain.messages import NewMessage

CompactionMode = Literal["all", "sliding_window"]


class CompactionOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a history is to be compacted. The model that does it is the run's."""

    mode: CompactionMode = "sliding_window"
    """Summarise everything, or keep the newest turns as they are."""
    keep_share: float = 0.3
    """For a sliding window: how much of the context the kept turns may take up, from 0 to 1."""
    prompt: str | None = None
    """Instructions for the model instead of our own."""
    clip_chars: int | None = 50_000
    """A longer summary is cut. None: it is not."""


class Compaction(msgspec.Struct, frozen=True):
    """What a compaction changes: these messages leave the context, and the summary takes their place."""

    gone: list[MessageId]
    summary: NewMessage
