"""One performance from beginning to end: start, inject faults, repair, wait, check."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos.budget_checks import check_budgets
from bench.chaos.callbacks import Callbacks
from bench.chaos.child_checks import ChildChecks
from bench.chaos.child_scripts import ChildScripts, Delegations
from bench.chaos.child_stories import ChildStories
from bench.chaos.client import Client, new_http
from bench.chaos.code_checks import CodeChecks
from bench.chaos.code_faults import CodeFaults, blame_kills
from bench.chaos.code_notes import NOTES, read_notes
from bench.chaos.code_stories import CodeStories
from bench.chaos.conversation_checks import ConversationChecks
from bench.chaos.counted_worker import launch_counted
from bench.chaos.crowd import Crowd
from bench.chaos.deciding import Deciding
from bench.chaos.decision_checks import check_decisions
from bench.chaos.deployment import (
    IN_FLIGHT,
    LEASE_S,
    PROJECTS,
    SETTINGS,
    Deployment,
    deployed,
    limits_for,
    mcp_servers_of,
    say,
    tier_of,
)
from bench.chaos.evidence import write_evidence
from bench.chaos.faults import Faults
from bench.chaos.ledger import Ledger
from bench.chaos.mcp_checks import McpChecks
from bench.chaos.mcp_stories import McpStories
from bench.chaos.newer_release import NewerRelease
from bench.chaos.orphans import Orphans
from bench.chaos.page_checks import PageChecks
from bench.chaos.page_stories import PageStories
from bench.chaos.recovery import Recoveries
from bench.chaos.response_checks import ResponseChecks
from bench.chaos.responses import ResponseStories
from bench.chaos.run_checks import RunChecks
from bench.chaos.schedule import FaultKind, draw_schedule
from bench.chaos.scoreboard import Scoreboard
from bench.chaos.scripts import Scripts
from bench.chaos.sleeptime_stories import SleeptimeStories
from bench.chaos.stories import Stories
from bench.chaos.stream_checks import StreamChecks
from bench.chaos.submitting import Submitting
from bench.chaos.thread_readers import ThreadReaders
from bench.chaos.tool_checks import check_counts, check_tools
from bench.chaos.tools import STARTS, StartLog, kill_left_over
from bench.chaos.upgrade import upgrade_and_return
from bench.chaos.witness import Witness
from bench.progress import progress_bar
from shared.concurrency import background
from shared.domain.lifecycle import TERMINAL
from tests.kit.product.callback_receiver import CallbackReceiver
from tests.kit.services.databases import new_database

PROGRESS_S = 5.0
REST_S = 90.0


@dataclass
class Performance:
    """The options and the state of one performance."""

    directory: Path
    seed: int
    minutes: float
    workers: int
    apis: int
    at_once: int
    postgres_url: str
    sandbox: str
    """A value of HOLDFAST_SANDBOX."""
    faults: Sequence[FaultKind]
    """The only kinds of faults; empty: all kinds."""
    ledger: Ledger = field(default_factory=Ledger)
    tier: str = ""

    @property
    def notes(self) -> Path:
        """The file in which agents in code note their actions."""
        return self.directory / "notes.txt"

    async def play(self) -> Scoreboard:
        """Runs the whole performance."""
        say(f"seed {self.seed}; logs in {self.directory}")
        self.tier = await tier_of(self.sandbox)
        starts = StartLog(self.directory / "starts.txt")
        self.notes.touch()
        files = {STARTS: str(starts.path), NOTES: str(self.notes)}
        settings = {**SETTINGS, **limits_for(self.at_once), "HOLDFAST_SANDBOX": self.sandbox, **files}
        async with (
            new_database(self.postgres_url) as url,
            deployed(
                self.directory,
                url,
                settings,
                workers=self.workers,
                apis=self.apis,
                launch=launch_counted,
                behind_proxies=True,
            ) as deployment,
            mcp_servers_of(deployment, random.Random(f"MCP servers {self.seed}")),
        ):
            orphans = Orphans(deployment, self.ledger)
            try:
                async with background(orphans.watch(), name="watch for orphans"):
                    return await self._play(deployment, starts)
            finally:
                orphans.kill()
                kill_left_over(starts.starts())

    async def _play(self, deployment: Deployment, starts: StartLog) -> Scoreboard:
        dice = random.Random(f"crowd {self.seed}")
        ledger = self.ledger
        recoveries = Recoveries(deployment.database, deployment.redis_client)
        faults = Faults(deployment, recoveries, ledger)
        witness = Witness(deployment, ledger, starts, in_flight=int(limits_for(self.at_once)[IN_FLIGHT]))
        newer = NewerRelease(deployment, ledger, dice)
        scripts, hurry = Scripts(dice), asyncio.Event()
        async with new_http() as http, CallbackReceiver() as receiver, AsyncExitStack() as stack:
            callbacks = Callbacks(ledger, deployment.database, receiver, dice)
            crowds: list[Crowd] = []
            for project in PROJECTS:
                client = Client(http, deployment.ports, ledger, dice, project)
                deciding = Deciding(client, ledger, witness, dice, hurry)
                submitting = Submitting(client, ledger, witness, dice)
                stories = Stories(client, ledger, witness, scripts, submitting, deciding, callbacks, newer, dice)
                responses = ResponseStories(client, ledger, witness, scripts, submitting, deciding, stories, dice)
                [server] = [one for one in deployment.mcp_servers if one.project == project]
                mcp = McpStories(client, ledger, scripts, submitting, stories, server, dice)
                delegating = ChildScripts(scripts, Delegations(ledger), dice)
                children = ChildStories(client, ledger, deployment.database, delegating, submitting, stories, dice)
                sleeptime = SleeptimeStories(client, ledger, deployment.database, submitting, stories, dice)
                pages = PageStories(client, ledger, witness, scripts, submitting, deciding, stories, dice)
                code = CodeStories(client, ledger, stories, pages, dice)
                told = stories, responses, mcp, children, sleeptime, pages, code
                at_once, readers = -(-self.at_once // len(PROJECTS)), ThreadReaders(client, ledger, dice)
                crowds.append(Crowd(client, ledger, *told, dice, at_once, readers))
            say("making agents")
            for crowd in crowds:
                await crowd.prepare(starts.path)
            await stack.enter_async_context(background(witness.watch(), name="watch what has ended"))
            await stack.enter_async_context(background(faults.watch_over(), name="watch over processes"))
            code_faults = CodeFaults(deployment, ledger, random.Random(f"agents in code {self.seed}"))
            async with background(self._say_how_it_goes(crowds), name="progress"):
                speaking = background(newer.speak(), name="speak as a newer release")
                killing = background(code_faults.play(), name="kill processes of agents")
                async with self._telling(crowds, hurry), speaking, killing:
                    await upgrade_and_return(deployment)
                    await self._break(faults)
                for crowd in crowds:
                    await crowd.sleeptime.come_to_rest()
                await self._come_to_rest(witness, crowds)
                await callbacks.come_in()
            await callbacks.check()
            return await self._check(deployment, witness, faults, recoveries, crowds, starts)

    @asynccontextmanager
    async def _telling(self, crowds: list[Crowd], hurry: asyncio.Event) -> AsyncGenerator[None]:
        """Plays stories during the block, and lets unfinished ones end after it."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for crowd in crowds:
                group.create_task(crowd.tell_until(stop), name=f"stories of {crowd.client.project}")
            yield
            say("no more faults: waiting for unfinished runs")
            stop.set()
            hurry.set()

    async def _break(self, faults: Faults) -> None:
        """Injects faults until the time is over."""
        async with asyncio.TaskGroup() as breaking:
            breaking.create_task(asyncio.sleep(self.minutes * 60), name="the time")
            schedule = draw_schedule(self.seed, self.minutes * 60, LEASE_S, self.faults)
            breaking.create_task(faults.play(schedule), name="play the schedule")

    async def _come_to_rest(self, witness: Witness, crowds: list[Crowd]) -> None:
        """Waits until every run has ended. Runs that wait for a decision are cancelled, but for those that must end
        because the run that has started them was cancelled or has failed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REST_S
        while loop.time() < deadline:
            statuses = await witness.look()
            parked = await witness.kept_waiting()
            if all(status in TERMINAL for status in statuses.values()):
                return
            for crowd in crowds:
                await crowd.stories.deciding.cancel_left_over(parked)
            await asyncio.sleep(0.5)

    async def _check(
        self,
        deployment: Deployment,
        witness: Witness,
        faults: Faults,
        recoveries: Recoveries,
        crowds: list[Crowd],
        starts: StartLog,
    ) -> Scoreboard:
        ledger, database = self.ledger, deployment.database
        clients = {crowd.client.project: crowd.client for crowd in crowds}
        say(f"checking {len(ledger.runs)} runs")
        child_checks = ChildChecks([crowd.children for crowd in crowds], ledger, database)
        await child_checks.adopt()
        for crowd in crowds:
            await crowd.sleeptime.check()
        blame_kills(ledger, read_notes(self.notes))
        run_checks = RunChecks(clients, ledger, witness, database)
        await run_checks.check()
        await child_checks.check()
        tool_starts = check_tools(ledger, starts.starts())
        mcp_checks = McpChecks([crowd.mcp for crowd in crowds], ledger, database)
        await mcp_checks.check()
        begun = {**starts.starts(), **mcp_checks.calls}
        await check_counts(ledger, database, begun)
        await check_decisions(ledger, database, begun)
        await check_budgets(ledger, database)
        epoch = time.time() - time.monotonic()
        code_checks = CodeChecks(ledger, database, faults.happened, epoch)
        await code_checks.check(list(read_notes(self.notes)))
        say("reading every stream again")
        stream_checks = StreamChecks(clients, ledger, database, faults.happened, random.Random(self.seed))
        await stream_checks.check()
        child_checks.check_streams()
        say("reading every response again")
        response_checks = ResponseChecks(clients, ledger, database, faults.happened, random.Random(self.seed))
        await response_checks.check()
        say("reading every conversation again, and loading every page")
        for crowd in crowds:
            await crowd.readers.check(crowd.histories)
        await PageChecks(clients, ledger, database).check()
        say("going on with every conversation")
        threads = [thread for crowd in crowds for thread in crowd.histories]
        kept = [*await response_checks.threads(), *child_checks.threads()]
        await ConversationChecks(clients, ledger, database).check(threads, kept=kept)
        await code_checks.check_injections()
        await witness.look()
        if ledger.violations:
            say(f"evidence: {await write_evidence(ledger, database, self.directory)}")
        return Scoreboard(
            seed=self.seed,
            tier=self.tier,
            lease_s=LEASE_S,
            ledger=ledger,
            faults=faults,
            recoveries=recoveries,
            runs=run_checks,
            explicit_gaps=stream_checks.explicit_gaps,
            tool_starts=tool_starts,
            mcp_calls=mcp_checks.count,
            children=len(child_checks.children),
        )

    async def _say_how_it_goes(self, crowds: list[Crowd]) -> None:
        began = asyncio.get_running_loop().time()
        with progress_bar("things break", self.minutes * 60) as progress:
            while True:
                await asyncio.sleep(PROGRESS_S)
                progress(asyncio.get_running_loop().time() - began)
                ledger = self.ledger
                alive = sum(crowd.alive for crowd in crowds)
                say(f"{alive} stories, {len(ledger.runs)} runs accepted, {len(ledger.violations)} violations")
