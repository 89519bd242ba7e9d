"""Runs that answer no message: one question to a model, or one call of a tool."""

from typing import Any

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.events import Answered, StopReason, TextChunk, ToolCalls
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.runs import ANSWER_TOOL, Generation, asked_call
from shared.domain.settling import RunEnd, unknown_return
from shared.tool_arguments import RefusedArguments, check_arguments
from worker.models.provider import ModelCall, ToolSpec
from worker.run.answer import PlainAnswer, ask_as_step, question
from worker.run.answer_draft import CUT_OFF
from worker.run.context import Outcome, RunContext
from worker.run.step_loop import STOP_REASONS
from worker.run.tool_runner import error_return
from worker.run.tool_turn import call_tool


async def run_tool(context: RunContext) -> Outcome:
    """Makes the call, at most once unless the tool may be called again. Its result is stored when the run is settled,
    but for the effect of a base tool, which is stored with its result at once. Raises what interrupts a run."""
    run_id, services = context.run.id, context.services
    message_id, call = asked_call(await context.retry_while_unavailable(lambda: services.runs.input_of(run_id)))
    started = await context.retry_while_unavailable(lambda: services.checkpoints.intents(run_id))
    was_started = call.id in started
    if not was_started:
        context.emit(ToolCalls(context.at, None, message_id, [call]))
        await context.checkpoint([], starting=[call])
    result = started.get(call.id) or await _result(context, call, was_started=was_started)
    context.progress.returns[call.id] = result
    return Outcome(end=RunEnd(trigger=RunTrigger.COMPLETE, stop_reason=StopReason.ANSWERED))


async def _result(context: RunContext, call: ToolCall, *, was_started: bool) -> ToolReturn:
    await context.read_equipment()
    tool = context.tools.get(call.name)
    if tool is None:
        return error_return(call, f"Error: the tool {call.name!r} was taken from the agent before it was started.")
    if was_started and not tool.idempotent:
        return unknown_return(call)
    return await call_tool(context, call, tool, call.arguments)


# Executes a run that asks a model one question, without the agent's memory, tools and history.
#
# The answer is shown as a whole, in the run's log, and is stored nowhere else. So a next owner of the run asks once
# more, and says that what was shown before is void.
#
# An answer that has to fit a schema is asked for as the call of a tool, which nearly every model can be made to give.
# The others are told of the tool, and may write the object as text. Either is checked here, as no provider promises it.


DESCRIPTION = (
    "Returns a structured response matching the requested schema. Call it once, and say nothing else: its arguments "
    "are your whole answer."
)


async def generate(context: RunContext, generation: Generation) -> Outcome:
    """Asks, and shows the answer. Raises `ModelError`, also for an answer that does not fit, and what interrupts a
    run."""
    call = await _call(context, generation.response_schema)
    step = context.new_step()
    with context.observation.step(step.number):
        answer = await ask_as_step(context, call, step)
    text = answer.text
    if generation.response_schema is not None:
        text = await _fitting(answer, generation.response_schema)
    message_id = context.services.ids.message()
    if text:
        context.emit(TextChunk(context.at, step.id, message_id, text))
    if context.run.options.item_events:
        context.emit(Answered(context.at, step.id, message_id, answer.reason))
    return Outcome(end=RunEnd(trigger=RunTrigger.COMPLETE, stop_reason=STOP_REASONS[answer.reason]))


async def _call(context: RunContext, schema: dict[str, Any] | None) -> ModelCall:
    services, run_id = context.services, context.run.id
    given = await context.retry_while_unavailable(lambda: services.runs.input_of(run_id))
    options = context.options
    if schema is not None:
        options = msgspec.structs.replace(options, response_format=None, parallel_tool_calls=False)
    return ModelCall(
        handle=context.model,
        system=context.system,
        history=[question(context, message.body) for message in given],
        tools=() if schema is None else [ToolSpec(ANSWER_TOOL, DESCRIPTION, schema)],
        must_call=schema is not None,
        options=options,
    )


async def _fitting(answer: PlainAnswer, schema: dict[str, Any]) -> str:
    """The object that the model gave, as JSON. Raises `ModelError` when it does not fit the schema."""
    written = next((call.arguments for call in answer.calls.values()), None) or _object_in(answer.text.strip())
    checked = await check_arguments(written, schema)
    if not isinstance(checked, RefusedArguments):
        return written if written.strip() else "{}"
    said = f"The model's answer does not fit response_schema: {checked.text.removeprefix('Error: ')}"
    if answer.reason in CUT_OFF:
        said = f"{said} (it was cut off: {answer.reason})"
    raise ModelError(ModelErrorType.ERROR, said)


def _object_in(text: str) -> str:
    """What an answer without a call has written in its fences, or the whole of it."""
    if text.startswith("{"):
        return text
    _, fence, behind = text.partition("```")
    return behind.removeprefix("json").partition("```")[0].strip() if fence else text
