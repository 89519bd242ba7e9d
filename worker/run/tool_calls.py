"""Makes one call of a tool: checks its arguments, runs our own code for a base tool and the sandbox for any other."""

import re
from asyncio import to_thread
from typing import Any

from shared.domain.agents import agent_for_tool
from shared.domain.errors import InvalidRequest, InvalidToolSource, Unavailable
from shared.domain.messages import AssistantMessage, ToolCall, ToolReturn, ToolReturns
from shared.domain.tool_catalog import base_tool_arguments, is_base_tool, runs_code
from shared.domain.tools import TYPESCRIPT, Tool, ToolLimits
from shared.tool_arguments import RefusedArguments, check_arguments
from shared.typescript.functions import Module, tool_module
from worker.run.base_tools import run_base_tool
from worker.run.context import RunContext
from worker.run.run_code import run_code
from worker.tools.invocation import ToolInvocation, without_secrets

_ASKS = re.compile(r"\bagent_(state|id)\b")
"""What a source has in it that wants to know the agent. The memory may be large, and most tools do not look at it."""

EMPTY_AGAIN = "[The folder that earlier calls of this run shared is empty again: the run went on elsewhere.]\n"
"""Begins the result of the first call that finds it so, for the model and for readers. The folder is the worker's:
it is a new one behind an approval, which another run follows, and where another worker goes on with the run."""


async def call_tool(context: RunContext, call: ToolCall, tool: Tool, arguments: str) -> ToolReturn:
    """The result of a call whose intent is stored. `arguments` is JSON, and stands for what the call itself says.

    A tool is not started with arguments that do not fit its schema: the result says what is wrong.
    """
    with context.observation.tool_call(call, context.progress.step_id) as observed:
        result = await _result_of(context, call, tool, arguments)
        observed.returns(result)
        return result


async def _result_of(context: RunContext, call: ToolCall, tool: Tool, arguments: str) -> ToolReturn:
    schema = base_tool_arguments(tool) if is_base_tool(tool) else tool.accepted_arguments
    checked = await check_arguments(arguments, schema)
    if isinstance(checked, RefusedArguments):
        return error_return(call, checked.text)
    if runs_code(tool):
        return await run_code(context, call, tool, checked, _environment(context))
    run = run_base_tool if is_base_tool(tool) else _run_in_sandbox
    return await run(context, call, tool, checked)


def error_return(call: ToolCall, text: str) -> ToolReturn:
    """The result of a call that was not made, or of which nothing is known."""
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)


async def _run_in_sandbox(context: RunContext, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> ToolReturn:
    services, module = context.services, Module(tool.source_code)
    lost_folder = tool.scratch == "run" and await _has_lost_folder(context, call)
    try:
        if tool.source_type == TYPESCRIPT:
            module = await to_thread(tool_module, tool.source_code, tool.name)
        # A call's time begins behind this: a machine that lacks the packages installs them first.
        async with services.packages.folders(tool.packages) as folders:
            outcome = await services.sandbox.call(
                ToolInvocation(
                    project_id=context.run.project_id,
                    source_code=module.source,
                    function=tool.name,
                    arguments=arguments,
                    language="javascript" if tool.source_type == TYPESCRIPT else "python",
                    parameters=module.parameters,
                    argument_schema=tool.args_json_schema,
                    environment=_environment(context),
                    agent=_agent(context, tool),
                    folders=folders,
                    has_network=tool.network == "host",
                    run_id=context.run.id if tool.scratch == "run" else None,
                    timeout_s=services.tool_timeout_s,
                    limits=tool.limits or ToolLimits(),
                    return_char_limit=tool.return_char_limit,
                )
            )
    except InvalidToolSource as error:
        return error_return(call, f"Error: {error}")
    except (InvalidRequest, Unavailable) as error:
        return error_return(call, f"Error: the tool was not started, for it lacks its packages: {error.message}")
    outcome = await without_secrets(outcome, context.secrets)
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status=outcome.status,
        text=EMPTY_AGAIN + outcome.text if lost_folder else outcome.text,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        is_text=outcome.is_text,
    )


def _agent(context: RunContext, tool: Tool) -> dict[str, Any] | None:
    return agent_for_tool(context.agent, context.progress.blocks) if _ASKS.search(tool.source_code) else None


def _environment(context: RunContext) -> dict[str, str]:
    """The agent's secrets, and variables by which a tool knows for whom it runs. The first of these is the wire's."""
    run = context.run
    return {
        **context.secrets,
        "LETTA_AGENT_ID": run.agent_id,
        "LETTA_RUN_ID": run.id,
        "LETTA_CONVERSATION_ID": run.conversation_id or "default",
    }


async def _has_lost_folder(context: RunContext, call: ToolCall) -> bool:
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
            ran = [one for one in message.body.returns if one.stdout is not None or one.is_unknown]
            if any(one.tool_name in users for one in ran):
                return True
        elif isinstance(message.body, AssistantMessage):
            begun = [one for one in message.body.tool_calls if one.id in started and one.id != call.id]
            if any(one.name in users for one in begun):
                return True
    return False
