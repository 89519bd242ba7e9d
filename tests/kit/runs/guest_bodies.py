"""Bodies that obey the words of their input, and wait where a test wants it.

`say`: text. `look`: a call of a tool that may be started once. `ask`: the same, once a person has agreed. Each word is
a step, and behind the last one the run ends with `done`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from shared.domain.events import TextChunk, ToolsReturned
from shared.domain.ids import RunId, StepId
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import (
    AssistantMessage,
    Message,
    NewMessage,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
    text_of,
)
from shared.domain.runs import Run, Usage
from shared.domain.settling import OpenCalls, RunEnd, decided_return, open_calls
from shared.domain.tools import Tool
from shared.secret_keys import NO_KEYS
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.tools import ToolStore
from tests.kit.runs.definitions import NOW, PROJECT, some_tool
from tests.kit.runs.stored_runs import AGENT, Stores, found, request_of
from tests.kit.wait_until import wait_until
from worker.bodies.agent_context import AgentBody, AgentServices
from worker.bodies.step_loop import run_steps
from worker.models.provider import CallFinished, Finished, ModelCall, ModelEvent, Text
from worker.run.run_handle import Body, Outcome, Parked, RunHandle
from worker.runners.tool_runner import CallingRun, RunnerRow, RunnerTraits, ToolRunners


@dataclass
class Stage:
    """The places that bodies have reached, in all workers, and where they wait."""

    reached: list[str] = field(default_factory=list[str])
    asked: list[ModelCall] = field(default_factory=list[ModelCall])
    """The requests to the model."""
    _stops: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    def stop_at(self, moment: str) -> None:
        """A body that reaches this place waits there."""
        self._stops[moment] = asyncio.Event()

    def go_on(self) -> None:
        """Releases all bodies, and lets none wait any more."""
        for stop in self._stops.values():
            stop.set()

    async def at(self, moment: str) -> None:
        """Records that a body has reached this place, and waits until no test stops it."""
        self.reached.append(moment)
        if moment in self._stops:
            await self._stops[moment].wait()

    async def is_reached(self, moment: str) -> None:
        """Returns when a body has been here."""
        await wait_until(lambda: moment in self.reached, description=moment)


def words_of(history: list[Message], run: Run) -> list[str]:
    """The run's instructions: the words of the message that began its turn."""
    turn = [one for one in history if one.turn == run.turn and isinstance(one.body, UserMessage)]
    return text_of(cast("UserMessage", turn[0].body).content).split()


class WordsBody(Body):
    """The smallest whole body: it knows nothing of a run but its handle."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def execute(self, handle: RunHandle) -> Outcome | Parked:
        while True:
            handle.stop_if_asked()
            await handle.inbox.deliver()
            history = list((await handle.history()).messages)
            number = int(await handle.state() or 0)
            if (open_ := open_calls(history)) is not None:
                await self._answer(handle, open_)
            elif number == len(words := words_of(history, handle.run)):
                end = RunEnd(trigger=RunTrigger.COMPLETE, stop_reason="end_turn")
                return Outcome(end=end, messages=[_message(handle, AssistantMessage(text="done"))], is_answer=True)
            elif (parked := await self._take_step(handle, number, words[number])) is not None:
                return parked

    async def _take_step(self, handle: RunHandle, number: int, word: str) -> Parked | None:
        call = ToolCall(f"call-{number}", word, "{}", needs_approval=word == "ask")
        said = _message(handle, AssistantMessage(text=f"{word} {number}", tool_calls=[] if word == "say" else [call]))
        handle.emit(TextChunk(handle.at, StepId(f"step-{number}"), said.id, f"{word} {number}"))
        await self._stage.at(f"model {number}")
        starting, state = ([call] if word == "look" else []), str(number + 1).encode()
        if word == "ask":
            await handle.checkpoint(state=state)
            return await handle.park([said], [request_of(handle.run, said, call)])
        await handle.checkpoint([said], starting=starting, state=state)
        return None

    async def _answer(self, handle: RunHandle, open_: OpenCalls) -> None:
        decisions = {one.tool_call_id: one for one in open_.decisions}
        results = [
            decided_return(call, decisions.get(call.id)) or await handle.calls.make(call, self._look_for(call))
            for call in open_.calls
        ]
        message = _message(handle, ToolReturns(results))
        handle.emit(ToolsReturned(handle.at, None, message.id, results))
        await handle.checkpoint([message])

    def _look_for(self, call: ToolCall) -> Callable[[], Any]:
        async def look() -> ToolReturn:
            await self._stage.at(f"tool {call.id}")
            return found(call.id)

        return look


def _message(handle: RunHandle, body: Any) -> NewMessage:
    return NewMessage(id=handle.ids.message(), created_at=handle.clock.now(), body=body)


class _WordsModel:
    """A model that obeys the words of its question."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        self._stage.asked.append(call)
        asked = max(at for at, one in enumerate(call.history) if _begins(one))
        words = text_of(cast("UserMessage", call.history[asked].body).content).split()
        number = sum(isinstance(one.body, AssistantMessage) for one in call.history[asked:])
        word = words[number] if number < len(words) else "done"
        yield Text("done" if word == "done" else f"{word} {number}")
        await self._stage.at(f"model {number}")
        calls = word in ("look", "ask")
        if calls:
            yield CallFinished(0, f"call-{number}", word, "{}")
        yield Finished("tool_calls" if calls else "stop", Usage(prompt_tokens=1, completion_tokens=1), None)


def _begins(message: Message) -> bool:
    return isinstance(message.body, UserMessage) and not text_of(message.body.content).startswith("injected")


class _Looks:
    """The runner of all tools."""

    traits = RunnerTraits(sees_secrets=False)

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def arguments(self, tool: Tool) -> dict[str, Any]:
        return tool.parameters

    async def call(self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> ToolReturn:
        await self._stage.at(f"tool {call.id}")
        return found(call.id)


class NoFolders:
    """Replaces the sandbox."""

    def of_run(self, run_id: RunId) -> AbstractAsyncContextManager[None]:
        return nullcontext()


async def agent_loop(stores: Stores, stage: Stage) -> Body:
    """The product's own loop, with an agent that has the tools."""
    for tool in (some_tool("look"), some_tool("ask", default_requires_approval=True)):
        stored = await ToolStore(stores.database).upsert(tool)
        await AgentEditor(stores.database).attach_tool(PROJECT, AGENT.id, stored.id, NOW)
    services = AgentServices(
        models=cast("Any", _WordsModel(stage)),
        sandbox=cast("Any", NoFolders()),
        runners=ToolRunners(RunnerRow(_Looks(stage))),
        agents=stores.agents,
        secret_keys=NO_KEYS,
        approvals=stores.approvals,
        steps=stores.steps,
    )
    return AgentBody(services, run_steps)


async def words_body(_stores: Stores, stage: Stage) -> Body:
    """The smallest one."""
    return WordsBody(stage)
