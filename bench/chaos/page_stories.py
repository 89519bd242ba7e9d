"""Plays pages in browsers: their requests in AG-UI and in the AI SDK's protocol, their readers, and their actions
meanwhile.

The checks read their runs through Letta's API as all other runs, and as pages see them (`page_checks.py`).
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.chaos.client import Client, Request
from bench.chaos.deciding import Deciding
from bench.chaos.ledger import Column, Ledger, RunRecord, Story, Thread
from bench.chaos.page_readers import AgUiReader, AnswerReader, PageThread, Sent
from bench.chaos.readers import Submission
from bench.chaos.scripts import Script, Scripts
from bench.chaos.stories import Stories, Tell
from bench.chaos.submitting import Submitting
from bench.chaos.tools import CLIENT_TOOLS
from bench.chaos.witness import Witness

Dialect = Literal["ag-ui", "ai-sdk"]
PageReader = AgUiReader | AnswerReader

WAITS_FOR_OTHERS = frozenset({"PENDING_APPROVAL", "NO_PENDING_APPROVAL", "INCOMPLETE_RESUME"})
"""Codes with which a submission is refused if another story has parked the same conversation, or has decided."""


@dataclass
class PageStories:
    """Plays stories of pages."""

    client: Client
    ledger: Ledger
    witness: Witness
    scripts: Scripts
    submitting: Submitting
    deciding: Deciding
    letta: Stories
    dice: random.Random
    threads: list[Thread] = field(default_factory=list[Thread])
    """Conversations that pages have begun by naming them."""

    def kinds(self) -> dict[str, tuple[Tell, int]]:
        """The kinds of stories, with their relative frequencies."""
        return {
            "page": (self.streamed, 4),
            "page, approved": (self.approved, 4),
            "page, its tools": (self.outputs, 3),
            "page, stopped": (self.stopped, 4),
            "page, new chat": (self.new_chat, 3),
        }

    async def streamed(self, story: Story) -> None:
        """An answer with one to three tabs as readers."""
        scripts = self.scripts
        write = self.dice.choice([scripts.plain, scripts.long, scripts.tools, scripts.parallel, scripts.error])
        async with AsyncExitStack() as stack:
            await self._begin(story, self._page(story), write(), stack)

    async def approved(self, story: Story) -> None:
        """Calls that a person approves, denies or changes in one tab, sometimes in two tabs at once."""
        await self._decided(story, self.scripts.approval())

    async def outputs(self, story: Story) -> None:
        """Calls that the page makes itself."""
        await self._decided(story, self.scripts.client_side())

    async def stopped(self, story: Story) -> None:
        """An answer that is stopped at any moment."""
        scripts, page = self.scripts, self._page(story)
        write = self.dice.choice([scripts.long, scripts.slow_tool, scripts.tools, scripts.approval])
        async with AsyncExitStack() as stack:
            reader = await self._begin(story, page, write(), stack)
            if reader.record is None:
                return
            reader.record.is_pushed = True
            await asyncio.sleep(self.dice.choice([0.0, self.dice.uniform(0, 1), self.dice.uniform(0, 6)]))
            await self._stop(page, reader)
        await self.letta.cancel_what_waits(reader.record)

    async def new_chat(self, story: Story) -> None:
        """Two tabs begin one conversation at the same time, each with a message, under a name of the page's own."""
        name = self.ledger.otid(self.dice.choice(["chat", "Gespräch é/ü", "thread 1.2"]))
        page = _Page(PageThread(story.thread.agent_id, name), self.dice.choice(["ag-ui", "ai-sdk"]))
        other = _Page(page.thread, self.dice.choice(["ag-ui", "ai-sdk"]))
        async with AsyncExitStack() as stack:
            readers = await asyncio.gather(
                *(self._begin(story, one, self.scripts.plain(20), stack) for one in (page, other))
            )
        found = {record.run_id for reader in readers if (record := reader.record) is not None}
        threads = [await self.witness.thread_of(run_id) for run_id in found]
        ids = {thread_id for thread_id in threads if thread_id is not None}
        if len(ids) > 1:
            self.ledger.broken(Column.DUPLICATED, min(found), f"{name!r} names the conversations {sorted(ids)}")
        for thread_id in ids:
            self.threads.append(Thread(story.thread.project, story.thread.agent_id, thread_id))

    def _page(self, story: Story) -> "_Page":
        name = story.thread.conversation_id or "default"
        return _Page(PageThread(story.thread.agent_id, name), self.dice.choice(["ag-ui", "ai-sdk"]))

    async def _begin(self, story: Story, page: "_Page", script: Script, stack: AsyncExitStack) -> PageReader:
        """Sends a message, and reads the answer during the block, with further tabs. The stack waits for their ends."""
        story.keys.update(script.keys)
        sent = page.message(self.ledger.otid("page"), script.text)
        reader = await stack.enter_async_context(self._reading(story, script, page, sent))
        if reader.record is not None:
            for _ in range(self.dice.choice([0, 0, 1, 2])):
                await stack.enter_async_context(self._tab(page, sent, reader.record))
        return reader

    async def _decided(self, story: Story, script: Script) -> None:
        page = self._page(story)
        async with AsyncExitStack() as stack:
            reader = await self._begin(story, page, script, stack)
        while reader.record is not None and await self.submitting.until_parked_or_over(reader.record.run_id):
            parked = reader.record
            follow_up = await self._decision(page, reader)
            if follow_up is None:
                await self.letta.decided(story, parked)
                return
            times = self.dice.choice([1, 1, 2])
            tabs = [self._reading(story, None, page, follow_up) for _ in range(times)]
            async with AsyncExitStack() as stack:
                readers = [await stack.enter_async_context(tab) for tab in tabs]
            await self.deciding.note_decided(parked)
            runs = {one.record.run_id for one in readers if one.record is not None}
            if len(runs) > 1:
                self.ledger.broken(Column.DUPLICATED, parked.run_id, f"one decision made the runs {sorted(runs)}")
            reader = readers[0]

    async def _decision(self, page: "_Page", reader: PageReader) -> Sent | None:
        """Returns a request that decides all waiting calls of the answer; None if the reader does not have all."""
        assert reader.record is not None
        asked = await self.witness.approvals_of(reader.record.run_id)
        await asyncio.sleep(self.dice.choice([0.0, self.dice.uniform(0, 4)]))
        if isinstance(reader, AgUiReader):
            return self._resume(page, reader, asked)
        return self._responded(page, reader, asked)

    def _resume(self, page: "_Page", reader: AgUiReader, asked: Sequence[Any]) -> Sent:
        resume, results = list[dict[str, Any]](), list[dict[str, Any]]()
        for one in asked:
            if one.client_side:
                content = {"toolCallId": one.tool_call_id, "content": self.deciding.result()}
                results.append({"id": self.ledger.otid("result"), "role": "tool", **content})
            else:
                payload: dict[str, Any] = {"approved": self.dice.random() < 0.7}
                resume.append({"interruptId": one.id, "status": "resolved", "payload": payload})
        fields = {"resume": resume} if resume else {}
        return page.request(self.ledger.otid("decided"), [*reader.view.messages, *results], **fields)

    def _responded(self, page: "_Page", reader: AnswerReader, asked: Sequence[Any]) -> Sent | None:
        by_call = {one.tool_call_id: one for one in asked}
        message = {**reader.view.message, "parts": [dict(part) for part in reader.view.parts]}
        for part in message["parts"]:
            one = by_call.pop(str(part.get("toolCallId")), None)
            if one is None:
                continue
            if one.client_side:
                part |= {"state": "output-available", "output": self.deciding.result()}
            else:
                approval = {"id": one.id, "approved": self.dice.random() < 0.7}
                part |= {"state": "approval-responded", "approval": approval}
        if by_call:
            return None
        given = [one for one in page.history if one["id"] != message["id"]]
        return page.request(self.ledger.otid("decided"), [*given, message])

    @asynccontextmanager
    async def _reading(
        self, story: Story, script: Script | None, page: "_Page", sent: Sent
    ) -> AsyncGenerator[PageReader]:
        """Sends a request and reads its answer during the block. Waits at its end for the end of the stream."""
        accepted = asyncio.Event()

        def accept(run_id: str) -> RunRecord:
            record = self.ledger.accept(run_id, story, script, None)
            self.ledger.page(record, page.dialect).name = page.thread.name
            accepted.set()
            return record

        reader = page.reader(self.client, self.ledger, self.dice, Submission(sent.request, accept), sent)

        async def read() -> None:
            try:
                await reader.read()
            finally:
                accepted.set()
            self._note_refusal(story, reader)

        async with asyncio.TaskGroup() as group:
            group.create_task(read(), name="read the answer of a page")
            await accepted.wait()
            yield reader

    def _note_refusal(self, story: Story, reader: PageReader) -> None:
        if reader.record is not None:
            return
        if reader.refusal is not None:
            self.submitting.refused(story, reader.refusal.answer.status, reader.refusal.answer.body)
        elif isinstance(reader, AgUiReader) and reader.code is not None:
            self.ledger.notes[f"pages refused with {reader.code}"] += 1
            if reader.code not in WAITS_FOR_OTHERS:
                self.ledger.broken(Column.ERRORS, "-", f"{story.kind}: refused with {reader.code}")

    @asynccontextmanager
    async def _tab(self, page: "_Page", sent: Sent, record: RunRecord) -> AsyncGenerator[None]:
        """Reads the run in another tab during the block. Waits at its end until the tab has the last frame."""
        reader = page.reader(self.client, self.ledger, self.dice, record, sent, restless=self.dice.random() < 0.6)
        async with asyncio.TaskGroup() as group:
            group.create_task(reader.read(), name=f"a tab reads {record.run_id}")
            yield

    async def _stop(self, page: "_Page", reader: PageReader) -> None:
        """Stops until no run is active, or this run has ended."""
        assert reader.record is not None
        while True:
            answer = await self.client.call(page.stop(reader.record.run_id))
            assert answer is not None
            status = str(answer.body.get("status")) if answer.is_success else f"answered {answer.status}"
            self.ledger.notes[f"stops of pages: {status}"] += 1
            if status == "cancelled" and answer.body.get("run_id") == reader.record.run_id:
                await self.witness.cancelled(reader.record)
            if status != "cancelling":
                return
            await asyncio.sleep(0.3)


