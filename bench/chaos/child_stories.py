"""Plays clients whose agents call other agents. The clients decide, cancel and wait meanwhile."""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from bench.chaos.child_scripts import OF_AGENTS, ChildScripts, Delegations
from bench.chaos.client import Client, Request
from bench.chaos.ledger import Ledger, RunRecord, Story, Thread
from bench.chaos.scripts import Script
from bench.chaos.stories import Stories, Tell
from bench.chaos.submitting import Submitting
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.tool_catalog import ASKS_AGENT, TELLS_AGENT
from shared.sql.engine import Database
from shared.sql.run_tables import run_inputs, runs

LOOK_S = 0.3
_MARKER = re.compile(r"task-\d{5,}")

Act = Callable[[RunRecord], Awaitable[None]]
"""An action of a client while its agent's run, or a child, is running."""


@dataclass(frozen=True)
class Called:
    """A run that a call of an agent has begun, as SQL stores it."""

    run_id: str
    agent_id: str
    thread_id: str
    status: str
    marker: str

    def thread(self, project: str) -> Thread:
        """Its history: the agent's own, or one that the task has begun."""
        return Thread(project, self.agent_id, None if self.thread_id == self.agent_id else self.thread_id)


async def called_of(database: Database, *conditions: sa.ColumnElement[bool]) -> list[Called]:
    """Returns runs that calls have begun, without continuations."""
    query = (
        sa.select(runs.c.id, runs.c.agent_id, runs.c.thread_id, runs.c.status, run_inputs.c.input)
        .join(run_inputs, run_inputs.c.run_id == runs.c.id)
        .where(runs.c.parent_run_id.is_not(None), runs.c.continues.is_(None), *conditions)
        .order_by(runs.c.number)
    )
    async with database.read() as connection:
        found = (await connection.execute(query)).all()
    return [
        Called(row.id, row.agent_id, row.thread_id, row.status, marker[0])
        for row in found
        if (marker := _MARKER.search(row.input)) is not None
    ]


