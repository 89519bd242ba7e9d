"""Executes runs without messages: one request to a model, or one tool call."""

from functools import partial
from typing import Any

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.events import Answered, StopReason, TextChunk, ToolCalls
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.run_trees import CallWaits
from shared.domain.runs import ANSWER_TOOL, asked_call
from shared.domain.settling import RunEnd
from shared.domain.tools import Tool
from shared.tool_arguments import RefusedArguments, check_arguments
from worker.bodies.agent_context import AgentContext
from worker.bodies.answer import PlainAnswer, ask_as_step
from worker.bodies.answer_draft import CUT_OFF
from worker.bodies.probes import result_of_lost_call
from worker.bodies.step_loop import STOP_REASONS
from worker.bodies.tool_turn import result_of
from worker.models.provider import ModelCall, ToolSpec
from worker.run.run_handle import AwaitsRuns, Outcome
from worker.runners.tool_runner import error_return

DONE = Outcome(end=RunEnd(trigger=RunTrigger.COMPLETE, stop_reason=StopReason.ANSWERED))


async def run_tool(context: AgentContext) -> Outcome | AwaitsRuns:
    """Makes the run's call, at most once unless the tool may be called again. The settlement stores the result, but a
    base tool stores its effect with the result at once. Raises what interrupts a run."""
    handle = context.handle
    message_id, call = asked_call(await handle.input())
    started = await handle.calls.started()
    if call.id not in started:
        context.emit(ToolCalls(context.at, None, message_id, [call]))
        await handle.checkpoint(starting=[call])
    await context.read_equipment()
    tool = context.tools.get(call.name)
    if tool is not None and call.id in started and started[call.id] is None:
        known = await result_of_lost_call(context, call, tool, call.arguments, may_repeat=tool.idempotent)
        if known is not None:
            handle.progress.returns[call.id] = known
            return DONE
    try:
        await handle.calls.make(call, partial(_result, context, call, tool), may_start_again=True)
    except CallWaits as waits:
        return await handle.let_wait(waits)
    return DONE


async def _result(context: AgentContext, call: ToolCall, tool: Tool | None) -> ToolReturn:
    if tool is None:
        return error_return(call, f"Error: the tool {call.name!r} was taken from the agent before it was started.")
    return await result_of(context, call, tool, call.arguments)


# Executes a run that asks a model one question, without the agent's memory, tools and history.
#
# The run's log shows the answer as a whole, and nothing else stores it. So the next owner of the run asks again, and
# marks the shown answer as void.
#
# If the answer must fit a schema, the run offers the model a tool with that schema, and nearly every model can be
# forced to call it. Other models may write the object as text instead. The run checks both, because no provider
# guarantees a fit.


DESCRIPTION = (
    "Returns a structured response matching the requested schema. Call it once, and say nothing else: its arguments "
    "are your whole answer."
)


async def generate(context: AgentContext) -> Outcome:
    """Asks the model, and shows the answer. Raises `ModelError`, also if the answer does not fit the schema, and what
    interrupts a run."""
    schema = _schema_of(context)
    call = await _call(context, schema)
    step = context.new_step()
    with context.observation.step(step.number):
        answer = await ask_as_step(context, call, step)
    text = answer.text
    if schema is not None:
        text = await _fitting(answer, schema)
    message_id = context.handle.ids.message()
    if text:
        context.emit(TextChunk(context.at, step.id, message_id, text))
    if context.run.options.item_events:
        context.emit(Answered(context.at, step.id, message_id, answer.reason))
    return Outcome(end=RunEnd(trigger=RunTrigger.COMPLETE, stop_reason=STOP_REASONS[answer.reason]))


def _schema_of(context: AgentContext) -> dict[str, Any] | None:
    generation = context.run.options.generation
    return None if generation is None else generation.response_schema


async def _call(context: AgentContext, schema: dict[str, Any] | None) -> ModelCall:
    given = await context.handle.input()
    options = context.options
    if schema is not None:
        options = msgspec.structs.replace(options, response_format=None, parallel_tool_calls=False)
    return ModelCall(
        handle=context.model,
        system=context.system,
        history=[context.handle.unstored(message.body) for message in given],
        tools=() if schema is None else [ToolSpec(ANSWER_TOOL, DESCRIPTION, schema)],
        must_call=schema is not None,
        options=options,
        demanded=context.run.options.demanded,
    )


async def _fitting(answer: PlainAnswer, schema: dict[str, Any]) -> str:
    """Returns the model's object as JSON. Raises `ModelError` if it does not fit the schema."""
    written = next((call.arguments for call in answer.calls.values()), None) or _object_in(answer.text.strip())
    checked = await check_arguments(written, schema)
    if not isinstance(checked, RefusedArguments):
        return written if written.strip() else "{}"
    said = f"The model's answer does not fit response_schema: {checked.text.removeprefix('Error: ')}"
    if answer.reason in CUT_OFF:
        said = f"{said} (it was cut off: {answer.reason})"
    raise ModelError(ModelErrorType.ERROR, said)


def _object_in(text: str) -> str:
    """Returns the fenced part of an answer without a call, or the whole answer."""
    if text.startswith("{"):
        return text
    _, fence, behind = text.partition("```")
    return behind.removeprefix("json").partition("```")[0].strip() if fence else text
