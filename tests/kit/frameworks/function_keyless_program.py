"""A plain function that asks the worker's models."""

from functools import partial

from holdfast.agents import Run, agent
from tests.kit.frameworks import tools
from tests.kit.frameworks.chat_loop import call_of, converse, offered

LOOKING = {tools.LOOK: tools.look}


@agent("keyless", models="worker")
async def keyless(run: Run) -> str:
    """Has one tool."""
    return await converse(run, tools.INSTRUCTIONS, offered(LOOKING), partial(call_of, LOOKING))
