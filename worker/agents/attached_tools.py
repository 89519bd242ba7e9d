"""Calls of the tools that are attached to an agent in code. The worker makes them, as it does for its own agents.

A call outlives the process that has requested it: the next process gets its result from the journal. The call ends if
the run is cancelled, or if the code gives the call up.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from shared.concurrency import beside, task_group
from shared.domain.agents import characters_of_memory
from shared.domain.body_input import agent_for_body, has_agent
from shared.domain.journal import JournalEntry, Replay, agent_entry
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.run_trees import CallWaits
from shared.domain.tool_catalog import CALLS_AGENTS, is_base_tool
from shared.domain.tools import Tool
from shared.tool_arguments import RefusedArguments, check_arguments
from worker.agents.body_process import BodyProcess, Frame
from worker.agents.frames import GIVEN_UP, TOOL_ERROR, value_of_result
from worker.agents.shown_turn import failure_of
from worker.bodies.agent_context import AgentContext, AgentServices, load_context
from worker.bodies.probes import result_of_lost_call
from worker.bodies.tool_turn import expiry_of, result_of
from worker.run.run_handle import RunHandle

Result = TypeVar("Result")

NO_FRAME = 0
"""The number of a frame that does not exist."""


@dataclass(frozen=True, kw_only=True)
class CallingCode(AgentContext):
    """The run of an agent in code, whose calls have the keys of its journal."""

    keys: dict[str, str]
    """The idempotency keys, by the ids of calls."""

    def idempotency_key(self, call: ToolCall) -> str:
        return self.keys[call.id]


class FoundTool(NamedTuple):
    """An attached tool that the code may call."""

    context: CallingCode
    tool: Tool
    asks: bool
    """A person decides on the call."""
    asked: Frame
    """The expiry of the approval, as the frame's fields."""


class CallEnd:
    """How a call has ended: its state and its value or error for the journal, and its result for readers."""

    def __init__(self, state: Literal["done", "failed", "unknown"], value: Any, result: ToolReturn | None) -> None:
        self.state: Literal["done", "failed", "unknown"] = state
        self.value = value
        self._result = result

    @classmethod
    def of(cls, result: ToolReturn) -> "CallEnd":
        """The end of a call that was made."""
        if result.is_unknown:
            return cls("unknown", None, result)
        if result.status == "success":
            return cls("done", value_of_result(result), result)
        return cls("failed", {"type": TOOL_ERROR, "text": result.text}, result)

    def shown(self, call: ToolCall) -> ToolReturn:
        """Returns the result in the form for readers."""
        return failure_of(call, self.value) if self._result is None else self._result


