"""The steps of a run: ask the model, run the tools that it asks for, ask again, until it has answered."""

from collections.abc import Sequence

from shared.domain.closing import open_calls
from shared.domain.errors import BudgetExceeded
from shared.domain.events import InputDelivered
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import AssistantMessage, Message, UserMessage, text_of
from worker.answer import Answer, take_answer
from worker.approvals import ask_for_approval
from worker.run_work import Outcome, Parked, RunWork
from worker.tool_rules import ends_turn
from worker.tool_turn import finish_open_calls, run_tools

STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "end_turn",
    "length": "max_tokens_exceeded",
    "content_filter": "error",
}


async def run_steps(work: RunWork) -> Outcome | Parked:
    """Runs a claimed run to its end, or until it must wait for a person.

    Begins where the history ends: with calls that want results, with an answer that was stored just before its worker
    died, or with a question. Raises `ModelError`, and what interrupts a run.
    """
    history = await work.history()
    open_ = open_calls(history)
    if open_ is not None:
        await finish_open_calls(work, open_)
        work.stop_if_asked()
        if ends_turn(work.agent.tool_rules, work.called):
            return _completed("tool_rule")
    elif _is_answered(work, history) and not await _has_more_input(work):
        return _completed("end_turn", is_answer=True)
    is_fresh = open_ is None
    while work.step_count < work.run.options.max_steps:
        if await _deliver_input(work) or not is_fresh:
            history = await work.history()
        is_fresh = False
        answer = await take_answer(work, history)
        if not answer.calls:
            if not await _has_more_input(work):
                return _completed(STOP_REASONS[answer.reason], answer, work, is_answer=True)
            await work.checkpoint([answer.message])
            work.stop_if_asked()
            continue
        if any(call.needs_approval for call in answer.calls):
            return await ask_for_approval(work, answer)
        await run_tools(work, answer.message, answer.calls)
        work.stop_if_asked()
        if ends_turn(work.agent.tool_rules, [call.name for call in answer.calls]):
            return _completed("tool_rule")
        _check_budget(work)
    return _completed("max_steps")


def _completed(
    stop_reason: str, answer: Answer | None = None, work: RunWork | None = None, *, is_answer: bool = False
) -> Outcome:
    return Outcome(
        trigger=RunTrigger.COMPLETE,
        stop_reason=stop_reason,
        messages=[] if answer is None else [answer.message],
        step=None if work is None else work.step,
        is_answer=is_answer,
    )


def _is_answered(work: RunWork, history: Sequence[Message]) -> bool:
    last = history[-1] if history else None
    return last is not None and last.run_id == work.run.id and isinstance(last.body, AssistantMessage)


async def _deliver_input(work: RunWork) -> bool:
    """Takes messages that were injected into the run: each enters the history once, and the stream says so once, also
    if a worker dies over it: what it has shown of them, the next one finds in the log."""
    inbox = work.services.inbox
    with work.interruption.held_back():
        waiting = await work.insist(lambda _: inbox.waiting(work.run.id))
        if not waiting.messages:
            return False
        shown = {event.message_id for event in work.publisher.since_checkpoint if isinstance(event, InputDelivered)}
        for message in waiting.messages:
            if isinstance(message.body, UserMessage) and message.id not in shown:
                work.emit(InputDelivered(work.at, message.id, text_of(message.body.content), message.body.otid))
        async with work.publisher.storing() as tail:
            await work.insist(lambda _: inbox.deliver(work.run, waiting, tail, work.services.clock.now()))
    return True


async def _has_more_input(work: RunWork) -> bool:
    """Whether a message was injected while the model gave what would have been its last answer."""
    return await work.insist(lambda _: work.services.inbox.has_waiting(work.run.id))


def _check_budget(work: RunWork) -> None:
    budget = work.services.token_budget
    used = work.usage.prompt_tokens + work.usage.completion_tokens
    if budget and used >= budget:
        raise BudgetExceeded(f"the run has used {used} tokens of the {budget} that HOLDFAST_RUN_TOKEN_BUDGET allows")
