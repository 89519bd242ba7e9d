"""Plays clients of OpenAI's Responses API: their requests, their readers, and their cancels and deletions meanwhile.

The checks read their runs through Letta's API as all other runs, and through their own API (`response_checks.py`).
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from api.openai.response_object import response_id, run_id_of, wire_conversation_id
from bench.chaos.client import Client, Refused, Request, StreamLost
from bench.chaos.deciding import Deciding
from bench.chaos.ledger import Column, Ledger, ResponseRecord, RunRecord, Story, json_of
from bench.chaos.readers import StreamReader, Submission
from bench.chaos.scripts import Script, Scripts
from bench.chaos.stories import Stories, Tell
from bench.chaos.submitting import Submitting
from bench.chaos.tools import CLIENT_TOOLS, ON_CLIENT
from bench.chaos.witness import Witness
from shared.domain.ids import RunId

RESPONSES = "/openai/v1/responses"
FUNCTIONS = [{"type": "function", "strict": False, **tool} for tool in CLIENT_TOOLS]
PLAIN_MODEL = "builtin/scripted"
DONE = b"data: [DONE]"
ENDS = frozenset({"response.completed", "response.failed", "response.incomplete"})
AT_WORK = frozenset({"queued", "in_progress"})


class ResponseReader(StreamReader):
    """Reads a run as OpenAI's clients do: by the numbers of the events, until the last one."""

    _last = -1
    _is_over = False

    @property
    def response(self) -> ResponseRecord:
        """The events that all readers of the run have seen."""
        assert self.record is not None
        return self._ledger.responses[self.record.run_id]

    def _resumed(self, record: RunRecord) -> Request:
        path = f"{RESPONSES}/{response_id(RunId(record.run_id))}?stream=true"
        return Request("GET", path if self._last < 0 else f"{path}&starting_after={self._last}")

    def _step_back(self) -> None:
        if self._dice.random() < 0.2 and self.record is not None:
            self._last = self._dice.choice([-1, *(number for number in self.response.events if number <= self._last)])

    def _take(self, frame: bytes) -> None:
        if frame == DONE:
            if not self._is_over and not self.response.ends:
                self._broken(Column.ENDS, f"[DONE] came after event {self._last}, which is not the last")
            self._ended = True
            return
        event = json_of(frame)
        if self.record is None:
            assert self._submission is not None
            self.record = self._submission.accept(str(event["response"]["id"]))
        number = int(event["sequence_number"])
        if self._is_over:
            self._broken(Column.ENDS, f"event {number} after the end: {frame[:200]!r}")
        if number <= self._last:
            self._broken(Column.DUPLICATED, f"event {number} came after {self._last}: {frame[:200]!r}")
        elif number > self._last + 1:
            self.response.jumps.add((self._last, number))
        known = self.response.events.setdefault(number, frame)
        if known != frame:
            self._broken(Column.DUPLICATED, f"event {number} was {known[:250]!r}, later {frame[:250]!r}")
        self._last = number
        if event["type"] in ENDS:
            self._is_over = True
            self.response.ends.add(number)

    def _closed_early(self) -> None:
        # Clients take a clean end for the last event.
        if self.record is not None and not self._is_over:
            self._broken(Column.ENDS, f"the answer ended properly after event {self._last}, which is not the last")
        super()._closed_early()


