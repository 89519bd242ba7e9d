"""An agent whose one tool sends words, with a probe that finds out whether a word was sent, and its workers. The
tool is written in Python or in TypeScript, or an MCP server runs it.

Sent words are files in a folder, like data of an outside service: a test sees each effect, under its key.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

from arq.connections import ArqRedis
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from msgspec.structs import replace

from shared.domain.effects import Effect
from shared.domain.ids import AgentId
from shared.domain.mcp_servers import IDEMPOTENCY_KEY, NAMES_PROBE
from shared.domain.messages import ToolReturn, ToolReturns, UserMessage, text_of
from shared.domain.runs import Run, Usage
from shared.domain.tools import Tool
from shared.mcp_tools import TakeOver
from shared.secret_keys import NO_KEYS
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.tools import ToolStore
from shared.sql.runs.effects import EffectStore
from tests.kit.mcp.official import OfficialServer, official_server
from tests.kit.mcp.one_server import THE_SERVER, runner_of
from tests.kit.node import need_node
from tests.kit.runs.definitions import NOW, some_agent, some_tool
from tests.kit.runs.executing import OneWorker, Workers
from tests.kit.runs.guest_bodies import NoFolders
from tests.kit.runs.stored_runs import IDS, Stores, said, stored_runs
from tests.kit.sandboxes import sandbox_of
from tests.kit.wait_until import wait_until
from worker.bodies.agent_context import AgentBody, AgentServices
from worker.bodies.step_loop import run_steps
from worker.models.provider import CallFinished, Finished, ModelCall, ModelEvent, Text
from worker.runners.sandbox_tools import SandboxRunner
from worker.runners.tool_runner import RunnerRow, ToolRunner, ToolRunners
from worker.tools.interpreter import NodeProgram

SEND = r'''
def send(word: str, folder: str, idempotency_key: str = "") -> str:
    """
    Sends a word.

    Args:
        word (str): The word.
        folder (str): What has the sent words, and says where a call stands still.
    """
    import os
    import pathlib
    import time

    def reach(place: str) -> None:
        with (root / "reached").open("a") as file:
            file.write(place + "\n")
        while (root / f"stop {place}").exists():
            time.sleep(0.01)

    root = pathlib.Path(folder)
    assert idempotency_key == os.environ["HOLDFAST_IDEMPOTENCY_KEY"]
    reach("before")
    with (root / f"sent {idempotency_key}").open("a") as file:
        file.write(word + "\n")
    reach("after")
    return "sent " + word
'''

PROBE = r"""
def _probe_send(folder: str, *, idempotency_key: str) -> object:
    import pathlib

    root = pathlib.Path(folder)
    with (root / "reached").open("a") as file:
        file.write("asked\n")
    if (root / "away").exists():
        (root / "away").unlink()
        raise ConnectionError("the service is away")
    if (root / "silent").exists():
        return None
    sent = root / f"sent {idempotency_key}"
    if sent.exists():
        return {"happened": True, "result": {"found": sent.read_text().split()}}
    return {"happened": False}
"""

WITH_PROBE = PROBE + SEND

IN_TYPESCRIPT = """
import { appendFileSync, existsSync, readFileSync, unlinkSync } from "node:fs";

const key: string = process.env.HOLDFAST_IDEMPOTENCY_KEY ?? "";

export function _probe_send(folder: string): unknown {
  appendFileSync(`${folder}/reached`, "asked\\n");
  if (existsSync(`${folder}/away`)) {
    unlinkSync(`${folder}/away`);
    throw new Error("the service is away");
  }
  if (existsSync(`${folder}/silent`)) return null;
  const sent = `${folder}/sent ${key}`;
  if (!existsSync(sent)) return { happened: false };
  return { happened: true, result: { found: readFileSync(sent, "utf8").trim().split("\\n") } };
}

export async function send(word: string, folder: string): Promise<string> {
  const reach = async (place: string) => {
    appendFileSync(`${folder}/reached`, `${place}\\n`);
    while (existsSync(`${folder}/stop ${place}`)) await new Promise((done) => setTimeout(done, 10));
  };
  await reach("before");
  appendFileSync(`${folder}/sent ${key}`, `${word}\\n`);
  await reach("after");
  return `sent ${word}`;
}
"""


@asynccontextmanager
async def sending_server() -> AsyncGenerator[OfficialServer]:
    """An MCP server whose tool `send` names another one as its probe. A paused call does nothing more."""
    async with official_server("json") as server:

        async def send(word: str, folder: str, context: Context[Any, Any]) -> str:
            root, key = Path(folder), _key_of(context)

            async def reach(place: str) -> None:
                _note(root, place)
                if (root / f"stop {place}").exists():
                    await server.going_on.wait()
                    raise ToolError("it was given up")

            await reach("before")
            with (root / f"sent {key}").open("a") as file:
                file.write(word + "\n")
            await reach("after")
            return f"sent {word}"

        def was_sent(folder: str, idempotency_key: str, context: Context[Any, Any]) -> dict[str, Any] | None:
            assert idempotency_key == _key_of(context)
            root = Path(folder)
            _note(root, "asked")
            if (root / "away").exists():
                (root / "away").unlink()
                raise ToolError("the service is away")
            if (root / "silent").exists():
                return None
            sent = root / f"sent {idempotency_key}"
            found = {"result": {"found": sent.read_text().split()}} if sent.exists() else {}
            return {"happened": sent.exists(), **found}

        server.mcp.add_tool(send, meta={NAMES_PROBE: "was_sent"})
        server.mcp.add_tool(was_sent, annotations=ToolAnnotations(read_only_hint=True))
        yield server


def _key_of(context: Context[Any, Any]) -> str:
    return (context.request_context.meta or {})[IDEMPOTENCY_KEY]


def _note(root: Path, place: str) -> None:
    with (root / "reached").open("a") as file:
        file.write(place + "\n")


class _SendsOnce:
    """A model that sends the requested words, and ends with the result."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        last = call.history[-1].body
        if isinstance(last, UserMessage):
            yield CallFinished(0, "call-1", "send", text_of(last.content))
        else:
            yield Text("done")
        yield Finished("tool_calls" if isinstance(last, UserMessage) else "stop", Usage(), None)


