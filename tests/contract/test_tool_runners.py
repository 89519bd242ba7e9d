"""What holds for the calls of every runner: results, failures, secrets, length, time, cancels and crashes.

A new kind of tool brings one line in `RUNNERS`: what makes its runner, whose tool `act` does what its argument says.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from arq.connections import ArqRedis
from mcp.server.mcpserver.exceptions import ToolError

from shared.domain.lifecycle import RunStatus
from shared.domain.mcp_servers import MCP_TYPE, ToolSource, source_metadata
from shared.domain.messages import AssistantMessage, ToolCall, ToolReturn, ToolReturns, UserMessage, text_of
from shared.domain.runs import Run, Usage
from shared.domain.settling import open_calls
from shared.domain.tools import Tool
from shared.secret_keys import NO_KEYS
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.tools import ToolStore
from tests.kit.mcp.official import official_server
from tests.kit.mcp.one_server import THE_SERVER, runner_of
from tests.kit.project.documents import ROOT
from tests.kit.runs.definitions import PROJECT, some_agent, some_tool
from tests.kit.runs.executing import OneWorker, Workers
from tests.kit.runs.guest_bodies import NoFolders
from tests.kit.runs.stored_runs import CANCEL, IDS, THREAD, Stores, found, said, stored_runs
from tests.kit.sandboxes import sandbox_of
from tests.kit.wait_until import wait_until
from worker import tool_runners
from worker.bodies.agent_context import AgentBody, AgentServices
from worker.bodies.step_loop import run_steps
from worker.models.provider import CallFinished, Finished, ModelCall, ModelEvent, Text
from worker.runners.sandbox_tools import SandboxRunner
from worker.runners.tool_runner import (
    CallingRun,
    ForeignOutcome,
    RunnerRow,
    RunnerTraits,
    ToolRunner,
    ToolRunners,
)
from worker.tools.outcomes import ToolOutcome

SECRET = 's3cr3t "quoted" value'
LIMIT = 500
TIMEOUT_S = 1.5


def act(what: str, marks: str) -> str:
    """
    Does what it is told.

    Args:
        what (str): What to do.
        marks (str): A file that gets a line when this begins.
    """
    import os
    import pathlib
    import threading

    with pathlib.Path(marks).open("a") as file:
        file.write("begun\n")
    if what == "fail":
        raise ValueError("it cannot be done")
    if what == "tell":
        print(os.environ["TOKEN"])
        return os.environ["TOKEN"]
    if what == "write":
        return "x" * 100_000
    if what == "hang":
        threading.Event().wait(60)
    return f"did {what}"


class Server:
    """A runner that asks somebody else's server, which answers as `act` does."""

    traits = RunnerTraits(timeout_s=TIMEOUT_S)

    def __init__(self, *, makes_json: bool = False) -> None:
        self._makes_json = makes_json

    def arguments(self, tool: Tool) -> dict[str, Any]:
        return tool.parameters

    async def call(
        self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]
    ) -> ToolReturn | ForeignOutcome:
        _mark(Path(arguments["marks"]))
        if arguments["what"] == "hang":
            await asyncio.Event().wait()
        texts = {"fail": "it cannot be done", "tell": run.secrets["TOKEN"], "write": "x" * 100_000}
        text = texts.get(arguments["what"], f"did {arguments['what']}")
        outcome = ToolOutcome("error" if arguments["what"] == "fail" else "success", text, stdout=[text])
        if self._makes_json:
            return ForeignOutcome(outcome, partial(_as_json, call))
        return _returned(call, outcome, text)


def _mark(marks: Path) -> None:
    with marks.open("a") as file:
        file.write("begun\n")


def _as_json(call: ToolCall, outcome: ToolOutcome) -> ToolReturn:
    return _returned(call, outcome, json.dumps({"said": outcome.text}))


def _returned(call: ToolCall, outcome: ToolOutcome, text: str) -> ToolReturn:
    return ToolReturn(
        tool_call_id=call.id, tool_name=call.name, status=outcome.status, text=text, stdout=outcome.stdout, stderr=[]
    )


