"""One conversation with one agent, by the public SDK."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from letta_client import AsyncLetta, Omit, omit
from letta_client.types import CreateBlockParam

from bench.long_conversation.account import MOTTO, MOTTO_LIMIT, READ_ONLY, RULES, Account
from bench.long_conversation.edits import TOOLS
from bench.long_conversation.plan import Plan, PlannedTurn

POLL_S = 0.05
PAGE = 200
OVER = ("completed", "failed", "cancelled")


class TurnFailed(Exception):
    """A turn got no answer."""


@dataclass
class Talk:
    """Sends the plan's messages, and records the time of each turn."""

    client: AsyncLetta
    name: str
    plan: Plan
    dice: random.Random
    agent_id: str = ""
    conversation_id: str | None = None
    """None: the agent's own history."""
    took_s: list[float] = field(default_factory=list[float])

    @property
    def thread_id(self) -> str:
        return self.conversation_id or self.agent_id

    async def begin(self, shared_block_id: str, window: int, *, in_conversation: bool) -> None:
        """Makes the agent, and its conversation if it has one."""
        before = Account(self.name).blocks
        blocks: list[CreateBlockParam] = [{"label": label, "value": text} for label, text in before.items()]
        for block in blocks:
            if block["label"] == RULES:
                block["read_only"] = True
            elif block["label"] == MOTTO:
                block["limit"] = MOTTO_LIMIT
        assert before[RULES] == READ_ONLY
        agent = await self.client.agents.create(
            name=self.name,
            model="openai/gpt-4o-mini",
            context_window_limit=window,
            memory_blocks=blocks,
            block_ids=[shared_block_id],
            tools=list(TOOLS),
            include_base_tools=False,
        )
        self.agent_id = agent.id
        if in_conversation:
            self.conversation_id = (await self.client.conversations.create(agent_id=agent.id)).id

    async def go_on(self) -> None:
        """Plays all turns, one after the other. Raises `TurnFailed`."""
        for turn in self.plan.turns:
            if turn.by_person is not None:
                label, value = turn.by_person
                await self.client.agents.blocks.update(label, agent_id=self.agent_id, value=value)
            began = time.monotonic()
            stop_reason = await self._say(turn)
            self.took_s.append(time.monotonic() - began)
            if stop_reason != "end_turn":
                raise TurnFailed(f"turn {turn.number} of {self.name} ended with {stop_reason}, not with end_turn")

    async def _say(self, turn: PlannedTurn) -> str | None:
        """Sends one message by one of the API's routes and waits for the answer. Returns the stop reason."""
        message: Any = {"role": "user", "content": turn.question, "otid": f"{self.name}-{turn.number}"}
        if self.conversation_id is not None:
            return await self._end_of(
                await self.client.conversations.messages.create(
                    self.conversation_id, messages=[message], background=True, max_steps=100
                )
            )
        match self.dice.choice(["plain", "plain", "stream", "poll"]):
            case "plain":
                answer = await self.client.agents.messages.create(self.agent_id, messages=[message], max_steps=100)
                return answer.stop_reason.stop_reason
            case "stream":
                return await self._end_of(
                    await self.client.agents.messages.create(
                        self.agent_id,
                        messages=[message],
                        streaming=True,
                        stream_tokens=True,
                        background=True,
                        max_steps=100,
                    )
                )
            case _:
                return await self._polled(message)

    async def _end_of(self, frames: AsyncIterator[Any]) -> str | None:
        """Reads a stream to its end. Returns the stop reason."""
        reasons = [frame.stop_reason async for frame in frames if frame.message_type == "stop_reason"]
        if len(reasons) > 1:
            raise TurnFailed(f"a stream of {self.name} has the ends {reasons}")
        return reasons[0] if reasons else None

    async def _polled(self, message: Any) -> str | None:
        run = await self.client.agents.messages.create_async(self.agent_id, messages=[message], max_steps=100)
        while run.status not in OVER:
            await asyncio.sleep(POLL_S)
            run = await self.client.runs.retrieve(run.id)
        return run.stop_reason

    async def history(self) -> AsyncIterator[Any]:
        """Yields all messages, page by page, oldest first."""
        if self.conversation_id is not None:
            listing = self.client.conversations.messages.list(self.conversation_id, limit=PAGE, order="asc")
        else:
            listing = self.client.agents.messages.list(
                self.agent_id, limit=PAGE, order="asc", conversation_id="default"
            )
        async for message in listing:
            yield message

    async def passages(self) -> AsyncIterator[str]:
        """Yields the texts in archival memory, page by page, oldest first."""
        after: str | Omit = omit
        while page := await self.client.agents.passages.list(self.agent_id, limit=PAGE, ascending=True, after=after):
            for passage in page:
                yield passage.text
            after = page[-1].id or ""
