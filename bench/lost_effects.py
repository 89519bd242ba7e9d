"""Kills workers between an effect and its record, and counts the outcomes of the effects.

Each run makes one call of a tool that acts on an outside service, which counts effects by their keys. Its worker is
killed before the effect, after it, or some turns of the event loop after the tool has returned; another worker then
ends the run. Workers, stores and loop are real. Only the sandbox is replaced, by the service, because code in the
sandbox is not measured here.

    python -m bench.lost_effects --kills 1000
"""

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import structlog

from bench.progress import progress_bar
from shared.domain.effects import PROBE, Effect
from shared.domain.ids import AgentId, ThreadId
from shared.domain.messages import ToolCall, ToolReturn, UserMessage, text_of
from shared.domain.runs import Run, Usage
from shared.domain.tools import Tool
from shared.secret_keys import NO_KEYS
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.tools import ToolStore
from shared.sql.runs.effects import EffectStore
from tests.kit.runs.definitions import some_agent, some_tool
from tests.kit.runs.executing import OneWorker, Workers
from tests.kit.runs.guest_bodies import NoFolders
from tests.kit.runs.stored_runs import IDS, Stores, said, stored_runs
from tests.kit.services.databases import migrate_database
from tests.kit.services.redis_servers import RedisService
from worker.bodies.agent_context import AgentBody, AgentServices
from worker.bodies.step_loop import run_steps
from worker.models.provider import CallFinished, Finished, ModelCall, ModelEvent, Text
from worker.runners.tool_runner import CallingRun, ForeignOutcome, RunnerRow, RunnerTraits, ToolRunners
from worker.tools.outcomes import ToolOutcome

Place = Literal["before the effect", "behind the effect", "after the return"]
PLACES: tuple[Place, ...] = ("before the effect", "behind the effect", "after the return")

MOST_HOPS = 200
"""Turns of the event loop between a tool's return and the kill: about as many as until the run has ended."""

SOURCES = {
    "asked": "def _probe_asked(idempotency_key): ...\n\ndef asked(): ...\n",
    "mute": "def _probe_mute(): ...\n\ndef mute(): ...\n",
    "keyed": "def keyed(): ...\n",
}
"""The tools, by kind: with a probe that knows, with a probe that cannot tell, or for a service that knows the key."""


@dataclass
class Service:
    """The service, which outlives every worker, and makes the calls of the tools."""

    traits: RunnerTraits = field(default_factory=RunnerTraits)
    effects: Counter[str] = field(default_factory=Counter[str])
    starts: Counter[str] = field(default_factory=Counter[str])
    place: Place | None = None
    """The place at which the worker of the next call is killed."""
    hops: int = 0
    kill: Callable[[], object] = lambda: None
    is_there: asyncio.Event = field(default_factory=asyncio.Event)

    def arguments(self, tool: Tool) -> dict[str, Any]:
        """See `ToolRunner.arguments`."""
        return tool.parameters

    async def call(
        self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]
    ) -> ToolReturn | ForeignOutcome:
        """See `ToolRunner.call`."""
        key = run.idempotency_key(call)
        if tool.name.startswith(PROBE):
            knows = "idempotency_key" in tool.source_code
            return _outcome(call, json.dumps({"happened": key in self.effects, "result": "paid"} if knows else None))
        place, self.place = self.place, None
        self.starts[key] += 1
        if place == "before the effect":
            await self._die()
        knows_keys = PROBE not in tool.source_code
        if not (knows_keys and key in self.effects):
            self.effects[key] += 1
        if place == "behind the effect":
            await self._die()
        if place == "after the return":
            self._hop(self.hops)
        return _outcome(call, "paid")

    async def _die(self) -> None:
        self.is_there.set()
        await asyncio.Event().wait()

    def _hop(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._hop, left - 1)
        else:
            self.kill()
            self.is_there.set()


def _outcome(call: ToolCall, text: str) -> ForeignOutcome:
    def returned(outcome: ToolOutcome) -> ToolReturn:
        return ToolReturn(call.id, call.name, outcome.status, outcome.text, stdout=[])

    return ForeignOutcome(ToolOutcome("success", text), returned)


