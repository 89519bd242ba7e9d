"""Asks the model for one answer, or for the rest of one whose beginning readers have seen, and measures requests."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from shared.concurrency import beside
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.ids import StepId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    ContentPart,
    ImageContent,
    Message,
    MessageBody,
    Summary,
    SystemMessage,
    ToolReturns,
    UserMessage,
    data_of_file,
    estimate_tokens,
    text_of,
    text_to_count,
    weight,
)
from shared.domain.runs import Step, Usage
from shared.domain.settling import BegunAnswer
from shared.domain.tools import NextCalls, ToolChoice
from worker.bodies.agent_context import AgentContext
from worker.bodies.answer_draft import Answer, AnswerDraft
from worker.models.provider import (
    TOOL_CHOICE,
    CallFinished,
    ContinuedText,
    Finished,
    FinishReason,
    ModelCall,
    ModelEvent,
    Text,
    ToolSpec,
)
from worker.run.observation import ObservedModelCall

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


_REFUSALS = (ModelErrorType.BAD_REQUEST, ModelErrorType.CONTEXT_WINDOW)
"""The errors of models that cannot continue answers, or not this answer."""


async def take_answer(context: AgentContext, history: Sequence[Message]) -> Answer:
    """Asks the model once, for the rest of its answer if readers have seen the beginning. Raises `ModelError`; the
    handle's `shown` then contains the part that readers have seen."""
    asked = context.system + await beside(partial(text_to_count, history), weight(history))
    shown = context.handle.shown
    beginning = _beginning(context)
    if beginning is not None:
        try:
            return await _ask(context, history, asked, beginning)
        except ModelError as error:
            if error.error_type not in _REFUSALS or shown.text:
                raise
            log.info("answer_begins_again", reason=error.facts)
            context.handle.begin_again()
    return await _ask(context, history, asked, None)


def _beginning(context: AgentContext) -> BegunAnswer | None:
    """Returns the beginning of the current answer, which another worker has shown. Makes it void if the model cannot
    continue it."""
    handle = context.handle
    if handle.shown.message_id is None:
        return None
    beginning = handle.shown.beginning
    if beginning is not None and not offered_calls(context).must_call:
        return beginning
    handle.begin_again()
    return None


async def _ask(context: AgentContext, history: Sequence[Message], asked: str, beginning: BegunAnswer | None) -> Answer:
    continued = None if beginning is None else ContinuedText(beginning.text)
    offered = offered_calls(context)
    call = ModelCall(
        handle=context.model,
        system=context.system,
        history=history,
        tools=offered.tools,
        beginning="" if continued is None else continued.asked,
        must_call=offered.must_call,
        forced_tool=offered.forced_tool,
        may_call=offered.may_call,
        thread_id=context.run.thread_id,
        taken_call_ids=await context.decided_call_ids() if offered.tools else frozenset(),
        options=context.options,
        demanded=[*context.run.options.demanded, *([TOOL_CHOICE] if offered.is_chosen else [])],
    )
    await context.handle.account.reserve(call, repeats=asked)
    # An interrupt arrives where the task awaits. With a quick database the task may reach this line without awaiting,
    # so this await delivers an interrupt that came during the last checkpoint before the model is asked.
    await asyncio.sleep(0)
    in_hand = context.handle.progress.begin_step(context.new_step(beginning), asked)
    context.progress.seen_memory = {block.id: block.version for block in context.progress.blocks}
    with context.observation.model_call(call, in_hand.step) as observed:
        draft = AnswerDraft(context, in_hand, beginning, continued, observed)
        async with aclosing(context.services.models.stream(call)) as events:
            async for event in events:
                draft.take(event)
                await draft.pause()
        if draft.has_calls:
            # An approval gate that was enabled during the answer applies to its calls.
            await context.read_equipment()
            # As above: an interrupt must not arrive between showing the calls and their checkpoint.
            await asyncio.sleep(0)
        return draft.finish()


