"""Agents of OpenAI's Agents SDK, as `tests.kit.frameworks.tools` asks for them, and more that only the SDK has.

Imported in the SDK's environment.
"""

import os
import sys
from typing import Any

from agents import (
    Agent,
    LocalShellTool,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    SQLiteSession,
    ToolOutputText,
    function_tool,
    handoff,
    set_default_openai_api,
    set_tracing_disabled,
)
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI
from pydantic import BaseModel

from holdfast.agents import Run, agent, register
from holdfast.agents.openai_agents import run_agent
from tests.kit.code_agents.places import at, reach
from tests.kit.frameworks import tools

set_default_openai_api("chat_completions")
set_tracing_disabled(True)

LOOK = function_tool(name_override=tools.LOOK)(tools.look)


def model() -> Any:
    """A model that is given as an object: no provider is asked for it."""
    return OpenAIChatCompletionsModel(model="gpt-4o", openai_client=AsyncOpenAI())


def support() -> Agent[Any]:
    """An agent with one tool of each kind."""
    return Agent(
        name="Support",
        instructions=tools.INSTRUCTIONS,
        model="gpt-4o",
        tools=[
            LOOK,
            function_tool(tools.block),
            function_tool(tools.fail),
            function_tool(needs_approval=True)(tools.send),
        ],
    )


def built() -> Agent[Any]:
    """The same, made for one run."""
    reach("built")
    return support()


EXPERT = Agent(
    name="Expert",
    instructions=tools.EXPERT,
    model=model(),
    tools=[LOOK, function_tool(needs_approval=True)(tools.send)],
)
TEAM = Agent(
    name="Team",
    instructions=tools.INSTRUCTIONS,
    model="gpt-4o",
    tools=[EXPERT.as_tool(name, "Asks somebody who knows") for name in ("ask_expert", "ask_second")],
)

WATCHED = Agent(
    name="Watched",
    model="gpt-4o",
    tools=[EXPERT.as_tool("ask_expert", "Asks somebody who knows", on_stream=lambda event: reach(event["event"].type))],
)

register("watched", WATCHED)
register("support", support(), version=tools.DEPLOYED)
register("built", built)
register("team", TEAM)


@function_tool
async def careful(what: str) -> str:
    """Cleans up when it is cancelled."""
    try:
        await at(f"careful {what}")
    finally:
        reach("cleaned up")
    return what


@function_tool(failure_error_function=None)
def strict(what: str) -> str:
    """Ends the run when it fails."""
    return tools.fail(what)


@function_tool
async def pages(what: str) -> list[Any]:
    """Returns parts of a result, as the SDK has them."""
    return [ToolOutputText(text=f"page {number} of {what}") for number in (1, 2)]


@function_tool
async def numbers() -> Any:
    """Returns what is no text."""
    return {"found": 2, "where": ("pond", "sea")}


@function_tool
def mean() -> float:
    """Returns a number that JSON does not have."""
    return float("nan")


@function_tool
def leaves() -> str:
    """Is a program of the command line."""
    sys.exit("usage: leaves FILE")


@function_tool(timeout=0.05)
async def slow(what: str) -> str:
    """Takes longer than it may, if its test lets it."""
    await at(f"slow {what}")
    return what


async def for_the_boss(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
    """Whether a letter needs approval."""
    return arguments["to"] == "boss"


register(
    "more",
    Agent(
        name="More",
        model="gpt-4o",
        tools=[careful, strict, pages, numbers, mean, leaves, slow, function_tool(needs_approval=True)(tools.send)],
    ),
)
register(
    "letters", Agent(name="Letters", model="gpt-4o", tools=[function_tool(needs_approval=for_the_boss)(tools.send)])
)

BILLING = Agent(name="Billing", instructions="You know prices.", model=model(), tools=[LOOK])
REFUNDS = Agent(name="Refunds", instructions="You pay back.", model=model(), tools=[LOOK])
register("desk", Agent(name="Desk", model="gpt-4o", handoffs=[BILLING, handoff(REFUNDS)]))


@agent("remote")
async def has_an_mcp_server(run: Run) -> str:
    """Its tools are those of an MCP server in a process of its own."""
    program = {"command": sys.executable, "args": ["-m", "tests.kit.frameworks.stdio_server"], "env": dict(os.environ)}
    async with MCPServerStdio(params=program, client_session_timeout_seconds=60) as server:
        return await run_agent(run, Agent(name="Remote", model="gpt-4o", mcp_servers=[server]))


class Animal(BaseModel):
    """What the agent answers with."""

    name: str
    legs: int


register("typed", Agent(name="Typed", model="gpt-4o", output_type=Animal))


class Thinker(OpenAIResponsesModel):
    """Asks the Responses API."""

    def __init__(self) -> None:
        super().__init__(model="o4-mini", openai_client=AsyncOpenAI())


register("thinker", Agent(name="Thinker", model=Thinker(), tools=[LOOK]))


def made_for(run: Run) -> Any:
    """An agent for what the run asks."""
    reach(f"made for {run.text}")
    return support()


register("made", made_for)


@agent("whole")
async def asks_for_whole_answers(run: Run) -> str:
    """Two agents, one after the other, whose answers do not stream."""
    first = await run_agent(run, support(), streams=False, max_turns=3)
    return f"{first} {await run_agent(run, BILLING, streams=False)}"


@agent("kept-elsewhere")
async def keeps_a_session(run: Run) -> str:
    """Asks for a history beside the thread's."""
    return await run_agent(run, support(), session=SQLiteSession("mine"))


register("shell", Agent(name="Shell", model=Thinker(), tools=[LocalShellTool(executor=lambda request: "done")]))
