"""Agents of pydantic-ai, as `tests.kit.frameworks.tools` asks for them. Imported in the framework's environment."""

from collections.abc import AsyncIterable
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, Tool, ToolReturn
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.messages import BinaryContent, PartStartEvent
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.agents import Run, Verdict, agent, call, happened, register
from holdfast.agents.pydantic_ai import Journal, run_agent
from tests.kit.code_agents.places import at, reach
from tests.kit.frameworks import tools


def model() -> OpenAIChatModel:
    """The chat completions of `OPENAI_BASE_URL`."""
    return OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=AsyncOpenAI(max_retries=0)))


def fail(what: str) -> str:
    """Fails. The framework ends the run for any other exception."""
    try:
        return tools.fail(what)
    except ValueError as error:
        raise ToolFailed(str(error)) from error


LOOK: Tool[Any] = Tool(tools.look, name=tools.LOOK)
SEND: Tool[Any] = Tool(tools.send, requires_approval=True)


def support() -> Agent[Any, str]:
    """An agent with every tool."""
    return Agent(model(), instructions=tools.INSTRUCTIONS, tools=[LOOK, tools.block, fail, SEND])


def built() -> Agent[Any, str]:
    """The same, for one run."""
    reach("built")
    return support()


expert = Agent(model(), instructions=tools.EXPERT, tools=[LOOK, SEND], capabilities=[Journal()])


async def ask_expert(ctx: RunContext[Any], input: str) -> str:
    """Asks the expert."""
    return (await expert.run(input, usage=ctx.usage)).output


register("support", support(), version=tools.DEPLOYED)
register("built", built)
SCOPE = {"holdfast": {"scope": True}}
ASKING: list[Tool[Any]] = [
    Tool(ask_expert, metadata=SCOPE), Tool(ask_expert, name="ask_second", metadata=SCOPE)
]  # fmt: skip
register("team", Agent(model(), tools=ASKING))
register("unmarked", Agent(model(), tools=[ask_expert]))


class City(BaseModel):
    """What the agent `city` answers."""

    name: str
    rivers: int


def count(rivers: int) -> int:
    """Counts rivers."""
    reach(f"count {rivers}")
    if rivers < 0:
        raise ModelRetry("rivers are counted from 0")
    return rivers


def picture(of: str) -> ToolReturn:
    """Shows something."""
    reach(f"picture {of}")
    return ToolReturn(of, content=["as seen from above", BinaryContent(b"pixels", media_type="image/png")])


def scan() -> bytes:
    """Returns bytes that are no text."""
    return b"\xff\x00"


register("scanning", Agent(model(), tools=[scan]))
register("city", Agent(model(), output_type=City, system_prompt="You know cities.", tools=[count, picture, LOOK]))


async def pay(ctx: RunContext[Any], euros: int) -> str:
    """Pays. Large sums need a person's approval."""
    if euros > 100 and not ctx.tool_call_approved:
        raise ApprovalRequired
    reach(f"key {call().idempotency_key}")
    await at(f"pay {euros}")
    return f"paid {euros}"


def was_paid(key: str) -> Verdict:
    """Asks the bank."""
    reach(f"probe {key}")
    return happened("paid, says the bank")


async def fetch(page: str) -> str:
    """Reads a page."""
    reach(f"key {call().idempotency_key}")
    await at(f"fetch {page}")
    return f"the page {page}"


PROBED: Tool[Any] = Tool(pay, metadata={"holdfast": {"probe": was_paid}})
REPEATED: Tool[Any] = Tool(fetch, metadata={"holdfast": {"idempotent": True}})


def postpone() -> str:
    """Wants its result from elsewhere."""
    raise CallDeferred


register("payer", Agent(model(), tools=[PROBED, REPEATED, postpone]))
register("fallback", Agent(FallbackModel(model(), model())))


async def name_of_user(ctx: RunContext[str]) -> str:
    """Says who asks."""
    return ctx.deps


async def listen(_: RunContext[str], events: AsyncIterable[Any]) -> None:
    """A listener of the agent's own."""
    async for event in events:
        if isinstance(event, PartStartEvent):
            reach(f"heard {event.part.part_kind}")


personal = Agent(model(), deps_type=str, tools=[name_of_user])


@agent("personal")
async def own_function(run: Run) -> str:
    """Calls the agent with what Holdfast does not know."""
    return await run_agent(run, personal, deps="Ada", capabilities=[ProcessEventStream(listen)])


@agent("outside")
async def outside(run: Run) -> str:
    """Calls an agent with a journal, and not as its run."""
    return (await expert.run(run.text)).output
