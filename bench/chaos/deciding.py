"""People who decide waiting tool calls: early or late, once or twice at the same time, of one mind or not."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from bench.chaos.client import Client, Request
from bench.chaos.ledger import Ledger, RunRecord, Story
from bench.chaos.witness import Witness

LONGEST_S = 8.0


@dataclass
class Deciding:
    """Decides."""

    client: Client
    ledger: Ledger
    witness: Witness
    dice: random.Random
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nobody should think any longer."""
    _number: int = 0

    async def decide(self, story: Story, parked: RunRecord) -> RunRecord | None:
        """Decides all that a parked run waits for; its continuation, if there is one."""
        await self._think()
        waiting = [one for one in await self._waiting(story) if one["run_id"] == parked.run_id]
        if not waiting:
            return None
        if self.dice.random() < 0.3 and story.thread.conversation_id is None:
            return await self._decide_together(story, waiting)
        for approval in waiting:
            await asyncio.gather(*(self._decide(approval["id"]) for _ in range(self.dice.choice([1, 1, 2]))))
        decided = await self.client.get(f"/v1/approvals/{waiting[-1]['id']}")
        run_id = decided["continued_by"]
        return None if run_id is None else self.ledger.accept(run_id, story, None, None)

    async def cancel_left_over(self, run_ids: list[str]) -> None:
        """Cancels what nobody came to decide."""
        for run_id in run_ids:
            await self.client.call(Request("POST", f"/v1/runs/{run_id}/cancel", {}))

    async def _think(self) -> None:
        try:
            async with asyncio.timeout(self.dice.choice([0.1, self.dice.uniform(0, LONGEST_S)])):
                await self.hurry.wait()
        except TimeoutError:
            return

    async def _waiting(self, story: Story) -> list[dict[str, Any]]:
        return await self.client.get(f"/v1/approvals?agent_id={story.thread.agent_id}")

    async def _decide(self, approval_id: str) -> None:
        body: dict[str, Any] = {"decision": self.dice.choice(["approve", "approve", "deny"]), "decided_by": "chaos"}
        answer = await self.client.call(Request("POST", f"/v1/approvals/{approval_id}", body))
        assert answer is not None
        self.ledger.notes[f"decisions: answered {answer.status}"] += 1

    async def _decide_together(self, story: Story, waiting: list[dict[str, Any]]) -> RunRecord | None:
        """All in one message, as `letta-client` does it; at times sent twice at once under the same key."""
        self._number += 1
        items = [
            {"type": "approval", "tool_call_id": one["tool_call_id"], "approve": self.dice.random() < 0.7}
            for one in waiting
        ]
        otid = f"decided-{self._number:05d}"
        body = {
            "messages": [{"type": "approval", "approvals": items, "otid": otid}],
            "stream_tokens": True,
            "include_status_events": story.notes,
        }
        path = f"/v1/agents/{story.thread.agent_id}/messages/async"
        request = Request("POST", path, body, {"Idempotency-Key": f"key-{otid}"})
        answers = await asyncio.gather(*(self.client.call(request) for _ in range(self.dice.choice([1, 1, 2]))))
        record: RunRecord | None = None
        for answer in answers:
            assert answer is not None
            self.ledger.notes[f"decisions in a message: answered {answer.status}"] += 1
            if answer.is_success:
                record = self.ledger.accept(str(answer.body["id"]), story, None, otid)
        return record
