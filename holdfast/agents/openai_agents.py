"""Agents of OpenAI's Agents SDK (`openai-agents`, 0.9 to 0.24) as bodies of runs.

The SDK's own loop executes the agent. It calls models through the journal. The journal sees the tools and handoffs of
each request, and replaces the functions behind them: a process has one run, so no other run sees the change.
"""

import asyncio
import contextlib
import copy
import importlib.metadata
import inspect
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from agents import (
    FunctionTool,
    Model,
    ModelBehaviorError,
    ModelProvider,
    ModelResponse,
    RunConfig,
    Runner,
    Session,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    ToolTimeoutError,
    Usage,
)
from agents.models.fake_id import FAKE_RESPONSES_ID
from openai.types.responses import Response, ResponseCompletedEvent, ResponseOutputItem, ResponseUsage
from pydantic import TypeAdapter

from holdfast.agents.adapters import Body, refuse_sharing
from holdfast.agents.errors import Denied, OutcomeUnknown, StepFailed
from holdfast.agents.models import Usage as Tokens
from holdfast.agents.run import Run

refuse_sharing(__name__)  # agents and tools are changed in place

NOT_APPROVED = "Tool execution was not approved."
"""The SDK's text for the model about a denied call."""

UNKNOWN = "The outcome of this call is unknown: its process ended before the result was stored."

ELSEWHERE = frozenset({"session", "conversation_id", "previous_response_id", "auto_previous_response_id"})
"""Options of the SDK's runner that store the history elsewhere."""

UNCOVERED = ("ComputerTool", "LocalShellTool", "ShellTool", "ApplyPatchTool", "CustomTool")
"""Tools that the SDK executes in this process, and that are not functions."""

OLDEST, NEWEST = (0, 9), (0, 24)
"""Versions of the SDK that tests use."""

_SHOWN_AS_TEXT = ("response.output_text.delta", "response.refusal.delta")
_SHOWN_AS_REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_OUTPUT = TypeAdapter(list[ResponseOutputItem])
_USAGE = TypeAdapter(Usage)


def check_version(version: str) -> str:
    """Returns a sentence about a version that is newer than the tested ones; empty for others. Raises `ImportError` for
    a version that is too old."""
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < OLDEST:
        raise ImportError(f"openai-agents {version} is too old: its agents need {OLDEST[0]}.{OLDEST[1]} or newer")
    return f"openai-agents {version} is newer than the versions that were tested" if found > NEWEST else ""


def warning_of(name: str, value: Any) -> str | None:
    """Returns the warning of `holdfast agents check` about a session."""
    if not isinstance(value, Session):
        return None
    return (
        f"{name} is a session ({type(value).__name__}), which no run reads or writes: the history is the thread's, and "
        "run_agent(session=…) raises. Take it out of the program. What it has so far can become a message of the "
        "application (`system`) in the thread"
    )


def body_of(agent: Any, name: str) -> Body:
    """Returns the body that executes the agent in each run. The SDK's agents keep no state of a run. Raises
    `ImportError` for a version of the SDK that is too old."""
    if said := check_version(importlib.metadata.version("openai-agents")):
        print(said, file=sys.stderr)  # noqa: T201 - the worker logs it

    async def body(run: Run) -> str:
        return await run_agent(run, agent)

    return body


async def run_agent(run: Run, agent: Any, *, streams: bool = True, **options: Any) -> str:
    """Executes the agent on the run's history and input. Returns its answer: text, or JSON of its output type.

    `options` are those of the SDK's `Runner.run`, such as `context`, `max_turns`, `hooks` and `run_config`. Without
    `streams` the model is asked for whole answers. Raises `TypeError` for an option that stores the history elsewhere,
    and the SDK's errors.
    """
    if elsewhere := ELSEWHERE & options.keys():
        raise TypeError(f"the thread of the run has the history: run_agent takes no {', '.join(sorted(elsewhere))}")
    config: RunConfig = options.pop("run_config", None) or RunConfig()
    journal = Journal(run, config.model_provider, streams=streams)
    config = replace(config, model_provider=journal, model=journal.of(config.model))
    journal.add_agent(agent)
    result = await Runner.run(agent, _items_of([*run.history, *run.input]), run_config=config, **options)
    if waiting := getattr(result, "interruptions", None):
        raise TypeError(f"{waiting[0].name!r} waits for an approval that the SDK asks for, which no journal covers")
    output = result.final_output
    return output if isinstance(output, str) else TypeAdapter(type(output)).dump_json(output).decode()


