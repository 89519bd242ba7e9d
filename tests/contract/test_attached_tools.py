"""Tools that are attached to an agent, as its own code calls them."""

import inspect
import json
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from arq.connections import ArqRedis
from msgspec.structs import replace

from shared.concurrency import SystemClock
from shared.domain.agents import Block
from shared.domain.events import ToolsReturned
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage
from shared.domain.runs import CancelRequest, Run, RunOptions
from shared.domain.settling import OUTCOME_UNKNOWN
from shared.domain.tools import CORE, Tool
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.blocks import BlockStore, MemoryStore
from shared.sql.definitions.tools import ToolStore
from shared.sql.runs.effects import EffectStore
from tests.kit.code_agents.stage import FileStage
from tests.kit.code_agents.world import World
from tests.kit.runs.definitions import NOW, PROJECT, some_block, some_tool
from tests.kit.runs.stored_runs import AGENT, IDS, said, stored_runs
from tests.kit.sandboxes import sandbox_of
from tests.kit.wait_until import wait_until
from worker.runners.base_tools import BaseToolRunner
from worker.runners.sandbox_tools import SandboxRunner
from worker.runners.tool_runner import RunnerRow

PROGRAM = "tests.kit.code_agents.attached_program"


def act(what: str, marks: str, idempotency_key: str) -> object:
    """
    Does what it is told.

    Args:
        what (str): What to do.
        marks (str): A folder that gets a file with a line when this begins.
    """
    import pathlib
    import threading

    folder = pathlib.Path(marks)

    with (folder / f"begun {what}").open("a") as file:
        file.write(f"{idempotency_key}\n")
    if what == "fail":
        raise ValueError("it cannot be done")
    if what == "data":
        return {"did": what}
    try:
        while what.startswith("hang") and not (folder / "go on").exists():
            threading.Event().wait(0.01)
    except BaseException:
        (folder / f"stopped {what}").touch()
        raise
    return f"did {what}"


def _probe_act(idempotency_key: str, marks: str) -> dict[str, object]:
    import pathlib

    (pathlib.Path(marks) / "asked").touch()
    return {"happened": (pathlib.Path(marks) / "happened").exists(), "result": "it was done"}


PARAMETERS = {
    "type": "object",
    "properties": {"what": {"type": "string"}, "marks": {"type": "string"}},
    "required": ["what", "marks"],
}


