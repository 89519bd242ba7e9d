"""Makes one call of a tool: checks its arguments, runs our own code for a base tool and the sandbox for any other."""

import re
from typing import Any

from shared.domain.agents import agent_for_tool
from shared.domain.base_tools import base_tool_arguments, is_base_tool
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.tools import Tool
from shared.tool_arguments import RefusedArguments, check_arguments
from worker.run.base_tools import run_base_tool
from worker.run.context import RunContext
from worker.tools.invocation import ToolInvocation

_ASKS = re.compile(r"\bagent_(state|id)\b")
"""What a source has in it that wants to know the agent. The memory may be large, and most tools do not look at it."""


async def call_tool(context: RunContext, call: ToolCall, tool: Tool, arguments: str) -> ToolReturn:
    """The result of a call whose intent is stored. `arguments` is JSON, and stands for what the call itself says.

    A tool is not started with arguments that do not fit its schema: the result says what is wrong.
    """
    schema = base_tool_arguments(tool) if is_base_tool(tool) else tool.parameters
    checked = await check_arguments(arguments, schema)
    if isinstance(checked, RefusedArguments):
        return error_return(call, checked.text)
    run = run_base_tool if is_base_tool(tool) else _run_in_sandbox
    return await run(context, call, tool, checked)


def error_return(call: ToolCall, text: str) -> ToolReturn:
    """The result of a call that was not made, or of which nothing is known."""
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)


async def _run_in_sandbox(context: RunContext, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> ToolReturn:
    outcome = await context.services.sandbox.call(
        ToolInvocation(
            source_code=tool.source_code,
            function=tool.name,
            arguments=arguments,
            argument_schema=tool.args_json_schema,
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
        is_text=outcome.is_text,
    )


def _whereabouts(context: RunContext) -> dict[str, str]:
    """Variables by which a tool knows for whom it runs. The first is the wire's."""
    run = context.run
    return {
        "LETTA_AGENT_ID": run.agent_id,
        "LETTA_RUN_ID": run.id,
        "LETTA_CONVERSATION_ID": run.conversation_id or "default",
    }
