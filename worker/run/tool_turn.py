"""Runs the tools of one answer: each call at most once, checked against its schema, all results in one message."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.domain.agents import agent_for_tool
from shared.domain.base_tools import base_tool_arguments, is_base_tool
from shared.domain.events import ToolsReturned
from shared.domain.ids import StepId
from shared.domain.messages import Decision, NewMessage, ToolCall, ToolReturn, ToolReturns
from shared.domain.settling import OUTCOME_UNKNOWN, OpenCalls, decided_return
from shared.domain.tool_rules import filled_in
from shared.domain.tools import Tool
from shared.tool_arguments import RefusedArguments, check_arguments
from worker.run.base_tools import run_base_tool
from worker.run.context import RunContext
from worker.tools.invocation import ToolInvocation

_ASKS = re.compile(r"\bagent_(state|id)\b")
"""What a source has in it that wants to know the agent. The memory may be large, and most tools do not look at it."""


async def run_tools(context: RunContext, message: NewMessage, calls: Sequence[ToolCall]) -> None:
    """Runs the calls of a new answer, and stores answer and results in two checkpoints."""
    together = _may_run_together(context, calls)
    starting = list(calls) if together else list(calls[:1])
    await context.checkpoint([message], starting=[call for call in starting if call.name in context.tools])
    if together:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(_run_into(context, call), name=f"tool {call.name}")
    else:
        for number, call in enumerate(calls):
            if number and call.name in context.tools:
                await context.record_intent(call)
            await _run_into(context, call)
    await _store_returns(context, message.step_id, [context.progress.returns[call.id] for call in calls])


async def finish_open_calls(context: RunContext, open_: OpenCalls) -> None:
    """Gives results to calls that a decision has allowed, or that a lost worker left open.

    The model is told "outcome unknown" of a call whose tool was started and may not be started twice.
    """
    decisions = {decision.tool_call_id: decision for decision in open_.decisions}
    checkpoints = context.services.checkpoints
    started = await context.retry_while_unavailable(lambda: checkpoints.intents(context.run.id))
    context.progress.seen_memory = dict(open_.seen_memory)
    decided = {call.id: decided_return(call, decisions.get(call.id)) for call in open_.calls}
    context.progress.returns.update({call_id: result for call_id, result in decided.items() if result is not None})
    brought = [call for call in open_.calls if call.id in decisions and decisions[call.id].kind == "tool"]
    free = [call for call in open_.calls if decided[call.id] is None]
    denied = [call for call in open_.calls if call not in brought and call not in free]
    for call in free:
        tool = context.tools.get(call.name)
        if call.id in started and not (tool and tool.idempotent):
            context.progress.returns[call.id] = _error(call, OUTCOME_UNKNOWN)
            continue
        if call.id not in started and tool is not None:
            await context.record_intent(call)
        await _run_into(context, call, decisions.get(call.id))
    returns = [context.progress.returns[call.id] for call in [*brought, *denied, *free]]
    late_input: list[NewMessage] = []
    if context.run.continues is not None:
        late_input = await context.retry_while_unavailable(lambda: context.services.runs.input_of(context.run.id))
    await _store_returns(context, open_.step_id, returns, late_input)


async def _store_returns(
    context: RunContext, step_id: StepId | None, returns: list[ToolReturn], late_input: Sequence[NewMessage] = ()
) -> None:
    """Shows the results and stores them, followed by the input that had to wait for them."""
    services = context.services
    message = NewMessage(
        id=services.ids.message(),
        created_at=services.clock.now(),
        body=ToolReturns(returns=returns),
        step_id=step_id,
    )
    if shown := [result for result in returns if not result.of_speech]:
        context.emit(ToolsReturned(context.at, message.step_id, message.id, shown))
    context.progress.turn = context.progress.turn.and_then(message.body)
    await context.checkpoint([message, *late_input])
    context.progress.returns.clear()


def _may_run_together(context: RunContext, calls: Sequence[ToolCall]) -> bool:
    tools = [context.tools.get(call.name) for call in calls]
    return len(calls) > 1 and all(tool is not None and tool.enable_parallel_execution for tool in tools)


async def _run_into(context: RunContext, call: ToolCall, decision: Decision | None = None) -> None:
    context.progress.returns[call.id] = await _run(context, call, decision)


async def _run(context: RunContext, call: ToolCall, decision: Decision | None) -> ToolReturn:
    tool = context.tools.get(call.name)
    if tool is None:
        return _error(
            call, f"Error: there is no tool named {call.name!r}. Available: {', '.join(context.tools) or 'none'}."
        )
    allowed = context.next_calls().allowed
    if call.name not in allowed:
        offered = ", ".join(sorted(allowed)) or "none"
        return _error(call, f"Error: the tool rules do not allow a call of {call.name!r} now. Allowed: {offered}.")
    edited = decision.edited_arguments if decision is not None else None
    schema = base_tool_arguments(tool) if is_base_tool(tool) else tool.parameters
    filled = filled_in(context.agent.tool_rules, call.name, context.progress.turn)
    arguments = await check_arguments(_merged(call.arguments if edited is None else edited, filled), schema)
    if isinstance(arguments, RefusedArguments):
        return _error(call, arguments.text)
    run = run_base_tool if is_base_tool(tool) else _run_in_sandbox
    result = await run(context, call, tool, arguments)
    if edited is None:
        return result
    return replace(result, text=f"[The user changed the arguments to {edited}]\n{result.text}")


async def _run_in_sandbox(context: RunContext, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> ToolReturn:
    outcome = await context.services.sandbox.call(
        ToolInvocation(
            source_code=tool.source_code,
            function=tool.name,
            arguments=arguments,
            environment=context.agent.tool_environment | _whereabouts(context),
            agent=agent_for_tool(context.agent, context.progress.blocks) if _ASKS.search(tool.source_code) else None,
            timeout_s=context.services.tool_timeout_s,
            return_char_limit=tool.return_char_limit,
        )
    )
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status=outcome.status,
        text=outcome.text,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
    )


def _whereabouts(context: RunContext) -> dict[str, str]:
    """Variables by which a tool knows for whom it runs. The first is the wire's."""
    run = context.run
    return {
        "LETTA_AGENT_ID": run.agent_id,
        "LETTA_RUN_ID": run.id,
        "LETTA_CONVERSATION_ID": run.conversation_id or "default",
    }


def _merged(text: str, filled: dict[str, Any]) -> str:
    """The arguments with what a rule fills in. A text that is no JSON object stays: the check says what is wrong."""
    if not filled:
        return text
    try:
        given = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return text
    return msgspec.json.encode(given | filled).decode()


def _error(call: ToolCall, text: str) -> ToolReturn:
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)
