"""An agent of pydantic-ai that asks the worker's models. Imported in the framework's environment."""

from pydantic_ai import Agent

from holdfast.agents import register
from tests.kit.frameworks import tools

register("keyless", Agent("openai-chat:gpt-4o", tools=[tools.look], defer_model_check=True), models="worker")
