"""Compaction: a summary takes the place of messages that no longer fit into the context."""

from typing import Literal

import msgspec

from shared.domain.agents import ModelOptions
from shared.domain.ids import MessageId
from shared.domain.messages import NewMessage

CompactionMode = Literal["all", "sliding_window"]


class CompactionOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a history is to be compacted."""

    mode: CompactionMode = "sliding_window"
    """Summarise everything, or keep the newest turns as they are."""
    keep_share: float = 0.3
    """For a sliding window: how much of the context the kept turns may take up, from 0 to 1."""
    model: str | None = None
    """Handle of the model that writes the summary. The run's own writes it when this is None or cannot be asked."""
    model_options: ModelOptions | None = None
    """How that model is asked."""
    prompt: str | None = None
    """Instructions for the model instead of our own."""
    acknowledged: bool = False
    """The conversation follows an answer in which the model has agreed to summarise it: some models would go on with
    the conversation otherwise."""
    clip_chars: int | None = 50_000
    """A longer summary is cut. None: it is not."""


class Compaction(msgspec.Struct, frozen=True):
    """What a compaction changes: these messages leave the context, and the summary takes their place."""

    gone: list[MessageId]
    summary: NewMessage