class _NoPackages:
    """Stands where packages are installed: the tool needs none."""

    def folders(self, _packages: object) -> "_NoPackages":
        return self

    async def __aenter__(self) -> tuple[str, ...]:
        return ()

    async def __aexit__(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class Desk:
    """An agent with tools, and workers that have its code and the runners."""

    world: World
    marks: Path

    async def attached(self, name: str = "act", **fields: Any) -> Tool:
        tool = some_tool(
            name,
            **{
                "source_code": inspect.getsource(act).replace("def act", f"def {name}"),
                "json_schema": {"name": name, "parameters": PARAMETERS},
                **fields,
            },
        )
        stored = await ToolStore(self.world.stores.database).upsert(tool)
        await AgentEditor(self.world.stores.database).attach_tool(PROJECT, AGENT.id, stored.id, NOW)
        return stored

    def call(self, what: str, tool: str = "act", **fields: Any) -> dict[str, Any]:
        return {"tool": tool, "arguments": {"what": what, "marks": str(self.marks)}, **fields}

    async def submitted(self, *calls: dict[str, Any]) -> Run:
        return await self.world.submitted("calls", json.dumps(calls))

    async def said(self, *calls: dict[str, Any]) -> str:
        run = await self.world.done(await self.submitted(*calls))
        assert run.status is RunStatus.COMPLETED, run.error
        return (await self.world.texts())[-1]

    def keys(self, what: str) -> list[str]:
        """The keys with which a call began, once for each time."""
        file = self.marks / f"begun {what}"
        return file.read_text().split() if file.exists() else []

    async def begins(self, what: str) -> None:
        await wait_until(lambda: self.keys(what), description=f"{what} to begin")

    def go_on(self) -> None:
        (self.marks / "go on").touch()

    @property
    def pid(self) -> int:
        return int([one for one in self.world.stage.reached if one.startswith("pid ")][-1].split()[1])

    async def effects(self, run: Run) -> list[tuple[str, str, int]]:
        effects = await EffectStore(self.world.stores.database).of_run(run, ())
        return [(one.name, one.state, one.attempt) for one in effects]


@pytest.fixture
async def desk(database_url: str, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[Desk]:
    stage, marks = FileStage(tmp_path / "stage"), tmp_path / "marks"
    for folder in (stage.folder, marks):
        folder.mkdir()
    async with (
        stored_runs(database_url) as stores,
        stage.agents(PROGRAM) as agents,
        sandbox_of("process", grace_s=0.5) as sandbox,
    ):
        functions = SandboxRunner(sandbox=sandbox, packages=cast("Any", _NoPackages()), timeout_s=30)
        memory = BaseToolRunner(
            memory=MemoryStore(stores.database),
            archival=cast("Any", None),
            message_lists=stores.lists,
            clock=SystemClock(),
            ids=IDS,
        )
        rows = (RunnerRow(memory, "letta_"), RunnerRow(functions))
        yield Desk(World(stores, stage, redis, agents, runners=rows), marks)


async def test_code_calls_a_tool_of_its_agent(desk: Desk) -> None:
    """Readers see the call with its result, as that of a model."""
    await desk.attached()
    run = await desk.world.done(await desk.submitted(desk.call("well")))
    assert (await desk.world.texts())[-1] == "'did well'"
    assert await desk.world.results() == ["did well"]
    assert await desk.effects(run) == [("act", "done", 1)]
    [returned] = [one for one in await desk.world.events(run) if isinstance(one, ToolsReturned)]
    assert returned.returns[0].tool_name == "act"
    calls = [one.tool_calls for one in await desk.world.stores.context() if isinstance(one, AssistantMessage)]
    assert [[one.name for one in of_answer] for of_answer in calls] == [["act"], []]
    [key] = desk.keys("well")
    assert key.startswith(f"hf-{run.id}-"), "it is the key of the journal"


async def test_a_result_that_is_json(desk: Desk) -> None:
    await desk.attached()
    assert await desk.said(desk.call("data", json=True)) == "{'did': 'data'}"


async def test_a_failed_tool_fails_its_step(desk: Desk) -> None:
    await desk.attached()
    text = await desk.said(desk.call("fail"))
    assert text.startswith("ToolError: "), text
    assert "it cannot be done" in text
    [result] = await desk.world.results()
    assert "it cannot be done" in result


async def test_a_tool_that_is_not_attached_is_refused(desk: Desk) -> None:
    await desk.attached()
    await desk.attached("look")
    text = await desk.said(desk.call("well", "fetch"))
    assert text == "UnknownTool: no tool of this name is attached to the agent. Attached are: act, look"
    assert await desk.world.is_valid()


async def test_arguments_that_do_not_fit_start_nothing(desk: Desk) -> None:
    await desk.attached()
    text = await desk.said({"tool": "act", "arguments": {"what": 1}})
    assert text.startswith("RefusedArguments: the arguments do not fit the tool's parameters"), text
    assert not list(desk.marks.iterdir())


async def test_calls_side_by_side(desk: Desk) -> None:
    """Both begin before one of them ends, and the history has each with its result."""
    await desk.attached()
    run = await desk.submitted(desk.call("hang 1"), desk.call("hang 2"))
    worker = await desk.world.workers().begin(run.id)
    for what in ("hang 1", "hang 2"):
        await desk.begins(what)
    desk.go_on()
    assert await worker.ended() is None
    assert (await desk.world.texts())[-1] == "'did hang 1'|'did hang 2'"
    assert sorted(await desk.world.results()) == ["did hang 1", "did hang 2"]
    assert await desk.world.is_valid()


async def test_a_call_inside_of_a_step_is_in_the_journal_alone(desk: Desk) -> None:
    await desk.attached()
    run = await desk.world.done(await desk.submitted(desk.call("well", inside=True)))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await desk.world.texts())[-1] == "did well"
    assert await desk.world.results() == []
    assert await desk.effects(run) == [("act", "done", 1)]


async def test_its_process_is_killed_while_the_tool_works(desk: Desk) -> None:
    """The worker makes the call, so nothing is lost: the next process gets the result."""
    await desk.attached()
    run = await desk.submitted(desk.call("hang"))
    worker = await desk.world.workers().begin(run.id)
    await desk.begins("hang")
    os.kill(desk.pid, signal.SIGKILL)
    desk.go_on()
    assert await worker.ended() is None
    assert (await desk.world.texts())[-1] == "'did hang'"
    assert len(desk.keys("hang")) == 1
    assert await desk.world.results() == ["did hang"]


async def test_its_process_is_killed_behind_the_call(desk: Desk) -> None:
    await desk.attached()
    run = await desk.submitted(desk.call("well"))
    worker = await desk.world.begun(run, "called")
    os.kill(desk.pid, signal.SIGKILL)
    desk.world.stage.go_on()
    assert await worker.ended() is None
    assert (await desk.world.texts())[-1] == "'did well'"
    assert len(desk.keys("well")) == 1


@pytest.mark.parametrize(
    ("kind", "text", "starts", "effect"),
    [
        ("plain", "unknown act", 1, ("act", "unknown", 1)),
        ("idempotent", "'did hang'", 2, ("act", "done", 2)),
        ("happened", "'it was done'", 1, ("act", "settled", 1)),
        ("did not happen", "'did hang'", 2, ("act", "done", 2)),
    ],
)
async def test_its_worker_is_lost_while_the_tool_works(
    desk: Desk, kind: str, text: str, starts: int, effect: tuple[str, str, int]
) -> None:
    source = inspect.getsource(act)
    if kind in ("happened", "did not happen"):
        source += "\n\n" + inspect.getsource(_probe_act)
    await desk.attached(idempotent=kind == "idempotent", source_code=source)
    run = await desk.submitted(desk.call("hang"))
    worker = await desk.world.workers().begin(run.id)
    await desk.begins("hang")
    await worker.die()
    if kind == "happened":
        (desk.marks / "happened").touch()
    desk.go_on()
    run = await desk.world.done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await desk.world.texts())[-1] == text
    keys = desk.keys("hang")
    assert (len(keys), len(set(keys))) == (starts, 1), "a call has one key"
    [result] = await desk.world.results()
    assert result == OUTCOME_UNKNOWN if kind == "plain" else result == text.strip("'")
    assert await desk.effects(run) == [effect]
    assert await desk.world.is_valid()


