"""The contents of an agent's context as JSON of Letta's wire. All token counts are estimates from the number of
characters."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, assert_never

from pydantic import BaseModel, Field, ValidationError

from api.letta.messages import wire_time
from api.letta.model_settings import ModelSettingsFields, changed_options
from shared.domain.agents import CompactionMode, CompactionOptions, ModelOptions, render_memory, render_metadata
from shared.domain.errors import InvalidRequest
from shared.domain.ids import UUID4_PATTERN, AgentId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    ImageContent,
    Message,
    Summary,
    SystemMessage,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
    estimate_message_tokens,
    estimate_tokens,
)
from shared.domain.models import context_window_of
from shared.domain.tools import Tool
from shared.sql.definitions.agents import AgentDetails


def wire_context(details: AgentDetails, messages: Sequence[Message], *, passages: int = 0) -> dict[str, Any]:
    """The overview of a context, whatever the state of its messages. `passages`: their number in archival memory."""
    agent = details.agent
    memory = render_memory(details.blocks)
    functions = [_wire_function(tool) for tool in details.tools]
    shown = [_wire_message(message) for message in messages]
    summaries = [message.body.text for message in messages if isinstance(message.body, Summary)]
    metadata = render_metadata(agent, details.blocks)
    tokens = {
        "num_tokens_system": _tokens(agent.system),
        "num_tokens_core_memory": _tokens(memory),
        "num_tokens_external_memory_summary": _tokens(metadata),
        "num_tokens_functions_definitions": _tokens(functions) if functions else 0,
        "num_tokens_messages": sum(estimate_message_tokens(message.body) for message in messages),
    }
    return {
        "context_window_size_max": agent.options.context_window or context_window_of(agent.model),
        "context_window_size_current": sum(tokens.values()),
        "num_messages": len(shown),
        "num_archival_memory": passages,
        "num_recall_memory": len(shown),
        "external_memory_summary": metadata,
        "system_prompt": agent.system,
        "core_memory": memory,
        "num_tokens_memory_filesystem": 0,
        "memory_filesystem": None,
        "num_tokens_tool_usage_rules": 0,
        "tool_usage_rules": None,
        "num_tokens_directories": 0,
        "directories": None,
        "num_tokens_summary_memory": sum(map(_tokens, summaries)),
        "summary_memory": "\n\n".join(summaries) or None,
        "functions_definitions": functions,
        "messages": shown,
        **tokens,
    }


def _tokens(what: object) -> int:
    return estimate_tokens(what if isinstance(what, str) else json.dumps(what))


def _wire_function(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": None}
    return {"function": function, "type": "function"}


def _wire_message(message: Message) -> dict[str, Any]:
    blank: dict[str, Any] = {
        "created_by_id": None,
        "last_updated_by_id": None,
        "created_at": wire_time(message.created_at),
        "updated_at": wire_time(message.created_at),
        "id": message.id,
        "agent_id": message.agent_id,
        "model": None,
        "role": None,
        "content": None,
        "name": None,
        "tool_calls": None,
        "tool_call_id": None,
        "step_id": message.step_id,
        "run_id": message.run_id,
        "otid": None,
        "tool_returns": [],
        "group_id": None,
        "sender_id": None,
        "batch_item_id": None,
        "conversation_id": message.conversation_id,
        "is_err": None,
        "approval_request_id": None,
        "approve": None,
        "denial_reason": None,
        "approvals": [],
    }
    return blank | _by_kind(message)


def _by_kind(message: Message) -> dict[str, Any]:
    match message.body:
        case SystemMessage(text):
            return {"role": "system", "content": [text_part(text)]}
        case Summary(text):
            return {"role": "user", "content": [text_part(text)], "name": "summary"}
        case UserMessage() as body:
            origin = {"name": body.name, "otid": body.otid, "sender_id": body.sender_id}
            return origin | {"role": body.role, "content": _user_content(body)}
        case AssistantMessage() as body:
            return _assistant(body)
        case ApprovalResponse(decisions):
            return {"role": "approval", "approvals": [_approval(decision) for decision in decisions]} | _first(
                decisions
            )
        case ToolReturns(returns):
            return {"role": "tool", "tool_returns": [_tool_return(one) for one in returns]}
        case _:
            assert_never(message.body)


def text_part(text: str) -> dict[str, Any]:
    """A text in a stored message's content."""
    return {"type": "text", "text": text, "signature": None}


def _user_content(body: UserMessage) -> list[dict[str, Any]]:
    if isinstance(body.content, str):
        return [text_part(body.content)]
    # An image's bytes mean nothing to a person and may be megabytes.
    return [
        {"type": "image", "source": {"url": part.url, "media_type": part.media_type}}
        if isinstance(part, ImageContent)
        else text_part(part.text)
        for part in body.content
    ]


def answer_content(body: AssistantMessage) -> list[dict[str, Any]]:
    """The content of a stored answer: the model's reasoning and text."""
    content: list[dict[str, Any]] = []
    if body.reasoning is not None:
        reasoning = {"type": "reasoning", "reasoning": body.reasoning.text, "signature": body.reasoning.signature}
        content.append({"is_native": True} | reasoning)
    if body.text:
        content.append(text_part(body.text))
    return content


