"""Agents of a program, the stores of their runs, and workers that offer them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arq.connections import ArqRedis

from shared.concurrency import Clock, SystemClock
from shared.domain.events import StepRestarted, TextChunk, decode
from shared.domain.ids import Seq
from shared.domain.limits import Budgets
from shared.domain.messages import Decision, ToolReturns
from shared.domain.runs import Run, RunOptions
from shared.domain.settling import open_calls
from tests.kit.code_agents.services import UNSERVED, services_of_code
from tests.kit.code_agents.stage import FileStage
from tests.kit.runs.definitions import PROJECT
from tests.kit.runs.executing import OneWorker, Workers
from tests.kit.runs.stored_runs import THREAD, Stores, said, stored_runs, texts_of
from worker.agents.code_body import CodeBody
from worker.agents.hosts import CodeAgents
from worker.runners.tool_runner import RunnerRow


@dataclass(frozen=True)
class World:
    """Agents, and workers that offer them."""

    stores: Stores
    stage: FileStage
    redis: ArqRedis
    agents: CodeAgents
    budgets: Budgets = field(default_factory=Budgets)
    clock: Clock = field(default_factory=SystemClock)
    runners: tuple[RunnerRow, ...] = ()
    """Of the tools that are attached to the agent."""

    def workers(self, agents: CodeAgents | None = None) -> Workers:
        body = CodeBody(
            agents or self.agents,
            services_of_code(self.stores, *self.runners),
            grace_s=0.5,
            endpoint=UNSERVED,
            quiet_s=0.3,
        )
        return Workers(self.stores, self.redis, {"code": body}, self.budgets, clock=self.clock)

    async def submitted(self, agent: str, text: str = "go", **fields: Any) -> Run:
        options = RunOptions(code_agent=agent, stream_tokens=True)
        return await self.stores.submitted(said(text), options=options, **fields)

    async def done(self, run: Run, agents: CodeAgents | None = None) -> Run:
        worker = await self.workers(agents).begin(run.id)
        assert await worker.ended() is None
        return await self.stores.runs.look_up(run.id)

    async def begun(self, run: Run, moment: str) -> OneWorker:
        self.stage.stop_at(moment)
        worker = await self.workers().begin(run.id)
        await self.stage.is_reached(moment)
        return worker

    async def texts(self) -> list[str]:
        return texts_of(await self.stores.messages.context(PROJECT, THREAD))

    async def results(self) -> list[str]:
        bodies = await self.stores.context()
        return [one.text for body in bodies if isinstance(body, ToolReturns) for one in body.returns]

    async def is_valid(self) -> bool:
        return open_calls(await self.stores.messages.context(PROJECT, THREAD)) is None

    async def events(self, run: Run) -> list[object]:
        return [decode(entry) for _, entry in await self.stores.events.read(run.id, Seq(1))]

    async def shown_text(self, run: Run) -> str:
        """The text that a reader has at the end."""
        shown: dict[str, str] = {}
        for event in await self.events(run):
            if isinstance(event, StepRestarted):
                for gone in event.void_message_ids:
                    shown.pop(gone, None)
            elif isinstance(event, TextChunk):
                shown[event.message_id] = shown.get(event.message_id, "") + event.text
        return "|".join(shown.values())

    async def approved(self, run: Run, edited: str | None = None) -> Run:
        [asked] = await self.stores.asked(run)
        decision = Decision(tool_call_id=asked.tool_call_id, approve=True, edited_arguments=edited)
        return await self.stores.decide(decision, thread_id=run.thread_id)

    async def denied(self, run: Run, reason: str) -> Run:
        [asked] = await self.stores.asked(run)
        return await self.stores.decide(Decision(tool_call_id=asked.tool_call_id, approve=False, reason=reason))


@asynccontextmanager
async def world_of_agents(database_url: str, redis: ArqRedis, folder: Path, **how: Any) -> AsyncGenerator[World]:
    """Stores, and a host with the agents of the program. The deployment has secrets. `how`: as `FileStage.agents`."""
    stage = FileStage(folder)
    secrets = {"HOLDFAST_API_KEYS": "secret", "HOLDFAST_DATABASE_URL": "secret"}
    async with (
        stored_runs(database_url) as stores,
        stage.agents(environment=secrets, **how) as agents,
    ):
        yield World(stores, stage, redis, agents)