class Journal(ModelProvider):
    """Provides the models of one execution, and keeps the messages that were injected into it."""

    def __init__(self, run: Run, provider: ModelProvider, *, streams: bool) -> None:
        self.run = run
        self.streams = streams
        self._provider = provider
        self._injected: list[tuple[int, list[Any]]] = []

    def get_model(self, model_name: str | None) -> Model:
        return JournaledModel(self, self._provider.get_model(model_name), model_name or "default")

    def of(self, model: Any) -> Any:
        """Returns a model object that is called through this journal; any other value unchanged."""
        if isinstance(model, JournaledModel):
            return JournaledModel(self, model.model, model.name)
        return JournaledModel(self, model, _name_of(model)) if isinstance(model, Model) else model

    def add_agent(self, agent: Any) -> None:
        """Makes the agent's model use the journal, and offers it the tools of the client."""
        agent.model = self.of(agent.model)
        if self.run.in_call:
            return
        has = {tool.name for tool in agent.tools}
        agent.tools = [*agent.tools, *(self._of_client(one) for one in self.run.client_tools if one["name"] not in has)]

    def _of_client(self, tool: dict[str, Any]) -> FunctionTool:
        made = FunctionTool(
            name=tool["name"],
            description=tool.get("description") or "",
            params_json_schema=tool.get("parameters") or {"type": "object", "properties": {}},
            on_invoke_tool=_never_called,
            strict_json_schema=bool(tool.get("strict")),
        )
        made.on_invoke_tool = JournaledTool(self, made, of_client=True)
        return made

    def add_calls(self, tools: list[Any], handoffs: list[Any]) -> None:
        """Replaces the functions behind a request's tools and handoffs by the journal. Raises `TypeError` for a tool
        that would be executed without it."""
        for tool in tools:
            if type(tool).__name__ in UNCOVERED:
                raise TypeError(f"the tool {tool.name!r} is a {type(tool).__name__}, which no journal covers")
            if isinstance(tool, FunctionTool) and not isinstance(tool.on_invoke_tool, JournaledTool):
                tool.on_invoke_tool = JournaledTool(self, tool)
        for handoff in handoffs:
            if not isinstance(handoff.on_invoke_handoff, JournaledHandoff):
                handoff.on_invoke_handoff = JournaledHandoff(self, handoff.on_invoke_handoff)

    async def with_injected(self, given: Any) -> list[Any]:
        """Returns the input of a request with the messages that were injected so far, each at its place."""
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        if self.run.in_call:
            return items
        if taken := await self.run.inbox.take():
            self._injected.append((len(items), _items_of(taken)))
        for place, added in reversed(self._injected):
            items[place:place] = added
        return items


