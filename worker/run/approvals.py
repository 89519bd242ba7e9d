"""Parks a run whose answer asks for something that a person must decide, or that the client must run."""

from datetime import timedelta
from typing import Literal

from shared.domain.approvals import Approval, hash_of
from shared.domain.messages import AssistantMessage, ToolCall
from worker.run.answer_draft import Answer
from worker.run.context import Parked, RunContext


async def ask_for_approval(context: RunContext, answer: Answer) -> Parked:
    """Stores the answer with its requests and parks the run, so that no worker waits for a person.

    Calls of the same answer that need no approval wait with the others: their results belong together.
    """
    context.stop_if_asked()
    asked = [_request(context, answer, call) for call in answer.calls if call.needs_approval]
    return await context.park([answer.message], asked)


def _request(context: RunContext, answer: Answer, call: ToolCall) -> Approval:
    now = context.services.clock.now()
    body = answer.message.body
    shown_as = answer.message.id
    if isinstance(body, AssistantMessage) and body.sibling_holds == "approvals" and body.sibling_id is not None:
        shown_as = body.sibling_id
    expires_s, on_expiry = _expiry(context, call.name)
    return Approval(
        id=context.services.ids.approval(),
        project_id=context.run.project_id,
        agent_id=context.run.agent_id,
        thread_id=context.run.thread_id,
        run_id=context.run.id,
        message_id=shown_as,
        tool_call_id=call.id,
        tool_name=call.name,
        arguments=call.arguments,
        arguments_hash=hash_of(call.arguments),
        tool_version=call.tool_version,
        client_side=any(tool.name == call.name for tool in context.run.options.client_tools),
        asked_at=now,
        expires_at=None if expires_s is None else now + timedelta(seconds=expires_s),
        on_expiry=on_expiry,
    )


def _expiry(context: RunContext, name: str) -> tuple[float | None, Literal["keep", "deny", "cancel"]]:
    """The tool's own expiry, else the agent's."""
    tool = context.tools.get(name)
    if tool is not None and tool.approval_expires_s is not None:
        return tool.approval_expires_s, tool.on_approval_expiry
    return context.agent.approval_expires_s, context.agent.on_approval_expiry or "keep"
