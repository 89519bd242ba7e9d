"""Agents of pydantic-ai as bodies of runs.

A capability of the framework is placed around an agent: it puts each request to a model and each call of a tool into
the journal, and takes it from there after a crash. The framework itself stores nothing: every execution begins with the
messages of the run.
"""

import base64
import contextvars
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai import Agent, ModelRequestNode, RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, ReinjectSystemPrompt
from pydantic_ai.exceptions import CallDeferred, ModelAPIError, ModelRetry
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturn,
    ToolReturnContent,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, ToolsetTool, WrapperToolset
from pydantic_core import to_json, to_jsonable_python

from holdfast.agents.adapters import Body
from holdfast.agents.errors import Denied, OutcomeUnknown, StepFailed
from holdfast.agents.models import Usage
from holdfast.agents.run import Run
from holdfast.agents.values import Answer

try:
    from pydantic_ai.exceptions import ToolFailed
    from pydantic_ai.models import CompletedStreamedResponse
except ImportError as error:
    raise ImportError("agents of pydantic-ai need its version 2.16 or newer") from error

OPTIONS = "holdfast"
"""The key of a tool's `metadata` for the settings `idempotent`, `scope` and `probe`."""

_KIND = "holdfast_kind"

_RUN: contextvars.ContextVar[Run | None] = contextvars.ContextVar("holdfast_run", default=None)

# The framework builds its validators at their first use: here in the host, so not in every process forked from it.
ModelMessagesTypeAdapter.validate_python([])
_PLAIN_RESULT: TypeAdapter[Any] = TypeAdapter(ToolReturnContent, config=ConfigDict(ser_json_bytes="base64"))
_FULL_RESULT: TypeAdapter[Any] = TypeAdapter(ToolReturn)


def body_of(agent: Agent[Any, Any], name: str) -> Body:
    """Returns a body that executes the agent."""

    async def body(run: Run) -> str:
        return await run_agent(run, agent)

    return body


async def run_agent(run: Run, agent: Agent[Any, Any], **options: Any) -> str:
    """Executes the agent on the run's messages, with further options of `Agent.run`. Returns its output: a text, or any
    other value as JSON."""
    history, prompt = [*run.history, *run.input], None
    if history and history[-1]["role"] == "user":
        prompt = _content(history.pop())
    brought = [
        ToolDefinition(name=one["name"], parameters_json_schema=one["parameters"], description=one["description"])
        for one in run.client_tools
    ]
    own: list[AbstractCapability[Any]] = []
    agent.root_capability.apply(own.append)
    added = [] if any(isinstance(one, Journal) for one in own) else [Journal()]
    options["capabilities"] = [*options.get("capabilities", ()), ReinjectSystemPrompt(), *added]
    options["toolsets"] = [*options.get("toolsets", ()), *([ExternalToolset(brought)] if brought else [])]
    token = _RUN.set(run)
    try:
        result = await agent.run(prompt, message_history=_messages(history), **options)
    finally:
        _RUN.reset(token)
    output = result.output if isinstance(result.output, str) else to_json(result.output).decode()
    return Answer(output) if isinstance(result.all_messages()[-1], ModelRequest) else output  # of an output tool


@dataclass
class Journal(AbstractCapability[Any]):
    """Takes an agent's requests and calls from the journal of the present run. An agent that a tool calls needs one of
    its own: `Agent(…, capabilities=[Journal()])`. Outside of runs it does nothing."""

    id: str | None = "holdfast"

    def get_ordering(self) -> CapabilityOrdering:
        """Places it next to models and tools, so that the journal has requests as other capabilities left them."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """Puts calls of tools into the journal."""
        return JournaledTools(toolset)

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        """Adds the messages that have arrived since the last request to the next one."""
        run = _RUN.get()
        if run is not None and isinstance(node, ModelRequestNode) and not run.in_call:
            ctx.enqueue(*_messages(await run.inbox.take()))
        return cast("Any", node)

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Puts the request into the journal."""
        request_context.model = self.get_wrapper_model(request_context.model) or request_context.model
        return request_context

    def get_wrapper_model(self, model: Model) -> Model | None:
        """Puts the requests of a fallback model of another capability into the journal, if the framework has that."""
        return None if isinstance(model, JournaledModel) else JournaledModel(model)