class OfferedCalls(NamedTuple):
    """The calls that the next answer may make, and whether it must make one."""

    tools: list[ToolSpec]
    must_call: bool = False
    forced_tool: str = ""
    """The tool that must be called; empty if any of the tools may be."""
    may_call: bool = True
    is_chosen: bool = False
    """The run's own choice of tools demands the call; no rule of the agent does. Then the model must support that."""


def offered_calls(context: AgentContext) -> OfferedCalls:
    """Returns the calls that the agent's rules and the run's own choice of tools allow in the next answer.

    The rules apply first; the choice then selects from the allowed tools. Raises `ModelError` if the two contradict
    each other, or if the choice names a tool that does not exist.
    """
    may_call, choice = context.next_calls(), context.run.options.tool_choice
    tools = _tool_specs(context, may_call)
    if context.may_call_no_more:
        clients = {tool.name for tool in context.run.options.client_tools}
        left = [tool for tool in tools if tool.name in clients]
        return OfferedCalls(left) if left else OfferedCalls(tools, may_call=False)
    if choice is None:
        return OfferedCalls(tools, may_call.forced)
    is_demanded, names = context.must_choose, choice.names
    if is_demanded or context.handle.progress.step_count == 0:
        _refuse_unknown_tools(context, choice)
    wanted = names if is_demanded and names else [tool.name for tool in tools if choice.permits(tool.name)]
    chosen = [tool for tool in tools if tool.name in wanted]
    if may_call.forced or is_demanded:
        if not chosen:
            raise ModelError(ModelErrorType.BAD_REQUEST, _contradiction(may_call, choice, tools))
        if is_demanded and not may_call.forced and len(names) == 1:
            # The same tools as in every other request, so that the provider's cache contains them.
            return OfferedCalls(tools, must_call=True, forced_tool=names[0], is_chosen=True)
        return OfferedCalls(chosen, must_call=True, is_chosen=is_demanded)
    return OfferedCalls(tools, may_call=False) if choice.mode == "none" else OfferedCalls(chosen)


def _refuse_unknown_tools(context: AgentContext, choice: ToolChoice) -> None:
    if unknown := [name for name in choice.names if name not in context.tool_names]:
        raise ModelError(
            ModelErrorType.BAD_REQUEST,
            f"tool_choice names {', '.join(map(repr, unknown))}, which is no tool of the agent or of the request. "
            f"There are: {', '.join(sorted(context.tool_names)) or 'none'}.",
        )


def _contradiction(may_call: NextCalls, choice: ToolChoice, tools: Sequence[ToolSpec]) -> str:
    wanted = f"{choice.mode!r}" + (f" with {', '.join(choice.names)}" if choice.names else "")
    left = ", ".join(sorted(tool.name for tool in tools)) or "no tool"
    rules = "demand a call of" if may_call.forced else "leave"
    return f"tool_choice is {wanted}, but the agent's tools and tool rules {rules} {left} now."


def _tool_specs(context: AgentContext, may_call: NextCalls) -> list[ToolSpec]:
    """Returns the tools that the model may call now: the agent's tools that its rules allow, and the client's tools
    unless a call of an agent's tool is forced."""
    own = [
        ToolSpec(tool.name, tool.json_schema.get("description") or tool.description, tool.parameters)
        for name, tool in context.tools.items()
        if name in may_call.allowed
    ]
    declared = () if may_call.forced else context.run.options.client_tools
    clients = [ToolSpec(tool.name, tool.description, tool.parameters, tool.strict) for tool in declared]
    names = {tool.name for tool in clients}
    return [*(tool for tool in own if tool.name not in names), *clients]


# A model's answer that is not streamed to readers: the caller decides what to do with it. Used for summaries, and for
# requests of a client to a model without its agent.


