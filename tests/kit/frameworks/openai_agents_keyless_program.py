"""An agent of OpenAI's Agents SDK that asks the worker's models. Imported in the SDK's environment."""

from agents import Agent, function_tool, set_tracing_disabled

from holdfast.agents import register
from tests.kit.frameworks import tools

set_tracing_disabled(True)

register("keyless", Agent(name="Keyless", model="gpt-4o", tools=[function_tool(tools.look)]), models="worker")
