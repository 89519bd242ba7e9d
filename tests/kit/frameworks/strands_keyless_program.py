"""An agent of Strands Agents that asks the worker's models. Imported in Strands' environment."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel

from holdfast.agents import register
from tests.kit.frameworks import tools


def keyless() -> Agent:
    """One for each run."""
    return Agent(model=OpenAIModel(model_id="gpt-4o"), tools=[tool(tools.look)], callback_handler=None)


register("keyless", keyless, models="worker")