class JournaledModel(WrapperModel):
    """A model whose answers are in the journal."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Returns the recorded answer, or calls the model and shows its text as it arrives. Raises `ModelAPIError` if
        the model's API did, and `StepFailed` for another error."""
        run = _RUN.get()
        if run is None:
            return await self.wrapped.request(messages, model_settings, model_request_parameters)

        is_shown = not run.in_call

        async def ask() -> Any:
            shown_by = run if is_shown else None
            try:
                response = await self._answered(messages, model_settings, model_request_parameters, shown_by)
            except ModelAPIError as error:
                raise ModelAPIError(self.model_name, str(error)) from error  # the journal has one name for its kinds
            return ModelMessagesTypeAdapter.dump_python([response], mode="json")

        request, settings = _hashed(messages, model_request_parameters)
        settings.append(_json_of([self.model_id, model_settings]))
        try:
            value = await run.model("model", ask, request=request, settings=settings, usage=_usage, text=_text)
        except StepFailed as failed:
            if failed.error_type == "ModelAPIError":
                raise ModelAPIError(self.model_name, failed.text) from failed
            raise
        return _response(value)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Serves the agent's own listeners: they get the events of an answer when it is complete."""
        if _RUN.get() is None:
            async with super().request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                yield stream
            return
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)

    async def _answered(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        shown_by: Run | None,
    ) -> ModelResponse:
        async with self.wrapped.request_stream(messages, settings, parameters) as stream:
            async for event in stream:
                if shown_by is not None:
                    _show(shown_by, event)
            return stream.get()


@dataclass
class JournaledTools(WrapperToolset[Any]):
    """Tools whose results are in the journal."""

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Returns the tools, none of them deferred by the framework: the journal asks persons and clients."""
        tools = await self.wrapped.get_tools(ctx)
        return tools if _RUN.get() is None else {name: _undeferred(tool) for name, tool in tools.items()}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Returns the recorded result, or calls the tool. For a denied call, or one with an unknown outcome, the result
        is a sentence for the model."""
        run = _RUN.get()
        if run is None:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        kind = (tool.tool_def.metadata or {}).get(_KIND)
        try:
            try:
                return await self._performed(run, tool_args, ctx, tool, kind)
            except StepFailed as failed:
                if failed.error_type != "ApprovalRequired":
                    raise
                return await self._performed(run, tool_args, ctx, tool, "unapproved")
        except StepFailed as failed:
            raise _of_the_framework(failed) from failed
        except Denied as denied:
            return f"The call was denied: {denied.reason}" if denied.reason else "The call was denied."
        except OutcomeUnknown as unknown:
            return f"The outcome is unknown: {unknown}. Do not repeat the call before you know it."

    async def _performed(
        self, run: Run, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any], kind: str | None
    ) -> Any:
        name, is_approved = tool.tool_def.name, kind == "unapproved"
        shown = _json_of(tool_args)
        call_ctx = replace(ctx, tool_call_approved=True) if is_approved else ctx

        async def perform(arguments: dict[str, Any]) -> Any:
            is_edited = arguments != shown
            given = tool.args_validator.validate_python(arguments) if is_edited else tool_args
            result = await self.wrapped.call_tool(name, given, call_ctx, tool)
            adapter = _FULL_RESULT if isinstance(result, ToolReturn) else _PLAIN_RESULT
            return adapter.dump_python(result, mode="json")

        options = (tool.tool_def.metadata or {}).get(OPTIONS, {})
        value = await run.perform(
            name,
            shown,
            None if kind == "external" else perform,
            key=[ctx.tool_call_id, shown, is_approved],
            idempotent=options.get("idempotent", False),
            scope=options.get("scope", False),
            probe=options.get("probe"),
            needs_approval=is_approved,
        )
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        is_full = fields.get("kind") == "tool-return" and "return_value" in fields
        return (_FULL_RESULT if is_full else _PLAIN_RESULT).validate_python(value)


