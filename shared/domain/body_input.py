"""The input of a body of an operator's own code: its agent and messages, as a worker or a replay sends them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shared.domain.agents import Agent, Block
from shared.domain.journal import GIVEN, JournalEntry
from shared.domain.messages import AssistantMessage, Message, NewMessage, ToolReturns, UserMessage, text_of
from shared.domain.runs import Run
from shared.domain.tool_catalog import base_tool_arguments, is_base_tool
from shared.domain.tools import Tool

Frame = dict[str, Any]

LARGEST_AGENT = 1_000_000
"""Bytes of JSON, the limit of any value in the journal. An agent may exceed it."""


def hello_of(
    run: Run, entries: Sequence[JournalEntry], history: Sequence[Message], state: Mapping[str, Any], attempt: int
) -> Frame:
    """The first frame for the process of a body. `history` is the thread's, without later turns.

    The input is the messages that begin the turn. Later messages, injected or sent with a decision, come through the
    inbox, so that the body begins with the same input in every attempt.
    """
    turn = [one for one in history if one.turn == run.turn]
    given = [shown for one in asked_in(turn, entries) for shown in for_body(one)]
    return {
        "t": "hello",
        "id": run.id,
        "journal": run.journal,
        "attempt": attempt,
        "at": (turn[0].created_at if turn else run.created_at).timestamp(),
        "text": "\n".join(one["text"] for one in given),
        "input": given,
        "history": [shown for one in history if one.turn != run.turn for shown in for_body(one)],
        "agent": agent_in(entries),
        "client_tools": [msgspec.to_builtins(tool) for tool in run.options.client_tools],
        "state": state,
    }


def agent_for_body(run: Run, agent: Agent, blocks: Sequence[Block], tools: Sequence[Tool]) -> bytes:
    """The agent as its code sees it, as JSON: with the instructions of the request, and without its secrets. If it is
    larger than `LARGEST_AGENT`, an object with an `error` about that."""
    shown = {
        "id": agent.id,
        "name": agent.name,
        "description": agent.description,
        "system": _instructions(run, agent),
        "metadata": agent.metadata or {},
        "model_settings": run.options.model_options or agent.options,
        "blocks": [
            {name: getattr(block, name) for name in ("label", "value", "description", "limit", "read_only")}
            for block in blocks
        ],
        "tools": [
            {"name": tool.name, "description": tool.description, "parameters": _parameters(tool)} for tool in tools
        ],
    }
    text = msgspec.json.encode(shown)
    if len(text) <= LARGEST_AGENT:
        return text
    said = (
        f"the agent has {len(text)} bytes with its memory and its tools, {LARGEST_AGENT} are allowed for `run.agent`: "
        "detach blocks or tools that the code does not need, or shorten them"
    )
    return msgspec.json.encode({"error": said})


def _instructions(run: Run, agent: Agent) -> str:
    if run.options.override_system is not None:
        return run.options.override_system
    return "\n\n".join(part for part in (agent.system, run.options.added_system) if part)


def _parameters(tool: Tool) -> dict[str, Any]:
    return base_tool_arguments(tool) if is_base_tool(tool) else tool.parameters


def has_agent(entries: Sequence[JournalEntry]) -> bool:
    """Whether the journal has the agent. A journal that an older release has begun lacks it."""
    return len(calls_of(entries)) < len(entries)


def calls_of(entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """The entries for calls that the code of a turn has made."""
    return [entry for entry in entries if entry.branch != GIVEN]


def agent_in(entries: Sequence[JournalEntry]) -> Frame:
    """The agent of a journal, or an object with `error`."""
    given = next((entry.result for entry in entries if entry.branch == GIVEN and entry.result is not None), None)
    if given is None:
        return {"error": "the journal of this run has no agent"}
    return msgspec.json.decode(given, type=dict[str, Any])


def asked_in(turn: Sequence[Message], entries: Sequence[JournalEntry]) -> list[Message]:
    """The messages that began a turn: those before the first answer of its body."""
    shown = next((place for place, one in enumerate(turn) if isinstance(one.body, AssistantMessage)), len(turn))
    taken = taken_from_inbox(entries)
    return [one for one in turn[:shown] if isinstance(one.body, UserMessage) and one.id not in taken]


def came_later(turn: Sequence[Message], entries: Sequence[JournalEntry]) -> list[Message]:
    """The messages of a turn that came with decisions, and that its body has not taken from its inbox yet."""
    known = taken_from_inbox(entries) | {one.id for one in asked_in(turn, entries)}
    return [one for one in turn if isinstance(one.body, UserMessage) and one.id not in known]


def taken_from_inbox(entries: Sequence[JournalEntry]) -> set[str]:
    """The ids of the messages that the body has taken from its inbox."""
    inboxes = [entry for entry in entries if entry.kind == "inbox" and entry.result is not None]
    return {one["id"] for entry in inboxes for one in msgspec.json.decode(entry.result or b"[]")}


def for_body(message: Message | NewMessage) -> list[Frame]:
    """The messages as a body sees them: without reasoning."""
    match message.body:
        case UserMessage(content=content, role=role):
            parts = content if isinstance(content, str) else msgspec.to_builtins(content)
            return [{"role": role, "text": text_of(content), "content": parts}]
        case AssistantMessage(text=text, tool_calls=calls) if text or calls:
            called = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]
            return [{"role": "assistant", "text": text, "content": text, "tool_calls": called}]
        case ToolReturns(returns=returns):
            return [
                {"role": "tool", "text": one.text, "content": one.text, "tool_call_id": one.tool_call_id}
                for one in returns
            ]
        case _:
            return []
