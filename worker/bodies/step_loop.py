"""The agent loop: asks the model, runs the tools that it calls, and asks again until it has answered."""

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from shared.domain.agents import NEWEST_KIND
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.events import StopReason
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import AssistantMessage, Message, NewMessage, ToolReturns, UserMessage
from shared.domain.settling import OpenCalls, RunEnd, close_calls, open_calls, returns_event
from shared.domain.tool_catalog import SPEAKS
from shared.domain.tools import ends_turn
from worker.bodies.agent_context import AgentContext
from worker.bodies.answer_draft import CUT_OFF, Answer
from worker.bodies.context_window import ContextWindow
from worker.bodies.tool_turn import ask_for_approval, finish_open_calls, run_tools
from worker.run.run_handle import AwaitsRuns, Outcome, Parked
from worker.runners.tool_runner import error_return

STOP_REASONS = {
    "stop": StopReason.ANSWERED,
    "tool_calls": StopReason.ANSWERED,
    "length": StopReason.TOKENS_USED_UP,
    "content_filter": StopReason.FAILED,
}

NOT_CHOSEN = "The request demands that your next answer calls a tool (tool_choice). Call one."

NOT_CALLED = "Error: the answer was cut off ({reason}) before it was whole. The tool was not started."


async def run_steps(context: AgentContext) -> Outcome | Parked | AwaitsRuns:
    """Runs the steps of a claimed run until it ends, or must wait for a person or for other runs.

    The history's end determines the first action: it has calls without results, an answer that was stored just before
    its worker died, or a question. Raises `ModelError`, and what interrupts a run.
    """
    progress = context.handle.progress
    history, has_input = await context.handle.history()
    open_ = open_calls(history)
    if open_ is not None:
        if end := await _end_of_open_calls(context, open_):
            return end
    elif found := _end_in(context, history, has_input=has_input):
        return found
    is_fresh, window = open_ is None, ContextWindow(context)
    while progress.step_count < context.run.options.max_steps:
        if not is_fresh:
            history, has_input = await context.history()
        if has_input and await context.handle.inbox.deliver():
            history = (await context.history()).messages
        is_fresh = False
        with context.observation.step(progress.step_count + 1) as observed:
            answer, end = await _step(context, window, history)
            observed.outcome = _left_as(end)
        if end is not None:
            return end
        context.handle.stop_if_asked()
        if not answer.calls:
            continue
        if _ends_turn(context, [call.name for call in answer.calls]):
            return _completed(_by_rule(context))
        context.handle.account.check()
    return _completed(StopReason.STEPS_USED_UP)


async def _end_of_open_calls(context: AgentContext, open_: OpenCalls) -> Outcome | AwaitsRuns | None:
    """Makes the open calls at the end of the history. Returns the run's end or wait, if they lead to one."""
    with context.observation.step(max(context.handle.progress.step_count, 1), goes_on=True) as observed:
        waiting = await finish_open_calls(context, open_)
        observed.outcome = _left_as(waiting)
    if waiting is not None:
        return waiting
    context.handle.stop_if_asked()
    if _ends_turn(context, [call.name for call in open_.calls]):
        return _completed(_by_rule(context))
    return None


def _left_as(end: Outcome | Parked | AwaitsRuns | None) -> Literal["parked", "waits", ""]:
    if isinstance(end, Parked):
        return "parked"
    return "waits" if isinstance(end, AwaitsRuns) else ""


async def _step(
    context: AgentContext, window: ContextWindow, history: Sequence[Message]
) -> tuple[Answer, Outcome | Parked | AwaitsRuns | None]:
    """Asks the model once and runs the tools that it calls. Returns the answer, and the run's end if this step is the
    last."""
    answer = await window.ask(history)
    end: Outcome | Parked | AwaitsRuns | None = None
    if not answer.calls:
        if not await _goes_on(context, answer):
            end = _completed(STOP_REASONS[answer.reason], [answer.message], is_answer=True)
    elif answer.reason in CUT_OFF:
        end = _completed(STOP_REASONS[answer.reason], [answer.message, *_refusals(context, answer)])
    elif any(call.needs_approval for call in answer.calls):
        end = await ask_for_approval(context, answer)
    else:
        end = await run_tools(context, answer.message, answer.calls)
    return answer, end