@dataclass
class ChildStories:
    """Plays stories."""

    client: Client
    ledger: Ledger
    database: Database
    scripts: ChildScripts
    submitting: Submitting
    letta: Stories
    dice: random.Random
    threads: list[Thread] = field(default_factory=list[Thread])
    """The own histories of the agents that are called."""
    _names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def delegations(self) -> Delegations:
        return self.scripts.delegations

    async def prepare(self, tool_ids: Sequence[str], count: int) -> None:
        """Makes this many agents that other agents call."""
        for number in range(count):
            name = f"called-{number}"
            body = {"name": name, "model": "builtin/scripted", "tool_ids": tool_ids, "tools": OF_AGENTS}
            made = await self.client.call(Request("POST", "/v1/agents/", {**body, "include_base_tools": False}))
            assert made is not None
            assert made.is_success, f"{made.status} {made.body}"
            self.threads.append(Thread(self.client.project, made.body["id"]))
            self._names[made.body["id"]] = name

    def kinds(self) -> dict[str, tuple[Tell, int]]:
        """The kinds of stories, with their relative frequencies."""
        return {
            "task": (self.task, 5),
            "task, two deep": (self.two_deep, 3),
            "task, decided": (self.decided, 3),
            "task, cancelled": (self.cancelled, 5),
            "task, child cancelled": (self.child_cancelled, 4),
            "message": (self.message, 5),
            "message, cancelled": (self.message_cancelled, 3),
            "message, circle": (self.circle, 3),
        }

    async def task(self, story: Story) -> None:
        """A run that gives one task or several."""
        await self._attended(story, self._giving(story, self.dice.choice([1, 1, 2, 3])))

    async def two_deep(self, story: Story) -> None:
        """A run whose children have children."""
        await self._attended(story, self._two_deep(story))

    async def decided(self, story: Story) -> None:
        """Children, their parent or both wait for a person."""
        approval = self.scripts.scripts.approval
        before = approval() if self.dice.random() < 0.3 else None
        inner = [approval() if self.dice.random() < 0.7 else self.scripts.work() for _ in range(2)]
        calls = [self.scripts.task(story, self._named(), one) for one in inner[: self.dice.randint(1, 2)]]
        await self._attended(story, self.scripts.calling(calls, before))

    async def cancelled(self, story: Story) -> None:
        """A run that is cancelled, most often while its children work."""
        write = self.dice.choice([self._two_deep, self._giving, self._giving, self._waiting])
        await self._attended(story, write(story), self._cancel)

    async def child_cancelled(self, story: Story) -> None:
        """A run, one of whose children is cancelled by a client."""
        write = self.dice.choice([self._two_deep, self._giving, self._waiting])
        await self._attended(story, write(story), self._cancel_child)

    async def message(self, story: Story) -> None:
        """A run that sends messages into other agents' histories."""
        await self._messages(story, None)

    async def message_cancelled(self, story: Story) -> None:
        """A run that is cancelled while other agents answer its messages, or one of those runs."""
        await self._messages(story, self.dice.choice([self._cancel, self._cancel_child]))

    async def circle(self, story: Story) -> None:
        """Two agents that wait for each other: one because of the other, or each by itself. Or an agent that asks
        itself."""
        own, draw = story.thread.agent_id, self.dice.random()
        if draw < 0.2:
            await self._attended(story, self._asking(story, own, Script()))
            return
        async with self._alone_with(1) as [other]:
            back = self._asking(story, own, Script())
            asks = self._asking(story, other.agent_id, back)
            if draw < 0.6:
                await self._tell_to_play(story, other, back)
                await self._attended(story, asks)
                return
            beside = Story(story.number, story.kind, other, story.notes)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._attended(story, asks), name="one way round")
                group.create_task(self._attended(beside, back), name="the other way round")

    async def _messages(self, story: Story, act: Act | None) -> None:
        """Sends one message or two. Two for one agent are answered one after the other."""
        async with self._alone_with(self.dice.choice([1, 1, 2])) as threads:
            calls = list[dict[str, Any]]()
            for thread in threads:
                works = [self._answer() for _ in range(self.dice.choice([1, 1, 2]) if act is None else 1)]
                for work in works:
                    tool = self.dice.choice([ASKS_AGENT, ASKS_AGENT, TELLS_AGENT])
                    calls.append(self.scripts.message(story, tool, thread.agent_id, work))
                await self._tell_to_play(story, thread, Script([turn for work in works for turn in work.turns]))
            script = self.scripts.calling(calls, self._before())
            if self.dice.random() < 0.15:
                # A run that fails ends the children for which it does not wait.
                failing = self.scripts.scripts.failing_turn(after_calls=True)
                script = replace(script, turns=[*script.turns[:-1], failing], fails=True)
            await self._attended(story, script, act)

    def _answer(self) -> Script:
        return self.scripts.scripts.approval() if self.dice.random() < 0.2 else self.scripts.work()

    @asynccontextmanager
    async def _alone_with(self, count: int) -> AsyncGenerator[list[Thread]]:
        """Yields the histories of agents that no other story sends messages to meanwhile: a message would change the
        scripts that they play."""
        while len(idle := [thread for thread in self.threads if not thread.stories]) < count:
            await asyncio.sleep(LOOK_S)
        threads = self.dice.sample(idle, count)
        for thread in threads:
            thread.stories += 1
        try:
            yield threads
        finally:
            for thread in threads:
                thread.stories -= 1

    async def _tell_to_play(self, story: Story, thread: Thread, script: Script) -> None:
        """Sends an agent a script whose first turn answers at once. The rest answers the next messages of agents."""
        ready = self.scripts.scripts.plain(3).turns[0]
        told = Story(story.number, story.kind, thread, story.notes)
        record = await self.submitting.later(told, Script([ready, *script.turns]))
        if record is not None:
            record.script = Script([ready])
            await self.submitting.poll(record.run_id)

    def _giving(self, story: Story, count: int = 2) -> Script:
        calls = [self.scripts.task(story, self._named(), self.scripts.work()) for _ in range(count)]
        return self.scripts.calling(calls, self._before())

    def _two_deep(self, story: Story) -> Script:
        inner = [self._giving(story, self.dice.randint(1, 2)) for _ in range(self.dice.randint(1, 2))]
        return self.scripts.calling([self.scripts.task(story, self._named(), one) for one in inner], self._before())

    def _waiting(self, story: Story) -> Script:
        """Gives a task that waits for a person."""
        return self.scripts.calling([self.scripts.task(story, self._named(), self.scripts.scripts.approval())])

    def _asking(self, story: Story, agent_id: str, script: Script) -> Script:
        return self.scripts.calling([self.scripts.message(story, ASKS_AGENT, agent_id, script)])

    def _before(self) -> Script | None:
        return self.scripts.scripts.tools() if self.dice.random() < 0.3 else None

    def _named(self) -> str:
        """Returns an agent for a call, by its id or its name."""
        agent_id = self.dice.choice(self.threads).agent_id
        return self.dice.choice([agent_id, self._names[agent_id]])

    async def _attended(self, story: Story, script: Script, act: Act | None = None) -> None:
        """Begins a run, and makes the decisions for it and all runs below it. Returns when all of them have ended."""
        async with asyncio.TaskGroup() as group:
            told = group.create_task(self._begun(story, script, act), name=f"the run at the top of {story.number}")
            seen = set[str]()
            while True:
                is_over = told.done()
                tree = await self._tree(story)
                for called in tree:
                    record = self._adopted(called)
                    if called.status == RunStatus.AWAITING_APPROVAL and called.run_id not in seen:
                        seen.add(called.run_id)
                        group.create_task(self.letta.decided(record.story, record), name=f"decide {called.run_id}")
                if is_over and all(called.status in TERMINAL for called in tree):
                    return
                await asyncio.sleep(LOOK_S)

    async def _begun(self, story: Story, script: Script, act: Act | None) -> None:
        async with AsyncExitStack() as stack:
            record = await self.letta.begin(story, script, stack)
            if record is None:
                return
            if act is not None:
                await act(record)
        if act is None:
            await self.letta.decided(story, record)
        else:
            await self.letta.cancel_what_waits(record)

    async def _cancel(self, record: RunRecord) -> None:
        record.is_pushed = True
        await asyncio.sleep(self.dice.choice([0.0, self.dice.uniform(0, 2), self.dice.uniform(0, 8)]))
        await self.letta.cancel_now(record)

    async def _cancel_child(self, record: RunRecord) -> None:
        """Cancels a run of the tree as soon as there is one, or later."""
        while not (tree := await self._tree(record.story)):
            if await self.submitting.witness.status_of(record.run_id) in TERMINAL:
                return
            await asyncio.sleep(LOOK_S)
        child = self._adopted(self.dice.choice(tree))
        child.is_pushed = True
        await asyncio.sleep(self.dice.choice([0.0, self.dice.uniform(0, 4)]))
        await self.letta.cancel_now(child)

    async def _tree(self, story: Story) -> list[Called]:
        return await called_of(self.database, runs.c.root_run_id.in_(story.run_ids)) if story.run_ids else []

    def _adopted(self, called: Called) -> RunRecord:
        return self.delegations.adopt(called.marker, called.run_id, called.thread(self.client.project))
