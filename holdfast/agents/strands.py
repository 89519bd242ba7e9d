# pyright: basic, reportMissingImports=false
"""Agents of Strands Agents (`strands-agents`, from 1.62 on) as bodies of runs.

Two middlewares pass each model call and each tool call to the journal. An agent of Strands holds its conversation, so
it gets the run's history when the run begins, and nothing of it is needed afterwards. A cancel of the run cancels its
task, because Strands' own `cancel()` waits for a silent model and for its tools.
"""

import asyncio
import importlib
import inspect
import json
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

try:
    from strands.middleware import ExecuteToolStage, InvokeModelStage, ModelStopReason, ToolResultEvent
except ImportError as error:
    raise ImportError(
        "agents of Strands need strands-agents 1.62 or newer, the first with a public middleware"
    ) from error
from strands import Agent
from strands.hooks import AfterInvocationEvent
from strands.session.session_manager import SessionManager
from strands.tools import PythonAgentTool
from strands.types.exceptions import ContextWindowOverflowException, EventLoopException, ModelThrottledException
from strands.types.session import decode_bytes_values, encode_bytes_values

from holdfast.agents.adapters import Body, refuse_sharing
from holdfast.agents.errors import Denied, NestedApproval, OutcomeUnknown, StepFailed
from holdfast.agents.models import Usage
from holdfast.agents.run import Run
from holdfast.agents.values import Answer

refuse_sharing(__name__)  # agents hold conversations, and get a run's middlewares

for _late in ("strands.models.openai", "openai.resources.chat", "httpcore"):  # each run would import it
    with suppress(ImportError):
        importlib.import_module(_late)

Tool = TypeVar("Tool")

Events = AsyncGenerator[Any, None]

Proceed = Callable[[Any], Events]

UNKNOWN = "Error: the outcome of this call is unknown: its process ended before the result was stored."

_NEEDS_APPROVAL = "_holdfast_needs_approval"

_ANSWERED_BY_STRANDS = {error.__name__: error for error in (ContextWindowOverflowException, ModelThrottledException)}
"""Errors after which Strands calls the model again, by their names in the journal."""


class ToolError(Exception):
    """A tool reports a failure without raising. The text is the tool's."""


class InterruptNotCovered(RuntimeError):
    """An interrupt of the agent waits for an answer that no client can give."""


def needs_approval(tool: Tool) -> Tool:
    """Returns the tool. From now on, each of its calls waits for a person's approval."""
    setattr(tool, _NEEDS_APPROVAL, True)
    return tool


def warning_of(name: str, value: Any) -> str | None:
    """Returns the warning of `holdfast agents check` about a session manager, or an agent that has one."""
    manager = value if isinstance(value, SessionManager) else _session_manager_of(value)
    if manager is None:
        return None
    has_one = f"{name} is" if manager is value else f"{name} has"
    return (
        f"{has_one} a session manager ({type(manager).__name__}), which keeps a second history: a model would see the "
        "messages of the thread and the manager's, and those of a run that is replayed twice. Make the agent without "
        "it; what must last beside the messages belongs into run.state"
    )


def _session_manager_of(agent: Any) -> SessionManager | None:
    """Returns the session manager. Strands has no attribute for it, but hooks that hold it."""
    if not isinstance(agent, Agent):
        return None
    for callback in agent.hooks.get_callbacks_for(AfterInvocationEvent(agent=agent)):
        held = inspect.getclosurevars(callback).nonlocals.values() if inspect.isfunction(callback) else ()
        for one in (getattr(callback, "__self__", None), *held):
            if isinstance(one, SessionManager):
                return one
    return None


def body_of(agent: Any, name: str) -> Body:
    """Returns a body that executes the agent. Each run has the agent for itself, as it has the process."""

    async def body(run: Run) -> str:
        return await run_agent(run, agent)

    body.__name__ = name
    return body


async def run_agent(run: Run, agent: Any, **options: Any) -> str:
    """Executes the agent on its own messages and the run's. Returns its answer: text, or JSON of structured output.

    The options are those of `Agent.stream_async`. Raises its errors, and `InterruptNotCovered`.
    """
    journaled = _Journaled(run)
    journaled.attach(agent)
    journaled.bring_client_tools(agent)
    agent.messages = [*agent.messages, *messages_of([*run.history, *run.input])]
    result: Any = None
    try:
        async for event in agent.stream_async(None, **options):
            result = event.get("result", result)
    except EventLoopException as error:
        raise error.original_exception from error
    if result.stop_reason == "interrupt":
        raise InterruptNotCovered(_not_covered(interrupt.name for interrupt in result.interrupts))
    answer = str(result).rstrip("\n")
    return Answer(answer) if result.structured_output else answer


