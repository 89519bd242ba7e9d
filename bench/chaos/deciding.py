"""Plays people who decide waiting tool calls (early or late, once or twice at the same time, in agreement or not),
clients that return the results of their own tools, and calls that expire."""

import asyncio
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bench.chaos.client import Client, Request
from bench.chaos.ledger import Column, Decided, Ledger, RunRecord, Story
from bench.chaos.witness import Witness

LONGEST_S = 8.0
AROUND_EXPIRY_S = 0.3


@dataclass
class Deciding:
    """Decides waiting calls."""

    client: Client
    ledger: Ledger
    witness: Witness
    dice: random.Random
    hurry: asyncio.Event
    """Set when decisions should no longer be delayed."""
    _returns: int = field(default=0)

    async def decide(self, story: Story, parked: RunRecord) -> RunRecord | None:
        """Decides all waiting calls of a parked run. Returns its continuation, if there is one."""
        await self._think(self.dice.choice([0.1, self.dice.uniform(0, LONGEST_S)]))
        waiting = await self._waiting(story, parked)
        if not waiting:
            return None
        if self.dice.random() < 0.3 and story.thread.conversation_id is None:
            continued = await self._decide_together(story, waiting)
        else:
            continued = await self._decide_each(story, waiting)
        for approval in waiting:
            self._note_decided(await self.client.get(f"/v1/approvals/{approval['id']}"))
        return continued

    async def leave_to_clock(self, story: Story, parked: RunRecord) -> RunRecord | None:
        """Waits until a parked run's calls have expired, or were decided at the last moment. Returns its continuation,
        if there is one."""
        [asked] = await self.witness.approvals_of(parked.run_id)
        if self.dice.random() < 0.3:
            until_s = (asked.expires_at - datetime.now(UTC)).total_seconds()
            await asyncio.sleep(max(0.0, until_s + self.dice.uniform(-AROUND_EXPIRY_S, AROUND_EXPIRY_S)))
            await self._decide(asked.id, client_side=False)
        decided = await self.client.get(f"/v1/approvals/{asked.id}")
        while decided["status"] == "waiting":
            await asyncio.sleep(0.3)
            decided = await self.client.get(f"/v1/approvals/{asked.id}")
        self._note_decided(decided)
        self._check_expiry(parked, decided)
        run_id = decided["continued_by"]
        return None if run_id is None else self.ledger.accept(run_id, story, None, None)

    async def cancel_left_over(self, run_ids: list[str]) -> None:
        """Cancels runs that still wait for a decision. Another project does not find these runs."""
        for run_id in run_ids:
            await self.client.call(Request("POST", f"/v1/runs/{run_id}/cancel", {}))

    async def note_decided(self, parked: RunRecord) -> None:
        """Records how the waiting calls of a run were decided."""
        for asked in await self.witness.approvals_of(parked.run_id):
            self._note_decided(await self.client.get(f"/v1/approvals/{asked.id}"))

    async def _think(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.hurry.wait()
        except TimeoutError:
            return

    async def _waiting(self, story: Story, parked: RunRecord) -> list[dict[str, Any]]:
        waiting = await self.client.get(f"/v1/approvals?agent_id={story.thread.agent_id}")
        return [one for one in waiting if one["run_id"] == parked.run_id]

    def _check_expiry(self, parked: RunRecord, decided: dict[str, Any]) -> None:
        by_clock = decided["decided_by"] in ("expiry", "approval_expired")
        self.ledger.notes[f"expiry: {decided['status']} by {'the clock' if by_clock else 'a person'}"] += 1
        early = datetime.fromisoformat(decided["decided_at"]) < datetime.fromisoformat(decided["expires_at"])
        if by_clock and (early or decided["status"] != "denied"):
            detail = f"expired: {decided['status']} at {decided['decided_at']}, due at {decided['expires_at']}"
            self.ledger.broken(Column.DECISIONS, parked.run_id, detail)
        if by_clock and decided["on_expiry"] == "cancel" and decided["continued_by"] is not None:
            self.ledger.broken(Column.DECISIONS, parked.run_id, "must be cancelled on expiry, but went on")

    async def _decide_each(self, story: Story, waiting: list[dict[str, Any]]) -> RunRecord | None:
        for approval in waiting:
            times = self.dice.choice([1, 1, 2])
            tries = (self._decide(approval["id"], client_side=approval["client_side"]) for _ in range(times))
            await asyncio.gather(*tries)
        decided = await self.client.get(f"/v1/approvals/{waiting[-1]['id']}")
        run_id = decided["continued_by"]
        return None if run_id is None else self.ledger.accept(run_id, story, None, None)

    async def _decide(self, approval_id: str, *, client_side: bool) -> None:
        decision = "tool_return" if client_side else self.dice.choice(["approve", "approve", "deny"])
        body: dict[str, Any] = {"decision": decision, "decided_by": "chaos"}
        if client_side:
            body["tool_return"] = self.result()
        answer = await self.client.call(Request("POST", f"/v1/approvals/{approval_id}", body))
        assert answer is not None
        self.ledger.notes[f"decisions: answered {answer.status}"] += 1
        if answer.is_success:
            self._note_decided(answer.body)

    def result(self) -> str:
        """Returns a result of a client's tool. No other result is the same."""
        self._returns += 1
        return f"result {self._returns} of a tool of {self.client.project}"

    def _note_decided(self, shown: dict[str, Any]) -> None:
        if shown["status"] == "waiting":
            return
        decided = Decided(
            run_id=shown["run_id"],
            tool_call_id=shown["tool_call_id"],
            key=shown["arguments_object"]["key"],
            status=shown["status"],
            tool_return=shown["decision"].get("tool_return"),
        )
        self.ledger.decide(shown["id"], decided)

    async def _decide_together(self, story: Story, waiting: list[dict[str, Any]]) -> RunRecord | None:
        """Decides all calls in one message, as `letta-client` does; sometimes sends it twice at once with one key."""
        otid = self.ledger.otid("decided")
        body = {
            "messages": [{**self._in_a_message(waiting), "otid": otid}],
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

    def _in_a_message(self, waiting: list[dict[str, Any]]) -> dict[str, Any]:
        if waiting[0]["client_side"]:
            returns = [
                {
                    "type": "tool",
                    "tool_call_id": one["tool_call_id"],
                    "tool_return": self.result(),
                    "status": "success",
                }
                for one in waiting
            ]
            return {"type": "tool_return", "tool_returns": returns}
        items = [
            {"type": "approval", "tool_call_id": one["tool_call_id"], "approve": self.dice.random() < 0.7}
            for one in waiting
        ]
        return {"type": "approval", "approvals": items}
