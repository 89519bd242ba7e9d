"""Runs the base tools. They are Holdfast's own code and need no sandbox."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from shared.archival.archival_memory import ArchivalMemory
from shared.concurrency import Clock
from shared.domain.agents import Block, zone_of
from shared.domain.errors import InvalidRequest
from shared.domain.ids import IdMaker
from shared.domain.memory import EditedMemory, Memory, RefusedEdit, edit_memory
from shared.domain.messages import AssistantMessage, Message, ToolCall, ToolReturn, UserMessage, text_of
from shared.domain.searches import (
    MOST_FOUND,
    NewPassage,
    PassageQuery,
    Role,
    moment_of,
    refuse_long_query,
    refuse_oversized,
    refuse_oversized_query,
)
from shared.domain.tool_catalog import MEMORY_TOOLS, SEARCHES_MESSAGES, SPEAKS, JsonObject, base_tool_arguments
from shared.domain.tools import Tool
from shared.sql.definitions.blocks import MemoryStore
from shared.sql.history.message_lists import MessageLists
from worker.runners.tool_runner import CallingRun, RunnerTraits, error_return

Arguments = Mapping[str, Any]

MESSAGES_FOUND = 5
"""The default number of results of a message search."""

NOTHING = json.dumps({"message": "No results found.", "results": []})

PASSAGES_FOUND = 10
MOST_MESSAGES = 100

INSTEAD: Mapping[str, str] = {
    "web_search": "This server has no web search. Ask the user for what you need, or for a tool that finds it.",
    "fetch_webpage": "This server fetches no web pages. Ask the user for the text, or for a tool that fetches it.",
}
"""The results that the model gets from tools that this server cannot support."""

REMEMBERS = "archival_memory_insert"

OURS = RunnerTraits(sees_secrets=False, finds_its_result=True, limits_results=True, timeout_s=None)
"""Holdfast's own code: its effect is stored with its result, and its reads are limited."""


