"""Asks a model to summarise messages. It shows nothing: what becomes of the summary is the caller's to decide."""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import structlog

from shared.domain.agents import ModelOptions
from shared.domain.compaction import CompactionOptions
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import (
    CHARACTERS_PER_TOKEN,
    AssistantMessage,
    Message,
    MessageBody,
    UserMessage,
    estimate_tokens,
    text_to_count,
)
from shared.domain.model_catalog import context_window_of, window_of
from shared.domain.runs import Step, Usage
from worker.models.provider import Finished, ModelCall, ModelEvent, Text
from worker.run.context import RunContext
from worker.run.observed import ObservedModelCall
from worker.run.transcript import excerpt, transcript

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

INSTRUCTIONS = """\
You write summaries of conversations between a user and an assistant that uses tools. Your summary takes the place of \
the conversation, so the assistant must be able to go on from it alone. Keep what the user wants, what was decided and \
promised, names, figures, file names and identifiers, results of tools that still matter, and what is left to do. \
Leave out pleasantries and detours. Do not answer the conversation and do not go on with it: reply with the summary."""

QUESTION = "Summarize this conversation{within}:\n\n"

ANNOUNCEMENT = "The next message is a conversation. Reply to it with a summary, and with nothing else."
AGREEMENT = "I will summarise the conversation and not go on with it."

SHARE_FOR_TRANSCRIPT = 0.6
"""The share of the model's window that the transcript may fill: its size is an estimate, and the answer needs room."""

SHORTER_TRANSCRIPTS = (1.0, 0.5, 0.25)
"""A model that says that the transcript is too long is shown a shorter one."""

LONGEST_MESSAGE = 20_000
"""Characters that the model is shown of one message. A longer message is mostly a tool's output."""

CHARACTERS_PER_WORD = 7
"""Of a summary whose length is limited; the model is told the limit in words."""


NO_SUMMARY = "[{messages} older messages are left out here. No summary of them could be written; this is an excerpt.]"


def is_refusal(error: ModelError) -> bool:
    """Whether a model's server refused what it was shown, in known words for its length or in others.

    Shorter texts do not help where the model is unknown (404), nor against an error of our own, which has no status.
    """
    if error.error_type is ModelErrorType.CONTEXT_WINDOW:
        return True
    return error.error_type is ModelErrorType.BAD_REQUEST and error.status in (400, 413, 422)


class Writer(NamedTuple):
    """A model that may write the summary."""

    handle: str
    options: ModelOptions
    window: int
    """Tokens that it can take in."""


async def write_summary(
    context: RunContext,
    gone: Sequence[Message],
    options: CompactionOptions,
    *,
    longest: int | None = None,
    is_step: bool = False,
) -> str:
    """A summary of the messages; `longest` is in characters. Raises `ModelError`, and what interrupts a run.

    The built-in models cannot summarise: an excerpt takes the place of the summary. With `is_step`, the call is a step
    of the run. In the middle of a run it is a part of the step that needs it, and only its tokens count.
    """
    writers = list(_writers(context, options))
    for writer in writers:
        if context.services.models.route(writer.handle).wire == "builtin":
            return f"Summary: the conversation so far, shortened.\n\n{excerpt(gone, longest)}"
        try:
            return await _written_by(context, writer, gone, options, longest, is_step)
        except ModelError as error:
            if writer is writers[-1]:
                raise
            log.warning("summary_model_failed", model=writer.handle, error=error.facts)
    raise AssertionError("a run has a model")


def excerpt_instead(gone: Sequence[Message], longest: int | None) -> str:
    """What takes the place of a summary that could not be written."""
    note = NO_SUMMARY.format(messages=len(gone))
    return f"{note}\n\n{excerpt(gone, None if longest is None else max(longest - len(note), 0))}"


def _writers(context: RunContext, options: CompactionOptions) -> Iterator[Writer]:
    """The model that was chosen for summaries, if it can be asked, and then the run's own."""
    chosen = options.model
    if chosen is not None and chosen != context.model:
        try:
            context.services.models.route(chosen)
            yield Writer(chosen, options.model_options or ModelOptions(), context_window_of(chosen))
        except ModelError as error:
            log.info("summary_model_unknown", model=chosen, error=error.facts)
    own = options.model_options if chosen == context.model else None
    yield Writer(context.model, own or context.options, window_of(context.model, context.options.context_window))


