# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
"""Graphs of LangGraph as bodies of runs.

The journal replaces LangChain's cache of answers: a model that is called again after a crash answers from there. The
calls of each `ToolNode` use the journal one by one. A graph has checkpoints only in memory, for interrupts and for
messages between its steps: after a crash it is executed again from the run's messages, and reaches its old place.
"""

import asyncio
import importlib
import importlib.metadata
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from copy import deepcopy
from typing import Any

from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.types import Command

from holdfast.agents.adapters import Body, refuse_sharing
from holdfast.agents.errors import Denied
from holdfast.agents.langgraph.models import CALLS, Calls, Journal, NotJournaled
from holdfast.agents.langgraph.tools import JournaledTools, client_tools, idempotent, needs_approval, with_options
from holdfast.agents.langgraph.values import messages_of, packed, unpacked
from holdfast.agents.run import Run
from holdfast.agents.values import plain

refuse_sharing(__name__)  # LangChain has one cache of answers, the run's journal

for _late in ("langchain_openai", "openai.resources.chat"):  # each run would import it
    with suppress(ImportError):
        importlib.import_module(_late)

__all__ = [
    "run_agent",
    "ask_person",
    "needs_approval",
    "idempotent",
    "client_tools",
    "as_tool",
    "messages_of",
    "NotJournaled",
]

Resume = Callable[[Run, str, Any], Awaitable[Any]]
"""Answers an interrupt: gets the run, the name of the node and the value of `interrupt(value)`, and returns the return
value of that call."""

OLDEST = (1, 0, 2)
"""The oldest version of LangGraph that tests use."""

_STATE = "langgraph"


def check_version(version: str) -> None:
    """Raises `ImportError` for a version of LangGraph that is too old."""
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < OLDEST:
        raise ImportError(f"langgraph {version} is too old: its graphs need {'.'.join(map(str, OLDEST))} or newer")


check_version(importlib.metadata.version("langgraph"))


def as_tool(graph: Any, name: str, description: str) -> BaseTool:
    """Makes an agent a tool of another: it gets the text `input`, and its last message is the result. It may ask a
    person. Then, and after a crash, it is entered again, and the journal has its earlier calls. Raises `TypeError` for
    an object that is not a compiled graph."""
    expert = _prepared(graph)

    async def ask(input: str) -> str:
        calls, given = CALLS.get(), {"messages": [HumanMessage(input)]}
        if calls is None:
            ended = await expert.ainvoke(given)
        else:
            ended = await _alone(_executed(calls, _with_checkpoints(expert), given, ask_person))
        return str(ended["messages"][-1].text)

    return with_options(StructuredTool.from_function(coroutine=ask, name=name, description=description), scope=True)


def warning_of(name: str, value: Any) -> str | None:
    """Returns the warning of `holdfast agents check` about a graph with a checkpointer."""
    saver = value.checkpointer if isinstance(value, Pregel) else None
    if not isinstance(saver, BaseCheckpointSaver):
        return None
    return (
        f"{name} is a graph with a checkpointer ({type(saver).__name__}), which no run reads or writes: a run's state "
        "is its journal, so that a crash cannot leave two states. Read a run in its journal instead of get_state. "
        "Because there is a checkpointer, the thread keeps the state beside `messages`; compile the graph without one "
        "if it must not"
    )


def body_of(agent: Any, name: str) -> Body:
    """Returns a body that executes the graph. Raises `TypeError` for an object that is not a compiled graph, and for a
    graph with breakpoints (`interrupt_before`), for which no client has an answer."""
    graph = _prepared(agent)

    async def body(run: Run) -> str:
        return await run_agent(run, graph)

    body.__name__ = name
    return body


async def ask_person(run: Run, name: str, value: Any) -> Any:
    """Asks for an approval with the interrupt's value. Returns True if it was approved, False if it was denied, and the
    value with the person's changes. The requests of LangChain's HumanInTheLoopMiddleware are approved one by one."""
    if isinstance(value, Mapping) and "action_requests" in value:
        return {"decisions": await _all([_decided(run, action) for action in value["action_requests"]])}
    shown = plain(value if isinstance(value, Mapping) else {"value": value})
    try:
        arguments = (await run.approval(name, shown)).arguments
    except Denied:
        return False
    if arguments == shown:
        return True
    return arguments if isinstance(value, Mapping) else arguments.get("value", arguments)


