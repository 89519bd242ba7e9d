"""The base tools with which an agent looks into its past: what was said, and what it has put into archival memory."""

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from shared.concurrency import retry_while_unavailable
from shared.domain.archival import MOST_FOUND, NewPassage, PassageQuery, refuse_oversized, refuse_oversized_query
from shared.domain.messages import AssistantMessage, Message, ToolCall, ToolReturn, UserMessage, text_of
from shared.domain.searches import Role, moment_of, refuse_long_query, zone_of
from shared.domain.tool_catalog import SEARCHES_MESSAGES
from worker.run.context import RunContext

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
