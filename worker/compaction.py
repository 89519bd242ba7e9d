"""Executing a run that compacts its thread: one model call that shows nothing, and one change when the run is settled.

Until then the history is as it was, so a compaction that fails, is cancelled or loses its worker has changed nothing.
"""

from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from shared.domain.compaction import Compaction, CompactionOptions
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import CompactionStats, Message, NewMessage, Summary, SystemMessage, UserMessage
from shared.domain.model_catalog import context_window_of
from shared.domain.runs import Step
from worker.compaction_cut import messages_to_summarise
from worker.models.provider import Finished, ModelCall, Text
from worker.models.token_estimate import CHARACTERS_PER_TOKEN
from worker.run_work import Outcome, RunWork
from worker.transcript import transcript

INSTRUCTIONS = """\
You write summaries of conversations between a user and an assistant that uses tools. Your summary takes the place of \
the conversation, so the assistant must be able to go on from it alone. Keep what the user wants, what was decided and \
promised, names, figures, file names and identifiers, results of tools that still matter, and what is left to do. \
Leave out pleasantries and detours. Do not answer the conversation and do not go on with it: reply with the summary."""

QUESTION = "Summarize this conversation:\n\n"

SHARE_FOR_TRANSCRIPT = 0.6
"""How much of the model's window the transcript may fill: what is estimated must fit with room for the answer."""

LONGEST_MESSAGE = 20_000
"""Characters of one message that the model is shown. A longer one is mostly a tool's output."""

OFFLINE = "builtin/"
"""Models with this prefix cannot summarise: a cut transcript takes the place of the summary."""

OFFLINE_MESSAGE, OFFLINE_WHOLE = 200, 4_000


async def compact_thread(work: RunWork, options: CompactionOptions) -> Outcome:
    """Summarises the thread's oldest messages. Raises `ModelError`, and what interrupts a run."""
    history = await work.history()
    window = work.options.context_window or context_window_of(work.model)
    gone = messages_to_summarise(history, options, window)
    if not gone:
        return Outcome(trigger=RunTrigger.COMPLETE, stop_reason="end_turn")
    text = await _summary_of(work, gone, options, window)
    before = sum(map(_shown_as, history)) + (not any(isinstance(message.body, SystemMessage) for message in history))
    stats = CompactionStats(
        messages_before=before, messages_after=before - sum(map(_shown_as, gone)) + 1, context_window=window
    )
    services = work.services
    clipped = text if options.clip_chars is None else text[: options.clip_chars]
    summary = NewMessage(id=services.ids.message(), created_at=services.clock.now(), body=Summary(clipped, stats))
    return Outcome(
        trigger=RunTrigger.COMPLETE,
        stop_reason="end_turn",
        step=work.step,
        compaction=Compaction([message.id for message in gone], summary),
    )


async def _summary_of(work: RunWork, gone: Sequence[Message], options: CompactionOptions, window: int) -> str:
    if work.model.startswith(OFFLINE):
        cut = transcript(gone, longest_message=OFFLINE_MESSAGE, longest=OFFLINE_WHOLE)
        return f"Summary: the conversation so far, shortened.\n\n{cut}"
    longest = int(window * SHARE_FOR_TRANSCRIPT * CHARACTERS_PER_TOKEN)
    shown = transcript(gone, longest_message=LONGEST_MESSAGE, longest=longest)
    call = ModelCall(
        handle=work.model,
        system=options.prompt or INSTRUCTIONS,
        history=[_question(work, QUESTION + shown)],
        options=msgspec.structs.replace(work.options, response_format=None),
    )
    return await _ask(work, call)


async def _ask(work: RunWork, call: ModelCall) -> str:
    """The model's whole text. Nothing of it is shown in the run's stream: it is not an answer to anybody."""
    services = work.services
    step = Step(
        id=services.ids.step(),
        run_id=work.run.id,
        agent_id=work.run.agent_id,
        number=work.step_count + 1,
        model=work.model,
        created_at=services.clock.now(),
    )
    work.step = step
    pieces: list[str] = []
    async with aclosing(services.models.stream(call)) as events:
        async for event in events:
            if isinstance(event, Text):
                pieces.append(event.text)
            elif isinstance(event, Finished):
                work.usage = work.usage.plus(event.usage)
                work.step_count += 1
                work.step = msgspec.structs.replace(step, status="success", usage=event.usage)
    text = "".join(pieces).strip()
    if not text:
        raise ModelError(ModelErrorType.ERROR, "The model was asked for a summary and gave no text.")
    return text


def _question(work: RunWork, text: str) -> Message:
    run = work.run
    return Message(
        id=work.services.ids.message(),
        agent_id=run.agent_id,
        thread_id=run.thread_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        step_id=None,
        created_at=work.services.clock.now(),
        body=UserMessage(text),
    )


def _shown_as(message: Message) -> int:
    """As how many messages the wire counts a stored one."""
    return 2 if getattr(message.body, "sibling_id", None) else 1
