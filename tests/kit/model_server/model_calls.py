"""Histories and model calls for tests, in few words."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from shared.domain.agents import ModelOptions
from shared.domain.ids import AgentId, MessageId, RunId, ThreadId
from shared.domain.messages import Message, MessageBody, ToolReturn, UserMessage
from tests.kit.model_server import ModelServer
from tests.kit.wait_until import HANGS_S
from worker.models.provider import CallFinished, Finished, ModelCall, ModelEvent, Text, Thought, ToolSpec
from worker.models.registry import Models

CHAT = "openai/gpt-4o-mini"
RESPONSES = "openai/gpt-5"
ANTHROPIC = "anthropic/claude-haiku-4-5-20251001"
GOOGLE = "google_ai/gemini-2.5-flash"
HANDLES = (CHAT, RESPONSES, ANTHROPIC, GOOGLE)
"""One handle for each protocol."""

THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
)


def history(*entries: MessageBody | tuple[str, MessageBody]) -> list[Message]:
    """Messages in order; an entry may name its run, else it belongs to the run of the entry before it."""
    messages: list[Message] = []
    run = "run-1"
    for number, entry in enumerate(entries):
        run, body = entry if isinstance(entry, tuple) else (run, entry)
        messages.append(
            Message(
                id=MessageId(f"message-{number}"),
                agent_id=AgentId("agent-1"),
                thread_id=ThreadId("agent-1"),
                conversation_id=None,
                run_id=RunId(run),
                step_id=None,
                created_at=THEN,
                body=body,
                position=number,
            )
        )
    return messages


def call(
    handle: str,
    entries: str | Sequence[Message] = "Hello?",
    *,
    tools: Sequence[ToolSpec] = (),
    system: str = "Be kind.",
    **options: Any,
) -> ModelCall:
    """A model call; `entries` as text is one user message; the rest are model options."""
    messages = history(UserMessage(entries)) if isinstance(entries, str) else entries
    return ModelCall(handle, system, messages, tools, ModelOptions(**options))


def returned(call_id: str, text: str, *, tool: str = "add", failed: bool = False) -> ToolReturn:
    """The result of a tool call."""
    return ToolReturn(call_id, tool, "error" if failed else "success", text)


@asynccontextmanager
async def models_on_server(**rest: Any) -> AsyncGenerator[tuple[ModelServer, Models]]:
    """A model server and the models that lead to it; `rest` overrides arguments of `Models`."""
    async with ModelServer() as server:
        arguments: dict[str, Any] = {"first_event_timeout": HANGS_S, "idle_timeout": HANGS_S, "retries": 0, **rest}
        models = Models(server.base_urls(), **arguments)
        try:
            yield server, models
        finally:
            await models.aclose()


async def ask(models: Models, asked: ModelCall) -> list[ModelEvent]:
    """All events of an answer."""
    return [event async for event in models.stream(asked)]


def text_said(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def thoughts(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Thought))


def calls_made(events: Sequence[ModelEvent]) -> list[CallFinished]:
    return [event for event in events if isinstance(event, CallFinished)]


def ending(events: Sequence[ModelEvent]) -> Finished:
    """The last event, which must be the end of the answer."""
    last = events[-1]
    assert isinstance(last, Finished)
    return last