class JournaledModel(Model):
    """A model whose answers are in the journal."""

    def __init__(self, journal: Journal, model: Model, name: str) -> None:
        self.model = model
        self.name = name
        self._journal = journal

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **rest: Any,
    ) -> ModelResponse:
        journal, run = self._journal, self._journal.run
        items = await journal.with_injected(input)
        journal.add_calls(tools, handoffs)
        offered = [tool.name for tool in tools] + [handoff.tool_name for handoff in handoffs]
        schema = None if output_schema is None or output_schema.is_plain_text() else output_schema.json_schema()
        settings = [system_instructions, model_settings.to_json_dict(), schema]
        value = await run.model(
            self.name,
            self._whole if run.in_call else self._shown,
            (system_instructions, copy.deepcopy(items), model_settings, tools, output_schema, handoffs, tracing),
            rest,
            request={"input": items, "tools": offered, **{name: one for name, one in rest.items() if one is not None}},
            settings=json.dumps(settings, default=lambda value: type(value).__name__),
            usage=_tokens_of,
            text=_text_of,
        )
        return ModelResponse(
            output=_OUTPUT.validate_python(value["output"]),
            usage=_USAGE.validate_python(value["usage"]),
            response_id=value["response_id"],
        )

    async def stream_response(self, *args: Any, **rest: Any) -> AsyncIterator[Any]:
        """Yields the whole answer as one event: the SDK's loop needs no other."""
        answer = await self.get_response(*args, **rest)
        used = answer.usage
        response = Response.model_construct(
            id=answer.response_id or self.name,
            model=self.name,
            object="response",
            output=answer.output,
            usage=ResponseUsage.model_construct(
                input_tokens=used.input_tokens,
                output_tokens=used.output_tokens,
                total_tokens=used.total_tokens,
                input_tokens_details=used.input_tokens_details,
                output_tokens_details=used.output_tokens_details,
            ),
        )
        yield ResponseCompletedEvent.model_construct(type="response.completed", response=response, sequence_number=0)

    async def _whole(self, request: tuple[Any, ...], rest: dict[str, Any]) -> dict[str, Any]:
        answer = await self.model.get_response(*request, **rest)
        return _value_of(answer.output, answer.usage, answer.response_id)

    async def _shown(self, request: tuple[Any, ...], rest: dict[str, Any]) -> dict[str, Any]:
        """Calls the model, and shows its answer while it arrives."""
        if self._journal.streams:
            return await self._streamed(request, rest)
        value = await self._whole(request, rest)
        self._journal.run.emit_text(_text_of(value))
        return value

    async def _streamed(self, request: tuple[Any, ...], rest: dict[str, Any]) -> dict[str, Any]:
        run, items = self._journal.run, []
        async with contextlib.aclosing(self.model.stream_response(*request, **rest)) as events:
            async for event in events:
                if event.type in _SHOWN_AS_TEXT and event.delta:
                    run.emit_text(event.delta)
                elif event.type in _SHOWN_AS_REASONING:
                    run.emit_reasoning(event.delta)
                elif event.type == "response.output_item.done":
                    items.append(event.item)
                elif event.type in ("response.completed", "response.incomplete"):
                    answer = event.response
                    return _value_of(answer.output or items, _usage_of(answer.usage), answer.id)
                elif event.type in ("response.failed", "error"):
                    raise ModelBehaviorError(f"the model has failed: {event.model_dump_json()}")
        raise ModelBehaviorError("the model's answer has ended before it was complete")

    async def close(self) -> None:
        await self.model.close()

    def get_retry_advice(self, request: Any) -> Any:
        return self.model.get_retry_advice(request)


class JournaledTool:
    """Replaces the function of a tool, and calls it through the journal."""

    def __init__(self, journal: Journal, tool: FunctionTool, *, of_client: bool = False) -> None:
        self._journal = journal
        self._name = tool.name
        self._tool = tool
        self._call = None if of_client else tool.on_invoke_tool
        # The SDK's timeout would end the call without the journal, so the journal enforces the limit.
        self._limit_s, tool.timeout_seconds = tool.timeout_seconds, None
        # The process does not wait for a person, so the journal asks the person, and not the SDK.
        self._asks, tool.needs_approval = tool.needs_approval, False
        # No public name shows that a tool is an agent (0.9 to 0.24).
        self._agent = vars(tool).get("_agent_instance")

    async def __call__(self, context: Any, text: str) -> Any:
        run, given = self._journal.run, _object_of(text)
        _ = run.in_call  # numbers this task before it waits for anything

        async def call(arguments: dict[str, Any]) -> Any:
            if self._agent is not None:
                self._journal.add_agent(self._agent)
            changed = text if arguments == given else json.dumps(arguments)
            return _storable(await self._in_time(context, changed))

        try:
            return await run.perform(
                self._name,
                given,
                None if self._call is None else call,
                key=[context.tool_call_id, text],
                scope=self._agent is not None,
                needs_approval=await self._needs_approval(context, given),
            )
        except OutcomeUnknown:
            return UNKNOWN
        except Denied as denied:
            return f"{NOT_APPROVED} {denied.reason}".strip()
        except StepFailed as failed:
            if self._call is None:
                return failed.text
            raise

    async def _in_time(self, context: Any, text: str) -> Any:
        """Returns the result, or the SDK's text about a call that takes too long."""
        if self._limit_s is None:
            return await self._call(context, text)
        try:
            return await asyncio.wait_for(self._call(context, text), self._limit_s)
        except asyncio.TimeoutError:  # noqa: UP041 - Python 3.10
            late = ToolTimeoutError(self._name, self._limit_s)
        if self._tool.timeout_behavior == "raise_exception":
            raise late
        if self._tool.timeout_error_function is None:
            return str(late)
        said = self._tool.timeout_error_function(context, late)
        return await said if inspect.isawaitable(said) else said

    async def _needs_approval(self, context: Any, arguments: dict[str, Any]) -> bool:
        if isinstance(self._asks, bool):
            return self._asks
        asks = self._asks(context, arguments, context.tool_call_id)
        return bool(await asks if inspect.isawaitable(asks) else asks)