class _NoPackages:
    """Replaces the installation of packages: the tool needs none."""

    @asynccontextmanager
    async def folders(self, _packages: object) -> AsyncGenerator[tuple[str, ...]]:
        yield ()


@dataclass(frozen=True)
class Sending:
    """The agent, and workers."""

    stores: Stores
    workers: Workers
    agent_id: AgentId
    folder: Path
    runner: ToolRunner
    later_workers: Callable[[ToolRunner], Workers]
    """Workers that have another runner."""

    async def lost(self, place: str) -> Run:
        """A run whose worker has died when its tool was there."""
        (self.folder / f"stop {place}").touch()
        run = await self.submitted()
        worker = await self.begun(run)
        await wait_until(lambda: place in self.reached, description=f"the tool to be {place} its effect")
        await worker.die()
        (self.folder / f"stop {place}").unlink()
        return run

    async def submitted(self) -> Run:
        given = json.dumps({"word": "hello", "folder": str(self.folder)})
        return await self.stores.submitted(said(given), agent_id=self.agent_id)

    async def begun(self, run: Run) -> OneWorker:
        return await self.workers.begin(run.id)

    async def done(self, run: Run) -> ToolReturn:
        """The result of the call, once another worker has ended the run."""
        assert await (await self.begun(run)).ended() is None
        [returns] = [body for body in await self.stores.context() if isinstance(body, ToolReturns)]
        return returns.returns[0]

    async def effect(self, run: Run) -> Effect:
        run = await self.stores.runs.look_up(run.id)
        turn = await self.stores.messages.list_of_turn(run)
        [effect] = await EffectStore(self.stores.database).of_run(run, turn)
        return effect

    @property
    def reached(self) -> list[str]:
        log = self.folder / "reached"
        return log.read_text().split() if log.exists() else []

    @property
    def sent(self) -> dict[str, list[str]]:
        """The words that were sent, by their keys."""
        return {file.name.removeprefix("sent "): file.read_text().split() for file in self.folder.glob("sent *")}


@asynccontextmanager
async def _of_source(
    source: str, source_type: str, fields: dict[str, Any], node: NodeProgram | None = None
) -> AsyncGenerator[tuple[Tool, ToolRunner]]:
    parameters = {"type": "object", "properties": {"word": {"type": "string"}, "folder": {"type": "string"}}}
    schema = {"name": "send", "parameters": parameters}
    tool = some_tool("send", source_code=source, source_type=source_type, json_schema=schema, **fields)
    async with sandbox_of("process", node=node) as sandbox:
        yield tool, SandboxRunner(sandbox=sandbox, packages=cast("Any", _NoPackages()), timeout_s=60)


@asynccontextmanager
async def _of_server(fields: dict[str, Any]) -> AsyncGenerator[tuple[Tool, ToolRunner]]:
    async with sending_server() as server, runner_of(server, 60) as runner:
        listed = await runner.client.list_tools(server.target)
        taking = TakeOver(remote=[one for one in listed if one.name == "send"], new_id=IDS.tool, now=NOW)
        [tool] = taking.changes(THE_SERVER, [], []).added
        yield replace(tool, **fields), runner


Way = Literal["python", "typescript", "mcp"]
WAYS: tuple[Way, ...] = get_args(Way)
"""The kind of the tool."""


@asynccontextmanager
async def sending(
    database_url: str,
    redis: ArqRedis,
    folder: Path,
    *,
    way: Way = "python",
    source: str = WITH_PROBE,
    **fields: Any,
) -> AsyncGenerator[Sending]:
    """Agents with the tool, in a database. `source`: of the tool in Python. `fields`: of the tool's row."""
    Path.mkdir(folder, exist_ok=True)
    fields = {"return_char_limit": 100, **fields}
    match way:
        case "python":
            made = _of_source(source, "python", fields)
        case "typescript":
            made = _of_source(IN_TYPESCRIPT, "typescript", fields, need_node())
        case "mcp":
            made = _of_server(fields)
    async with stored_runs(database_url) as stores, made as (row, runner):
        tool = await ToolStore(stores.database).upsert(row)
        agent = some_agent(name="Sender", tool_ids=[tool.id])
        await AgentEditor(stores.database).create(agent, system_message_id=IDS.message())
        workers = partial(_workers, stores, redis)
        yield Sending(stores, workers(runner), agent.id, folder, runner, workers)


def _workers(stores: Stores, redis: ArqRedis, runner: ToolRunner) -> Workers:
    services = AgentServices(
        models=cast("Any", _SendsOnce()),
        sandbox=runner.sandbox if isinstance(runner, SandboxRunner) else cast("Any", NoFolders()),
        runners=ToolRunners(RunnerRow(runner)),
        agents=stores.agents,
        secret_keys=NO_KEYS,
        approvals=stores.approvals,
        steps=stores.steps,
    )
    return Workers(stores, redis, {"message": AgentBody(services, run_steps)})
