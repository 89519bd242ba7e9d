"""Agents that are plain functions with a model's client, as `tests.kit.frameworks.tools` asks for them."""

from functools import partial
from typing import Any

from holdfast.agents import Run, agent
from tests.kit.frameworks import tools
from tests.kit.frameworks.chat_loop import call_of, converse, offered, schema_of

LOOKING = {tools.LOOK: tools.look, "block": tools.block, "fail": tools.fail, "send": tools.send}
OF_EXPERT = {name: LOOKING[name] for name in (tools.LOOK, "send")}


@agent("support", version=tools.DEPLOYED)
async def support(run: Run) -> str:
    """Has every tool, and those of the client."""
    shown = [*offered(LOOKING), *run.client_tools]
    return await converse(run, tools.INSTRUCTIONS, shown, partial(call_of, LOOKING))


async def ask_expert(run: Run, input: str) -> str:
    """Asks one who knows everything."""
    return await converse(run, tools.EXPERT, offered(OF_EXPERT), partial(call_of, OF_EXPERT), input)


async def ask(run: Run, name: str, call_id: str, arguments: dict[str, Any]) -> str:
    """Calls an expert, who may ask a person."""
    return await run.scope(name, partial(ask_expert, run), key=[call_id, arguments], **arguments)


@agent("team")
async def team(run: Run) -> str:
    """Asks experts."""
    shown = [schema_of(name, partial(ask_expert, run)) for name in ("ask_expert", "ask_second")]
    return await converse(run, tools.INSTRUCTIONS, shown, ask)
