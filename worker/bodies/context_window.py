"""Keeps the requests of one run within its model's window.

If a step's request would be too long, the worker replaces old messages by a summary and continues the step. If the
provider still refuses the request as too long, the worker removes more, until nothing more can be removed. It cuts long
texts in the request, but not in the history.

If the summary cannot be written, an excerpt replaces it, and the run does not fail. The change of the history is one
write with the run's fence. A cancel or crash before it changes nothing; after it, the next owner sees the change.
"""

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

import structlog

from shared.concurrency import beside
from shared.domain.agents import CompactionOptions
from shared.domain.errors import ModelError, ModelErrorType, NotFound
from shared.domain.events import Compacted, CompactionBegan, StopReason
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import (
    CHARACTERS_PER_TOKEN,
    CompactionStats,
    CompactionTrigger,
    Message,
    NewMessage,
    Summary,
    SystemMessage,
    weight,
)
from shared.domain.models import window_of
from shared.domain.runs import Compaction, Step
from shared.domain.settling import RunEnd
from worker.bodies.agent_context import AgentContext
from worker.bodies.answer import (
    LastAnswer,
    fixed_tokens,
    history_tokens,
    last_answer,
    offered_calls,
    take_answer,
    taken_before,
    text_tokens,
)
from worker.bodies.answer_draft import Answer
from worker.bodies.summary import (
    SHORTEST_TEXT,
    SUMMARY_SHARE,
    excerpt_instead,
    is_refusal,
    longest_that_fits,
    messages_to_summarise,
    select_for_summary,
    truncated,
    write_summary,
)
from worker.run.run_handle import Outcome

# A run that compacts its thread: one model call that shows nothing, and one change when the run is settled. The history
# does not change before that. So a compaction that fails, is cancelled or loses its worker changes nothing. A summary
# that readers are to see is stored with the event that shows it, just before the run is settled. `ContextWindow`
# handles a context that becomes full in the middle of a run.


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

COMPACTED = RunEnd(trigger=RunTrigger.COMPLETE, stop_reason=StopReason.ANSWERED)


async def compact_thread(context: AgentContext) -> Outcome:
    """Summarises the thread's oldest messages. Raises `ModelError`, and what interrupts a run."""
    options = context.run.options.compaction or CompactionOptions()
    history = (await context.handle.history()).messages
    if any(isinstance(message.body, Summary) and message.run_id == context.run.id for message in history):
        return Outcome(end=COMPACTED)  # an earlier owner of the run has stored the summary
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
        # The step has no result.
        context.handle.progress.in_hand = None
        text = await beside(partial(excerpt_instead, gone, options.clip_chars), weight(gone))
    stats = stats_of(history, gone, window, "request")
    compaction = new_compaction(context, gone, text, options.clip_chars, stats)
    if not context.run.options.item_events:
        return Outcome(end=COMPACTED, compaction=compaction)
    shown_as = Compacted(context.at, compaction.summary.id, text[: options.clip_chars], stats)
    await context.handle.compact(compaction, shown_as)
    return Outcome(end=COMPACTED)


def new_compaction(
    context: AgentContext, gone: Sequence[Message], text: str, longest: int | None, stats: CompactionStats
) -> Compaction:
    """Returns the change of the history: the text, cut to `longest` characters, replaces the messages `gone`."""
    truncated = text if longest is None else text[:longest]
    handle = context.handle
    summary = NewMessage(id=handle.ids.message(), created_at=handle.clock.now(), body=Summary(truncated, stats))
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
    """Returns the figures of a compaction that removes `gone` from `history`."""
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
    """Returns the number of messages that clients see for a stored one."""
    return 2 if getattr(message.body, "sibling_id", None) else 1


TRIGGER = 0.9
"""The share of the window at which a history is compacted. Programs written for other servers expect this share."""

LEAST_ROOM = 0.1
"""The share of the window that a history gets, however long instructions and tools are."""

SHARE_OF_ONE_TEXT = 0.5
"""The share of the window that one text of a request may fill."""

MOST_TOO_LITTLE = 3
"""The most by which an estimate may be too low, as a factor. A request that fits even so needs no exact count."""

