"""One performance from beginning to end: start, break, make whole, wait, check."""

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos.client import Client, new_http
from bench.chaos.conversation_checks import ConversationChecks
from bench.chaos.crowd import Crowd
from bench.chaos.deciding import Deciding
from bench.chaos.deployment import LEASE_S, Deployment, deployed, say
from bench.chaos.evidence import write_evidence
from bench.chaos.faults import Faults
from bench.chaos.ledger import Ledger
from bench.chaos.recovery import Recoveries
from bench.chaos.run_checks import RunChecks, check_tools
from bench.chaos.schedule import draw_schedule
from bench.chaos.scoreboard import Scoreboard
from bench.chaos.scripts import Scripts
from bench.chaos.stories import Stories
from bench.chaos.stream_checks import StreamChecks
from bench.chaos.submitting import Submitting
from bench.chaos.tools import StartLog, kill_left_over
from bench.chaos.witness import Witness
from shared.concurrency import background
from shared.domain.lifecycle import TERMINAL

PROGRESS_S = 5.0
REST_S = 90.0


@dataclass
class Performance:
    """What is asked for, and what is known meanwhile."""

    directory: Path
    seed: int
    minutes: float
    workers: int
    apis: int
    at_once: int
    postgres_url: str
    ledger: Ledger = field(default_factory=Ledger)

    async def play(self) -> Scoreboard:
        """All of it."""
        say(f"seed {self.seed}; logs in {self.directory}")
        async with deployed(self.directory, self.postgres_url, self.workers, self.apis) as deployment:
            starts = StartLog(self.directory / "starts.txt")
            try:
                return await self._play(deployment, starts)
            finally:
                kill_left_over(starts.starts())

    async def _play(self, deployment: Deployment, starts: StartLog) -> Scoreboard:
        dice = random.Random(f"crowd {self.seed}")
        recoveries = Recoveries(deployment.database, deployment.redis_client())
        faults = Faults(deployment, recoveries, self.ledger)
        witness = Witness(deployment, self.ledger, starts)
        async with new_http() as http, AsyncExitStack() as stack:
            client = Client(http, deployment.ports, self.ledger, dice)
            deciding = Deciding(client, self.ledger, witness, dice)
            submitting = Submitting(client, self.ledger, witness, dice)
            stories = Stories(client, self.ledger, witness, Scripts(dice), submitting, deciding, dice)
            crowd = Crowd(client, self.ledger, stories, dice, self.at_once)
            say("making agents")
            await crowd.prepare(starts.path)
            await stack.enter_async_context(background(witness.watch(), name="watch what has ended"))
            await stack.enter_async_context(background(faults.watch_over(), name="watch over processes"))
            async with background(self._say_how_it_goes(crowd), name="progress"):
                await self._break(crowd, faults, deciding)
                await self._come_to_rest(witness, deciding)
            return await self._check(deployment, client, witness, faults, recoveries, crowd, starts)

    async def _break(self, crowd: Crowd, faults: Faults, deciding: Deciding) -> None:
        """Everything goes on and everything breaks, until the time is up; then what goes on comes to its end."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(crowd.tell_until(stop), name="stories")
            async with asyncio.TaskGroup() as breaking:
                breaking.create_task(asyncio.sleep(self.minutes * 60), name="the time")
                breaking.create_task(
                    faults.play(draw_schedule(self.seed, self.minutes * 60, LEASE_S)), name="play the schedule"
                )
            say("nothing is broken any more: waiting for what goes on")
            stop.set()
            deciding.hurry.set()
            await telling

    async def _come_to_rest(self, witness: Witness, deciding: Deciding) -> None:
        """Waits until every run has ended; those that wait for a person are cancelled."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REST_S
        while loop.time() < deadline:
            statuses = await witness.look()
            parked = [run_id for run_id, status in statuses.items() if status == "awaiting_approval"]
            if all(status in TERMINAL for status in statuses.values()):
                return
            await deciding.cancel_left_over(parked)
            await asyncio.sleep(0.5)

    async def _check(
        self,
        deployment: Deployment,
        client: Client,
        witness: Witness,
        faults: Faults,
        recoveries: Recoveries,
        crowd: Crowd,
        starts: StartLog,
    ) -> Scoreboard:
        ledger, database = self.ledger, deployment.database
        say(f"checking {len(ledger.runs)} runs")
        run_checks = RunChecks(client, ledger, witness, database)
        await run_checks.check()
        tool_starts = check_tools(ledger, starts.starts())
        say("reading every stream again")
        stream_checks = StreamChecks(client, ledger, database, faults.happened, random.Random(self.seed))
        await stream_checks.check()
        say("going on with every conversation")
        await ConversationChecks(client, ledger, database).check(crowd.threads)
        await witness.look()
        if ledger.violations:
            say(f"evidence: {await write_evidence(ledger, database, self.directory)}")
        return Scoreboard(
            seed=self.seed,
            lease_s=LEASE_S,
            ledger=ledger,
            faults=faults,
            recoveries=recoveries,
            runs=run_checks,
            explicit_gaps=stream_checks.explicit_gaps,
            tool_starts=tool_starts,
        )

    async def _say_how_it_goes(self, crowd: Crowd) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            ledger = self.ledger
            say(f"{crowd.alive} stories, {len(ledger.runs)} runs accepted, {len(ledger.violations)} violations")