async def _written_by(
    context: RunContext,
    writer: Writer,
    gone: Sequence[Message],
    options: CompactionOptions,
    longest: int | None,
    is_step: bool,
) -> str:
    room = int(writer.window * SHARE_FOR_TRANSCRIPT * CHARACTERS_PER_TOKEN)
    within = "" if longest is None else f" in at most {max(longest // CHARACTERS_PER_WORD, 1)} words"
    for share in SHORTER_TRANSCRIPTS:
        shown = transcript(gone, longest_message=LONGEST_MESSAGE, longest=int(room * share))
        call = ModelCall(
            handle=writer.handle,
            system=options.prompt or INSTRUCTIONS,
            history=_question(context, QUESTION.format(within=within) + shown, acknowledged=options.acknowledged),
            options=msgspec.structs.replace(writer.options, response_format=None),
        )
        try:
            return await _ask(context, call, is_step=is_step)
        except ModelError as error:
            if not is_refusal(error) or share == SHORTER_TRANSCRIPTS[-1]:
                raise
            log.info("transcript_too_long", model=writer.handle, characters=len(shown))
    raise AssertionError("the last transcript was asked with, or raised")


@dataclass
class Draft:
    """A summary in the making."""

    pieces: list[str] = field(default_factory=list[str])
    used: Usage | None = None

    async def take_all(self, context: RunContext, call: ModelCall, step: Step | None) -> None:
        """Takes the whole answer. `step`: the step that the call makes."""
        with context.observation.model_call(call, step) as observed:
            async with aclosing(context.services.models.stream(call)) as events:
                async for event in events:
                    self._take(context, observed, event)

    def _take(self, context: RunContext, observed: ObservedModelCall, event: ModelEvent) -> None:
        if observed.is_silent:
            context.observation.hear(observed, event)
        if isinstance(event, Text):
            self.pieces.append(event.text)
        elif isinstance(event, Finished):
            self.used = event.usage
            observed.finish(event.usage, event.reason)

    @property
    def text(self) -> str:
        return "".join(self.pieces).strip()

    def usage_of(self, call: ModelCall) -> Usage:
        """What the call has used; an estimate when it was cut off, and nothing when that was before its answer."""
        if self.used is not None:
            return self.used
        said = estimate_tokens("".join(self.pieces))
        return Usage(prompt_tokens=call.estimated_tokens(), completion_tokens=said, estimated=True) if said else Usage()


async def _ask(context: RunContext, call: ModelCall, *, is_step: bool) -> str:
    """The model's whole text."""
    draft = Draft()
    if is_step:
        step = msgspec.structs.replace(context.new_step(), model=call.handle)
        asked = call.system + text_to_count(call.history)
        context.count_lost_calls(asked)
        await context.pay_for(call)
        in_hand = context.progress.begin_step(step, asked)
        await draft.take_all(context, call, step)
        in_hand.finish(context.count(call.handle, draft.usage_of(call)))
    else:
        await context.pay_for(call)
        try:
            await draft.take_all(context, call, None)
        finally:
            used = context.services.budgets.priced(call.handle, draft.usage_of(call))
            context.progress.count_aside(used)
    if not draft.text:
        raise ModelError(ModelErrorType.ERROR, "The model was asked for a summary and gave no text.")
    return draft.text


def _question(context: RunContext, text: str, *, acknowledged: bool) -> list[Message]:
    before = (UserMessage(ANNOUNCEMENT), AssistantMessage(text=AGREEMENT)) if acknowledged else ()
    return [_message(context, body) for body in (*before, UserMessage(text))]


def _message(context: RunContext, body: MessageBody) -> Message:
    run = context.run
    return Message(
        id=context.services.ids.message(),
        agent_id=run.agent_id,
        thread_id=run.thread_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        step_id=None,
        created_at=context.services.clock.now(),
        body=body,
    )
