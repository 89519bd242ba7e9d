"""One performance from beginning to end: start, talk, inject faults, check."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

from letta_client import APIError, AsyncLetta
from sqlalchemy.exc import SQLAlchemyError

from bench.chaos.deployment import LEASE_S, Deployment, deployed, say
from bench.chaos.faults import Faults
from bench.chaos.ledger import Ledger
from bench.chaos.recovery import Recoveries
from bench.chaos.schedule import draw_worker_faults
from bench.deployments import machine
from bench.long_conversation.account import SHARED
from bench.long_conversation.checks import Checks, check_shared
from bench.long_conversation.model import PlannedModel
from bench.long_conversation.plan import draw_plan
from bench.long_conversation.report import Report
from bench.long_conversation.talk import Talk, TurnFailed
from shared.concurrency import background
from tests.kit.commands import fork
from tests.kit.model_server import ModelServer
from tests.kit.services.databases import PostgresServer, new_database

PROGRESS_S = 5.0
ANSWERED_S = 180.0
"""Seconds after which a turn is lost: the longest fault takes ten, and a lease expires after six."""

SETTINGS = {
    "HOLDFAST_LEASE_S": str(LEASE_S),
    "HOLDFAST_DATABASE_CONNECTIONS": "14",
    "HOLDFAST_MAX_ATTEMPTS": "20",  # a run must not fail because its workers are killed again and again
}

FIRST, SECOND = "main", "beside"
SHARE_OF_SECOND = 4
"""The first agent's turns for each turn of the second."""


class Refused(Exception):
    """The options are not possible on this machine; the text says why."""


@dataclass
class Performance:
    """The options and the state of one performance."""

    directory: Path
    seed: int
    turns: int
    window: int
    workers: int
    kill_every_s: float
    postgres_url: str | None
    ledger: Ledger = field(default_factory=Ledger)

    async def play(self) -> Report:
        """Runs the whole performance. Raises `Refused`."""
        say(f"seed {self.seed}; logs in {self.directory}")
        measured_on = machine()
        plans = {
            FIRST: draw_plan(self.seed, FIRST, self.turns, self.window),
            SECOND: draw_plan(self.seed, SECOND, max(1, self.turns // SHARE_OF_SECOND), self.window),
        }
        model = PlannedModel(plans, self.window, uncounted=SECOND)
        async with self._database() as url, ModelServer() as server:
            server.answer_with(model)
            settings = {**server.base_urls(), **SETTINGS}
            async with (
                deployed(
                    self.directory, url, settings, workers=self.workers, apis=1, launch=fork, behind_proxies=False
                ) as deployment,
                AsyncLetta(
                    base_url=f"http://127.0.0.1:{deployment.ports[0]}",
                    api_key="none",
                    timeout=ANSWERED_S,
                    max_retries=0,
                ) as client,
            ):
                dice = random.Random(f"ways {self.seed}")
                talks = [Talk(client, name, plan, dice) for name, plan in plans.items()]
                report = Report(self.seed, measured_on, "SQLite" if self.postgres_url is None else "Postgres", model)
                await self._talk(deployment, server, talks, report)
                return report

    @asynccontextmanager
    async def _database(self) -> AsyncGenerator[str]:
        if which("redis-server") is None:
            raise Refused("there is no redis-server on the PATH; install Redis")
        if self.postgres_url is None:
            yield f"sqlite:///{self.directory / 'holdfast.db'}"
            return
        try:
            PostgresServer(self.postgres_url).check()
        except (OSError, SQLAlchemyError) as error:
            raise Refused(f"--postgres {self.postgres_url}: {error}") from error
        async with new_database(self.postgres_url) as url:
            yield url

    async def _talk(self, deployment: Deployment, server: ModelServer, talks: Sequence[Talk], report: Report) -> None:
        block = await talks[0].client.blocks.create(label=SHARED, value="")
        for talk in talks:
            await talk.begin(block.id, self.window, in_conversation=talk.name == SECOND)
        faults = Faults(deployment, Recoveries(deployment.database, deployment.redis_client), self.ledger)
        began = time.monotonic()
        async with background(self._say_how_it_goes(talks, server, faults, report), name="progress"):
            try:
                async with self._breaking(faults, report), asyncio.TaskGroup() as group:
                    for talk in talks:
                        group.create_task(talk.go_on(), name=talk.name)
            except* (TurnFailed, APIError) as errors:
                report.violations += [f"{type(error).__name__}: {error}" for error in errors.exceptions]
        report.talked(talks, time.monotonic() - began, faults)
        report.violations += [f"{one.column.value}: {one.detail}" for one in self.ledger.violations]
        say("checking")
        for talk in talks:
            checks = Checks(talk, report.model, deployment.database)
            report.violations += await checks.wrong()
            report.checked(checks)
        report.violations += await check_shared(list(talks), block.id, deployment.database)

    @asynccontextmanager
    async def _breaking(self, faults: Faults, report: Report) -> AsyncGenerator[None]:
        """Injects faults into workers during the block, and resumes suspended ones at its end."""
        if not self.kill_every_s:
            yield
            return
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            schedule = draw_worker_faults(self.seed, self.kill_every_s, LEASE_S)
            group.create_task(faults.play(schedule, stop), name="play the schedule")
            watching = group.create_task(faults.watch_over(), name="watch over processes")
            try:
                yield
            finally:
                stop.set()
                watching.cancel()

    async def _say_how_it_goes(
        self, talks: Sequence[Talk], server: ModelServer, faults: Faults, report: Report
    ) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            # The model keeps its own record of the answers; the requests are large.
            server.requests.clear()
            done = ", ".join(f"{talk.name} {len(talk.took_s)} of {len(talk.plan.turns)}" for talk in talks)
            summaries, flawed = len(report.model.summaries), report.model.flawed
            say(f"turns: {done}; {summaries} summaries, {len(faults.happened)} faults, {flawed} flawed requests")