MOST_REFUSALS = 4
"""How often a step is retried with a shorter request: the last request has a sixteenth of the first one's history."""

REFUSED_FOR_LENGTH = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Servers refuse too long requests with these statuses, among other errors. A 413 has no other meaning."""

LEAST_GROWTH = 2_000
"""Tokens by which a request must exceed the last accepted one before a refusal is attributed to its length."""

MUCH_LONGER = 1.1
"""The factor by which a request must exceed the last accepted one, too."""


class ContextWindow:
    """The window of a run's model, as learned from the provider's refusals. Each execution of a run has its own."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._window = window_of(context.model, context.options.context_window)
        self._limit = int(self._window * TRIGGER)
        """The most tokens of a request. A refusal by the provider lowers it."""
        self._most = context.run.options.compact_over or self._limit
        """The most tokens in a request that the run's options allow. Only compaction enforces it: no text is cut."""
        self._is_learned = False
        self._longest_text = int(self._window * SHARE_OF_ONE_TEXT) * CHARACTERS_PER_TOKEN

    async def ask(self, history: Sequence[Message]) -> Answer:
        """Asks the model once, with as much of the history as fits. Raises `ModelError`, and what interrupts a run."""
        try:
            return await self._ask(history)
        except ModelError as error:
            # An estimate alone must not fail the run: here the provider has refused the request.
            if error.error_type is ModelErrorType.CONTEXT_WINDOW and self._fixed_tokens >= self._window:
                raise ModelError(ModelErrorType.INSTRUCTIONS, error.message, status=error.status) from error
            raise

    async def _ask(self, history: Sequence[Message]) -> Answer:
        context = self._context
        sent = await self._cut(history)
        size = await self._size_of(sent)
        if size > self._compact_over:
            history, sent = await self._make_room(history, size, "post_step_context_check")
        may_suspect = True
        for _ in range(MOST_REFUSALS):
            in_hand = context.handle.progress.in_hand
            try:
                return await take_answer(context, sent)
            except ModelError as error:
                is_known = error.error_type is ModelErrorType.CONTEXT_WINDOW
                is_suspect = may_suspect and not is_known and self._may_be_too_long(error, sent)
                if not (is_known or is_suspect) or context.handle.shown.text:
                    raise
                may_suspect = may_suspect and is_known
                refused = await self._tokens_of(sent)
                log.info("request_too_long", estimated_tokens=self._fixed_tokens + refused, reason=error.facts)
                self._learn(refused)
                # Readers have seen nothing of the step, so it counts as not begun.
                context.handle.progress.in_hand = in_hand
                history, sent = await self._make_room(history, self._fixed_tokens + refused, "context_window_exceeded")
                if await self._tokens_of(sent) >= refused:
                    raise
        return await take_answer(context, sent)

    def _may_be_too_long(self, error: ModelError, sent: Sequence[Message]) -> bool:
        """Returns whether an unknown refusal may be due to the request's length: it is much longer than the last
        accepted one, or fills much of the window."""
        if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return True
        if error.error_type is not ModelErrorType.BAD_REQUEST or error.status not in REFUSED_FOR_LENGTH:
            return False
        size, taken = history_tokens(sent), history_tokens(taken_before(sent))
        fixed = self._fixed_tokens
        is_much_longer = size - taken >= LEAST_GROWTH and fixed + size >= (fixed + taken) * MUCH_LONGER
        return is_much_longer or fixed + size >= self._window * SHARE_OF_ONE_TEXT

    @property
    def _compact_over(self) -> int:
        return min(self._limit, self._most)

    @property
    def _fixed_tokens(self) -> int:
        return fixed_tokens(self._context.system, offered_calls(self._context).tools)

    def _learn(self, refused: int) -> None:
        """Lowers the limit after a refusal of a request with `refused` tokens of history."""
        self._is_learned = True
        self._limit = min(self._limit, self._fixed_tokens + refused // 2)

    async def _size_of(self, history: Sequence[Message]) -> int:
        """Returns the tokens of the request, as `answer.py` counts them. A limit learned from a refusal is an estimate
        itself, so it is compared with an estimate."""
        estimated = self._fixed_tokens + await self._tokens_of(history)
        answered = last_answer(history)
        if answered is None or self._is_learned or estimated * MOST_TOO_LITTLE <= self._compact_over:
            return estimated
        counted = await self._counted(answered)
        return estimated if counted is None else counted + await self._tokens_of(answered.since)

    async def _tokens_of(self, history: Sequence[Message]) -> int:
        return await beside(partial(history_tokens, history), weight(history))

    async def _counted(self, answered: LastAnswer) -> int | None:
        """Returns the provider's count for the step of this answer; None if it is missing or of another model."""
        context = self._context
        in_hand = context.handle.progress.in_hand
        if in_hand is not None and in_hand.step.id == answered.step_id:
            return _count_of(in_hand.step, context.model)
        steps, project_id = context.services.steps, context.run.project_id
        try:
            step = await context.whole(lambda: steps.get(project_id, answered.step_id))
        except NotFound:
            return None
        return _count_of(step, context.model)

    async def _make_room(
        self, history: Sequence[Message], size: int, trigger: CompactionTrigger
    ) -> tuple[Sequence[Message], Sequence[Message]]:
        """Removes old messages. Returns the remaining history, and the part of it for the request."""
        context, wanted = self._context, self._room(self._compact_over)
        shown = await self._cut(history)
        choose = partial(
            select_for_summary, shown, turn=context.run.turn or 0, options=context.run.options.when_full, room=wanted
        )
        gone = await beside(choose, weight(shown))
        if gone:
            await self._compact(shown, gone, wanted, size, trigger)
            history = (await context.history()).messages
        room = self._room(self._limit)
        self._longest_text = await beside(
            partial(longest_that_fits, history, room, self._longest_text), weight(history)
        )
        return history, await self._cut(history)

    async def _cut(self, history: Sequence[Message]) -> Sequence[Message]:
        """Returns the history as the model gets it (`truncated`). A short one has no long text, and stays as it is."""
        characters = weight(history)
        if characters <= self._longest_text and self._longest_text > SHORTEST_TEXT:
            return history
        return await beside(partial(truncated, history, self._longest_text), characters)

    def _room(self, most: int) -> int:
        """Returns the tokens that the history may have in a request of `most` tokens."""
        return max(most - self._fixed_tokens, int(most * LEAST_ROOM))

    async def _compact(
        self, history: Sequence[Message], gone: Sequence[Message], room: int, size: int, trigger: CompactionTrigger
    ) -> None:
        context, options = self._context, self._context.run.options.when_full
        if context.handle.shown.message_id is not None:
            # The next owner reads the log only after this compaction, so no answer may span it.
            context.handle.begin_again()
        context.emit(CompactionBegan(context.at, trigger, size, self._window))
        longest = int(room * SUMMARY_SHARE) * CHARACTERS_PER_TOKEN
        longest = longest if options.clip_chars is None else min(longest, options.clip_chars)
        text = await self._summary_of(gone, longest)
        stayed = await self._tokens_of(history) - await self._tokens_of(gone)
        left = self._fixed_tokens + stayed + text_tokens(text[:longest])
        stats = stats_of(history, gone, self._window, trigger, tokens_before=size, tokens_after=left)
        compaction = new_compaction(context, gone, text, longest, stats)
        shown_as = Compacted(context.at, compaction.summary.id, text[:longest], stats)
        await context.handle.compact(compaction, shown_as)
        log.info("context_compacted", trigger=trigger, messages=len(gone), tokens_before=size, tokens_after=left)
        context.handle.account.check()
        context.handle.stop_if_asked()

    async def _summary_of(self, gone: Sequence[Message], longest: int) -> str:
        try:
            return await write_summary(self._context, gone, self._context.run.options.when_full, longest=longest)
        except ModelError as error:
            log.warning("summary_failed", error=error.facts)
            return await beside(partial(excerpt_instead, gone, longest), weight(gone))


def _count_of(step: Step, model: str) -> int | None:
    usage = step.usage
    return usage.context_tokens if step.model == model and not usage.estimated and usage.context_tokens else None