async def test_a_cancel_stops_the_tool(desk: Desk) -> None:
    """The receipt comes when it is gone, and the next message is taken."""
    await desk.attached()
    run = await desk.submitted(desk.call("hang"))
    worker = await desk.world.workers().begin(run.id)
    await desk.begins("hang")
    cancel = CancelRequest(requested_at=NOW, actor="ada", reason="enough")
    await desk.world.stores.runs.request_cancel(await desk.world.stores.runs.look_up(run.id), cancel)
    assert await worker.ended() is None
    assert (await desk.world.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED
    assert (desk.marks / "stopped hang").exists(), "it had its time to clean up"
    assert await desk.world.is_valid()
    assert await desk.said(desk.call("well")) == "'did well'"


@pytest.mark.parametrize("within_s", [1.0, 0.0001])
async def test_code_gives_a_call_up(desk: Desk, within_s: float) -> None:
    """Also before the worker has said that it begins: then the worker waited for its end for ever."""
    await desk.attached()
    assert await desk.said(desk.call("hang", within_s=within_s)) == "given up"
    assert await desk.world.is_valid()
    [result] = await desk.world.results()
    assert result == "Error: CancelledError: the body has given up this call"


async def test_what_is_in_hand_ends_when_its_worker_drains(desk: Desk) -> None:
    await desk.attached()
    run = await desk.submitted(desk.call("hang"))
    worker = await desk.world.workers().begin(run.id)
    await desk.begins("hang")
    worker.active.end_after_steps()
    desk.go_on()
    assert await worker.ended() is not None
    assert "called" not in desk.world.stage.reached
    assert (await desk.world.done(run)).status is RunStatus.COMPLETED
    assert len(desk.keys("hang")) == 1


async def _parked(desk: Desk, *calls: dict[str, Any]) -> Run:
    run = await desk.world.done(await desk.submitted(*calls))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    return run


async def test_a_person_decides_about_a_tool_that_needs_it(desk: Desk) -> None:
    await desk.attached(default_requires_approval=True, approval_expires_s=60)
    run = await _parked(desk, desk.call("well"))
    [asked] = await desk.world.stores.asked(run)
    assert asked.tool_name == "act"
    assert asked.expires_at is not None
    assert not desk.keys("well")
    run = await desk.world.done(await desk.world.approved(run))
    assert (await desk.world.texts())[-1] == "'did well'"
    assert await desk.effects(run) == [("act", "done", 1)]


async def test_a_rule_of_the_agent_asks_a_person(desk: Desk) -> None:
    await desk.attached()
    await AgentEditor(desk.world.stores.database).set_approval_override(
        PROJECT, AGENT.id, "act", required=True, now=NOW
    )
    run = await _parked(desk, desk.call("well"))
    await desk.world.done(await desk.world.approved(run))
    assert (await desk.world.texts())[-1] == "'did well'"


async def test_a_call_inside_of_a_step_asks_nobody(desk: Desk) -> None:
    await desk.attached(default_requires_approval=True)
    text = await desk.said(desk.call("well", inside=True))
    assert text.startswith("StepFailed: 'act' failed: NestedApproval"), text


async def test_the_tool_gets_the_arguments_as_the_person_has_left_them(desk: Desk) -> None:
    await desk.attached(default_requires_approval=True)
    run = await _parked(desk, desk.call("well"))
    edited = json.dumps(desk.call("better")["arguments"])
    await desk.world.done(await desk.world.approved(run, edited))
    assert (await desk.world.texts())[-1] == "'did better'"
    assert not desk.keys("well")


async def test_a_denied_tool_never_starts(desk: Desk) -> None:
    await desk.attached(default_requires_approval=True)
    run = await _parked(desk, desk.call("well"))
    await desk.world.done(await desk.world.denied(run, "too much"))
    assert (await desk.world.texts())[-1] == "denied too much"
    assert not desk.keys("well")
    assert await desk.world.is_valid()


async def test_a_tool_that_has_changed_since_a_person_was_asked_is_not_called(desk: Desk) -> None:
    tool = await desk.attached(default_requires_approval=True)
    run = await _parked(desk, desk.call("well"))
    changed = f"{tool.source_code}\n# changed"
    await ToolStore(desk.world.stores.database).upsert(tool, lambda one: replace(one, source_code=changed))
    await desk.world.done(await desk.world.approved(run))
    assert (await desk.world.texts())[-1].startswith("ChangedTool: ")
    assert not desk.keys("well")


async def test_an_approved_tool_whose_worker_is_lost(desk: Desk) -> None:
    """It was started, so it is not started again, and not asked about again."""
    await desk.attached(default_requires_approval=True)
    run = await desk.world.approved(await _parked(desk, desk.call("hang")))
    worker = await desk.world.workers().begin(run.id)
    await desk.begins("hang")
    await worker.die()
    desk.go_on()
    run = await desk.world.done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await desk.world.texts())[-1] == "unknown act"
    assert len(desk.keys("hang")) == 1


