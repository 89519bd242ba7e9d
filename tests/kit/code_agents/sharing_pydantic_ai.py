"""An agent of pydantic-ai whose runs may share a process. A message is the name of its run."""

import os
from collections.abc import AsyncIterator

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from holdfast.agents import register
from tests.kit.code_agents.places import at, reach


async def _answer(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    [name] = [part.content for part in parts if isinstance(part, UserPromptPart)]
    reach(f"{name} in {os.getpid()}")
    await at(str(name))
    found = [part.content for part in parts if isinstance(part, ToolReturnPart)]
    if found:
        yield f"{name} has {found[0]}"
    else:
        yield {0: DeltaToolCall(name="look", json_args=f'{{"name": "{name}"}}', tool_call_id="call-1")}


desk = Agent(FunctionModel(stream_function=_answer))


@desk.tool_plain
def look(name: str) -> str:
    """Finds what belongs to the name."""
    return f"what {name} has"


register("desk", desk)
