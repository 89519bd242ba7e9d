"""Clients of agents that have a sleep-time agent, and the check that it thought once about each due turn."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from bench.chaos.client import Client, Request
from bench.chaos.ledger import Column, Ledger, Story, Thread
from bench.chaos.stories import Stories, Tell
from bench.chaos.submitting import Submitting
from shared.domain.groups import RUN_TYPE
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.runs import RunOptions
from shared.sql.engine import Database
from shared.sql.run_tables import runs
from shared.sql.tables import from_json

FREQUENCIES = (1, 2)
CATCHES_UP_S = 45.0
"""Seconds after which every due turn has its run: more than a group that could not start waits."""


class Pair(NamedTuple):
    """An agent and its sleep-time agent."""

    thread: Thread
    """The first one's history."""
    sleeper: Thread
    frequency: int


@dataclass
class SleeptimeStories:
    """Plays stories, and checks their outcomes."""

    client: Client
    ledger: Ledger
    database: Database
    submitting: Submitting
    letta: Stories
    dice: random.Random
    pairs: list[Pair] = field(default_factory=list[Pair])

    @property
    def threads(self) -> list[Thread]:
        return [thread for pair in self.pairs for thread in (pair.thread, pair.sleeper)]

    async def prepare(self, tool_ids: list[str]) -> None:
        """Makes an agent with a sleep-time agent for each frequency."""
        for frequency in FREQUENCIES:
            body = {"name": f"sleeps-{frequency}", "model": "builtin/scripted", "enable_sleeptime": True}
            made = await self._made("POST", "/v1/agents/", {**body, "include_base_tools": False, "tool_ids": tool_ids})
            group = made["managed_group"]
            config = {"manager_type": "sleeptime", "sleeptime_agent_frequency": frequency}
            await self._made("PATCH", f"/v1/groups/{group['id']}", {"manager_config": config})
            [sleeper_id] = group["agent_ids"]
            project = self.client.project
            self.pairs.append(Pair(Thread(project, made["id"]), Thread(project, sleeper_id), frequency))

    def kinds(self) -> dict[str, tuple[Tell, int]]:
        """The kinds of stories, with their relative frequencies."""
        return {"sleep-time": (self.turns, 3)}

    async def turns(self, story: Story) -> None:
        """Some turns of an agent, of which one may fail or be cancelled."""
        thread, scripts = self.dice.choice(self.pairs).thread, self.letta.scripts
        for _ in range(self.dice.randint(1, 3)):
            write = self.dice.choice([scripts.plain, scripts.plain, scripts.tools, scripts.error, scripts.long])
            own = Story(story.number, story.kind, thread, story.notes)
            record = await self.submitting.later(own, write())
            if record is None:
                continue
            if self.dice.random() < 0.2:
                record.is_pushed = True
                await asyncio.sleep(self.dice.uniform(0, 2))
                await self.letta.cancel_now(record)
            await self.submitting.poll(record.run_id)

    async def come_to_rest(self) -> None:
        """Waits until every due turn has its run, and all have ended."""
        for _ in range(round(CATCHES_UP_S)):
            found = [await self._look(pair) for pair in self.pairs]
            if all(due <= len(began) and is_over for due, began, is_over in found):
                return
            await asyncio.sleep(1.0)

    async def check(self) -> None:
        """Checks the number of runs, and records them, so that every other check sees them."""
        for pair in self.pairs:
            due, began, _ = await self._look(pair)
            story = Story(0, "sleep-time agent", pair.sleeper, notes=False)
            for run_id in began:
                self.ledger.accept(run_id, story, None, None)
            self.ledger.notes["sleep-time runs"] += len(began)
            if len(began) != due:
                detail = f"{pair}: {due} turns were due, and there are {len(began)} runs"
                self.ledger.broken(Column.SLEEPTIME, began[-1] if began else "-", detail)

    async def _look(self, pair: Pair) -> tuple[int, list[str], bool]:
        """Returns how many turns were due, the sleep-time agent's runs, and whether all runs of both have ended."""
        query = sa.select(runs.c.id, runs.c.agent_id, runs.c.status, runs.c.options).order_by(runs.c.number)
        of_both = runs.c.agent_id.in_([pair.thread.agent_id, pair.sleeper.agent_id])
        async with self.database.read() as connection:
            found = (await connection.execute(query.where(of_both))).all()
        began = [row.id for row in found if from_json(row.options, RunOptions).run_type == RUN_TYPE]
        own = [row.status for row in found if row.agent_id == pair.thread.agent_id]
        ended = sum(status == RunStatus.COMPLETED for status in own)
        # The first turn is due, and then every second or every one.
        return -(-ended // pair.frequency), began, all(row.status in TERMINAL for row in found)

    async def _made(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.client.call(Request(method, path, body))
        assert answer is not None
        assert answer.is_success, f"{method} {path}: {answer.status} {answer.body}"
        return answer.body