@dataclass
class PlainAnswer:
    """An answer that is being received."""

    pieces: list[str] = field(default_factory=list[str])
    calls: dict[int, CallFinished] = field(default_factory=dict[int, CallFinished])
    """By index in the answer. A call may be finished twice; the last event counts."""
    reason: FinishReason = "stop"
    used: Usage | None = None

    async def take_all(self, context: AgentContext, call: ModelCall, step: Step | None) -> None:
        """Receives the whole answer. `step` is the step of the call."""
        with context.observation.model_call(call, step) as observed:
            async with aclosing(context.services.models.stream(call)) as events:
                async for event in events:
                    self._take(context, observed, event)

    def _take(self, context: AgentContext, observed: ObservedModelCall, event: ModelEvent) -> None:
        if observed.is_silent:
            context.observation.hear(observed, event)
        match event:
            case Text(text=text):
                self.pieces.append(text)
            case CallFinished():
                self.calls[event.index] = event
            case Finished():
                self.used, self.reason = event.usage, event.reason
                observed.finish(event.usage, event.reason)
            case _:
                pass

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def usage_of(self, call: ModelCall) -> Usage:
        """Returns the call's usage: an estimate if it was cut off, and none if that was before its answer."""
        if self.used is not None:
            return self.used
        said = estimate_tokens(self.text)
        return Usage(prompt_tokens=call.estimated_tokens(), completion_tokens=said, estimated=True) if said else Usage()


async def ask_as_step(context: AgentContext, call: ModelCall, step: Step) -> PlainAnswer:
    """Returns the model's whole answer to a call that is this step of the run. Raises `ModelError`, and what interrupts
    a run."""
    asked = call.system + await beside(partial(text_to_count, call.history), call.weight())
    await context.handle.account.reserve(call, repeats=asked)
    # An interrupt arrives where the task awaits. This await delivers an earlier one before the model is asked.
    await asyncio.sleep(0)
    in_hand = context.handle.progress.begin_step(step, asked)
    answer = PlainAnswer()
    await answer.take_all(context, call, step)
    in_hand.finish(context.handle.account.count(call.handle, answer.usage_of(call)))
    return answer


# The number of tokens in a request, before it is sent. No I/O.
#
# The provider has counted the last request of a history with its answer, instructions and tools: that count is exact.
# Everything after it is estimated. A request without such a count is estimated as a whole: the first one of a history,
# one after a compaction or for another model, and one to a server that reports no tokens.
#
# The estimate is one token for every three bytes of UTF-8, and is too high for most texts: with the tokenizers of
# today's models, English prose needs about 0.7 of it, code and JSON between 0.8 and 1.0, Chinese and Japanese between
# 0.7 and 1.2. Long numbers, keys and base64 need two or three times the estimate. So a request that stays below 0.9 of
# a window by estimates alone is seldom refused, and if it is, `ContextWindow` shortens it.
#
# A history is also rendered as text here, for a model that summarises it and for a summary without a model.


BYTES_PER_TOKEN = 3

TOKENS_AROUND = 4
"""Tokens that a provider adds around each message, call and tool: roles, names of fields, separators."""

TOKENS_AROUND_RESULT = 24
"""Tokens around a tool's result, which has its status and its time, and around a summary, which is marked as one."""

TOKENS_OF_IMAGE = 1_500
"""Roughly the providers' count for an image of ordinary size. Its bytes say nothing about it."""


CHARACTERS_PER_TOKEN_OF_FILE = 25
"""For a file's base64. Providers count 1,500 to 3,000 tokens for a page of a document, which has about 50 kB."""


