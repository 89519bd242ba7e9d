"""Whether the folder that calls of a run share (`scratch: run`) has lost what earlier calls left there.

The folder is the worker's. It is a new one behind an approval, which another run follows, and where another worker, or
the same one later, goes on with the run.
"""

from shared.domain.messages import AssistantMessage, ToolCall, ToolReturns
from shared.domain.settling import OUTCOME_UNKNOWN
from worker.run.context import RunContext

EMPTY_AGAIN = "[The folder that earlier calls of this run shared is empty again: the run went on elsewhere.]\n"
"""Begins the result of the first call that finds it so, for the model and for whoever reads."""


async def has_lost_folder(context: RunContext, call: ToolCall) -> bool:
    """Whether this call, which uses the folder, is the first of this owner, and earlier calls have used another one."""
    if context.progress.has_run_folder:
        return False
    context.progress.has_run_folder = True
    run, services = context.run, context.services
    if run.fence == 1 and run.continues is None:
        return False
    users = {name for name, tool in context.tools.items() if tool.scratch == "run"}
    turn = await context.retry_while_unavailable(lambda: services.messages.list_of_turn(run))
    started = await context.retry_while_unavailable(lambda: services.checkpoints.intents(run.id))
    for message in turn:
        if isinstance(message.body, ToolReturns):
            # Without output no tool ran here, unless nobody knows.
            ran = [one for one in message.body.returns if one.stdout is not None or one.text == OUTCOME_UNKNOWN]
            if any(one.tool_name in users for one in ran):
                return True
        elif isinstance(message.body, AssistantMessage):
            begun = [one for one in message.body.tool_calls if one.id in started and one.id != call.id]
            if any(one.name in users for one in begun):
                return True
    return False
