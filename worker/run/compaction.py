"""Executes a run that compacts its thread: one model call that shows nothing, and one change when the run is settled.

The history stays as it was until then. So a compaction that fails, is cancelled or loses its worker has changed
nothing.
"""

from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from shared.domain.compaction import Compaction, CompactionOptions
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import (
    CHARACTERS_PER_TOKEN,
    ApprovalResponse,
    AssistantMessage,
    CompactionStats,
    Message,
    MessageBody,
    NewMessage,
    Summary,
    SystemMessage,
    ToolReturns,
    UserMessage,
    estimate_tokens,
    text_of,
)
from shared.domain.model_catalog import context_window_of
from shared.domain.settling import RunEnd, open_calls
from worker.models.provider import Finished, ModelCall, Text
from worker.run.context import Outcome, RunContext


def transcript(history: Sequence[Message], *, longest_message: int, longest: int) -> str:
    """The history as text: who said what, a paragraph per message.

    Limits are in characters. A longer text loses its middle: its beginning and its end say most.
    """
    paragraphs = [without_middle(text, longest_message) for message in history if (text := as_text(message.body))]
    return without_middle("\n\n".join(paragraphs), longest)


def as_text(body: MessageBody) -> str:
    """One message as text; empty for a message that the model does not see."""
    match body:
        case UserMessage(content=content, role=role):
            return f"{role}: {text_of(content) or '[an image]'}"
        case AssistantMessage(text=text, tool_calls=calls):
            called = [f"[calls {call.name} with {call.arguments}]" for call in calls]
            return "\n".join(["assistant: " + text, *called] if text else [f"assistant: {call}" for call in called])
        case ToolReturns(returns=returns):
            return "\n".join(f"result of {one.tool_name} ({one.status}): {one.text}" for one in returns)
        case Summary(text=text):
            return f"summary of what came before: {text}"
        case SystemMessage() | ApprovalResponse():
            return ""


def without_middle(text: str, longest: int) -> str:
    """The text, or its beginning and its end with a note between them."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def messages_to_summarise(
    history: Sequence[Message], options: CompactionOptions, context_window: int
) -> Sequence[Message]:
    """The messages that a compaction summarises: the oldest part of the history, without its system message.

    What stays begins with a user's message that begins a turn or follows an answer. So calls are never separated from
    their results, and every provider accepts what is left. `context_window` is in tokens.

    A sliding window keeps as many of the newest turns as fit into its share of the context, and at least the last one
    unless that alone takes up the share. When nothing can stay, everything is summarised.
    """
    spoken = [message for message in history if not isinstance(message.body, SystemMessage)]
    if options.mode == "all":
        return spoken
    sizes = [estimate_tokens(as_text(message.body)) for message in spoken]
    share_of_window = options.keep_share * context_window
    cuts = [place for place in range(1, len(spoken)) if _may_begin(spoken, place)]
    room = min(share_of_window, options.keep_share * sum(sizes))
    fitting = [cut for cut in cuts if sum(sizes[cut:]) <= room]
    if fitting:
        return spoken[: fitting[0]]
    if cuts and sum(sizes[cuts[-1] :]) <= share_of_window:
        return spoken[: cuts[-1]]
    return spoken


def _may_begin(history: Sequence[Message], place: int) -> bool:
    """Whether what stays may begin at this place."""
    body, before = history[place].body, history[place - 1]
    if not isinstance(body, UserMessage) or open_calls(history[:place]) is not None:
        return False
    return not isinstance(before.body, UserMessage) or before.turn != history[place].turn


INSTRUCTIONS = """\
You write summaries of conversations between a user and an assistant that uses tools. Your summary takes the place of \
the conversation, so the assistant must be able to go on from it alone. Keep what the user wants, what was decided and \
promised, names, figures, file names and identifiers, results of tools that still matter, and what is left to do. \
Leave out pleasantries and detours. Do not answer the conversation and do not go on with it: reply with the summary."""

QUESTION = "Summarize this conversation:\n\n"

SHARE_FOR_TRANSCRIPT = 0.6
"""The share of the model's window that the transcript may fill: its size is an estimate, and the answer needs room."""

LONGEST_MESSAGE = 20_000
"""Characters that the model is shown of one message. A longer message is mostly a tool's output."""

COMPACTED = RunEnd(trigger=RunTrigger.COMPLETE, stop_reason="end_turn")

OFFLINE_MESSAGE, OFFLINE_WHOLE = 200, 4_000
"""Characters. The built-in models cannot summarise: a cut transcript takes the place of the summary."""


async def compact_thread(context: RunContext, options: CompactionOptions) -> Outcome:
    """Summarises the thread's oldest messages. Raises `ModelError`, and what interrupts a run."""
    history = await context.history()
    window = context.options.context_window or context_window_of(context.model)
    gone = messages_to_summarise(history, options, window)
    if not gone:
        return Outcome(end=COMPACTED)
    text = await _summary_of(context, gone, options, window)
    before = sum(map(_shown_as, history)) + (not any(isinstance(message.body, SystemMessage) for message in history))
    stats = CompactionStats(
        messages_before=before, messages_after=before - sum(map(_shown_as, gone)) + 1, context_window=window
    )
    services = context.services
    clipped = text if options.clip_chars is None else text[: options.clip_chars]
    summary = NewMessage(id=services.ids.message(), created_at=services.clock.now(), body=Summary(clipped, stats))
    return Outcome(
        end=COMPACTED,
        compaction=Compaction([message.id for message in gone], summary),
    )


async def _summary_of(context: RunContext, gone: Sequence[Message], options: CompactionOptions, window: int) -> str:
    if context.services.models.route(context.model).wire == "builtin":
        cut = transcript(gone, longest_message=OFFLINE_MESSAGE, longest=OFFLINE_WHOLE)
        return f"Summary: the conversation so far, shortened.\n\n{cut}"
    longest = int(window * SHARE_FOR_TRANSCRIPT * CHARACTERS_PER_TOKEN)
    shown = transcript(gone, longest_message=LONGEST_MESSAGE, longest=longest)
    call = ModelCall(
        handle=context.model,
        system=options.prompt or INSTRUCTIONS,
        history=[_question(context, QUESTION + shown)],
        options=msgspec.structs.replace(context.options, response_format=None),
    )
    return await _ask(context, call)


async def _ask(context: RunContext, call: ModelCall) -> str:
    """The model's whole text. The run's stream shows nothing of it, because it answers no message."""
    in_hand = context.progress.begin_step(context.new_step(), asked=call.system)
    pieces: list[str] = []
    async with aclosing(context.services.models.stream(call)) as events:
        async for event in events:
            if isinstance(event, Text):
                pieces.append(event.text)
            elif isinstance(event, Finished):
                context.progress.count(event.usage)
                in_hand.finish(event.usage)
    text = "".join(pieces).strip()
    if not text:
        raise ModelError(ModelErrorType.ERROR, "The model was asked for a summary and gave no text.")
    return text


def _question(context: RunContext, text: str) -> Message:
    run = context.run
    return Message(
        id=context.services.ids.message(),
        agent_id=run.agent_id,
        thread_id=run.thread_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        step_id=None,
        created_at=context.services.clock.now(),
        body=UserMessage(text),
    )


def _shown_as(message: Message) -> int:
    """As how many messages the wire counts a stored one."""
    return 2 if getattr(message.body, "sibling_id", None) else 1
