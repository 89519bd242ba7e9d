"""An agent of LangChain that asks the worker's models. Imported in LangGraph's environment."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from holdfast.agents import register
from tests.kit.frameworks import tools


def keyless() -> Any:
    """One for each run."""
    return create_agent(ChatOpenAI(model="gpt-4o"), [tool(tools.look)])


register("keyless", keyless, models="worker")