class JournaledHandoff:
    """A handoff to an agent that the journal may not know."""

    def __init__(self, journal: Journal, call: Any) -> None:
        self._journal = journal
        self._call = call

    async def __call__(self, context: Any, text: str) -> Any:
        agent = await self._call(context, text)
        self._journal.add_agent(agent)
        return agent


async def _never_called(context: Any, text: str) -> str:
    """The function of a client's tool until the journal replaces it."""
    raise RuntimeError("the client makes this call")


def _name_of(model: Model) -> str:
    name = getattr(model, "model", None)
    return name if isinstance(name, str) else type(model).__name__


def _items_of(messages: list[dict[str, Any]]) -> list[Any]:
    """Converts messages of a run to the SDK's input items."""
    items: list[Any] = []
    for message in messages:
        if message["role"] == "tool":
            called = {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["text"]}
            items.append(called)
            continue
        content = message["content"]
        if content and isinstance(content, list):
            content = [_part_of(part) for part in content]
        if content and message["role"] == "assistant":
            said = [{"type": "output_text", "text": content, "annotations": []}]
            given = {"id": FAKE_RESPONSES_ID, "type": "message", "role": "assistant", "status": "completed"}
            given["provider_data"] = {"model": "holdfast"}  # 0.9 sends the id to OpenAI unless there is some
            items.append({**given, "content": said})
        elif content:
            items.append({"role": message["role"], "content": content})
        for call in message.get("tool_calls") or ():
            named = {"name": call["name"], "arguments": call["arguments"]}
            items.append({"type": "function_call", "call_id": call["id"], **named})
    return items


def _part_of(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "image":
        url = part.get("url") or f"data:{part['media_type']};base64,{part['data']}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    file = part.get("file") or {}
    if file.get("data"):
        data = f"data:{file['media_type']};base64,{file['data']}"
        return {"type": "input_file", "filename": file["name"], "file_data": data}
    return {"type": "input_text", "text": part["text"]}


def _object_of(text: str) -> dict[str, Any]:
    """Returns the arguments of a call. Others than an object get a name: the tool's error then informs the model."""
    try:
        value = json.loads(text or "{}")
        json.dumps(value, allow_nan=False)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"arguments": value}


def _storable(result: Any) -> Any:
    """Returns a tool's result as JSON from which the SDK makes the same one: texts, images, files, or its own text."""
    if isinstance(result, (ToolOutputText, ToolOutputImage, ToolOutputFileContent)):
        return result.model_dump(exclude_none=True)
    if isinstance(result, list) and all(isinstance(one, (dict, str)) or hasattr(one, "model_dump") for one in result):
        return [_storable(one) for one in result]
    try:
        return json.loads(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError):
        return str(result)


def _usage_of(used: Any) -> Usage:
    if used is None:
        return Usage()
    return Usage(
        requests=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.total_tokens,
        input_tokens_details=used.input_tokens_details,
        output_tokens_details=used.output_tokens_details,
    )


def _value_of(output: list[Any], usage: Usage, response_id: str | None) -> dict[str, Any]:
    """Returns an answer as JSON."""
    items = [one if isinstance(one, dict) else one.model_dump(mode="json", exclude_unset=True) for one in output]
    return {"output": items, "usage": _USAGE.dump_python(usage, mode="json"), "response_id": response_id}


def _tokens_of(value: dict[str, Any]) -> Tokens:
    used = value["usage"]
    return Tokens(
        input_tokens=used["input_tokens"],
        output_tokens=used["output_tokens"],
        cached_tokens=used["input_tokens_details"]["cached_tokens"] or 0,
        reasoning_tokens=used["output_tokens_details"]["reasoning_tokens"] or 0,
    )


def _text_of(value: dict[str, Any]) -> str:
    parts = [part for item in value["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)
