"""Runs the tools that come with the product. They need no sandbox: they are our own code."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from shared.domain.agents import Block
from shared.domain.errors import InvalidRequest
from shared.domain.memory import EditedMemory, Memory, RefusedEdit, edit_memory
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.tool_catalog import MEMORY_TOOLS, SEARCHES_MESSAGES, SPEAKS
from shared.domain.tools import Tool
from worker.run.context import RunContext
from worker.run.recall import remember_passage, search_messages, search_passages

Arguments = Mapping[str, Any]

INSTEAD: Mapping[str, str] = {
    "web_search": "This server has no web search. Ask the user for what you need, or for a tool that finds it.",
    "fetch_webpage": "This server fetches no web pages. Ask the user for the text, or for a tool that fetches it.",
}
"""What the model is told by tools that need something that this server has not."""


async def run_base_tool(context: RunContext, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> ToolReturn:
    """The result of a call of a base tool. The arguments fit its schema."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if tool.name in MEMORY_TOOLS:
        return await _edit_memory(context, call, given)
    if tool.name not in _ANSWERS and tool.name != REMEMBERS:
        return _failed(call, INSTEAD.get(tool.name, "This worker does not have this tool. Do without it."))
    try:
        if tool.name == REMEMBERS:
            return await remember_passage(context, call, given)
        text = await _ANSWERS[tool.name](context, given)
    except InvalidRequest as error:
        return _failed(call, error.message)
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status="success",
        text=text,
        of_speech=call.speech is not None,
        is_text=tool.name == SPEAKS,
    )


async def _edit_memory(context: RunContext, call: ToolCall, arguments: Arguments) -> ToolReturn:
    services, seen = context.services, context.progress.seen_memory
    now = services.clock.now()

    def edit(blocks: Sequence[Block]) -> EditedMemory:
        return edit_memory(Memory(blocks, seen, partial(_new_block, context)), call.name, arguments)

    try:
        async with context.publisher.writing() as run:
            finished = await context.retry_while_unavailable(lambda: services.memory.edit(run, call, edit, now))
    except RefusedEdit as error:
        return _failed(call, error.message)
    for edited in finished.edited:
        # What the model does next to this block knows of its own edit, unless somebody else's came between.
        if seen.get(edited.id) == edited.version:
            seen[edited.id] = edited.version + 1
    return finished.result


def _new_block(context: RunContext, label: str, value: str, description: str) -> Block:
    now = context.services.clock.now()
    return Block(
        id=context.services.ids.block(),
        project_id=context.run.project_id,
        label=label,
        value=value,
        description=description,
        created_at=now,
        updated_at=now,
    )


async def _send_message(_context: RunContext, _arguments: Arguments) -> str:
    return "Sent message successfully."


async def _finish_edits(_context: RunContext, _arguments: Arguments) -> str:
    return "None"


REMEMBERS = "archival_memory_insert"

_ANSWERS: Mapping[str, Callable[[RunContext, Arguments], Awaitable[str]]] = {
    SPEAKS: _send_message,
    "memory_finish_edits": _finish_edits,
    SEARCHES_MESSAGES: search_messages,
    "archival_memory_search": search_passages,
}


def _failed(call: ToolCall, why: str) -> ToolReturn:
    text = f"Error executing function {call.name}: {why}"
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)