def _refusals(context: AgentContext, answer: Answer) -> list[NewMessage]:
    """Returns error results for the calls of a cut-off answer. Even a call that looks complete may not be what the
    model intended, so the worker makes none."""
    text = NOT_CALLED.format(reason=answer.reason)
    closing = close_calls(
        OpenCalls(step_id=answer.message.step_id, calls=answer.calls, decided=False),
        known={call.id: replace(error_return(call, text), of_speech=call.speech is not None) for call in answer.calls},
        started=set(),
        why="denied",
        reason=text,
        ids=context.handle.ids,
        now=context.handle.clock.now(),
    )
    context.emit(*(event for message in closing if (event := returns_event(message, context.at)) is not None))
    return closing


def _ends_turn(context: AgentContext, called: Sequence[str]) -> bool:
    """Returns whether a rule ends the run after calls of these tools. A rule that requires a missing call has
    priority."""
    ends = ends_turn(context.agent.tool_rules, called) or _has_spoken(context, called)
    return ends and not context.missing_calls()


def _has_spoken(context: AgentContext, called: Sequence[str]) -> bool:
    """Returns whether an agent of an older kind has called its speaking tool without a rule for what follows, as some
    models get no base rules. Programs expect that such an agent continues only if it requests that."""
    if context.agent.agent_type == NEWEST_KIND or SPEAKS not in called:
        return False
    return all(rule["tool_name"] != SPEAKS for rule in context.agent.tool_rules)


async def _goes_on(context: AgentContext, answer: Answer) -> bool:
    """Returns whether the run continues after an answer without calls. If so, stores the answer."""
    if missing := context.missing_calls():
        text = f"You have not called {', '.join(missing)} yet. Each must be called before this turn ends."
        await _tell_to_call(context, answer, text)
    elif answer.reason == "stop" and (next_calls := context.next_calls()).forced and not context.may_call_no_more:
        # Not every server can force a call, and some ignore the option.
        text = f"Your next answer must call one of these tools: {', '.join(sorted(next_calls.allowed))}."
        await _tell_to_call(context, answer, text)
    elif answer.reason == "stop" and _has_not_chosen(context):
        await _tell_to_call(context, answer, NOT_CHOSEN)
    elif await context.handle.inbox.has_more():
        await context.handle.checkpoint([answer.message])
    else:
        return False
    return True


def _has_not_chosen(context: AgentContext) -> bool:
    """Returns whether the model needs a reminder that the run's own choice of tools demands a call. Raises `ModelError`
    if it has answered without a call even after a reminder."""
    choice, steps, turn = context.run.options.tool_choice, context.handle.progress.step_count, context.progress.turn
    if choice is None or choice.mode != "required":
        return False
    if steps == 2 and turn.answered and not turn.called:
        said = f"tool_choice demands a call, and the model {context.model!r} makes none."
        raise ModelError(ModelErrorType.ERROR, said)
    return steps == 1


async def _tell_to_call(context: AgentContext, answer: Answer, text: str) -> None:
    """Stores an answer that may not be the last, and a message to the model that names the required call."""
    handle = context.handle
    notice = NewMessage(id=handle.ids.message(), created_at=handle.clock.now(), body=UserMessage(text, role="system"))
    await context.handle.checkpoint([answer.message, notice])
    context.progress.turn = context.progress.turn.and_then(answer.message.body)


def _by_rule(context: AgentContext) -> StopReason:
    """Returns the stop reason of a run that a rule ends. For agents of the older kinds, that call was the answer."""
    return StopReason.ENDED_BY_RULE if context.agent.agent_type == NEWEST_KIND else StopReason.ANSWERED


def _completed(
    stop_reason: StopReason, messages: list[NewMessage] | None = None, *, is_answer: bool = False
) -> Outcome:
    end = RunEnd(trigger=RunTrigger.COMPLETE, stop_reason=stop_reason)
    return Outcome(end=end, messages=messages or [], is_answer=is_answer)


def _end_in(context: AgentContext, history: Sequence[Message], *, has_input: bool) -> Outcome | None:
    """Returns the run's end if its last worker stored everything but the settlement; None otherwise."""
    last = history[-1] if history else None
    if last is None or last.run_id != context.run.id:
        return None
    match last.body:
        case AssistantMessage() if not has_input:
            return _completed(StopReason.ANSWERED, is_answer=True)
        case ToolReturns(returns=returns) if _ends_turn(context, [result.tool_name for result in returns]):
            return _completed(_by_rule(context))
        case _:
            return None