def _undeferred(tool: ToolsetTool[Any]) -> ToolsetTool[Any]:
    kind = tool.tool_def.kind
    if kind not in ("unapproved", "external"):
        return tool
    metadata = {**(tool.tool_def.metadata or {}), _KIND: kind}
    return replace(tool, tool_def=replace(tool.tool_def, kind="function", metadata=metadata))


def _of_the_framework(failed: StepFailed) -> Exception:
    """Returns the exception by which a tool directs the framework; any other exception fails the run."""
    match failed.error_type:
        case "ModelRetry" | "ValidationError":
            return ModelRetry(failed.text)
        case "ToolFailed":
            return ToolFailed(failed.text)
        case "CallDeferred":
            return CallDeferred()
        case _:
            return failed


def _show(run: Run, event: Any) -> None:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            run.emit_text(text)
        case (
            PartStartEvent(part=ThinkingPart(content=thought))
            | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=thought))
        ) if thought:
            run.emit_reasoning(thought)
        case _:
            pass


def _response(value: Any) -> ModelResponse:
    [response] = ModelMessagesTypeAdapter.validate_python(value)
    return cast("ModelResponse", response)


def _usage(value: Any) -> Usage:
    used = _response(value).usage
    return Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens, used.details.get("reasoning_tokens", 0))


def _text(value: Any) -> str:
    return "".join(part.content for part in _response(value).parts if isinstance(part, TextPart))


def _hashed(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> tuple[Any, list[Any]]:
    """Returns the identity of a request, which is its messages without the framework's times and ids and the names of
    its tools; and its settings, which are instructions, system prompts and all other fields of tools."""
    hard: list[Any] = []
    soft: list[Any] = [_json_of(parameters)]
    for message in ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"):
        soft.append(message.get("instructions"))
        for part in message["parts"]:
            kind = part["part_kind"]
            of_call = part["tool_call_id"] if kind in ("tool-call", "tool-return") else None
            said = [kind, part.get("tool_name"), part.get("args"), part.get("content"), of_call]
            (soft if kind == "system-prompt" else hard).append(said)
    tools = sorted(tool.name for tool in [*parameters.function_tools, *parameters.output_tools])
    return {"messages": hard, "tools": tools}, soft


def _json_of(value: Any) -> Any:
    return to_jsonable_python(value, fallback=lambda other: type(other).__qualname__)


def _messages(shown: list[dict[str, Any]]) -> list[ModelMessage]:
    """Converts messages of a run to the framework's."""
    messages: list[ModelMessage] = []
    names: dict[str, str] = {}
    for one in shown:
        match one["role"]:
            case "assistant":
                calls: list[dict[str, Any]] = one.get("tool_calls", [])
                names |= {call["id"]: call["name"] for call in calls}
                text = [TextPart(one["text"])] if one["text"] else []
                called = [ToolCallPart(call["name"], call["arguments"], tool_call_id=call["id"]) for call in calls]
                messages += [ModelResponse(parts=[*text, *called])] if text or called else []
            case "tool":
                call_id = one["tool_call_id"]
                messages.append(ModelRequest(parts=[ToolReturnPart(names[call_id], one["text"], tool_call_id=call_id)]))
            case "system":
                messages.append(ModelRequest(parts=[SystemPromptPart(one["text"])]))
            case _:
                messages.append(ModelRequest(parts=[UserPromptPart(_content(one))]))
    return messages


def _content(shown: dict[str, Any]) -> str | Sequence[UserContent]:
    if isinstance(shown["content"], str):
        return shown["content"]
    return [_content_part(part) for part in shown["content"]]


def _content_part(part: dict[str, Any]) -> UserContent:
    if part["type"] == "text":
        return part["text"]
    if part.get("url"):
        return ImageUrl(part["url"])
    return BinaryContent(base64.b64decode(part["data"]), media_type=part["media_type"])