REMEMBER = {"tool": "core_memory_append", "arguments": {"label": "human", "content": "Likes otters."}}


async def _block(desk: Desk, **fields: Any) -> Block:
    database = desk.world.stores.database
    block = await BlockStore(database).create(some_block(**fields))
    await AgentEditor(database).attach_block(PROJECT, AGENT.id, block.id, NOW)
    return block


async def test_code_edits_the_memory_of_its_agent(desk: Desk) -> None:
    block = await _block(desk)
    await desk.attached("core_memory_append", tool_type=CORE, idempotent=True)
    await desk.said(REMEMBER)
    stored = await BlockStore(desk.world.stores.database).get(PROJECT, block.id)
    assert stored.value == "Likes tea.\nLikes otters."


async def test_an_agent_is_the_same_in_every_attempt(desk: Desk) -> None:
    """Its code saw other blocks after a crash, and went another way than its journal."""
    database = desk.world.stores.database
    block = await _block(desk, description="The user", limit=500, read_only=True)
    await desk.attached()
    run = await desk.world.submitted("knows")
    worker = await desk.world.begun(run, "looked")
    await worker.die()
    await BlockStore(database).update(PROJECT, block.id, lambda one: replace(one, value="Likes coffee."), NOW)
    desk.world.stage.go_on()
    assert (await desk.world.done(run)).status is RunStatus.COMPLETED
    text = (await desk.world.texts())[-1]
    assert "['human=Likes tea. (The user, 500, True)']" in text
    assert f"act: Rolls dice. {json.dumps(PARAMETERS)}" in text
    assert AGENT.name in text
    assert [one for one in desk.world.stage.reached if one.startswith("knows")] == [f"knows {text}"] * 2
    await desk.world.done(await desk.world.submitted("knows"))
    assert "Likes coffee." in (await desk.world.texts())[-1], "the next turn begins with the agent as it is then"


async def test_instructions_of_the_request_are_the_agents(desk: Desk) -> None:
    options = RunOptions(code_agent="knows", stream_tokens=True, added_system="Be brief.")
    await desk.world.done(await desk.world.stores.submitted(said("go"), options=options))
    assert f"{AGENT.system}\n\nBe brief." in (await desk.world.texts())[-1]


async def test_an_agent_that_is_too_large_is_refused_by_its_size(desk: Desk) -> None:
    """Code that does not ask for it works all the same."""
    for number in range(11):
        await _block(desk, label=f"block {number}", value="x" * 99_000)
    await desk.world.done(await desk.world.submitted("knows"))
    text = (await desk.world.texts())[-1]
    assert text.endswith("detach blocks or tools that the code does not need, or shorten them"), text
    await desk.attached()
    assert await desk.said(desk.call("well")) == "'did well'"