class Refused(CallEnd):
    """The end of a call that was not made."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__("failed", {"type": kind, "text": why}, None)


class AttachedTools:
    """The attached tools of one run in this worker, through all of its processes."""

    def __init__(self, handle: RunHandle, services: AgentServices, quiet_s: float) -> None:
        self.quiet_s = quiet_s
        """See `CodeBody.quiet_s`."""
        self.stuck_s = 10 * quiet_s
        """Seconds without a frame after which an unfinished call seems to wait for calls that are held back."""
        self._handle = handle
        self._services = services
        self._context: CallingCode | None = None
        self._group: asyncio.TaskGroup | None = None
        """The tasks of the current process."""
        self._tasks: dict[str, asyncio.Task[ToolReturn | CallWaits]] = {}
        self._awaited: dict[str, int] = {}
        """The numbers of the frames that wait for the ends of calls, by slots."""
        self._ends: dict[str, Frame] = {}
        """The ends of calls for which no frame has waited yet."""
        self._reading: asyncio.Task[Frame | None] | None = None
        self._is_alone = False

    @asynccontextmanager
    async def of_attempt(self) -> AsyncGenerator[None]:
        """Serves one process. After the block its calls have ended. A call that fails ends the block with its error."""
        self._tasks, self._awaited, self._ends, self._is_alone = {}, {}, {}, False
        async with task_group() as self._group:
            try:
                yield
            finally:
                self.stop()

    def stop(self) -> None:
        """Cancels the running calls."""
        for task in self._tasks.values():
            task.cancel()

    async def next_frame(self, process: BodyProcess, quiet_s: float | None) -> Frame | None:
        """Returns the process's next frame, or the end of a call as the frame `made`, or `quiet` after `quiet_s`. None
        if the process is gone, and its calls have ended."""
        if not self._tasks and self._reading is None and quiet_s is None:
            return None if self._is_alone else await process.receive()
        if self._reading is None and not self._is_alone:
            self._reading = self._in_group(process.receive(), "frame of an agent's process")
        waiting = [*self._tasks.values(), *([] if self._reading is None else [self._reading])]
        if not waiting:
            return None
        await asyncio.wait(waiting, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
        for slot, task in self._tasks.items():
            if task.done():
                return {"t": "made", "call": slot, "id": self._awaited.pop(slot, NO_FRAME)}
        if self._reading is None or not self._reading.done():
            return {"t": "quiet"}
        frame, self._reading = self._reading.result(), None
        if frame is not None:
            return frame
        self._is_alone = True
        return await self.next_frame(process, quiet_s)

    async def stop_reading(self) -> None:
        """Stops reading frames of the process, so that another reader may follow."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])

    async def find(
        self, entry: JournalEntry, call: ToolCall, asked_version: str | None, *, may_wait: bool
    ) -> FoundTool | Refused:
        """Finds the current tool for a call. `asked_version`: the version that a person was asked to approve.
        `may_wait`: the body itself or a scope makes the call. Raises `NotFound` if the agent is deleted, and
        `UnreadableSecret`."""
        context = await self._read()
        context.keys[call.id] = entry.idempotency_key
        tool = context.tools.get(call.name)
        if tool is None:
            attached = ", ".join(sorted(context.tools)) or "none"
            return Refused("UnknownTool", f"no tool of this name is attached to the agent. Attached are: {attached}")
        if asked_version is not None and asked_version != tool.version:
            return Refused("ChangedTool", "the tool was changed after a person was asked about this call")
        asks = context.asks_a_person(call.name)
        if asks and not may_wait:
            return Refused("NestedApproval", "it waits for a person, so only the body itself or a scope may call it")
        if "/" in entry.branch and is_base_tool(tool) and tool.name in CALLS_AGENTS:
            return Refused("NestedApproval", "it waits for another agent, so only the body itself may call it")
        checked = await check_arguments(call.arguments, self._services.runners.of(tool).arguments(tool))
        if isinstance(checked, RefusedArguments):
            return Refused("RefusedArguments", checked.text.removeprefix("Error: "))
        expires_s, on_expiry = expiry_of(context, call.name)
        return FoundTool(context, tool, asks, {"expires_s": expires_s, "on_expiry": on_expiry})

    async def end_of_lost(self, call: ToolCall, found: FoundTool, arguments: str) -> CallEnd | None:
        """Returns the end of a call that was started before: the stored one, the probe's, or an unknown outcome. None
        if the call is started again."""
        context, tool = found.context, found.tool
        started = await self._handle.calls.started()
        stored = started.get(call.id)
        if stored is None or self._services.runners.of(tool).traits.finds_its_result:
            # Only the run that made it finds the effect of a base tool. This run may continue another one.
            finds_it = not is_base_tool(tool) or context.run.continues is None or call.id in started
            may_repeat = tool.idempotent and finds_it and not found.asks
            stored = await result_of_lost_call(context, call, tool, arguments, may_repeat=may_repeat)
        return None if stored is None else CallEnd.of(stored)

    def start(self, slot: str, call: ToolCall, found: FoundTool, arguments: str) -> None:
        """Begins a call whose intent is stored. `arguments` is JSON."""
        self._tasks[slot] = self._in_group(_made(call, found, arguments), f"tool {call.name}")

    def is_making(self, slot: str) -> bool:
        """Whether the call of this slot is running."""
        return slot in self._tasks

    def end_of(self, slot: str, frame: Frame) -> Frame | None:
        """Returns the end of a call if it has ended. Otherwise the frame `made` will have the number of `frame`. If
        `frame` reports that the code has given the call up, the call is cancelled."""
        if slot not in self._tasks:
            return self._ends.pop(slot, {"t": "stored"})
        self._awaited[slot] = frame["id"]
        if frame["t"] == "end":
            self._tasks[slot].cancel()
        return None

    def take(self, slot: str) -> CallEnd | CallWaits:
        """Returns the end of a completed call, or the wait of a call that depends on other runs."""
        task = self._tasks.pop(slot)
        if task.cancelled():
            return CallEnd("failed", GIVEN_UP, None)
        made = task.result()
        return made if isinstance(made, CallWaits) else CallEnd.of(made)

    def keep(self, slot: str, end: Frame, number: int) -> Frame:
        """Returns the end of a call, and keeps it if no frame waits for it yet."""
        if number == NO_FRAME:
            self._ends[slot] = end
        return end

    def _in_group(self, work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
        group = self._group
        if group is None:
            raise RuntimeError("calls are made for a process")
        return group.create_task(work, name=name)

    async def _read(self) -> CallingCode:
        """Returns the agent with its current tools, rules and memory."""
        if self._context is None:
            loaded = await load_context(self._services, self._handle)
            parts = {name: getattr(loaded, name) for name in ("handle", "services", "equipment", "progress")}
            self._context = CallingCode(**parts, keys={})
        else:
            await self._context.read_equipment()
        return self._context


async def _made(call: ToolCall, found: FoundTool, arguments: str) -> ToolReturn | CallWaits:
    try:
        with found.context.observation.tool_call(call, None) as observed:
            result = await result_of(found.context, call, found.tool, arguments, is_shown=False)
            observed.returns(result)
            return result
    except CallWaits as waits:
        return waits


async def new_agent_of_turn(handle: RunHandle, services: AgentServices, replay: Replay) -> list[JournalEntry]:
    """Puts the current agent into a journal without one: if the turn begins, or if an older release began it. Returns
    the entry, to be stored with the next one. Raises `NotFound` if the agent is deleted."""
    run = handle.run
    if has_agent([*replay.entries.values()]):
        return []
    now = await handle.whole(lambda: services.agents.equipped(run.project_id, run.agent_id))
    size = characters_of_memory(now.blocks)
    text = await beside(lambda: agent_for_body(run, now.agent, now.blocks, now.tools), size)
    entry = agent_entry(run.journal, text, handle.clock.now())
    replay.put(entry)
    return [entry]


def all_of(waits: Sequence[CallWaits]) -> CallWaits:
    """Returns one wait for all runs that these calls wait for."""
    return CallWaits([child for one in waits for child in one.seen], min(one.wait for one in waits))
