"""Plays clients of an agent in code. It plays scripts as other agents do, so its stories are those of other agents, and
of pages."""

import random
from dataclasses import dataclass, field
from typing import Any

from bench.chaos.client import Client, Request
from bench.chaos.ledger import CODE, Ledger, Story, Thread
from bench.chaos.page_stories import PageStories
from bench.chaos.stories import Stories, Tell
from bench.chaos.tools import NOTE_CHECKED

MODEL = "code/player"


@dataclass
class CodeStories:
    """Plays stories."""

    client: Client
    ledger: Ledger
    letta: Stories
    pages: PageStories
    dice: random.Random
    threads: list[Thread] = field(default_factory=list[Thread])

    async def prepare(self, count: int) -> None:
        """Makes `count` agents, and a conversation of every second one."""
        for number in range(count):
            body = {"name": f"code-{number}", "model": MODEL, "include_base_tools": False}
            made = await self._made("/v1/agents/", body)
            self.threads.append(Thread(self.client.project, made))
            if number % 2 == 0:
                conversation = await self._made(f"/v1/conversations?agent_id={made}", {})
                self.threads.append(Thread(self.client.project, made, conversation))

    def kinds(self) -> dict[str, tuple[Tell, int]]:
        """The kinds of stories, with their relative frequencies."""
        letta, pages = self.letta, self.pages
        answers = [letta.text, letta.tools, letta.parallel_tools, letta.slow_tool, self.checked, self.failing]
        return {
            CODE: (self._one_of(*answers, letta.idempotent_tools), 9),
            f"{CODE}, approved": (self._one_of(letta.approval, letta.approval, letta.client_tools), 6),
            f"{CODE}, cancelled": (self._one_of(letta.cancel), 5),
            f"{CODE}, injected": (self._one_of(letta.inject), 3),
            f"{CODE}, busy": (self._one_of(letta.busy, letta.in_the_way, in_conversations=False), 3),
            f"{CODE}, page": (self._one_of(pages.streamed, pages.stopped, pages.approved, pages.outputs), 6),
        }

    async def checked(self, story: Story) -> None:
        """Calls of a tool whose probe reports after a crash whether it has had its effect."""
        await self.letta.streamed(story, self.letta.scripts.tools(NOTE_CHECKED))

    async def failing(self, story: Story) -> None:
        """A function that raises."""
        await self.letta.streamed(story, self.letta.scripts.error())

    def _one_of(self, *tell: Tell, in_conversations: bool = True) -> Tell:
        """A story of another kind, on one of these agents."""

        async def told(story: Story) -> None:
            allowed = [one for one in self.threads if in_conversations or one.conversation_id is None]
            least = min(one.stories for one in allowed)
            thread = self.dice.choice([one for one in allowed if one.stories == least])
            thread.stories += 1
            try:
                own = Story(story.number, story.kind, thread, story.notes, story.keys, story.run_ids)
                await self.dice.choice(tell)(own)
            finally:
                thread.stories -= 1

        return told

    async def _made(self, path: str, body: dict[str, Any]) -> str:
        made = await self.client.call(Request("POST", path, body))
        assert made is not None
        assert made.is_success, f"{made.status} {made.body}"
        return str(made.body["id"])