@asynccontextmanager
async def server() -> AsyncGenerator[ToolRunner]:
    yield Server()


@asynccontextmanager
async def server_with_json() -> AsyncGenerator[ToolRunner]:
    yield Server(makes_json=True)


class _NoPackages:
    """Stands where packages are installed: the tool needs none."""

    @asynccontextmanager
    async def folders(self, _packages: object) -> AsyncGenerator[tuple[str, ...]]:
        yield ()


@asynccontextmanager
async def functions() -> AsyncGenerator[ToolRunner]:
    async with sandbox_of("process") as sandbox:
        yield SandboxRunner(sandbox=sandbox, packages=cast("Any", _NoPackages()), timeout_s=TIMEOUT_S)


@asynccontextmanager
async def mcp_server() -> AsyncGenerator[ToolRunner]:
    async with official_server("json") as server:

        async def acts(what: str, marks: str) -> str:
            _mark(Path(marks))
            if what == "hang":
                await server.going_on.wait()
            if what == "fail":
                raise ToolError("it cannot be done")
            return {"tell": SECRET, "write": "x" * 100_000}.get(what, f"did {what}")

        server.mcp.add_tool(acts, name="act")
        async with runner_of(server, TIMEOUT_S) as runner:
            yield runner


RUNNERS: dict[str, Callable[[], AbstractAsyncContextManager[ToolRunner]]] = {
    "a server": server,
    "a server whose answers become JSON": server_with_json,
    "functions": functions,
    "an MCP server": mcp_server,
}

HERE = {"McpToolRunner", "SandboxRunner"}
ELSEWHERE = {
    "AgentToolRunner": "tests/story/test_run_trees.py",
    "BaseToolRunner": "tests/story/test_memory_tools.py",
    "ProgramRunner": "tests/story/test_run_code.py",
}
"""Runners of tools that Holdfast itself defines, so none of them can do what `act` does; and where their cases are."""


