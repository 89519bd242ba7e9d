"""Runs the tools that come with the product. They need no sandbox: they are our own code."""

import json
import textwrap
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shared.concurrency import retry_while_unavailable
from shared.domain.agents import Block, requires_approval
from shared.domain.archival import MOST_FOUND, NewPassage, PassageQuery, refuse_oversized, refuse_oversized_query
from shared.domain.errors import InvalidRequest, InvalidToolSource
from shared.domain.memory import EditedMemory, Memory, RefusedEdit, edit_memory
from shared.domain.messages import AssistantMessage, Message, ToolCall, ToolReturn, UserMessage, text_of
from shared.domain.searches import Role, moment_of, refuse_long_query, zone_of
from shared.domain.tool_catalog import MEMORY_TOOLS, RUNS_CODE_WITH_TOOLS, SEARCHES_MESSAGES, SPEAKS, is_base_tool
from shared.domain.tools import PYTHON, Tool
from shared.typescript.functions import Module, program_module
from worker.run.context import RunContext
from worker.tools.invocation import ToolInvocation, ToolOutcome, without_secrets
from worker.tools.outcomes import MAX_RESULT_CHARS

# The base tools with which an agent looks into its past: what was said, and what it has put into archival memory.


Arguments = Mapping[str, Any]
Result = TypeVar("Result")

MESSAGES_FOUND = 5
"""Results of a search of messages that does not say how many, as on the wire."""

NOTHING = json.dumps({"message": "No results found.", "results": []})

PASSAGES_FOUND = 10
MOST_MESSAGES = 100


async def search_messages(context: RunContext, arguments: Arguments) -> str:
    """What was said in any of the agent's conversations, as JSON.

    Raises `InvalidRequest` for what is no moment, or too long.
    """
    agent, asked = context.agent, arguments.get("roles") or ("user", "assistant")
    start, end = _span(context, arguments, "start_date", "end_date")
    limit = min(max(arguments.get("limit", MESSAGES_FOUND), 1), MOST_MESSAGES)
    asked_for = arguments.get("query", "")
    refuse_long_query(asked_for)
    words = asked_for.split()
    # Results of tools are found in what was made of them. Shown again, they would be found again and again.
    roles: list[Role] = [role for role in ("user", "assistant") if role in asked]
    if not roles:
        return NOTHING
    found = await _read(
        context,
        lambda: context.services.message_lists.search(
            agent.project_id, words, agent_id=agent.id, roles=roles, limit=limit + MOST_MESSAGES, start=start, end=end
        ),
    )
    shown = [_shown(context, message) for message in found if not _is_in_view(context, message)][:limit]
    if not shown:
        return NOTHING
    return json.dumps({"message": f"Showing {len(shown)} results:", "results": shown}, ensure_ascii=False)


async def search_passages(context: RunContext, arguments: Arguments) -> str:
    """The passages that fit a query, as JSON. Raises `InvalidRequest` for what is no moment, or too long."""
    agent = context.agent
    start, end = _span(context, arguments, "start_datetime", "end_datetime")
    query = PassageQuery(
        text=arguments["query"],
        agent_id=agent.id,
        tags=arguments.get("tags", ()),
        match_all_tags=arguments.get("tag_match_mode") == "all",
        start=start,
        end=end,
        limit=min(max(arguments.get("top_k", PASSAGES_FOUND), 1), MOST_FOUND),
    )
    refuse_oversized_query(query)
    found = await _read(context, lambda: context.services.archival.search(agent.project_id, query))
    zone = zone_of(agent.timezone)
    results = [
        {
            "id": one.passage.id,
            "timestamp": one.passage.created_at.astimezone(zone).isoformat(),
            "content": one.passage.text,
            "tags": one.passage.tags,
        }
        for one in found
    ]
    return json.dumps({"results": results, "count": len(results)}, ensure_ascii=False)


async def remember_passage(context: RunContext, call: ToolCall, arguments: Arguments) -> ToolReturn:
    """Stores a passage in the agent's archive, once per call. Raises `InvalidRequest` for one that is too long."""
    services = context.services
    now, ids = services.clock.now(), services.ids
    passage = NewPassage(id=ids.passage(), text=arguments["content"], tags=arguments.get("tags", ()), created_at=now)
    refuse_oversized([passage])
    archive_id = ids.archive()
    async with context.publisher.writing() as run:
        return await context.retry_while_unavailable(
            lambda: services.memory.remember(run, call, passage, new_archive_id=archive_id, now=now)
        )


async def _read(context: RunContext, read: Callable[[], Awaitable[Result]]) -> Result:
    """What a read gives, which is repeated while the database is away. A cancel interrupts it."""
    services = context.services
    return await retry_while_unavailable(lambda _: read(), for_s=services.patience_s, clock=services.clock)


def _span(context: RunContext, arguments: Arguments, start: str, end: str) -> tuple[datetime | None, datetime | None]:
    """The moments of two arguments. Raises `InvalidRequest`."""
    first, last, timezone = arguments.get(start), arguments.get(end), context.agent.timezone
    return (
        None if first is None else moment_of(first, timezone, start),
        None if last is None else moment_of(last, timezone, end, is_end=True),
    )


def _is_in_view(context: RunContext, message: Message) -> bool:
    """Whether the model has the message before its eyes, or it is a search like this one."""
    calls = message.body.tool_calls if isinstance(message.body, AssistantMessage) else []
    return message.run_id == context.run.id or any(call.name == SEARCHES_MESSAGES for call in calls)


