"""Agents of Strands Agents, as `tests.kit.frameworks.tools` asks for them. Imported in Strands' environment."""

import asyncio
import os
import sys
from contextlib import suppress
from typing import Any

from mcp import StdioServerParameters, stdio_client
from pydantic import create_model
from strands import Agent, ModelRetryStrategy, ToolContext, tool
from strands.models.openai import OpenAIModel
from strands.tools.executors import SequentialToolExecutor
from strands.tools.mcp import MCPClient

from holdfast.agents import Run, agent, register
from holdfast.agents.strands import needs_approval, run_agent
from tests.kit.code_agents.places import at, reach
from tests.kit.frameworks import tools


def model() -> OpenAIModel:
    """The chat completions of `OPENAI_BASE_URL`."""
    return OpenAIModel(model_id="gpt-4o", client_args={"max_retries": 0})


@tool(name=tools.LOOK)
async def look(what: str) -> str:
    """Looks for something."""
    return await tools.look(what)


@tool
def block(what: str) -> str:
    """Looks for something, and blocks its thread meanwhile."""
    return tools.block(what)


@tool
def fail(what: str) -> str:
    """Fails."""
    return tools.fail(what)


@tool
async def send(to: str) -> str:
    """Sends the letter."""
    return await tools.send(to)


def made(*given: Any, **options: Any) -> Agent:
    """An agent with these tools."""
    return Agent(**{"model": model(), "tools": list(given), "callback_handler": None, **options})


def support(**options: Any) -> Agent:
    """The agent that most tests ask."""
    return made(look, block, fail, needs_approval(send), system_prompt=tools.INSTRUCTIONS, **options)


def built() -> Agent:
    """The same, and says that it was made."""
    reach("built")
    return support()


def team() -> Agent:
    """An agent that asks others."""
    experts = [made(look, needs_approval(send), name="Expert", system_prompt=tools.EXPERT) for _ in range(2)]
    asking = [one.as_tool(name=name) for one, name in zip(experts, ("ask_expert", "ask_second"), strict=True)]
    return made(*asking, system_prompt=tools.INSTRUCTIONS)


def in_order() -> Agent:
    """Its tools run one after the other, and one of them ignores that it is cancelled."""
    return made(look, cling, tidy, tool_executor=SequentialToolExecutor())


@tool
async def cling(what: str) -> str:
    """Clings to something, whatever happens."""
    while True:
        with suppress(asyncio.CancelledError):
            await at(f"cling {what}")
            return f"clung to {what}"


@tool
async def tidy(what: str) -> str:
    """Looks for something, and leaves nothing behind."""
    try:
        return await tools.look(what)
    finally:
        reach(f"tidied {what}")


def patient() -> Agent:
    """Asks a busy model again at once."""
    return made(look, retry_strategy=ModelRetryStrategy(initial_delay=0))


@tool(context=True)
def interrupt(tool_context: ToolContext) -> str:
    """Asks with Strands' own means."""
    return str(tool_context.interrupt("a question"))


@tool(context=True)
def ask_in_thread(what: str, tool_context: ToolContext) -> str:
    """Calls a tool and an agent, each in an event loop of its own."""
    found = tool_context.agent.tool.look(what=what, record_direct_tool_call=False)
    return f"{found['content'][0]['text']}; {expert(what)}"


expert = made(name="Expert")


def remote() -> Agent:
    """Its tools are those of an MCP server, and a person decides about each call."""
    program = StdioServerParameters(
        command=sys.executable, args=["-m", "tests.kit.frameworks.stdio_server"], env=dict(os.environ)
    )
    client = MCPClient(lambda: stdio_client(program))
    return made(*map(needs_approval, client.start().list_tools_sync()))


Weather = create_model("Weather", degrees=(int, ...), __doc__="How it is outside.")


@agent("limited")
async def limited(run: Run) -> str:
    """One turn of the agent, whatever it asks for."""
    return await run_agent(run, support(), limits={"turns": 1})


register("support", support(), version=tools.DEPLOYED)
register("in-order", in_order)
register("patient", patient)
register("delegating", lambda: made(made(name="Expert").as_tool(name="ask_expert", delegate=True)))
register("remote", remote)
register("primed", lambda: made(messages=[{"role": "user", "content": [{"text": "You are an otter."}]}]))
register("interrupting", lambda: made(interrupt))
register("threaded", lambda: made(look, ask_in_thread))
register("structured", lambda: made(structured_output_model=Weather))
register("built", built)
register("team", team)
