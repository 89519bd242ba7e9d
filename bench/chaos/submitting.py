"""Submits scripts to threads by each of the API's routes, and follows their runs."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bench.chaos.client import Client, Request
from bench.chaos.ledger import Column, Ledger, RunRecord, Story
from bench.chaos.readers import Reader, Submission
from bench.chaos.scripts import Script
from bench.chaos.witness import Witness
from shared.domain.lifecycle import STREAM_ENDED

OVER = frozenset({"completed", "failed", "cancelled"})
REFUSALS = frozenset({400, 409})


@dataclass
class Submitting:
    """Submits for stories."""

    client: Client
    ledger: Ledger
    witness: Witness
    dice: random.Random

    async def later(self, story: Story, script: Script, **fields: Any) -> RunRecord | None:
        """Submits to an agent, and gets the run at once."""
        path = f"/v1/agents/{story.thread.agent_id}/messages/async"
        otid, request = self._request(story, script, path, stream_tokens=True, **fields)
        answer = await self.client.call(request)
        assert answer is not None
        if not answer.is_success:
            self.refused(story, answer.status, answer.body)
            return None
        return self.ledger.accept(str(answer.body["id"]), story, script, otid)

    async def whole(self, story: Story, script: Script) -> None:
        """Submits and waits for the whole answer, which may be a failed run's."""
        otid, request = self._request(story, script, story.thread.messages_path, streaming=False)
        answer = await self.client.call(request)
        assert answer is not None
        run_id = await self.witness.run_of(story.thread.id, otid)
        if run_id is not None:
            self.ledger.accept(run_id, story, script, otid)
        elif answer.is_success:
            self.ledger.broken(Column.LOST, "-", f"otid {otid} was answered {answer.status}, but no run has it")
        else:
            self.refused(story, answer.status, answer.body)

    @asynccontextmanager
    async def streaming(self, story: Story, script: Script, **fields: Any) -> AsyncGenerator[RunRecord | None]:
        """Submits, reads the stream concurrently with the block, and waits for the stream's end."""
        otid, request = self._request(
            story, script, story.thread.messages_path, streaming=True, background=True, stream_tokens=True, **fields
        )
        accepted: asyncio.Future[RunRecord | None] = asyncio.get_running_loop().create_future()

        def accept(run_id: str) -> RunRecord:
            record = self.ledger.accept(run_id, story, script, otid)
            if not accepted.done():
                accepted.set_result(record)
            return record

        reader = Reader(self.client, self.ledger, self.dice, Submission(request, accept), restless=False)

        async def read() -> None:
            await reader.read()
            if not accepted.done():
                accepted.set_result(None)
                if reader.refusal is not None:
                    self.refused(story, reader.refusal.answer.status, reader.refusal.answer.body)

        async with asyncio.TaskGroup() as group:
            group.create_task(read(), name="read the submission's stream")
            yield await accepted

    @asynccontextmanager
    async def readers(self, record: RunRecord, count: int) -> AsyncGenerator[None]:
        """Runs `count` readers concurrently with the block, and waits until each has the stream's end."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                restless = self.dice.random() < 0.6
                reader = Reader(self.client, self.ledger, self.dice, record, restless=restless)
                group.create_task(reader.read(), name=f"read {record.run_id}")
            yield

    async def poll(self, run_id: str) -> str:
        """Polls the run until it has ended. Returns its status."""
        while True:
            status = (await self.client.get(f"/v1/runs/{run_id}"))["status"]
            if status in OVER:
                return str(status)
            await asyncio.sleep(self.dice.uniform(0.2, 1.0))

    async def until_parked_or_over(self, run_id: str) -> bool:
        """Waits until the run's stream has ended. Returns whether the run waits for approval."""
        while True:
            status = await self.witness.status_of(run_id)
            if status in STREAM_ENDED:
                return status == "awaiting_approval"
            await asyncio.sleep(0.2)

    def _request(
        self, story: Story, script: Script, path: str, *, if_busy: str = "enqueue", **fields: Any
    ) -> tuple[str, Request]:
        otid = self.ledger.otid("sent")
        story.keys.update(script.keys)
        headers = {"X-Holdfast-If-Busy": if_busy}
        if self.dice.random() < 0.5:
            headers["Idempotency-Key"] = f"key-{otid}"
        message = {"role": "user", "content": script.text, "otid": otid}
        body = {"messages": [message], "include_status_events": story.notes, **fields}
        return otid, Request("POST", path, body, headers)

    def refused(self, story: Story, status: int, body: Any) -> None:
        """Records that a submission was refused. Clients must expect some refusals."""
        self.ledger.notes[f"submissions refused with {status}"] += 1
        if status not in REFUSALS and status < 500:
            detail = f"a submission was answered {status}: {str(body)[:300]}"
            self.ledger.broken(Column.ERRORS, "-", f"{self.ledger.elapsed_s:.1f} s: {story.kind}: {detail}")