def _shown(context: RunContext, message: Message) -> dict[str, Any]:
    body = message.body
    role, text = ("user", text_of(body.content)) if isinstance(body, UserMessage) else ("assistant", "")
    return {
        "timestamp": message.created_at.astimezone(zone_of(context.agent.timezone)).isoformat(),
        "time_ago": _ago(context.services.clock.now() - message.created_at),
        "role": role,
        "content": body.text if isinstance(body, AssistantMessage) else text,
    }


def _ago(since: timedelta) -> str:
    """How long ago something was, in the largest unit that it fills."""
    seconds = max(0, int(since.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit} ago"
    return f"{seconds}s ago"


# The base tools that run a program of the model's: in the tools' sandbox, behind the same walls and limits.
#
# The answer is the wire's: `{"results": [texts], "logs": {"stdout": [texts], "stderr": [texts]}, "error": {"name",
# "value", "traceback"}}`, without `error` when there was none.


PROGRAM = Path(__file__).parent.parent / "tools" / "inside" / "child_program.py"
JAVASCRIPT = ("js", "ts")
NOT_HERE = "This server runs code in python, js and ts, not in {}. Write it in one of these."
FREE_RULES = ("continue_loop", "exit_loop", "run_first", "required_before_exit")
"""Rules of tools that say nothing about a call from within a program."""


class _Error(msgspec.Struct):
    name: str = "Error"
    value: str = ""
    traceback: str = ""


class _Said(msgspec.Struct):
    results: list[str] = []
    error: _Error | None = None


async def run_code(
    context: RunContext, call: ToolCall, tool: Tool, arguments: dict[str, Any], environment: dict[str, str]
) -> ToolReturn:
    """The result of a call of one of the two. `environment`: the variables that a tool of the agent's would see."""
    language = arguments.get("language", "python")
    try:
        invocation = await _invocation(context, tool, arguments["code"], language)
    except InvalidToolSource as error:
        return _returned(call, tool, ToolOutcome("error", str(error)))
    if invocation is None:
        return _returned(call, tool, ToolOutcome("error", NOT_HERE.format(language)))
    invocation = msgspec.structs.replace(
        invocation,
        environment=environment,
        timeout_s=context.services.tool_timeout_s,
        return_char_limit=MAX_RESULT_CHARS,
    )
    outcome = await without_secrets(await context.services.sandbox.call(invocation), context.secrets)
    return _returned(call, tool, outcome)


async def _invocation(context: RunContext, tool: Tool, code: str, language: str) -> ToolInvocation | None:
    """None for a language that is not here. Raises `InvalidToolSource` for TypeScript that cannot be read."""
    project_id = context.run.project_id
    if language in JAVASCRIPT:
        module: Module = await to_thread(program_module, code, is_typescript=language == "ts")
        return ToolInvocation(project_id, module.source, "", {}, language="javascript")
    if language != PYTHON:
        return None
    tools = _callable_tools(context) if tool.name == RUNS_CODE_WITH_TOOLS else []
    source = await to_thread(PROGRAM.read_text, encoding="utf-8")
    return ToolInvocation(project_id, source, "run_code", {"code": code, "tools": tools})


def _callable_tools(context: RunContext) -> list[dict[str, str]]:
    """The agent's tools as functions of the program. What a person or a rule has a say in stays a call of its own."""
    rules = [rule for rule in context.agent.tool_rules if rule["type"] not in FREE_RULES]
    ruled = {name for rule in rules for name in (rule["tool_name"], *rule.get("children", ()))}
    found: list[dict[str, str]] = []
    for name, tool in context.tools.items():
        if is_base_tool(tool):
            reason = "a program cannot call it"
        elif tool.source_type != PYTHON:
            reason = f"it is written in {tool.source_type}"
        elif name in ruled or requires_approval(context.agent, name, tool.default_requires_approval):
            reason = "a person or a rule has a say in its calls"
        else:
            found.append({"name": name, "source": textwrap.dedent(tool.source_code)})
            continue
        found.append({"name": name, "refused": f"{name} cannot be called from here ({reason}): call it as a tool"})
    return found


def _returned(call: ToolCall, tool: Tool, outcome: ToolOutcome) -> ToolReturn:
    said = _said(outcome)
    most = tool.return_char_limit // 4
    answer: dict[str, Any] = {
        "results": [_cut(text, most) for text in said.results],
        "logs": {"stdout": _log(outcome.stdout, most), "stderr": _log(outcome.stderr, most)},
    }
    if said.error is not None:
        error = msgspec.structs.replace(said.error, value=_cut(said.error.value, most))
        answer["error"] = msgspec.to_builtins(msgspec.structs.replace(error, traceback=_cut(error.traceback, most)))
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status="success" if said.error is None else "error",
        text=json.dumps(answer, ensure_ascii=False),
        stdout=outcome.stdout,
        stderr=outcome.stderr,
    )


def _said(outcome: ToolOutcome) -> _Said:
    """What the program came to. It can write anything where its own answer should be, so nothing there is believed."""
    try:
        said = msgspec.json.decode(outcome.text, type=_Said)
    except (msgspec.MsgspecError, RecursionError):
        if outcome.status == "success":
            return _Said(results=[outcome.text])
        return _Said(error=_Error(value=outcome.text))
    if outcome.status == "error" and said.error is None:
        said.error = _Error(value=outcome.text)
    return said


def _log(texts: list[str], most: int) -> list[str]:
    whole = "\n".join(texts)
    return [_cut(whole, most)] if whole else []


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... [{len(text) - most} more characters left out]"


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