class _CallsOnce:
    """A model that calls the tool with its question, and ends with the result."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        last = call.history[-1].body
        if isinstance(last, UserMessage):
            yield CallFinished(0, "call-1", "act", text_of(last.content))
        else:
            yield Text("done")
        yield Finished("tool_calls" if isinstance(last, UserMessage) else "stop", Usage(), None)


@dataclass(frozen=True)
class Calls:
    """An agent with the tool, and workers that have its runner."""

    stores: Stores
    workers: Workers
    agent_id: Any
    marks: Path

    async def begun(self, what: str) -> tuple[Run, OneWorker]:
        """A run whose tool has begun."""
        run = await self.submitted(what)
        worker = await self.workers.begin(run.id)
        await wait_until(lambda: self.marks.exists() and self.marks.read_text(), description="the tool has begun")
        return run, worker

    async def submitted(self, what: str) -> Run:
        given = json.dumps({"what": what, "marks": str(self.marks)})
        return await self.stores.submitted(said(given), agent_id=self.agent_id)

    async def result(self, run: Run) -> ToolReturn:
        """The result of the call, once the run has ended."""
        worker = await self.workers.begin(run.id)
        assert await worker.ended() is None
        assert (await self.stores.runs.look_up(run.id)).status is RunStatus.COMPLETED
        return await self.stored()

    async def stored(self) -> ToolReturn:
        """The result in the history."""
        [returns] = [body for body in await self.stores.context() if isinstance(body, ToolReturns)]
        return returns.returns[0]

    @property
    def starts(self) -> int:
        return len(self.marks.read_text().splitlines())


def test_every_runner_of_a_worker_has_its_cases() -> None:
    runners = {
        name for name, found in vars(tool_runners).items() if isinstance(found, type) and name.endswith("Runner")
    }
    assert HERE | set(ELSEWHERE) == runners, "give it a line in RUNNERS, and its name in HERE or ELSEWHERE"
    assert [place for place in ELSEWHERE.values() if not (ROOT / place).is_file()] == []


@pytest.fixture(params=list(RUNNERS))
async def calls(
    request: pytest.FixtureRequest, database_url: str, redis: ArqRedis, tmp_path: Path
) -> AsyncGenerator[Calls]:
    async with stored_runs(database_url) as stores, RUNNERS[request.param]() as runner:
        parameters = {"type": "object", "properties": {"what": {"type": "string"}, "marks": {"type": "string"}}}
        tool = await ToolStore(stores.database).upsert(
            some_tool(
                "act",
                source_code=inspect.getsource(act),
                json_schema={"name": "act", "parameters": parameters},
                return_char_limit=LIMIT,
                tool_type=MCP_TYPE,
                metadata=source_metadata(ToolSource(THE_SERVER.id, "actors", "act")),
            )
        )
        agent = some_agent(name="Actor", tool_ids=[tool.id], tool_environment={"TOKEN": SECRET})
        await AgentEditor(stores.database).create(agent, system_message_id=IDS.message())
        services = AgentServices(
            models=cast("Any", _CallsOnce()),
            sandbox=cast("Any", NoFolders()),
            runners=ToolRunners(RunnerRow(runner)),
            agents=stores.agents,
            secret_keys=NO_KEYS,
            approvals=stores.approvals,
            steps=stores.steps,
        )
        workers = Workers(stores, redis, {"message": AgentBody(services, run_steps)})
        yield Calls(stores, workers, agent.id, tmp_path / "marks")


async def test_what_it_returns_is_the_result(calls: Calls) -> None:
    result = await calls.result(await calls.submitted("something"))
    assert (result.status, "did something" in result.text, calls.starts) == ("success", True, 1)


async def test_a_failure_is_a_result(calls: Calls) -> None:
    result = await calls.result(await calls.submitted("fail"))
    assert (result.status, "it cannot be done" in result.text) == ("error", True)


async def test_arguments_that_do_not_fit_start_nothing(calls: Calls) -> None:
    given = json.dumps({"what": 7, "marks": str(calls.marks)})
    result = await calls.result(await calls.stores.submitted(said(given), agent_id=calls.agent_id))
    assert (result.status, calls.marks.exists()) == ("error", False)


async def test_a_secret_leaves_in_no_form(calls: Calls) -> None:
    """A runner that made its result by itself was believed to have left secrets out: redaction went by its type."""
    result = await calls.result(await calls.submitted("tell"))
    assert "[secret TOKEN]" in result.text
    for text in (result.text, *(result.stdout or ()), *(result.stderr or ())):
        assert "s3cr3t" not in text


async def test_a_long_result_is_cut_to_the_tools_limit(calls: Calls) -> None:
    result = await calls.result(await calls.submitted("write"))
    assert LIMIT // 2 < result.text.count("xx") * 2 <= LIMIT
    assert len(result.text) < LIMIT + 300


async def test_a_call_that_never_ends_costs_its_time_alone(calls: Calls) -> None:
    """The run goes on, and the result says what happened."""
    result = await calls.result(await calls.submitted("hang"))
    assert (result.status, calls.starts) == ("error", 1)
    assert "1.5" in result.text


async def test_a_cancel_ends_the_call(calls: Calls) -> None:
    run, worker = await calls.begun("hang")
    await calls.stores.runs.request_cancel(await calls.stores.runs.look_up(run.id), CANCEL)
    assert await worker.ended() is None
    assert (await calls.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED
    assert open_calls(await calls.stores.messages.context(PROJECT, THREAD)) is None


async def test_a_call_whose_worker_died_is_started_once(calls: Calls) -> None:
    """Nobody knows what it came to, and the result says so."""
    run, worker = await calls.begun("hang")
    await worker.die()
    result = await calls.result(run)
    assert (result.is_unknown, calls.starts) == (True, 1)


async def test_a_result_that_was_stored_counts(calls: Calls) -> None:
    run, worker = await calls.begun("hang")
    claimed = await calls.stores.runs.look_up(run.id)
    await calls.stores.checkpoints.record_results(claimed, [found("call-1", "stored")])
    await worker.die()
    assert ((await calls.result(run)).text, calls.starts) == ("stored", 1)
    assert isinstance((await calls.stores.context())[-1], AssistantMessage)
