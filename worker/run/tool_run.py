"""Executes a run that makes one call of a tool: what a client asked for, without a model and beside every conversation.

Nobody is asked for approval, because the client is the one who would be; and the agent's tool rules do not hold,
because they are about the turns of its model.

The call has an intent like any other. So a next owner of the run shows nothing twice, finds the result of a memory tool
that the last one has stored with its edit, and starts another tool again only if it may be: else the client is told
that the outcome is unknown.
"""

from shared.domain.events import ToolCalls
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.runs import asked_call
from shared.domain.settling import RunEnd, unknown_return
from worker.run.context import Outcome, RunContext
from worker.run.tool_calls import call_tool, error_return


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
    return Outcome(end=RunEnd(trigger=RunTrigger.COMPLETE, stop_reason="end_turn"))


async def _result(context: RunContext, call: ToolCall, *, was_started: bool) -> ToolReturn:
    await context.read_equipment()
    tool = context.tools.get(call.name)
    if tool is None:
        return error_return(call, f"Error: the tool {call.name!r} was taken from the agent before it was started.")
    if was_started and not tool.idempotent:
        return unknown_return(call)
    return await call_tool(context, call, tool, call.arguments)
