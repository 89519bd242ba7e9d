# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
"""Tool calls in the journal: each call of a `ToolNode` separately, with the id that the model has given it."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools import tool as tool_of
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt import ToolNode
from langgraph.types import Interrupt, interrupt

from holdfast.agents.errors import Denied, NestedApproval, OutcomeUnknown, StepFailed
from holdfast.agents.langgraph.models import CALLS, NotJournaled, on_loop, refused
from holdfast.agents.langgraph.values import packed, unpacked
from holdfast.agents.run import Run
from holdfast.agents.values import plain

OPTIONS = "holdfast"
"""The key of a tool's `metadata` for the settings `needs_approval`, `idempotent`, `scope` and `probe`."""

_INTERRUPT = "interrupt"


class ToolNodeError(Exception):
    """A tool has failed with a message for the model."""


def needs_approval(tool: Callable[..., Any] | BaseTool) -> BaseTool:
    """Returns the same tool. Each of its calls waits for a person's approval."""
    return with_options(tool, needs_approval=True)


def idempotent(tool: Callable[..., Any] | BaseTool) -> BaseTool:
    """Returns the same tool, which may be started again with the same arguments after a crash."""
    return with_options(tool, idempotent=True)


def client_tools(run: Run) -> list[BaseTool]:
    """Returns the tools of the request, for the model of a graph that is made for the run. The client makes their
    calls."""
    return [
        StructuredTool(
            name=one["name"],
            description=one["description"] or one["name"],
            args_schema=one["parameters"],
            coroutine=_of_client,
            metadata={OPTIONS: {"of_client": True}},
        )
        for one in run.client_tools
    ]


def with_options(tool: Callable[..., Any] | BaseTool, **options: Any) -> BaseTool:
    made: BaseTool = tool if isinstance(tool, BaseTool) else tool_of(tool)
    metadata = made.metadata or {}
    return made.model_copy(update={"metadata": {**metadata, OPTIONS: {**metadata.get(OPTIONS, {}), **options}}})


async def _of_client(**_: Any) -> str:
    raise refused(NotJournaled("the client makes the calls of its tools: call them in a ToolNode"))


class CallMade:
    """The outcome of a call, for a node that is executed again after its interrupt."""

    def __init__(self) -> None:
        self.has_ended = False
        self.output: Any = None
        self.question: Any = None
        """The value of the tool's interrupt, which waits for an answer."""
        self.is_waiting = False
        self.interrupts = 0
        """The number of the tool's interrupts."""


class JournaledTools(Runnable[Any, Any]):
    """A `ToolNode` whose calls use the journal, each separately and with its id."""

    def __init__(self, node: ToolNode) -> None:
        self._node = node
        self.name = node.name

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return on_loop(self.ainvoke(input, config, **kwargs), "ToolNode")

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        if (calls := CALLS.get()) is None:
            return await self._node.ainvoke(input, config, **kwargs)
        place = str((config or {}).get("configurable", {}).get("checkpoint_ns", ""))
        asked = [(one, alone, calls.made.get((place, one["id"]))) for one, alone in _calls_in(input)]
        # LangGraph matches the answers of a node with its interrupts by their numbers. So only the first waiting tool
        # continues, and ended tools consume the answers that they had.
        first = next((one["id"] for one, _, made in asked if made is not None and made.is_waiting), None)
        for _ in range(sum(made.interrupts for _, _, made in asked if made is not None and made.has_ended)):
            interrupt(None)
        due = [
            (one, alone)
            for one, alone, made in asked
            if made is None or one["id"] == first or not (made.has_ended or made.is_waiting)
        ]
        made = [calls.made.setdefault((place, one["id"]), CallMade()) for one, _, _ in asked]
        new: list[Interrupt] = []
        begun = (self._call(calls.run, calls.made[place, one["id"]], one, alone, config, new) for one, alone in due)
        for failed in [*await asyncio.gather(*begun, return_exceptions=True), calls.refusal]:
            if failed is not None:
                raise failed
        for one in made:
            if one.is_waiting:
                _interrupt(one.question, new)
        return _together([one.output for one in made])

    async def _call(
        self,
        run: Run,
        made: CallMade,
        one: Mapping[str, Any],
        alone: Callable[[Mapping[str, Any]], Any],
        config: Any,
        new: list[Interrupt],
    ) -> None:
        async def started(arguments: dict[str, Any]) -> Any:
            try:
                return _recorded(await self._node.ainvoke(alone({**one, "args": arguments}), config))
            except GraphInterrupt as interrupted:
                new.append(interrupted.args[0][0])
                return {_INTERRUPT: new[-1].value}

        tool = self._node.tools_by_name.get(one["name"])
        options = {} if tool is None else (tool.metadata or {}).get(OPTIONS, {})
        value = await _outcome(run, one, None if options.get("of_client") else started, options)
        made.is_waiting = isinstance(value, Mapping) and _INTERRUPT in value
        if made.is_waiting:
            made.question, made.interrupts = value[_INTERRUPT], made.interrupts + 1
        else:
            made.has_ended, made.output = True, _output(value, one, is_list=_has_messages(alone(one)))