class _PaysOnce:
    """A model that calls the tool, and ends with the result."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """See `Models.stream`."""
        last = call.history[-1].body
        if isinstance(last, UserMessage):
            yield CallFinished(0, "call-1", text_of(last.content), "{}")
        else:
            yield Text("done")
        yield Finished("tool_calls" if isinstance(last, UserMessage) else "stop", Usage(), None)


@dataclass(frozen=True)
class Killing:
    """Workers with the tools, and the service."""

    stores: Stores
    workers: Workers
    service: Service
    agents: dict[str, AgentId]

    async def killed(self, kind: str, place: Place, number: int, hops: int) -> Effect:
        """Returns the effect of a run whose worker was killed at this place, after another worker has ended the run."""
        service = self.service
        service.place, service.hops, service.is_there = place, hops, asyncio.Event()
        run = await self.stores.submitted(said(kind), agent_id=self.agents[kind], thread_id=ThreadId(f"conv-{number}"))
        worker = await self.workers.begin(run.id)
        service.kill = worker.work.cancel
        await asyncio.wait_for(service.is_there.wait(), 30)
        await worker.die()
        await self._ended(run)
        stored = await self.stores.runs.look_up(run.id)
        turn = await self.stores.messages.list_of_turn(stored)
        [effect] = await EffectStore(self.stores.database).of_run(stored, turn)
        return effect

    async def _ended(self, run: Run) -> None:
        if (await self.stores.runs.look_up(run.id)).completed_at is None:
            worker: OneWorker = await self.workers.begin(run.id)
            lost = await worker.ended()
            if lost is not None:
                raise lost


@asynccontextmanager
async def killing(database_url: str) -> AsyncGenerator[Killing]:
    """An agent for each kind of tool, on an empty database."""
    redis, service = RedisService(None), Service()
    async with stored_runs(database_url) as stores:
        agents: dict[str, AgentId] = {}
        for kind, source in SOURCES.items():
            schema = {"name": kind, "parameters": {"type": "object", "properties": dict[str, Any]()}}
            made = some_tool(kind, source_code=source, json_schema=schema, idempotent=kind == "keyed")
            tool = await ToolStore(stores.database).upsert(made)
            agent = some_agent(name=kind, tool_ids=[tool.id])
            await AgentEditor(stores.database).create(agent, system_message_id=IDS.message())
            agents[kind] = agent.id
        services = AgentServices(
            models=cast("Any", _PaysOnce()),
            sandbox=cast("Any", NoFolders()),
            runners=ToolRunners(RunnerRow(service)),
            agents=stores.agents,
            secret_keys=NO_KEYS,
            approvals=stores.approvals,
            steps=stores.steps,
        )
        workers = Workers(stores, redis.client(), {"message": AgentBody(services, run_steps)})
        yield Killing(stores, workers, service, agents)
    await redis.close()


@dataclass
class Account:
    """The outcomes of the kills."""

    kills: Counter[str] = field(default_factory=Counter[str])
    states: Counter[str] = field(default_factory=Counter[str])
    lost_records: int = 0
    """Kills between an effect and its record."""
    twice: list[str] = field(default_factory=list[str])
    """Keys under which the service was acted on twice."""
    needlessly_unknown: list[str] = field(default_factory=list[str])
    """Keys of calls with an unknown outcome, although a probe could tell."""
    not_at_all: list[str] = field(default_factory=list[str])
    """Keys of calls that are done without an effect."""

    def count(self, kind: str, place: Place, effect: Effect, service: Service) -> None:
        """Counts one kill."""
        key = effect.idempotency_key
        self.kills[place] += 1
        self.states[f"{kind}: {effect.state}"] += 1
        self.lost_records += place == "behind the effect" or effect.state == "settled"
        if service.effects[key] > 1:
            self.twice.append(key)
        if effect.state == "unknown" and kind != "mute":
            self.needlessly_unknown.append(key)
        if effect.state in ("done", "settled") and not service.effects[key]:
            self.not_at_all.append(key)

    @property
    def faults(self) -> int:
        """The number of broken promises."""
        return len(self.twice) + len(self.needlessly_unknown) + len(self.not_at_all)


async def measured(kills: int, seed: int, database_url: str, done: Callable[[float], None]) -> Account:
    """Kills that many workers at places drawn from the seed."""
    drawn, account = random.Random(seed), Account()
    async with killing(database_url) as world:
        for number in range(kills):
            kind, place = drawn.choice([*SOURCES, "asked"]), drawn.choice(PLACES)
            effect = await world.killed(kind, place, number, drawn.randrange(MOST_HOPS))
            account.count(kind, place, effect, world.service)
            done(number + 1)
    return account


def _report(account: Account) -> None:
    for name, number in sorted(account.kills.items()):
        print(f"killed {name:<42} {number:>6}")
    print(f"killed between an effect and its record {account.lost_records:>15}")
    for name, number in sorted(account.states.items()):
        print(f"{name:<48} {number:>6}")
    for name, keys in (
        ("effects twice", account.twice),
        ("unknown though a probe or the key could tell", account.needlessly_unknown),
        ("done without an effect", account.not_at_all),
    ):
        print(f"{name:<48} {len(keys):>6}  {' '.join(keys[:5])}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.lost_effects", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="workers to kill (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="what the places are drawn from (default: 1)")
    options = parser.parse_args()
    # A kill in the middle of a write leaves the closing of its connection behind.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-lost-effects-") as directory,
        progress_bar("workers are killed", options.kills) as done,
    ):
        url = f"sqlite:///{Path(directory) / 'runs.sqlite3'}"
        asyncio.run(migrate_database(url))
        account = asyncio.run(measured(options.kills, options.seed, url, done))
    _report(account)
    sys.exit(1 if account.faults else 0)


if __name__ == "__main__":
    main()