def messages_of(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages of a run in Strands' form, whose roles alternate: tool results, and messages of the
    application, are the user's."""
    messages: list[dict[str, Any]] = []
    for entry in entries:
        role = "assistant" if entry["role"] == "assistant" else "user"
        blocks = _blocks_of(entry)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"].extend(blocks)
        elif blocks:
            messages.append({"role": role, "content": blocks})
    return messages


class _Journaled:
    """The calls of one run's agents, which go through the journal."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._attached: list[Any] = []
        self._of_client: list[Any] = []
        self._failure: Exception | None = None
        """Ends the run at the next model call. Strands turns an error of a tool into a text for the model."""

    def attach(self, agent: Any) -> None:
        """Makes the calls of the agent use this object, once."""
        if not any(one is agent for one in self._attached):
            self._attached.append(agent)
            agent.add_middleware(InvokeModelStage, self.model)
            agent.add_middleware(ExecuteToolStage, self.tool)

    def bring_client_tools(self, agent: Any) -> None:
        """Adds the tools of the request to the agent. If it has a tool of the same name, it keeps its own."""
        for tool in self._run.client_tools:
            name = tool["name"]
            if name not in agent.tool_registry.registry:
                schema = {"json": tool["parameters"]}
                spec = {"name": name, "description": tool["description"], "inputSchema": schema}
                brought = PythonAgentTool(name, spec, _never_called)
                self._of_client.append(brought)
                agent.tool_registry.register_tool(brought)

    @property
    def _is_elsewhere(self) -> bool:
        """Whether a tool uses an agent in its own thread. Calls there are a part of the tool's call."""
        return asyncio.get_running_loop() is not self._loop

    async def model(self, context: Any, proceed: Proceed) -> Events:
        """Wraps each model call."""
        if self._is_elsewhere:
            async for event in proceed(context):
                yield event
            return
        if self._failure is not None:
            raise self._failure
        is_shown = not self._run.in_call
        if is_shown:
            await self._take_inbox(context)
        try:
            answer = await self._run.model(
                str(context.model.get_config().get("model_id") or "model"),
                self._asked,
                proceed(context),
                is_shown,
                request=_request_of(context),
                settings=_settings_of(context),
                usage=_usage_of,
                text=_text_of,
            )
        except StepFailed as failed:
            known = _ANSWERED_BY_STRANDS.get(failed.error_type)
            raise failed if known is None else known(failed.text) from failed
        message = decode_bytes_values(answer["message"])
        yield ModelStopReason(answer["stop_reason"], message, answer["usage"], answer["metrics"])

    async def _take_inbox(self, context: Any) -> None:
        for injected in messages_of(await self._run.inbox.take()):
            for messages in (context.agent.messages, context.messages):
                if messages and messages[-1]["role"] == injected["role"]:
                    messages[-1]["content"].extend(injected["content"])
                else:
                    messages.append({**injected, "content": [*injected["content"]]})

    async def _asked(self, events: Events, is_shown: bool) -> dict[str, Any]:
        """Calls the model, and shows its output meanwhile. Returns its answer."""
        stop: Any = None
        async for event in events:
            if isinstance(event, ModelStopReason):
                stop = event
            elif is_shown and (text := event.get("data")):
                self._run.emit_text(text)
            elif is_shown and (thought := event.get("reasoningText")):
                self._run.emit_reasoning(thought)
        message = encode_bytes_values(stop.message)
        return {"stop_reason": stop.stop_reason, "message": message, "usage": stop.usage, "metrics": stop.metrics}

    async def tool(self, context: Any, proceed: Proceed) -> Events:
        """Wraps each tool call. The check of structured output is not a tool call: its result is an object."""
        tool = context.tool
        if self._is_elsewhere or tool is None or tool.tool_type == "structured_output":
            async for event in proceed(context):
                yield event
            return
        error: Exception | None = None
        try:
            content = _content_of(await self._performed(tool, context, proceed))
        except StepFailed as failed:
            error = failed
            if failed.error_type == InterruptNotCovered.__name__:
                self._failure = failed
            said = failed.text if failed.error_type == ToolError.__name__ else f"{failed.error_type} - {failed.text}"
            content = [{"text": said if said.startswith("Error") else f"Error: {said}"}]
        except Denied as denied:
            error = denied
            content = [{"text": f"Error: {denied}"}]
        except OutcomeUnknown as unknown:
            error = unknown
            content = [{"text": UNKNOWN}]
        except NestedApproval as nested:
            self._failure = nested
            raise
        status = "success" if error is None else "error"
        result = {"toolUseId": context.tool_use["toolUseId"], "status": status, "content": content}
        yield ToolResultEvent(result, exception=error)

    async def _performed(self, tool: Any, context: Any, proceed: Proceed) -> Any:
        """Calls the tool and returns its result in the journal's form. A tool that is an agent is a scope: its own
        calls are in the journal, and may wait for a person."""
        agent = getattr(tool, "agent", None) if tool.tool_type == "agent" else None
        if agent is not None:
            self.attach(agent)

        async def called(arguments: dict[str, Any]) -> Any:
            result: Any = None
            async for event in proceed(context.replace(tool_use={**context.tool_use, "input": arguments})):
                if isinstance(event, ToolResultEvent):
                    result = event
            if result is None:
                raise InterruptNotCovered(_not_covered([tool.tool_name]))
            return _value_of(result)

        use = context.tool_use
        return await self._run.perform(
            use["name"],
            use["input"],
            None if any(one is tool for one in self._of_client) else called,
            key=[use["toolUseId"], use["input"]],
            scope=agent is not None,
            needs_approval=getattr(tool, _NEEDS_APPROVAL, False),
        )


def _never_called(*_: Any, **__: Any) -> Any:
    raise AssertionError("the client answers the calls of its tools")


def _not_covered(names: Any) -> str:
    return f"interrupts of Strands are not covered ({', '.join(names)}): use needs_approval(tool)"


def _blocks_of(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    if entry["role"] == "tool":
        content = [{"text": entry["text"]}]
        return [{"toolResult": {"toolUseId": entry["tool_call_id"], "status": "success", "content": content}}]
    parts = entry["content"] if isinstance(entry["content"], list) else [{"type": "text", "text": entry["text"]}]
    blocks = [_image(part) if part["type"] == "image" else {"text": part["text"]} for part in parts]
    uses = [
        {"toolUse": {"toolUseId": call["id"], "name": call["name"], "input": _object(call["arguments"])}}
        for call in entry.get("tool_calls") or ()
    ]
    return [block for block in blocks if block.get("text") != ""] + uses


def _image(part: Mapping[str, Any]) -> dict[str, Any]:
    """Strands accepts the bytes of images, but no addresses."""
    if not part.get("data"):
        return {"text": f"[image: {part['url']}]"}
    kind = part["media_type"].partition("/")[2]
    return {"image": {"format": kind, "source": {"bytes": b64decode(part["data"])}}}


def _object(arguments: str) -> Any:
    """Returns the arguments of a call in the history, which another model may have written."""
    with suppress(ValueError):
        return json.loads(arguments)
    return {"arguments": arguments}


def _request_of(context: Any) -> Any:
    messages = [{"role": message["role"], "content": message["content"]} for message in context.messages]
    return {"messages": encode_bytes_values(messages), "tools": [tool["name"] for tool in context.tool_specs]}


def _settings_of(context: Any) -> Any:
    settings = {
        "instructions": context.system_prompt,
        "tools": context.tool_specs,
        "tool_choice": context.tool_choice,
        "model": context.model.get_config(),
    }
    return json.loads(json.dumps(settings, default=lambda value: type(value).__name__))


def _usage_of(answer: Mapping[str, Any]) -> Usage:
    """Some providers count the cached part of a prompt separately. The total then includes it."""
    used = answer["usage"]
    prompt = max(used["inputTokens"], used["totalTokens"] - used["outputTokens"])
    return Usage(prompt, used["outputTokens"], used.get("cacheReadInputTokens", 0))


def _text_of(answer: Mapping[str, Any]) -> str:
    return "".join(block.get("text", "") for block in answer["message"]["content"])


def _value_of(event: Any) -> Any:
    """Returns a result for the journal: its text, if it has nothing else. Raises the tool's exception."""
    result = event.tool_result
    content = encode_bytes_values(result["content"])
    texts = [block["text"] for block in content if "text" in block]
    if result["status"] == "error":
        raise event.exception or ToolError("\n".join(texts))
    return texts[0] if len(content) == len(texts) == 1 else {"content": content}


def _content_of(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [{"text": value}]
    if isinstance(value, dict) and list(value) == ["content"]:
        return decode_bytes_values(value["content"])
    return [{"json": value}]