def _interrupt(question: Any, new: Sequence[Interrupt]) -> NoReturn:
    """Interrupts the graph. If a tool has just interrupted it, that interrupt has the number of the next answer;
    otherwise `interrupt` returns answers of tools that have ended."""
    if new:
        raise GraphInterrupt([Interrupt(question, id=new[0].id)])
    while True:
        interrupt(question)


async def _outcome(run: Run, one: Mapping[str, Any], started: Any, options: Mapping[str, Any]) -> Any:
    """Returns the value of a call, or the message for the model with the reason why there is none. Raises `StepFailed`
    for an exception that the node does not handle, and `NestedApproval`."""
    try:
        return await run.perform(
            one["name"],
            one["args"],
            started,
            key=[one["id"], one["args"]],
            idempotent=options.get("idempotent", False),
            scope=options.get("scope", False),
            probe=options.get("probe"),
            needs_approval=options.get("needs_approval", False),
        )
    except NestedApproval as nested:
        raise refused(nested) from None
    except StepFailed as failed:
        if started is not None and failed.error_type != ToolNodeError.__name__:
            raise
        said = failed.text
    except Denied as denied:
        said = f"Error: a person has denied this call: {denied.reason}"
    except OutcomeUnknown as unknown:
        said = f"Error: {unknown}: its outcome is unknown"
    return ToolMessage(said, tool_call_id=one["id"], name=one["name"], status="error")


def _calls_in(given: Any) -> list[tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], Any]]]:
    """Returns the calls in the input of a `ToolNode`, each with a function that makes an input with only this call."""
    if isinstance(given, Mapping) and "tool_call" in given:
        sent: Mapping[str, Any] = given
        return [(given["tool_call"], lambda one: {**sent, "tool_call": one})]
    if isinstance(given, list) and isinstance(given[-1], Mapping):
        return [(call, lambda one: [one]) for call in given]
    messages = given if isinstance(given, list) else _messages_in(given)
    place = next(at for at in reversed(range(len(messages))) if isinstance(messages[at], AIMessage))

    def alone(one: Mapping[str, Any]) -> Any:
        asking = messages[place].model_copy(update={"tool_calls": [one]})
        changed = [*messages[:place], asking, *messages[place + 1 :]]
        if isinstance(given, list):
            return changed
        if isinstance(given, Mapping):
            return {**given, "messages": changed}
        state: Any = given
        is_model = hasattr(state, "model_copy")
        return state.model_copy(update={"messages": changed}) if is_model else replace(state, messages=changed)

    return [(call, alone) for call in messages[place].tool_calls]


def _has_messages(given: Any) -> bool:
    """Whether the input of a `ToolNode` is a list of messages. Its output then is one, too."""
    return isinstance(given, list) and not isinstance(given[-1], Mapping)


def _messages_in(state: Any) -> list[BaseMessage]:
    return state["messages"] if isinstance(state, Mapping) else state.messages


def _recorded(output: Any) -> Any:
    """Returns the output of a `ToolNode` for one call in the journal's form: the text that a tool has returned, or the
    whole output. Raises `ToolNodeError` for the node's message about an exception."""
    [made] = next(iter(output.values())) if isinstance(output, Mapping) else output
    if isinstance(made, ToolMessage):
        if made.status == "error":
            raise ToolNodeError(str(made.text))
        if isinstance(made.content, str) and made.artifact is None:
            return made.content
    return {"content": plain(made.content) if isinstance(made, ToolMessage) else "", "output": packed(output)}


def _output(value: Any, one: Mapping[str, Any], *, is_list: bool) -> Any:
    """Returns the output that a `ToolNode` would have had."""
    if isinstance(value, Mapping) and "output" in value:
        return unpacked(value["output"])
    message = value
    if not isinstance(value, ToolMessage):
        text = value if isinstance(value, str) else json.dumps(value)
        message = ToolMessage(text, tool_call_id=one["id"], name=one["name"])
    return [message] if is_list else {"messages": [message]}


def _together(outputs: Sequence[Any]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    if all(isinstance(one, Mapping) for one in outputs):
        return {"messages": [message for one in outputs for message in one["messages"]]}
    return [each for one in outputs for each in (one if isinstance(one, list) else [one])]
