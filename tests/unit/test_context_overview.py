"""The overview of a context answers in every state that a history can be in."""

import json
from typing import Any

import pytest

from api.letta.context import wire_context
from shared.domain.ids import IdMaker, ThreadId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    ImageContent,
    Message,
    MessageBody,
    Reasoning,
    Summary,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
)
from shared.sql.definitions.agents import AgentDetails
from tests.kit.runs.definitions import NOW, some_agent, some_block, some_tool

WAITING = ToolCall("call_1", "launch", '{"x": 1}', needs_approval=True)


def overview(*bodies: MessageBody) -> dict[str, Any]:
    agent = some_agent()
    messages = [
        Message(
            id=IdMaker().message(),
            agent_id=agent.id,
            thread_id=ThreadId(agent.id),
            conversation_id=None,
            run_id=None,
            step_id=None,
            created_at=NOW,
            body=body,
        )
        for body in bodies
    ]
    return wire_context(AgentDetails(agent, [some_tool()], [some_block()], []), messages)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (SystemMessage("Be brief."), {"role": "system"}),
        (UserMessage("hi", otid="o"), {"role": "user", "otid": "o"}),
        (UserMessage([TextContent("look"), ImageContent(data="A" * 999)]), {"role": "user"}),
        (AssistantMessage(), {"role": "assistant", "content": None, "tool_calls": None}),
        (AssistantMessage("hello", Reasoning("hm"), model="openai/gpt-5"), {"role": "assistant", "model": "gpt-5"}),
        (AssistantMessage("hel", partial=True, cut_by="cancel"), {"role": "assistant"}),
        (AssistantMessage(tool_calls=[WAITING]), {"role": "approval", "content": None}),
        (ApprovalResponse([]), {"role": "approval"}),
        (
            ApprovalResponse([Decision("call_1", reason="no"), Decision("call_2", kind="tool", tool_return="42")]),
            {"role": "approval", "approve": False, "approval_request_id": "call_1", "denial_reason": "no"},
        ),
        (ToolReturns([ToolReturn("call_1", "launch", "error", "denied")]), {"role": "tool"}),
        (Summary("They talked."), {"role": "user"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_message(body: MessageBody, expected: dict[str, Any]) -> None:
    found = overview(body)
    [message] = found["messages"]
    assert message | expected == message
    assert len(json.dumps(found)) < 5_000


def test_the_parts_add_up() -> None:
    found = overview(SystemMessage("Be brief."), UserMessage("x" * 400), Summary("They talked."))

    assert found["num_messages"] == 3
    assert 100 <= found["num_tokens_messages"] <= 140
    parts = ("system", "core_memory", "external_memory_summary", "functions_definitions", "messages")
    assert found["context_window_size_current"] == sum(found[f"num_tokens_{part}"] for part in parts)
    assert found["summary_memory"] == "They talked."
