"""The steps of a run: ask the model, run the tools that it asks for, and ask again until it has answered."""

from collections.abc import Sequence

from shared.domain.agents import ends_turn
from shared.domain.errors import BudgetExceeded
from shared.domain.events import InputDelivered
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import AssistantMessage, Message, NewMessage, UserMessage, text_of
from shared.domain.settling import RunEnd, open_calls
from worker.run.answer import take_answer
from worker.run.approvals import ask_for_approval
from worker.run.context import Outcome, Parked, RunContext
from worker.run.tool_turn import finish_open_calls, run_tools

STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "end_turn",
    "length": "max_tokens_exceeded",
    "content_filter": "error",
}


async def run_steps(context: RunContext) -> Outcome | Parked:
    """Runs the steps of a claimed run to its end, or until it must wait for a person.

    It begins where the history ends: with calls that want results, with an answer that was stored just before its
    worker died, or with a question. Raises `ModelError`, and what interrupts a run.
    """
    progress, rules = context.progress, context.agent.tool_rules
    history = await context.history()
    open_ = open_calls(history)
    if open_ is not None:
        await finish_open_calls(context, open_)
        context.stop_if_asked()
        if ends_turn(rules, progress.called):
            return _completed("tool_rule")
    elif _is_answered(context, history) and not await _has_more_input(context):
        return _completed("end_turn", is_answer=True)
    is_fresh = open_ is None
    while progress.step_count < context.run.options.max_steps:
        if await _deliver_input(context) or not is_fresh:
            history = await context.history()
        is_fresh = False
        answer = await take_answer(context, history)
        if not answer.calls:
            if not await _has_more_input(context):
                return _completed(STOP_REASONS[answer.reason], [answer.message], is_answer=True)
            await context.checkpoint([answer.message])
            context.stop_if_asked()
            continue
        if any(call.needs_approval for call in answer.calls):
            return await ask_for_approval(context, answer)
        await run_tools(context, answer.message, answer.calls)
        context.stop_if_asked()
        if ends_turn(rules, [call.name for call in answer.calls]):
            return _completed("tool_rule")
        _check_budget(context)
    return _completed("max_steps")


def _completed(stop_reason: str, messages: list[NewMessage] | None = None, *, is_answer: bool = False) -> Outcome:
    end = RunEnd(trigger=RunTrigger.COMPLETE, stop_reason=stop_reason)
    return Outcome(end=end, messages=messages or [], is_answer=is_answer)


def _is_answered(context: RunContext, history: Sequence[Message]) -> bool:
    last = history[-1] if history else None
    return last is not None and last.run_id == context.run.id and isinstance(last.body, AssistantMessage)


async def _deliver_input(context: RunContext) -> bool:
    """Delivers messages that were injected into the run; whether there were any.

    Each enters the history once, and the stream shows it once. A worker may die between the two. The next worker finds
    in the log what was shown, and does not show it again.
    """
    inbox, publisher = context.services.inbox, context.publisher
    with context.interruption.shielded():
        waiting = await context.retry_while_unavailable(lambda: inbox.waiting(context.run.id))
        if not waiting.messages:
            return False
        for message in waiting.messages:
            if isinstance(message.body, UserMessage) and message.id not in publisher.shown.input_ids:
                text = text_of(message.body.content)
                context.emit(InputDelivered(context.at, message.id, text, message.body.otid))
        now = context.services.clock.now()
        async with publisher.storing() as tail:
            await context.retry_while_unavailable(lambda: inbox.deliver(context.run, waiting, tail, now))
    return True


async def _has_more_input(context: RunContext) -> bool:
    """Whether a message was injected while the model gave what would have been its last answer."""
    return await context.retry_while_unavailable(lambda: context.services.inbox.has_waiting(context.run.id))


def _check_budget(context: RunContext) -> None:
    budget, usage = context.services.token_budget, context.progress.usage
    used = usage.prompt_tokens + usage.completion_tokens
    if budget and used >= budget:
        raise BudgetExceeded(f"the run has used {used} tokens of the {budget} that HOLDFAST_RUN_TOKEN_BUDGET allows")