def text_tokens(text: str) -> int:
    """Estimates the tokens of a text; 0 only for an empty one."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def fixed_tokens(system: str, tools: Sequence[ToolSpec]) -> int:
    """Estimates the tokens of every request, whatever the history: the instructions and the tools."""
    schemas = sum(text_tokens(tool.name + tool.description) + _json_tokens(tool.parameters) for tool in tools)
    return text_tokens(system) + schemas + TOKENS_AROUND * (1 + len(tools))


def history_tokens(history: Sequence[Message]) -> int:
    """Estimates the tokens of the messages."""
    return sum(body_tokens(message.body) for message in history)


def body_tokens(body: MessageBody) -> int:
    """Estimates the tokens of one message in a request."""
    match body:
        case UserMessage(content=content):
            parts: list[ContentPart] = [] if isinstance(content, str) else content
            images = sum(isinstance(part, ImageContent) for part in parts)
            files = sum(len(data_of_file(part)) for part in parts) // CHARACTERS_PER_TOKEN_OF_FILE
            return TOKENS_AROUND + text_tokens(text_of(content)) + TOKENS_OF_IMAGE * images + files
        case AssistantMessage(text=text, tool_calls=calls, reasoning=reasoning):
            called = sum(TOKENS_AROUND + text_tokens(call.name + call.arguments) for call in calls)
            thought = 0 if reasoning is None else text_tokens(reasoning.text)
            return TOKENS_AROUND + text_tokens(text) + thought + called
        case ToolReturns(returns=returns):
            return sum(TOKENS_AROUND_RESULT + text_tokens(one.text) for one in returns)
        case Summary(text=text):
            return TOKENS_AROUND_RESULT + text_tokens(text)
        case SystemMessage() | ApprovalResponse():
            return 0


def _json_tokens(value: Mapping[str, object]) -> int:
    return -(-len(msgspec.json.encode(value)) // BYTES_PER_TOKEN)


class LastAnswer(NamedTuple):
    """The newest answer of a history. Its step has the provider's count."""

    step_id: StepId
    since: Sequence[Message]
    """The messages after it."""


def last_answer(history: Sequence[Message]) -> LastAnswer | None:
    """The newest answer. None if there is none, or if a later summary has replaced the counted history."""
    for place in range(len(history) - 1, -1, -1):
        message = history[place]
        if isinstance(message.body, AssistantMessage) and message.step_id is not None:
            summaries = (one for one in history if isinstance(one.body, Summary))
            is_stale = any(one.created_at >= message.created_at for one in summaries)
            return None if is_stale else LastAnswer(message.step_id, history[place + 1 :])
    return None


def taken_before(history: Sequence[Message]) -> Sequence[Message]:
    """The part of a history that a provider has accepted: the messages before its newest answer."""
    for place in range(len(history) - 1, -1, -1):
        if isinstance(history[place].body, AssistantMessage):
            return history[:place]
    return ()


LEFT_OUT = "[… {characters} characters left out …]"

EXCERPT_OF_MESSAGE, EXCERPT_OF_ALL = 200, 4_000
"""Characters of an excerpt."""


def transcript(history: Sequence[Message], *, longest_message: int, longest: int) -> str:
    """The history as text: a paragraph per message, with its speaker.

    Limits are in characters. A longer text loses its middle, because its beginning and its end are most important. An
    earlier summary covers many messages, so it may fill half of the limit for all.
    """
    paragraphs = [
        without_middle(text, max(longest_message, longest // 2 if isinstance(message.body, Summary) else 0))
        for message in history
        if (text := as_text(message.body))
    ]
    return without_middle("\n\n".join(paragraphs), longest)


def excerpt(history: Sequence[Message], longest: int | None = None) -> str:
    """Replaces a summary that no model can write: the beginning and the end of every message."""
    whole = EXCERPT_OF_ALL if longest is None else min(longest, EXCERPT_OF_ALL)
    return transcript(history, longest_message=EXCERPT_OF_MESSAGE, longest=whole)


def as_text(body: MessageBody) -> str:
    """One message as text; empty for a message that the model does not get."""
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


def without_middle(text: str, longest: int, note: str = LEFT_OUT) -> str:
    """The text, or its beginning and its end with a note between them."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n{note.format(characters=len(text) - 2 * half)}\n{text[len(text) - half :]}"
