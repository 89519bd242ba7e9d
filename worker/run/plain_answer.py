"""An answer of a model that is taken as a whole: nothing of it is shown while it comes, and what becomes of it is the
caller's to decide. Summaries are such answers, and so is what a client asks a model without its agent."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from shared.concurrency import beside
from shared.domain.messages import Message, MessageBody, estimate_tokens, text_to_count
from shared.domain.runs import Step, Usage
from worker.models.provider import CallFinished, Finished, FinishReason, ModelCall, ModelEvent, Text
from worker.run.context import RunContext
from worker.run.observed import ObservedModelCall


@dataclass
class PlainAnswer:
    """An answer in the making."""

    pieces: list[str] = field(default_factory=list[str])
    calls: dict[int, CallFinished] = field(default_factory=dict[int, CallFinished])
    """By their places in the answer: a call may be finished twice, and the last word on it counts."""
    reason: FinishReason = "stop"
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
        """What the call has used; an estimate when it was cut off, and nothing when that was before its answer."""
        if self.used is not None:
            return self.used
        said = estimate_tokens(self.text)
        return Usage(prompt_tokens=call.estimated_tokens(), completion_tokens=said, estimated=True) if said else Usage()


async def ask_as_step(context: RunContext, call: ModelCall, step: Step) -> PlainAnswer:
    """The model's whole answer to a call that makes this step of the run. Raises `ModelError`, and what interrupts a
    run."""
    asked = call.system + await beside(partial(text_to_count, call.history), call.weight())
    context.count_lost(call.handle, asked)
    await context.pay_for(call)
    # An interrupt arrives where the task waits. One that came before is not to find the model asked.
    await asyncio.sleep(0)
    in_hand = context.progress.begin_step(step, asked)
    answer = PlainAnswer()
    await answer.take_all(context, call, step)
    in_hand.finish(context.count(call.handle, answer.usage_of(call)))
    return answer


def question(context: RunContext, body: MessageBody) -> Message:
    """A message that is shown to the model alone."""
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