@dataclass
class _Page:
    """A page that shows one conversation."""

    thread: PageThread
    dialect: Dialect
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The messages that it has sent. It shows no others, as after a reload without a list."""

    def message(self, message_id: str, text: str) -> Sent:
        """Returns a request with a new message of the user."""
        shown = {"content": text} if self.dialect == "ag-ui" else {"parts": [{"type": "text", "text": text}]}
        self.history = [*self.history, {"id": message_id, "role": "user", **shown}]
        return self.request(message_id, self.history)

    def request(self, key: str, messages: list[dict[str, Any]], **fields: Any) -> Sent:
        """Returns a request with this history."""
        if self.dialect == "ag-ui":
            body: dict[str, Any] = {
                "threadId": self.thread.name,
                "runId": key,
                "protocolVersion": "1.0",
                "messages": messages,
                "tools": CLIENT_TOOLS,
                **fields,
            }
            return Sent(self.thread, Request("POST", self.thread.ag_ui, body), messages)
        tools = {"client_tools": CLIENT_TOOLS}
        body = {"id": self.thread.name, "messages": messages, "trigger": "submit-message", **tools}
        return Sent(self.thread, Request("POST", f"/ai-sdk/{self.thread.agent_id}/chat", body), messages)

    def reader(
        self,
        client: Client,
        ledger: Ledger,
        dice: random.Random,
        opened: RunRecord | Submission,
        sent: Sent,
        *,
        restless: bool = False,
    ) -> PageReader:
        """Returns a reader of the answer to this request."""
        kind = AgUiReader if self.dialect == "ag-ui" else AnswerReader
        return kind(client, ledger, dice, opened, sent, restless=restless)

    def stop(self, run_id: str) -> Request:
        """Returns the request that stops a run. The AI SDK's stops the active answer of the chat."""
        if self.dialect == "ag-ui":
            return Request("POST", f"{self.thread.ag_ui}/stop", {"threadId": self.thread.name, "runId": run_id})
        return Request("POST", f"{self.thread.chat}/stop", {})
