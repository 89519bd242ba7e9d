"""Running the tools of one answer: at most once each, checked against their schema, results in one message."""

import asyncio
from collections.abc import Sequence

from shared.domain.closing import OUTCOME_UNKNOWN, OpenCalls, decided_return
from shared.domain.events import ToolsReturned
from shared.domain.ids import StepId
from shared.domain.messages import Decision, NewMessage, ToolCall, ToolReturn, ToolReturns
from shared.tool_arguments import RefusedArguments, read_arguments
from worker.run_work import RunWork
from worker.tools.invocation import ToolInvocation


async def run_tools(work: RunWork, message: NewMessage, calls: Sequence[ToolCall]) -> None:
    """Runs the calls of a fresh answer and makes answer and results durable, in two checkpoints."""
    together = _may_run_together(work, calls)
    starting = list(calls) if together else list(calls[:1])
    await work.checkpoint([message], starting=[call for call in starting if call.name in work.tools])
    if together:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(_run_into(work, call), name=f"tool {call.name}")
    else:
        for number, call in enumerate(calls):
            if number and call.name in work.tools:
                await _record_intent(work, call)
            await _run_into(work, call)
    await keep_returns(work, message.step_id, [work.known_returns[call.id] for call in calls])


async def finish_open_calls(work: RunWork, open_: OpenCalls) -> None:
    """Gives results to calls that a decision has set free, or that a lost worker left open.

    A call whose tool had been started and may not be started twice is told as "outcome unknown".
    """
    decisions = {decision.tool_call_id: decision for decision in open_.decisions}
    intents = await work.insist(lambda _: work.services.checkpoints.intents_of(work.run.id))
    decided = {call.id: decided_return(call, decisions.get(call.id)) for call in open_.calls}
    work.known_returns.update({call_id: result for call_id, result in decided.items() if result is not None})
    brought = [call for call in open_.calls if call.id in decisions and decisions[call.id].kind == "tool"]
    free = [call for call in open_.calls if decided[call.id] is None]
    denied = [call for call in open_.calls if call not in brought and call not in free]
    for call in free:
        tool = work.tools.get(call.name)
        if call.id in intents and not (tool and tool.idempotent):
            work.known_returns[call.id] = _error(call, OUTCOME_UNKNOWN)
            continue
        if call.id not in intents and tool is not None:
            await _record_intent(work, call)
        await _run_into(work, call, decisions.get(call.id))
    await keep_returns(work, open_.step_id, [work.known_returns[call.id] for call in [*brought, *denied, *free]])


async def keep_returns(work: RunWork, step_id: StepId | None, returns: list[ToolReturn]) -> None:
    """Shows the results and makes them durable, followed by the input that had to wait for them."""
    services = work.services
    message = NewMessage(
        id=services.ids.message(),
        created_at=services.clock.now(),
        body=ToolReturns(returns=returns),
        step_id=step_id,
    )
    work.emit(ToolsReturned(work.at, message.step_id, message.id, returns))
    work.called.extend(result.tool_name for result in returns)
    await work.checkpoint([message, *work.run.input])
    work.known_returns.clear()


def _may_run_together(work: RunWork, calls: Sequence[ToolCall]) -> bool:
    tools = [work.tools.get(call.name) for call in calls]
    return len(calls) > 1 and all(tool is not None and tool.enable_parallel_execution for tool in tools)


async def _record_intent(work: RunWork, call: ToolCall) -> None:
    now = work.services.clock.now()
    await work.insist(lambda _: work.services.checkpoints.record_intents(work.run, [call], now))


async def _run_into(work: RunWork, call: ToolCall, decision: Decision | None = None) -> None:
    work.known_returns[call.id] = await _run(work, call, decision)


async def _run(work: RunWork, call: ToolCall, decision: Decision | None) -> ToolReturn:
    tool = work.tools.get(call.name)
    if tool is None:
        return _error(
            call, f"Error: there is no tool named {call.name!r}. Available: {', '.join(work.tools) or 'none'}."
        )
    edited = decision.edited_arguments if decision is not None else None
    arguments = read_arguments(call.arguments if edited is None else edited, tool.parameters)
    if isinstance(arguments, RefusedArguments):
        return _error(call, arguments.text)
    outcome = await work.services.sandbox.call(
        ToolInvocation(
            source_code=tool.source_code,
            function=tool.name,
            arguments=arguments,
            environment=work.agent.tool_environment,
            timeout_s=work.services.tool_timeout_s,
            return_char_limit=tool.return_char_limit,
        )
    )
    note = "" if edited is None else f"[The user changed the arguments to {edited}]\n"
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status=outcome.status,
        text=note + outcome.text,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
    )


def _error(call: ToolCall, text: str) -> ToolReturn:
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)
