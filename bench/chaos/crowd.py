"""Keeps a number of stories of every kind going, on a set of agents and conversations."""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.chaos.child_scripts import OF_AGENTS
from bench.chaos.child_stories import ChildStories
from bench.chaos.client import Client, Refused, Request
from bench.chaos.code_stories import CodeStories
from bench.chaos.ledger import Column, Ledger, Story, Thread
from bench.chaos.mcp_stories import McpStories
from bench.chaos.page_stories import PageStories
from bench.chaos.responses import ResponseStories
from bench.chaos.sleeptime_stories import SleeptimeStories
from bench.chaos.stories import Stories, Tell
from bench.chaos.thread_readers import ThreadReaders
from bench.chaos.tools import FIELDS, source_of
from shared.concurrency import background

LOOK_S = 0.05
AGENTS_OWN = frozenset(
    {
        "polled",
        "busy",
        "in the way",
        "called back",
        "compaction",
        "message, circle",
        "response, outputs",
        "response, approved",
        "response, chain",
        "response, hung up",
    }
)
"""Stories on agents' default histories, because their routes or policies do not exist for conversations."""
AFTER_S = 90.0
"""Seconds that all runs may take to end after the last fault."""


@dataclass
class Crowd:
    """The clients of one project."""

    client: Client
    ledger: Ledger
    stories: Stories
    responses: ResponseStories
    mcp: McpStories
    children: ChildStories
    sleeptime: SleeptimeStories
    pages: PageStories
    code: CodeStories
    dice: random.Random
    at_once: int
    readers: ThreadReaders
    threads: list[Thread] = field(default_factory=list[Thread])
    _alive: dict[int, Story] = field(default_factory=dict[int, Story])
    _number: int = 0

    async def prepare(self, log: Path) -> None:
        """Makes tools, agents and conversations before the first fault."""
        tool_ids: list[str] = []
        for name, fields in FIELDS.items():
            made = await self._make("PUT", "/v1/tools/", {"source_code": source_of(name, log), **fields})
            tool_ids.append(made["id"])
        await self.children.prepare(tool_ids, max(4, self.at_once // 3))
        await self.sleeptime.prepare(tool_ids)
        await self.code.prepare(max(2, self.at_once // 4))
        tool_ids = [*tool_ids, *await self.mcp.register()]
        for number in range(self.at_once + 2):
            body = {"name": f"chaos-{number}", "model": "builtin/scripted", "tool_ids": tool_ids, "tools": OF_AGENTS}
            agent = await self._make("POST", "/v1/agents/", {**body, "include_base_tools": False})
            self.threads.append(Thread(self.client.project, agent["id"]))
            if number % 4 == 0:
                conversation = await self._make("POST", f"/v1/conversations?agent_id={agent['id']}", {})
                self.threads.append(Thread(self.client.project, agent["id"], conversation["id"]))

    async def tell_until(self, stop: asyncio.Event) -> None:
        """Begins stories until `stop` is set, and waits until all have ended or are overdue."""
        async with background(self.readers.follow([*self.threads, *self.code.threads]), name="follow conversations"):
            await self._tell_until(stop)

    async def _tell_until(self, stop: asyncio.Event) -> None:
        told = self.stories, self.responses, self.mcp, self.children, self.sleeptime, self.pages, self.code
        kinds = {name: kind for stories in told for name, kind in stories.kinds().items()}
        names = list(kinds)
        weights = [weight for _, weight in kinds.values()]
        async with asyncio.TaskGroup() as group:
            tasks: set[asyncio.Task[None]] = set()
            while not stop.is_set():
                while len(self._alive) < self.at_once:
                    name = self.dice.choices(names, weights)[0]
                    story = self._story(name)
                    task = group.create_task(self._tell(kinds[name][0], story), name=f"story {story.number} {name}")
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await asyncio.sleep(LOOK_S)
            if tasks:
                await asyncio.wait(set(tasks), timeout=AFTER_S)
            for story in list(self._alive.values()):
                detail = f"story {story.number} on {story.thread.id} has not come to its end, runs {story.run_ids}"
                self.ledger.broken(Column.STUCK, story.run_ids[-1] if story.run_ids else "-", detail)
            for task in set(tasks):
                task.cancel()

    @property
    def histories(self) -> list[Thread]:
        """All histories that clients can send messages to."""
        told = self.children, self.sleeptime, self.pages, self.code
        return [*self.threads, *(thread for stories in told for thread in stories.threads)]

    @property
    def alive(self) -> int:
        return len(self._alive)

    def _story(self, kind: str) -> Story:
        thread = self._thread(in_conversation=kind not in AGENTS_OWN and self.dice.random() < 0.2)
        self._number += 1
        story = Story(self._number, kind, thread, notes=self.dice.random() < 0.5)
        thread.stories += 1
        self._alive[story.number] = story
        return story

    def _thread(self, *, in_conversation: bool) -> Thread:
        """Returns an idle thread if there is one, because stories should share a thread only on purpose."""
        wanted = [thread for thread in self.threads if (thread.conversation_id is not None) is in_conversation]
        least = min(thread.stories for thread in wanted)
        return self.dice.choice([thread for thread in wanted if thread.stories == least])

    async def _tell(self, tell: Tell, story: Story) -> None:
        try:
            await tell(story)
        except* Refused as refusals:
            for refusal in refusals.exceptions:
                detail = f"{self.ledger.elapsed_s:.1f} s: story {story.number}, runs {story.run_ids}: {refusal}"
                self.ledger.broken(Column.LOST, story.run_ids[-1] if story.run_ids else "-", detail)
        finally:
            story.thread.stories -= 1
            del self._alive[story.number]

    async def _make(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.client.call(Request(method, path, body))
        assert answer is not None
        assert answer.is_success, f"{method} {path}: {answer.status} {answer.body}"
        return answer.body