@dataclass
class ResponseStories:
    """Plays stories of such clients."""

    client: Client
    ledger: Ledger
    witness: Witness
    scripts: Scripts
    submitting: Submitting
    deciding: Deciding
    letta: Stories
    dice: random.Random

    def kinds(self) -> dict[str, tuple[Tell, int]]:
        """The kinds of stories, with their relative frequencies."""
        return {
            "response": (self.streamed, 4),
            "response, polled": (self.polled, 2),
            "response, whole": (self.whole, 2),
            "response, cancelled": (self.cancelled, 4),
            "response, outputs": (self.outputs, 3),
            "response, approved": (self.approved, 3),
            "response, chain": (self.chain, 3),
            "response, hung up": (self.hung_up, 3),
        }

    async def streamed(self, story: Story) -> None:
        """A background response with one to three readers."""
        scripts = self.scripts
        async with AsyncExitStack() as stack:
            write = self.dice.choice([scripts.plain, scripts.long, scripts.tools, scripts.parallel, scripts.error])
            await self._begin(story, write(), stack)

    async def polled(self, story: Story) -> None:
        """A background response whose stream no client reads."""
        key, request = self._request(story, self.dice.choice([self.scripts.plain, self.scripts.tools])())
        record = await self._created(story, None, key, request)
        if record is not None:
            await self._when_over(record)

    async def whole(self, story: Story) -> None:
        """A foreground response. A client that is cut off, or gives up, leaves its response."""
        script = self.dice.choice([self.scripts.plain, self.scripts.tools])()
        key, request = self._request(story, script, background=False, repeat=False)
        answer = await self.client.call(request)
        if answer is not None and answer.is_success:
            self._accept(story, script, key, str(answer.body["id"]))
        elif answer is not None:
            self.submitting.refused(story, answer.status, answer.body)
        else:
            await self._accept_left(story, key)

    async def hung_up(self, story: Story) -> None:
        """A foreground response whose reader leaves. It ends with its connection, unless the API died just then."""
        key, request = self._request(story, self.scripts.long(), background=False, stream=True, repeat=False)
        stays_for = self.dice.randint(0, 30)
        try:
            async with aclosing(self.client.frames(request)) as batches:
                async for frames in batches:
                    stays_for -= len(frames)
                    if stays_for <= 0:
                        break
        except StreamLost:
            pass
        except Refused as refusal:
            self.ledger.notes[f"responses refused with {refusal.answer.status}"] += 1
        for record in await self._accept_left(story, key):
            shown = await self._when_over(record)
            self.ledger.notes[f"responses that were hung up: {shown['status']}"] += 1

    async def cancelled(self, story: Story) -> None:
        """A background response that is cancelled at any moment, through this API or through Letta's."""
        scripts = self.scripts
        async with AsyncExitStack() as stack:
            write = self.dice.choice([scripts.long, scripts.slow_tool, scripts.tools, scripts.approval])
            record = await self._begin(story, write(), stack)
            if record is None:
                return
            record.is_pushed = True
            await asyncio.sleep(self.dice.choice([0.0, self.dice.uniform(0, 1), self.dice.uniform(0, 6)]))
            await (self._cancel if self.dice.random() < 0.6 else self.letta.cancel_now)(record)

    async def outputs(self, story: Story) -> None:
        """Calls that the client makes. The next response has their outputs; sometimes two continue the same one."""
        async with AsyncExitStack() as stack:
            record = await self._begin(story, self.scripts.client_side(), stack, tools=FUNCTIONS)
        while record is not None:
            calls = await self._asked_of(record, "function_call")
            branches = self.dice.choice([1, 1, 1, 2]) if calls else 0
            items = [[self._output_of(call) for call in calls] for _ in range(branches)]
            record = await self._go_on(story, record, items, tools=FUNCTIONS)

    async def approved(self, story: Story) -> None:
        """Calls that a person approves or denies. Sometimes two clients answer at once."""
        async with AsyncExitStack() as stack:
            record = await self._begin(story, self.scripts.approval(), stack)
        while record is not None:
            asked = await self._asked_of(record, "mcp_approval_request")
            branches = self.dice.choice([1, 1, 1, 2]) if asked else 0
            items = [[self._verdict_on(one) for one in asked] for _ in range(branches)]
            record = await self._go_on(story, record, items)

    async def chain(self, story: Story) -> None:
        """Three responses, each continuing the one before. Sometimes the last one has a twin."""
        async with AsyncExitStack() as stack:
            record = await self._begin(story, self.scripts.plain(20), stack)
        for branches in (1, self.dice.choice([1, 2])):
            if record is None:
                return
            await self._when_over(record)
            script = self.scripts.plain(20)
            record = await self._go_on(story, record, [script.text] * branches)

    async def _begin(self, story: Story, script: Script, stack: AsyncExitStack, **fields: Any) -> RunRecord | None:
        """Begins a background response with readers. The end of the stack waits for the readers."""
        if self.dice.random() < 0.6:
            key, request = self._request(story, script, stream=True, **fields)
            record = await stack.enter_async_context(self._streaming(story, script, key, request))
            more = self.dice.choice([0, 0, 1, 2])
        else:
            key, request = self._request(story, script, **fields)
            record = await self._created(story, script, key, request)
            more = self.dice.randint(1, 2)
        if record is not None and more:
            await stack.enter_async_context(self._readers(record, more))
        return record

    async def _go_on(
        self, story: Story, parent: RunRecord, inputs: Sequence[str | list[dict[str, Any]]], **fields: Any
    ) -> RunRecord | None:
        """Submits one response after the parent for each input, all at once. Returns the first, read to its end."""
        story.branches = max(story.branches, len(inputs))
        previous = response_id(RunId(parent.run_id))
        requests = [self._request(story, given, previous_response_id=previous, **fields) for given in inputs]
        made = await asyncio.gather(*(self._created(story, None, key, request) for key, request in requests))
        records = [record for record in made if record is not None]
        for record in records:
            async with self._readers(record, 1):
                pass
        await self.deciding.note_decided(parent)
        return records[0] if records else None

    def _request(
        self, story: Story, given: Script | str | list[dict[str, Any]], *, repeat: bool = True, **fields: Any
    ) -> tuple[str, Request]:
        """Returns the key of a submission, and the submission."""
        key = self.ledger.otid("response")
        body: dict[str, Any] = {"background": True, "metadata": {"sent": key}, **fields}
        if isinstance(given, Script):
            story.keys.update(given.keys)
            body["model"] = self._model_for(story, given)
            if body["model"] != PLAIN_MODEL and story.thread.conversation_id is not None:
                body["conversation"] = wire_conversation_id(story.thread.conversation_id)
        body["input"] = given.text if isinstance(given, Script) else given
        headers = {"Idempotency-Key": key, "X-Holdfast-If-Busy": "enqueue"}
        return key, Request("POST", RESPONSES, body, headers, repeat=repeat)

    def _model_for(self, story: Story, script: Script) -> str:
        """Returns the story's agent, or sometimes only the model if the script needs none of the agent's tools."""
        is_free = set(script.keys.values()) <= {ON_CLIENT}
        return PLAIN_MODEL if is_free and self.dice.random() < 0.3 else story.thread.agent_id

    async def _created(self, story: Story, script: Script | None, key: str, request: Request) -> RunRecord | None:
        answer = await self.client.call(request)
        assert answer is not None
        if not answer.is_success:
            self.submitting.refused(story, answer.status, answer.body)
            return None
        return self._accept(story, script, key, str(answer.body["id"]))

    def _accept(self, story: Story, script: Script | None, key: str, named: str) -> RunRecord:
        run_id = run_id_of(named)
        assert run_id is not None, named
        record = self.ledger.accept(run_id, story, script, key)
        self.ledger.responses.setdefault(run_id, ResponseRecord(record, key))
        return record

    async def _accept_left(self, story: Story, key: str) -> list[RunRecord]:
        """Returns the runs of a submission whose client did not wait for the answer."""
        records = [self._accept(story, None, key, run_id) for run_id in await self.witness.runs_with(key)]
        for record in records:
            record.is_pushed = True
        return records

    @asynccontextmanager
    async def _streaming(
        self, story: Story, script: Script, key: str, request: Request
    ) -> AsyncGenerator[RunRecord | None]:
        """Submits, and reads the answer's stream during the block, whose end waits for the end of the stream."""
        accepted: asyncio.Future[RunRecord | None] = asyncio.get_running_loop().create_future()

        def accept(named: str) -> RunRecord:
            record = self._accept(story, script, key, named)
            if not accepted.done():
                accepted.set_result(record)
            return record

        reader = ResponseReader(self.client, self.ledger, self.dice, Submission(request, accept), restless=False)

        async def read() -> None:
            await reader.read()
            if not accepted.done():
                accepted.set_result(None)
                if reader.refusal is not None:
                    self.submitting.refused(story, reader.refusal.answer.status, reader.refusal.answer.body)

        async with asyncio.TaskGroup() as group:
            group.create_task(read(), name="read the response's stream")
            yield await accepted

    @asynccontextmanager
    async def _readers(self, record: RunRecord, count: int) -> AsyncGenerator[None]:
        """Runs `count` readers during the block. The end of the block waits until each has the last event."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                restless = self.dice.random() < 0.6
                reader = ResponseReader(self.client, self.ledger, self.dice, record, restless=restless)
                group.create_task(reader.read(), name=f"read the response {record.run_id}")
            yield

    async def _when_over(self, record: RunRecord) -> dict[str, Any]:
        """Polls the response until it has ended."""
        while True:
            shown = await self.client.get(f"{RESPONSES}/{response_id(RunId(record.run_id))}")
            if shown["status"] not in AT_WORK:
                return shown
            await asyncio.sleep(self.dice.uniform(0.2, 1.0))

    async def _asked_of(self, record: RunRecord, kind: str) -> list[dict[str, Any]]:
        """Returns the items in which a response asks its client for an output or a decision."""
        shown = await self._when_over(record)
        is_whole = shown["status"] == "completed"
        return [item for item in shown["output"] if item["type"] == kind] if is_whole else []

    async def _cancel(self, record: RunRecord) -> None:
        """Cancels until the answer shows how the response ended."""
        while True:
            path = f"{RESPONSES}/{response_id(RunId(record.run_id))}/cancel"
            answer = await self.client.call(Request("POST", path, {}))
            assert answer is not None
            status = answer.body["status"] if answer.is_success else f"answered {answer.status}"
            self.ledger.notes[f"cancels of responses: {status}"] += 1
            if status == "cancelled":
                await self.witness.cancelled(record)
            if status not in AT_WORK:
                return
            await asyncio.sleep(0.3)

    def _output_of(self, call: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": call["call_id"], "output": self.deciding.result()}

    def _verdict_on(self, asked: dict[str, Any]) -> dict[str, Any]:
        approves = self.dice.random() < 0.7
        return {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": approves}