async def run_agent(run: Run, agent: Any, *, resume: Resume = ask_person, **inputs: Any) -> str:
    """Executes the graph on the run's messages. Returns the text of its last message, or an empty one if readers have
    seen that before an interrupt.

    `inputs` are further keys of the graph's input. `resume` answers interrupts. Raises the graph's errors, and
    `NotJournaled`.
    """
    prepared = _prepared(agent)
    graph = _with_checkpoints(prepared)
    calls = Calls(run)
    CALLS.set(calls)
    set_llm_cache(Journal(run))
    messages = messages_of([*run.history, *run.input, *await run.inbox.take()])
    given = {**_kept_state(run, prepared), **inputs, "messages": messages}
    values = await _executed(calls, graph, given, resume)
    if calls.refusal is not None:
        raise calls.refusal
    _keep_state(run, prepared, values)
    last: Any = next(reversed(values.get("messages") or []), None)
    text = str(last.text) if isinstance(last, AIMessage) else ""
    if text and text not in calls.said and not run.has_said(text):
        run.emit_text(text)
    return "" if text in calls.said_before else text


async def _executed(calls: Calls, graph: Any, given: Any, resume: Resume) -> Mapping[str, Any]:
    """Returns the state of the graph at its end."""
    run = calls.run
    config = {"configurable": {"thread_id": run.id, "run": run}}
    with_tools = [name for name, node in graph.nodes.items() if isinstance(node.bound, JournaledTools)]
    options = {"stream_mode": ["updates", "messages", "custom"], "interrupt_after": with_tools}
    behind = None
    while True:
        async for mode, update in graph.astream(given, config, **options):
            if mode == "updates":
                behind = next((name for name in update if name in with_tools), behind)
            elif mode == "custom" and not run.in_call:
                _show_custom(run, update)
        state = await graph.aget_state(config)
        asked = [(task.name, one) for task in state.tasks for one in task.interrupts]
        if asked:
            calls.said_before |= calls.said
            answered = await _all([resume(run, name, one.value) for name, one in asked])
            answers = {one.id: answer for (_, one), answer in zip(asked, answered, strict=True)}
            given = Command(resume=answers if len(asked) > 1 else answers[asked[0][1].id])
        elif not state.next:
            return state.values
        else:  # the tool results are complete: the only place where a message fits before the next answer
            if not run.in_call and (injected := await run.inbox.take()):
                update = Command(update={"messages": messages_of(injected)}, goto=list(state.next))
                await graph.aupdate_state(config, update, as_node=behind)
            given = None


def _show_custom(run: Run, value: Any) -> None:
    """Shows a value from a node's stream writer. LangGraph accepts any value; the operator's log names a value that
    cannot be shown."""
    try:
        run.emit_data("custom", value)
    except (TypeError, ValueError) as error:
        sys.stderr.write(f"a value of get_stream_writer has no readers: {error}\n")


def _alone(execution: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Executes a graph as if it were not inside another: otherwise the outer one would be interrupted and run again."""
    context = copy_context()
    context.run(var_child_runnable_config.set, None)
    return context.run(asyncio.create_task, execution)


def _with_checkpoints(graph: Any) -> Any:
    return graph.copy(update={"checkpointer": InMemorySaver(serde=_Copies())})


def _prepared(graph: Any) -> Any:
    """Returns the same graph with tool calls that use the journal."""
    if not isinstance(graph, Pregel):
        raise TypeError(f"a {type(graph).__name__} is no compiled graph: register what its compile() returns")
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise TypeError("breakpoints (interrupt_before, interrupt_after) are not covered: call interrupt() in a node")
    for one in [graph, *(inner for _, inner in graph.get_subgraphs(recurse=True))]:
        for name, node in one.nodes.items():
            if isinstance(node.bound, ToolNode):
                one.nodes[name] = node.copy({"bound": JournaledTools(node.bound)})
    return graph


async def _all(asking: Sequence[Awaitable[Any]]) -> list[Any]:
    """Returns all results. The requests run in parallel, so that they wait in one pause."""
    return [await asking[0]] if len(asking) == 1 else await asyncio.gather(*asking)


async def _decided(run: Run, action: Mapping[str, Any]) -> dict[str, Any]:
    name, shown = action["name"], plain(action["args"])
    try:
        arguments = (await run.approval(name, shown)).arguments
    except Denied as denied:
        return {"type": "reject", "message": denied.reason}
    if arguments == shown:
        return {"type": "approve"}
    return {"type": "edit", "edited_action": {"name": name, "args": arguments}}


class _Copies:
    """Copies the values of checkpoints, which never leave the process. Values that cannot be copied are shared."""

    def dumps_typed(self, obj: Any) -> tuple[str, Any]:
        try:
            return "object", deepcopy(obj)
        except TypeError:
            return "object", obj

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        return self.dumps_typed(data[1])[1]


def _kept_state(run: Run, graph: Any) -> dict[str, Any]:
    kept = run.state.get(_STATE, {}) if graph.checkpointer else {}
    return {key: unpacked(packed) for key, packed in kept.items()}


def _keep_state(run: Run, graph: Any, values: Mapping[str, Any]) -> None:
    """Stores the state of a graph that was compiled with a checkpointer, for the thread's next run."""
    if graph.checkpointer:
        run.state[_STATE] = {key: packed(value) for key, value in values.items() if key != "messages"}