def function_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """The calls of a stored answer."""
    return [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}, "type": "function"}
        for call in calls
    ]


def _assistant(body: AssistantMessage) -> dict[str, Any]:
    waits = any(call.needs_approval for call in body.tool_calls)
    return {
        "role": "approval" if waits else "assistant",
        "model": None if body.model is None else body.model.partition("/")[2],
        "content": answer_content(body) or None,
        "tool_calls": function_calls(body.tool_calls) or None,
    }


def _approval(decision: Decision) -> dict[str, Any]:
    if decision.kind == "tool":
        returned = {"tool_return": decision.tool_return, "status": decision.status}
        return {"type": "tool", "tool_call_id": decision.tool_call_id} | returned
    said = {"approve": decision.approve, "reason": decision.reason}
    return {"type": "approval", "tool_call_id": decision.tool_call_id} | said


def _first(decisions: Sequence[Decision]) -> dict[str, Any]:
    if not decisions:
        return {}
    first = decisions[0]
    return {"approve": first.approve, "approval_request_id": first.tool_call_id, "denial_reason": first.reason}


def _tool_return(one: ToolReturn) -> dict[str, Any]:
    return {
        "tool_call_id": one.tool_call_id,
        "status": one.status,
        "stdout": one.stdout,
        "stderr": one.stderr,
        "func_response": one.text,
    }


# Compaction on Letta's wire: the settings of clients, and the answer.


WireMode = Literal["all", "sliding_window", "self_compact_all", "self_compact_sliding_window"]

_MODES: Mapping[WireMode, CompactionMode] = {
    "all": "all",
    "sliding_window": "sliding_window",
    # Letta also lets an agent summarise inside its own conversation. That sends the whole context once more, just when
    # it is full.
    "self_compact_all": "all",
    "self_compact_sliding_window": "sliding_window",
}

SETTINGS = "compaction_settings"
"""Key of `Agent.extra`: a client's settings for the compaction of an agent's histories."""


class CompactionSettings(BaseModel):
    """Settings of compaction."""

    mode: WireMode = "sliding_window"
    model: str | None = None
    """Any handle, because clients name models of Letta's own cloud in every agent. Unusable models are ignored."""
    model_settings: ModelSettingsFields | None = None
    prompt: str | None = None
    prompt_acknowledgement: bool = False
    clip_chars: Annotated[int | None, Field(ge=1)] = 50_000
    sliding_window_percentage: Annotated[float, Field(ge=0, le=1)] = 0.3

    def options(self) -> CompactionOptions:
        """The settings in the domain's terms."""
        settings = self.model_settings
        return CompactionOptions(
            mode=_MODES[self.mode],
            keep_share=self.sliding_window_percentage,
            model=self.model,
            model_options=None if settings is None else changed_options(ModelOptions(), settings.options()),
            prompt=self.prompt,
            acknowledged=self.prompt_acknowledgement,
            clip_chars=self.clip_chars,
        )


def when_full(of_agent: Mapping[str, Any]) -> CompactionOptions:
    """The settings for a full context of this agent; `of_agent` is `Agent.extra`.

    Another release may have stored settings that this one does not know. A message must not be refused because of them,
    so the defaults apply.
    """
    try:
        return CompactionSettings.model_validate(of_agent.get(SETTINGS) or {}).options()
    except ValidationError:
        return CompactionOptions()


def changed_settings(before: Mapping[str, Any] | None, change: CompactionSettings) -> dict[str, Any]:
    """The client's settings after the change. Omitted fields stay."""
    return {**(before or {}), **change.model_dump(mode="json", exclude_unset=True)}


def wire_settings(of_agent: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The effective settings for the histories of an agent with this model: the client's, and the defaults for the
    rest. `of_agent` is `Agent.extra`. A null prompt means the server's own."""
    said: Mapping[str, Any] = of_agent.get(SETTINGS) or {}
    try:
        settings = CompactionSettings.model_validate(said)
    except ValidationError:
        said, settings = {}, CompactionSettings()
    return {
        "model": settings.model or model,
        "model_settings": said.get("model_settings"),
        **settings.model_dump(mode="json", exclude={"model", "model_settings"}),
    }


class CompactRequest(BaseModel):
    """The body of a request to compact. It may be omitted."""

    agent_id: Annotated[AgentId | None, Field(pattern=f"^agent-{UUID4_PATTERN}$")] = None
    compaction_settings: CompactionSettings | None = None

    def settings(self, of_agent: Mapping[str, Any] | None) -> CompactionSettings:
        """The request's settings, and the agent's own `compaction_settings` for the rest.

        Raises `InvalidRequest` if the agent's settings are invalid.
        """
        asked = self.compaction_settings
        given = {} if asked is None else {name: getattr(asked, name) for name in asked.model_fields_set}
        try:
            return CompactionSettings.model_validate({**(of_agent or {}), **given})
        except ValidationError as error:
            raise InvalidRequest(
                f"the agent's compaction_settings are not valid: {error}", field="compaction_settings"
            ) from error


def wire_compaction(summary: str, before: int, after: int) -> dict[str, Any]:
    """The result of a compaction."""
    return {"summary": summary, "num_messages_before": before, "num_messages_after": after}
