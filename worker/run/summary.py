"""Asks a model to summarise messages. It shows nothing: what becomes of the summary is the caller's to decide."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from shared.concurrency import beside
from shared.domain.agents import ModelOptions
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import (
    CHARACTERS_PER_TOKEN,
    AssistantMessage,
    Message,
    UserMessage,
    weight,
)
from shared.domain.models import context_window_of, window_of
from shared.domain.runs import CompactionOptions
from worker.models.provider import ModelCall
from worker.run.context import RunContext
from worker.run.plain_answer import PlainAnswer, ask_as_step, question
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
            shortened = await beside(partial(excerpt, gone, longest), weight(gone))
            return f"Summary: the conversation so far, shortened.\n\n{shortened}"
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
        write = partial(transcript, gone, longest_message=LONGEST_MESSAGE, longest=int(room * share))
        shown = await beside(write, weight(gone))
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


async def _ask(context: RunContext, call: ModelCall, *, is_step: bool) -> str:
    """The model's whole text."""
    if is_step:
        step = msgspec.structs.replace(context.new_step(), model=call.handle)
        answer = await ask_as_step(context, call, step)
    else:
        await context.pay_for(call)
        answer = PlainAnswer()
        try:
            await answer.take_all(context, call, None)
        finally:
            used = context.services.budgets.priced(call.handle, answer.usage_of(call))
            context.progress.count_aside(used)
    text = answer.text.strip()
    if not text:
        raise ModelError(ModelErrorType.ERROR, "The model was asked for a summary and gave no text.")
    return text


def _question(context: RunContext, text: str, *, acknowledged: bool) -> list[Message]:
    before = (UserMessage(ANNOUNCEMENT), AssistantMessage(text=AGREEMENT)) if acknowledged else ()
    return [question(context, body) for body in (*before, UserMessage(text))]
