"""Asks a model to summarise messages. It shows nothing: its caller uses the summary."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, takewhile
from typing import NamedTuple

import msgspec
import structlog
from msgspec.structs import replace

from shared.concurrency import beside
from shared.domain.agents import CompactionOptions, ModelOptions
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.ids import MessageId
from shared.domain.messages import (
    CHARACTERS_PER_TOKEN,
    AssistantMessage,
    ContentPart,
    ImageContent,
    Message,
    MessageBody,
    Summary,
    SystemMessage,
    TextContent,
    ToolReturns,
    UserMessage,
    data_of_file,
    estimate_tokens,
    weight,
)
from shared.domain.models import context_window_of, window_of
from shared.domain.settling import open_calls
from worker.bodies.agent_context import AgentContext
from worker.bodies.answer import (
    PlainAnswer,
    as_text,
    ask_as_step,
    body_tokens,
    excerpt,
    history_tokens,
    transcript,
    without_middle,
)
from worker.models.provider import ModelCall

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
"""A model that refuses the transcript as too long gets a shorter one."""

LONGEST_MESSAGE = 20_000
"""Characters of one message that the model gets. A longer message is mostly a tool's output."""

CHARACTERS_PER_WORD = 7
"""For a summary of limited length: the request states the limit in words."""


NO_SUMMARY = "[{messages} older messages are left out here. No summary of them could be written; this is an excerpt.]"


def is_refusal(error: ModelError) -> bool:
    """Whether a model's server refused the request, for its length or for another reason.

    A shorter text does not help if the model is unknown (404), nor after an error of our own, which has no status.
    """
    if error.error_type is ModelErrorType.CONTEXT_WINDOW:
        return True
    return error.error_type is ModelErrorType.BAD_REQUEST and error.status in (400, 413, 422)


class Writer(NamedTuple):
    """A model that may write the summary."""

    handle: str
    options: ModelOptions
    window: int
    """Tokens of its context window."""


async def write_summary(
    context: AgentContext,
    gone: Sequence[Message],
    options: CompactionOptions,
    *,
    longest: int | None = None,
    is_step: bool = False,
) -> str:
    """A summary of the messages; `longest` is in characters. Raises `ModelError`, and the errors that interrupt a run.

    The built-in models cannot summarise: an excerpt replaces the summary. With `is_step`, the call is a step of the
    run. In the middle of a run it is a part of the step that needs it, and only its tokens count.
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
    """Replaces a summary that could not be written."""
    note = NO_SUMMARY.format(messages=len(gone))
    return f"{note}\n\n{excerpt(gone, None if longest is None else max(longest - len(note), 0))}"


def _writers(context: AgentContext, options: CompactionOptions) -> Iterator[Writer]:
    """The model that the options name for summaries, if it can be used, and then the run's own."""
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
    context: AgentContext,
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


async def _ask(context: AgentContext, call: ModelCall, *, is_step: bool) -> str:
    """The model's complete text."""
    if is_step:
        step = msgspec.structs.replace(context.new_step(), model=call.handle)
        answer = await ask_as_step(context, call, step)
    else:
        await context.handle.account.reserve(call)
        answer = PlainAnswer()
        try:
            await answer.take_all(context, call, None)
        finally:
            context.handle.account.count_aside(call.handle, answer.usage_of(call))
    text = answer.text.strip()
    if not text:
        raise ModelError(ModelErrorType.ERROR, "The model was asked for a summary and gave no text.")
    return text


def _question(context: AgentContext, text: str, *, acknowledged: bool) -> list[Message]:
    before = (UserMessage(ANNOUNCEMENT), AssistantMessage(text=AGREEMENT)) if acknowledged else ()
    return [context.handle.unstored(body) for body in (*before, UserMessage(text))]


# Selects the messages to remove from a full context, and truncates long texts for the model. No I/O. Calls are never
# separated from their results, so that every provider accepts the rest. Sizes are estimates, in tokens; `answer.py`
# describes their precision.


SUMMARY_SHARE = 0.2
"""The share of the room for a history that the summary may fill."""

MOST_KEPT = 0.7
"""The largest share for the messages beside it. With more, the window would be full again at once."""

SHORTEST_TEXT = 400
"""Characters. No text is cut to less."""

TOO_LONG = "[… {characters} characters are left out here: the text does not fit into the context window …]"
NO_FILE = "[A file is left out here: it does not fit into the context window.]"
NO_IMAGE = "[An image is left out here: it does not fit into the context window.]"


def messages_to_summarise(
    history: Sequence[Message], options: CompactionOptions, context_window: int
) -> Sequence[Message]:
    """The messages that a compaction between two runs summarises: the oldest part of the history, without its system
    message.

    The rest begins with a user's message that begins a turn or follows an answer. `context_window` is in tokens.

    A sliding window keeps as many of the newest turns as fit into its share of the context. It keeps at least the last
    one, unless that alone fills the share. If nothing can stay, everything is summarised.
    """
    spoken = _spoken(history)
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