@dataclass(frozen=True, kw_only=True)
class BaseToolRunner:
    """Calls base tools, which edit the memory and search messages and passages. A cancel interrupts a search, even
    while the search is retried because the database is unavailable. It does not interrupt an edit."""

    memory: MemoryStore
    archival: ArchivalMemory
    message_lists: MessageLists
    clock: Clock
    ids: IdMaker
    traits: RunnerTraits = OURS

    def arguments(self, tool: Tool) -> JsonObject:
        """Returns the tool's own schema: the stored one of a project may be older."""
        return base_tool_arguments(tool)

    async def call(self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> ToolReturn:
        """Returns the result of a call."""
        given = {name: value for name, value in arguments.items() if value is not None}
        if tool.name in MEMORY_TOOLS:
            return await self._edit_memory(run, call, given)
        try:
            if tool.name == REMEMBERS:
                return await self._remember(run, call, given)
            text = await self._answer(run, tool.name, given)
        except InvalidRequest as error:
            return _failed(call, error.message)
        if text is None:
            return _failed(call, INSTEAD.get(tool.name, "This worker does not have this tool. Do without it."))
        return ToolReturn(
            tool_call_id=call.id,
            tool_name=call.name,
            status="success",
            text=text,
            of_speech=call.speech is not None,
            is_text=tool.name == SPEAKS,
        )

    async def _answer(self, run: CallingRun, name: str, arguments: Arguments) -> str | None:
        """Returns the text of a read-only tool. None if the tool is unknown. Raises `InvalidRequest`."""
        match name:
            case "send_message":
                return "Sent message successfully."
            case "memory_finish_edits":
                return "None"
            case "conversation_search":
                return await self._search_messages(run, arguments)
            case "archival_memory_search":
                return await self._search_passages(run, arguments)
            case _:
                return None

    async def _search_messages(self, run: CallingRun, arguments: Arguments) -> str:
        """Returns the messages found in all conversations of the agent, as JSON.

        Raises `InvalidRequest` if a date is invalid or the query is too long.
        """
        agent, asked = run.agent, arguments.get("roles") or ("user", "assistant")
        start, end = _span(run, arguments, "start_date", "end_date")
        limit = min(max(arguments.get("limit", MESSAGES_FOUND), 1), MOST_MESSAGES)
        asked_for = arguments.get("query", "")
        refuse_long_query(asked_for)
        words = asked_for.split()
        # The answers already reflect tool results. If a search returned results, later searches would find them again.
        roles: list[Role] = [role for role in ("user", "assistant") if role in asked]
        if not roles:
            return NOTHING
        found = await self.message_lists.search(
            agent.project_id, words, agent_id=agent.id, roles=roles, limit=limit + MOST_MESSAGES, start=start, end=end
        )
        shown = [self._shown(run, message) for message in found if not _is_in_view(run, message)][:limit]
        if not shown:
            return NOTHING
        return json.dumps({"message": f"Showing {len(shown)} results:", "results": shown}, ensure_ascii=False)

    async def _search_passages(self, run: CallingRun, arguments: Arguments) -> str:
        """Returns the passages that match a query, as JSON. Raises `InvalidRequest` if a date is invalid or the query
        is too long."""
        agent = run.agent
        start, end = _span(run, arguments, "start_datetime", "end_datetime")
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
        found = await self.archival.search(agent.project_id, query)
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

    async def _remember(self, run: CallingRun, call: ToolCall, arguments: Arguments) -> ToolReturn:
        """Stores a passage in the agent's archive, once per call. Raises `InvalidRequest` if it is too long."""
        now, ids = self.clock.now(), self.ids
        passage = NewPassage(
            id=ids.passage(), text=arguments["content"], tags=arguments.get("tags", ()), created_at=now
        )
        refuse_oversized([passage])
        archive_id, remember = ids.archive(), self.memory.remember
        async with run.writing() as owned:
            return await run.whole(lambda: remember(owned, call, passage, new_archive_id=archive_id, now=now))

    async def _edit_memory(self, run: CallingRun, call: ToolCall, arguments: Arguments) -> ToolReturn:
        now, seen = self.clock.now(), run.seen_memory

        def edit(blocks: Sequence[Block]) -> EditedMemory:
            return edit_memory(Memory(blocks, seen, partial(self._new_block, run)), call.name, arguments)

        try:
            async with run.writing() as owned:
                finished = await run.whole(lambda: self.memory.edit(owned, call, edit, now))
        except RefusedEdit as error:
            return _failed(call, error.message)
        for edited in finished.edited:
            # The model's next edit of this block takes its own edit into account, unless another edit came in between.
            if seen.get(edited.id) == edited.version:
                seen[edited.id] = edited.version + 1
        return finished.result

    def _new_block(self, run: CallingRun, label: str, value: str, description: str) -> Block:
        now = self.clock.now()
        return Block(
            id=self.ids.block(),
            project_id=run.run.project_id,
            label=label,
            value=value,
            description=description,
            created_at=now,
            updated_at=now,
        )

    def _shown(self, run: CallingRun, message: Message) -> dict[str, Any]:
        body = message.body
        role, text = ("user", text_of(body.content)) if isinstance(body, UserMessage) else ("assistant", "")
        return {
            "timestamp": message.created_at.astimezone(zone_of(run.agent.timezone)).isoformat(),
            "time_ago": _ago(self.clock.now() - message.created_at),
            "role": role,
            "content": body.text if isinstance(body, AssistantMessage) else text,
        }


def _span(run: CallingRun, arguments: Arguments, start: str, end: str) -> tuple[datetime | None, datetime | None]:
    """Returns the times of two arguments. Raises `InvalidRequest`."""
    first, last, timezone = arguments.get(start), arguments.get(end), run.agent.timezone
    return (
        None if first is None else moment_of(first, timezone, start),
        None if last is None else moment_of(last, timezone, end, is_end=True),
    )


def _is_in_view(run: CallingRun, message: Message) -> bool:
    """Returns whether the message is in the model's context, or is a search like this one."""
    calls = message.body.tool_calls if isinstance(message.body, AssistantMessage) else []
    return message.run_id == run.run.id or any(call.name == SEARCHES_MESSAGES for call in calls)


def _ago(since: timedelta) -> str:
    """Returns a duration in its largest whole unit, as "3h ago"."""
    seconds = max(0, int(since.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit} ago"
    return f"{seconds}s ago"


def _failed(call: ToolCall, why: str) -> ToolReturn:
    return error_return(call, f"Error executing function {call.name}: {why}")
