"""Executes a run that compacts its thread: one model call that shows nothing, and one change when the run is settled.

The history stays as it was until then. So a compaction that fails, is cancelled or loses its worker has changed
nothing. A context that is full in the middle of a run is `context_window`'s.
"""

from collections.abc import Sequence
from functools import partial

import structlog

from shared.concurrency import beside
from shared.domain.errors import ModelError
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import (
    CompactionStats,
    CompactionTrigger,
    Message,
    NewMessage,
    Summary,
    SystemMessage,
    weight,
)
from shared.domain.models import window_of
from shared.domain.runs import Compaction, CompactionOptions
from shared.domain.settling import RunEnd
from worker.run.context import Outcome, RunContext
from worker.run.summary import excerpt_instead, is_refusal, write_summary
from worker.run.what_leaves import messages_to_summarise

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

COMPACTED = RunEnd(trigger=RunTrigger.COMPLETE, stop_reason="end_turn")


async def compact_thread(context: RunContext, options: CompactionOptions) -> Outcome:
    """Summarises the thread's oldest messages. Raises `ModelError`, and what interrupts a run."""
    history = (await context.first_history()).messages
    window = window_of(context.model, context.options.context_window)
    gone = await beside(partial(messages_to_summarise, history, options, window), weight(history))
    if not gone:
        return Outcome(end=COMPACTED)
    try:
        text = await write_summary(context, gone, options, is_step=True)
    except ModelError as error:
        if not is_refusal(error):
            raise
        log.warning("summary_failed", error=error.facts)
        # The step has brought nothing.
        context.progress.in_hand = None
        text = await beside(partial(excerpt_instead, gone, options.clip_chars), weight(gone))
    stats = stats_of(history, gone, window, "request")
    return Outcome(end=COMPACTED, compaction=new_compaction(context, gone, text, options.clip_chars, stats))


def new_compaction(
    context: RunContext, gone: Sequence[Message], text: str, longest: int | None, stats: CompactionStats
) -> Compaction:
    """The change of the history: these messages leave, and the text, cut to `longest` characters, takes their place."""
    clipped = text if longest is None else text[:longest]
    services = context.services
    summary = NewMessage(id=services.ids.message(), created_at=services.clock.now(), body=Summary(clipped, stats))
    return Compaction([message.id for message in gone], summary)


def stats_of(
    history: Sequence[Message],
    gone: Sequence[Message],
    window: int,
    trigger: CompactionTrigger,
    *,
    tokens_before: int | None = None,
    tokens_after: int | None = None,
) -> CompactionStats:
    """What the compaction comes to when `gone` leaves `history`."""
    before = sum(map(_shown_as, history)) + (not any(isinstance(message.body, SystemMessage) for message in history))
    return CompactionStats(
        messages_before=before,
        messages_after=before - sum(map(_shown_as, gone)) + 1,
        context_window=window,
        trigger=trigger,
        tokens_before=tokens_before,
        tokens_after=tokens_after,
    )


def _shown_as(message: Message) -> int:
    """As how many messages the wire counts a stored one."""
    return 2 if getattr(message.body, "sibling_id", None) else 1
