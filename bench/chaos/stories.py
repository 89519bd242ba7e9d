"""Plays clients: one method for each kind of story, from the submission to the end of all its runs."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from bench.chaos.callbacks import Callbacks
from bench.chaos.client import Client, Request
from bench.chaos.deciding import Deciding
from bench.chaos.ledger import Column, Injection, Ledger, RunRecord, Story
from bench.chaos.newer_release import NewerRelease
from bench.chaos.scripts import Script, Scripts
from bench.chaos.submitting import Submitting
from bench.chaos.tools import CLIENT_TOOLS, NOTE, NOTE_AGAIN, TAKE_SECONDS
from bench.chaos.witness import Witness

CANCEL_MODES = ("interrupt", "interrupt", "after_step", "rollback")

Tell = Callable[[Story], Awaitable[None]]


@dataclass
class Stories:
    """Plays stories."""

    client: Client
    ledger: Ledger
    witness: Witness
    scripts: Scripts
    submitting: Submitting
    deciding: Deciding
    callbacks: Callbacks
    newer: NewerRelease
    dice: random.Random

    def kinds(self) -> dict[str, tuple[Tell, int]]:
        """The kinds of stories, with their relative frequencies."""
        return {
            "text": (self.text, 4),
            "long text": (self.long_text, 3),
            "polled": (self.polled, 2),
            "whole answer": (self.whole_answer, 2),
            "tools": (self.tools, 3),
            "idempotent tools": (self.idempotent_tools, 2),
            "parallel tools": (self.parallel_tools, 2),
            "slow tool": (self.slow_tool, 3),
            "approval": (self.approval, 4),
            "cancel": (self.cancel, 6),
            "inject": (self.inject, 2),
            "busy": (self.busy, 2),
            "in the way": (self.in_the_way, 2),
            "model error": (self.model_error, 2),
            "called back": (self.called_back, 3),
            "client tools": (self.client_tools, 3),
            "expiry": (self.expiry, 2),
            "compaction": (self.compaction, 2),
            "called tool": (self.called_tool, 3),
            "stranger": (self.stranger, 2),
            "newer cancel": (self.newer_cancel, 2),
        }

    async def text(self, story: Story) -> None:
        await self.streamed(story, self.scripts.plain())

    async def long_text(self, story: Story) -> None:
        await self.streamed(story, self.scripts.long())

    async def tools(self, story: Story) -> None:
        await self.streamed(story, self.scripts.tools())

    async def idempotent_tools(self, story: Story) -> None:
        await self.streamed(story, self.scripts.idempotent())

    async def parallel_tools(self, story: Story) -> None:
        await self.streamed(story, self.scripts.parallel())

    async def slow_tool(self, story: Story) -> None:
        await self.streamed(story, self.scripts.slow_tool())

    async def model_error(self, story: Story) -> None:
        tell = self.dice.choice([self.streamed, self._polled, self.submitting.whole])
        await tell(story, self.scripts.error())

    async def polled(self, story: Story) -> None:
        await self._polled(story, self.dice.choice([self.scripts.plain, self.scripts.tools, self.scripts.slow_tool])())

    async def whole_answer(self, story: Story) -> None:
        await self.submitting.whole(story, self.dice.choice([self.scripts.plain, self.scripts.tools])())

    async def approval(self, story: Story) -> None:
        """A run that waits for approval, and its continuation."""
        await self.decided(story, await self.streamed(story, self.scripts.approval()))

    async def client_tools(self, story: Story) -> None:
        """A run that waits for the results of its client's tools."""
        record = await self.streamed(story, self.scripts.client_side(), client_tools=CLIENT_TOOLS)
        await self.decided(story, record)

    async def expiry(self, story: Story) -> None:
        """A run whose decision comes too late, or at the last moment."""
        record = await self.streamed(story, self.scripts.expires())
        if record is None:
            return
        record.is_pushed = True
        await self.submitting.until_parked_or_over(record.run_id)
        if await self.witness.approvals_of(record.run_id):
            await self._read(await self.deciding.leave_to_clock(story, record))

    async def called_back(self, story: Story) -> None:
        """A run that calls its receiver back, however it ends."""
        scripts = self.scripts
        script = self.dice.choice([scripts.plain, scripts.long, scripts.tools, scripts.error])()
        record = await self.submitting.later(story, script, callback_url=self.callbacks.url())
        if record is None:
            return
        record.is_called_back = True
        if self.dice.random() < 0.3:
            record.is_pushed = True
            await asyncio.sleep(self.dice.uniform(0, 3))
            await self.cancel_now(record)
        await self.submitting.poll(record.run_id)

    async def compaction(self, story: Story) -> None:
        """A compaction of a history: after its active runs, and before later ones."""
        submitting, scripts = self.submitting, self.scripts
        records = [await submitting.later(story, scripts.plain(20)), await submitting.later(story, scripts.tools())]
        settings = {"mode": self.dice.choice(["all", "sliding_window"])}
        path = f"/v1/agents/{story.thread.agent_id}/summarize"
        request = Request("POST", path, {"compaction_settings": settings}, repeat=False)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(self.client.call(request), name=f"compact {story.thread.agent_id}")
            await asyncio.sleep(self.dice.uniform(0, 1))
            records.append(await submitting.later(story, scripts.plain(20)))
        answer = asked.result()
        self.ledger.notes[f"compactions: {answer.status if answer else 'unknown'}"] += 1
        if answer is not None and answer.is_success:
            story.thread.compactions += answer.body["num_messages_before"] > 1
        for run_id in await self.witness.compactions_of(story.thread.id):
            records.append(self.ledger.accept(run_id, story, None, None))
        for record in records:
            if record is not None:
                await submitting.poll(record.run_id)

    async def called_tool(self, story: Story) -> None:
        """A client calls a tool of an agent, concurrently with the agent's runs. Sent again, it is the same call."""
        name = self.dice.choice([NOTE, NOTE_AGAIN, TAKE_SECONDS])
        seconds = self.dice.uniform(0, 4) if name == TAKE_SECONDS else 0.0
        key = self.ledger.otid("called")
        story.keys[key] = name
        path = f"/v1/agents/{story.thread.agent_id}/tools/{name}/run"
        request = Request("POST", path, {"args": {"key": key, "seconds": seconds}}, {"Idempotency-Key": key})
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(self.client.call(request), name=f"call {key}")
            await asyncio.sleep(self.dice.uniform(0, 2))
            run_id = await self.witness.called_by(story.thread.agent_id, key)
            if run_id is not None and self.dice.random() < 0.3:
                record = self.ledger.accept(run_id, story, None, None)
                record.is_pushed = True
                await self.cancel_now(record)
        answer = asked.result()
        assert answer is not None
        run_id = await self.witness.called_by(story.thread.agent_id, key)
        if run_id is None:
            self.ledger.broken(Column.LOST, "-", f"the call {key} was answered {answer.status}, but no run has it")
            return
        await self.submitting.poll(self.ledger.accept(run_id, story, None, None).run_id)
        status = answer.body["status"] if answer.is_success else f"answered {answer.status}"
        self.ledger.notes[f"called tools: {status}"] += 1
        if status == "success" and answer.body["func_return"] != key:
            self.ledger.broken(Column.SHOWN, run_id, f"the call {key} returned {answer.body['func_return']!r}")

    async def stranger(self, story: Story) -> None:
        """A caller with another project's key requests all data of a run, and finds nothing."""
        record = self._of_another_project()
        if record is None:
            return
        run, agent = f"/v1/runs/{record.run_id}", f"/v1/agents/{record.story.thread.agent_id}"
        said = {"messages": [{"role": "user", "content": self.scripts.plain().text}]}
        for request in (
            Request("GET", run),
            Request("GET", f"{run}/messages"),
            Request("POST", f"{run}/stream", {}),
            Request("POST", f"{run}/cancel", {}),
            Request("POST", f"{run}/inject", said),
            Request("GET", agent),
            Request("GET", f"{agent}/messages"),
            Request("POST", f"{agent}/messages/async", said),
            Request("GET", f"/v1/runs/?agent_id={record.story.thread.agent_id}"),
            Request("GET", f"/v1/approvals?agent_id={record.story.thread.agent_id}"),
        ):
            answer = await self.client.call(request)
            assert answer is not None
            self.ledger.notes["questions of strangers"] += 1
            if answer.status != 404 and answer.body != []:
                detail = f"{self.client.project}: {request.method} {request.path} was answered {answer.status}"
                self.ledger.broken(Column.WALLS, record.run_id, f"{detail}: {str(answer.body)[:300]}")

    async def newer_cancel(self, story: Story) -> None:
        """A run that an API process of a newer release cancels, with an unknown mode."""
        async with AsyncExitStack() as stack:
            record = await self.begin(story, self.scripts.long(), stack)
            if record is None:
                return
            record.is_pushed = True
            await asyncio.sleep(self.dice.uniform(0, 3))
            if await self.newer.cancel(record.run_id):
                status = await self.submitting.poll(record.run_id)
                self.ledger.notes[f"cancels of a newer release: {status}"] += 1

    def _of_another_project(self) -> RunRecord | None:
        others = [one for one in self.ledger.runs.values() if one.story.thread.project != self.client.project]
        return self.dice.choice(others[-30:]) if others else None

    async def decided(self, story: Story, record: RunRecord | None) -> None:
        while record is not None and await self.submitting.until_parked_or_over(record.run_id):
            record = await self.deciding.decide(story, record)
            await self._read(record)

    async def _read(self, record: RunRecord | None) -> None:
        if record is not None:
            async with self.submitting.readers(record, self.dice.randint(1, 2)):
                pass

    async def cancel(self, story: Story) -> None:
        """Any run, cancelled at any moment."""
        scripts = self.scripts
        write = self.dice.choice([scripts.long, scripts.long, scripts.slow_tool, scripts.tools, scripts.approval])
        async with AsyncExitStack() as stack:
            record = await self.begin(story, write(), stack)
            if record is None:
                return
            record.is_pushed = True
            await asyncio.sleep(self.dice.choice([0.0, self.dice.uniform(0, 1), self.dice.uniform(0, 6)]))
            await self.cancel_now(record)
        await self.cancel_what_waits(record)

    async def inject(self, story: Story) -> None:
        """A run that gets a message while it works."""
        async with AsyncExitStack() as stack:
            record = await self.begin(story, self.dice.choice([self.scripts.long, self.scripts.slow_tool])(), stack)
            if record is None:
                return
            record.is_pushed = True
            await asyncio.sleep(self.dice.uniform(0, 4))
            await self._inject(story, record)

    async def busy(self, story: Story) -> None:
        """Several messages for one agent, one after the other."""
        records = [await self.submitting.later(story, self.scripts.plain(20)) for _ in range(self.dice.randint(2, 4))]
        async with AsyncExitStack() as stack:
            for record in records:
                if record is not None:
                    await stack.enter_async_context(self.submitting.readers(record, 1))

    async def in_the_way(self, story: Story) -> None:
        """A message that cancels the active run, or is injected into it."""
        policy = self.dice.choice(["interrupt", "rollback", "inject"])
        async with AsyncExitStack() as stack:
            first = await self.begin(story, self.scripts.long(), stack)
            if first is None:
                return
            first.is_pushed = True
            await asyncio.sleep(self.dice.uniform(0, 2))
            second = await self.submitting.later(story, self.scripts.plain(20), if_busy=policy)
            if second is not None and second is not first:
                await stack.enter_async_context(self.submitting.readers(second, 1))

    async def streamed(self, story: Story, script: Script, **fields: Any) -> RunRecord | None:
        async with AsyncExitStack() as stack:
            return await self.begin(story, script, stack, **fields)

    async def begin(self, story: Story, script: Script, stack: AsyncExitStack, **fields: Any) -> RunRecord | None:
        """Begins a run with one to three readers, which the stack waits for at its end."""
        in_conversation = story.thread.conversation_id is not None
        if in_conversation or self.dice.random() < 0.6:
            record = await stack.enter_async_context(self.submitting.streaming(story, script, **fields))
            more = self.dice.choice([0, 0, 1, 2])
        else:
            record = await self.submitting.later(story, script, **fields)
            more = self.dice.randint(1, 3)
        if record is not None and more:
            await stack.enter_async_context(self.submitting.readers(record, more))
        return record

    async def _polled(self, story: Story, script: Script) -> None:
        record = await self.submitting.later(story, script)
        if record is not None:
            await self.submitting.poll(record.run_id)

    async def cancel_now(self, record: RunRecord) -> None:
        """Cancels until the answer has the run's end."""
        body = {"mode": self.dice.choice(CANCEL_MODES), "reason": "chaos", "wait": self.dice.choice([0, 2, 5])}
        while True:
            answer = await self.client.call(Request("POST", f"/v1/runs/{record.run_id}/cancel", body))
            assert answer is not None
            status = answer.body["status"] if answer.is_success else f"answered {answer.status}"
            self.ledger.notes[f"cancels: {status}"] += 1
            if status == "cancelled":
                await self.witness.cancelled(record)
            if status != "cancelling":
                return
            await asyncio.sleep(0.3)

    async def cancel_what_waits(self, record: RunRecord) -> None:
        """Cancels again a run that parked itself before the cancel, because no decision will come."""
        if await self.submitting.until_parked_or_over(record.run_id):
            await self.cancel_now(record)

    async def _inject(self, story: Story, record: RunRecord) -> None:
        script = self.scripts.plain(15)
        otid, if_ended = self.ledger.otid("given"), self.dice.choice(["refuse", "next"])
        message = {"role": "user", "content": script.text, "otid": otid}
        path = f"/v1/runs/{record.run_id}/inject"
        answer = await self.client.call(Request("POST", path, {"messages": [message], "if_ended": if_ended}))
        if answer is not None and answer.is_success:
            self.ledger.injections.append(Injection(otid, record.run_id, if_ended))
        self.ledger.notes[f"injections: {answer.status if answer else 'unknown'}"] += 1