def _spoken(history: Sequence[Message]) -> list[Message]:
    return [message for message in history if not isinstance(message.body, SystemMessage)]


def _may_begin(history: Sequence[Message], place: int) -> bool:
    """Whether the remaining history may begin at this place."""
    body, before = history[place].body, history[place - 1]
    if not isinstance(body, UserMessage) or open_calls(history[:place]) is not None:
        return False
    return not isinstance(before.body, UserMessage) or before.turn != history[place].turn


def select_for_summary(
    history: Sequence[Message], *, turn: int, options: CompactionOptions, room: int
) -> Sequence[Message]:
    """The messages that a compaction in the middle of a run summarises, so that history and summary fit into `room`.

    `turn` is the current one, whose question needs an answer. The oldest turns are removed first, as the options say;
    then everything before the current turn; then its first steps; and finally everything but its question and its last
    step. Empty if there is nothing else.
    """
    spoken = _spoken(history)
    sizes = {message.id: body_tokens(message.body) for message in spoken}
    total = sum(sizes.values())
    chosen: Sequence[Message] = ()
    for gone in _choices(spoken, sizes, turn, options, room):
        if all(isinstance(message.body, Summary) for message in gone):
            continue
        chosen = gone
        if total - sum(sizes[message.id] for message in gone) <= room * (1 - SUMMARY_SHARE):
            break
    return chosen


def _choices(
    spoken: list[Message], sizes: Mapping[MessageId, int], turn: int, options: CompactionOptions, room: int
) -> Iterator[Sequence[Message]]:
    """The messages to remove, the smallest choice first."""
    before = [message for message in spoken if message.turn < turn]
    present = spoken[len(before) :]
    target = min(options.keep_share, MOST_KEPT) * room
    kept = sum(sizes.values())
    if options.mode == "sliding_window":
        for place, message in enumerate(before):
            if place and kept <= target and _may_begin(before, place):
                yield before[:place]
                break
            kept -= sizes[message.id]
    yield before
    asked = list(takewhile(lambda message: isinstance(message.body, UserMessage), present))
    steps = _steps(present[len(asked) :])
    kept = sum(sizes[message.id] for message in present)
    for place, step in enumerate(steps):
        if place and kept <= target:
            yield [*before, *chain.from_iterable(steps[:place])]
            break
        kept -= sum(sizes[message.id] for message in step)
    yield [*before, *asked[:-1], *chain.from_iterable(steps[:-1])]


def _steps(present: Sequence[Message]) -> list[list[Message]]:
    """The steps of a turn after its question: each answer with its results, and each message that arrived meanwhile."""
    steps: list[list[Message]] = []
    for message in present:
        goes_on = isinstance(message.body, ToolReturns) or (steps and open_calls(steps[-1]) is not None)
        if steps and goes_on:
            steps[-1].append(message)
        else:
            steps.append([message])
    return steps


def longest_that_fits(history: Sequence[Message], room: int, longest: int) -> int:
    """The length, in characters, to which each text has to be cut so that the history fits: `longest`, or a half, a
    quarter … of it. Such large steps change seldom from one request to the next, so the provider's prompt cache stays
    valid."""
    while longest > SHORTEST_TEXT and history_tokens(truncated(history, longest)) > room:
        longest = max(longest // 2, SHORTEST_TEXT)
    return longest


def truncated(history: Sequence[Message], longest: int) -> list[Message]:
    """The history for the model: long texts of users, tools and summaries lose their middle.

    Answers stay unchanged: their provider wants them back as they were, and the model has limited their length. Images
    and files are removed when the texts are cut to the minimum.
    """
    return [_truncated(message, longest) for message in history]


def _truncated(message: Message, longest: int) -> Message:
    body = _truncated_body(message.body, longest)
    return message if body is message.body else replace(message, body=body)


def _truncated_body(body: MessageBody, longest: int) -> MessageBody:
    match body:
        case UserMessage(content=str(text)) if len(text) > longest:
            return replace(body, content=without_middle(text, longest, TOO_LONG))
        case UserMessage(content=list(parts)):
            shown = [_truncated_part(part, longest) for part in parts]
            return body if shown == parts else replace(body, content=shown)
        case ToolReturns(returns=returns) if any(len(one.text) > longest for one in returns):
            cut = [replace(one, text=without_middle(one.text, longest, TOO_LONG)) for one in returns]
            return replace(body, returns=cut)
        case Summary(text=text) if len(text) > longest:
            return replace(body, text=without_middle(text, longest, TOO_LONG))
        case _:
            return body


def _truncated_part(part: ContentPart, longest: int) -> ContentPart:
    match part:
        case TextContent() if longest <= SHORTEST_TEXT and data_of_file(part):
            return TextContent(NO_FILE)
        case TextContent(text=text) if len(text) > longest:
            return TextContent(without_middle(text, longest, TOO_LONG))
        case ImageContent() if longest <= SHORTEST_TEXT:
            return TextContent(NO_IMAGE)
        case _:
            return part
