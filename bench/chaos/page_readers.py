"""Readers of pages: clients of AG-UI and of the AI SDK. They check every frame by the rules of the real clients, and
reconnect to any API process.

An AG-UI reader continues after its cursor, or begins again by sending its request again. An AI SDK reader always reads
the answer from its beginning, as `useChat` does.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from bench.chaos.client import Client, Refused, Request
from bench.chaos.ledger import Column, Ledger, RunRecord, json_of
from bench.chaos.readers import StreamReader, Submission
from tests.kit.ag_ui.client import AgUiClient, ClientRefused
from tests.kit.product.ui_messages import UiMessageReader

NO_CONTENT = 204

MOST_UNCHANGED = 40
"""Connections that ended properly and brought nothing new, to a reader that waits for the end of its run."""


@dataclass(frozen=True)
class PageThread:
    """A conversation as its pages name it."""

    agent_id: str
    name: str

    @property
    def ag_ui(self) -> str:
        return f"/ag-ui/{self.agent_id}"

    @property
    def chat(self) -> str:
        """The chat's URL in the AI SDK's routes."""
        return f"/ai-sdk/{self.agent_id}/chat/{quote(self.name, safe='')}"


@dataclass(frozen=True)
class Sent:
    """A page's request: its whole history, and the new messages in it."""

    thread: PageThread
    request: Request
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class AgUiReader(StreamReader):
    """Reads one run as `@ag-ui/client` does."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        dice: random.Random,
        opened: RunRecord | Submission,
        sent: Sent,
        *,
        restless: bool,
    ) -> None:
        super().__init__(client, ledger, dice, opened, restless=restless)
        self._sent = sent
        self._run_name = str((sent.request.body or {})["runId"])
        self.view = AgUiClient(sent.messages)
        self.code: str | None = None
        """The code of the error that refused the request."""
        self._cursor: str | None = None
        self._known: str | None = None
        """The cursor of the previous connection."""
        self._unchanged = 0
        self._newest: deque[str] = deque(maxlen=8)
        """The kinds of the newest events, and the runs that they name."""

    def _resumed(self, record: RunRecord) -> Request:
        if self._cursor is None:
            return self._sent.request
        thread = self._sent.thread
        path = f"{thread.ag_ui}/connect?threadId={quote(thread.name, safe='')}&after={self._cursor}"
        return Request("GET", path)

    def _closed_early(self) -> None:
        # Clients take a clean end for success.
        if self.record is not None and self._cursor is None:
            self._broken(Column.ENDS, "an answer in AG-UI ended properly before its run did")
        self._unchanged = self._unchanged + 1 if self._cursor == self._known else 0
        self._known = self._cursor
        if self.record is not None and self._unchanged == MOST_UNCHANGED:
            self._broken(Column.STUCK, f"AG-UI has nothing behind {self._cursor}, after {list(self._newest)}")
        super()._closed_early()

    def _request(self) -> Request:
        self.view.connects()
        if self._cursor is None:
            self.view = AgUiClient(self._sent.messages)
        return super()._request()

    def _step_back(self) -> None:
        if self._dice.random() < 0.2:
            self._cursor = None

    def _take(self, frame: bytes) -> None:
        if self._ended:
            # After the end, other runs follow if the reader has reconnected by the conversation.
            return
        event = json_of(frame)
        if event["type"] == "RUN_ERROR" and self.record is None:
            self.code, self._ended = str(event.get("code")), True
            return
        if event["type"] == "RUN_STARTED" and self.record is None:
            assert self._submission is not None
            self.record = self._submission.accept(str(event["metadata"]["holdfast"]["run_id"]))
        try:
            self.view.take(event)
        except ClientRefused as refused:
            self._broken(Column.PAGES, f"AG-UI, behind {self._cursor}: {refused}")
            self._ended = True
            return
        self._newest.append(f"{event['type']} {event.get('runId', '')}".strip())
        if frame.startswith(b"id: "):
            self._cursor = frame[4 : frame.index(b"\n")].decode()
        is_ours = event.get("runId") in (self._run_name, self.record.run_id if self.record else None)
        if event["type"] == "RUN_ERROR" or (event["type"] == "RUN_FINISHED" and is_ours):
            self._end()

    def _end(self) -> None:
        assert self.record is not None
        self._ended = True
        given = {one["id"] for one in self._sent.messages}
        shown = {one["id"]: one for one in self.view.messages if one["id"] not in given}
        self._ledger.page(self.record, "ag-ui").shown.append(shown)


class AnswerReader(StreamReader):
    """Reads one answer as `useChat` does."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        dice: random.Random,
        opened: RunRecord | Submission,
        sent: Sent,
        *,
        restless: bool,
    ) -> None:
        super().__init__(client, ledger, dice, opened, restless=restless)
        self._sent = sent
        self.view = self._new_view()
        self.is_over = False
        """Whether no run of the chat is active, so that the page has to read the list of messages."""

    def _new_view(self) -> UiMessageReader:
        last = self._sent.messages[-1]
        return UiMessageReader(7, last if last["role"] == "assistant" else None)

    def _request(self) -> Request:
        if self.record is None:
            self.view = self._new_view()
            return super()._request()
        self.view = UiMessageReader(7)
        return self._resumed(self.record)

    def _resumed(self, record: RunRecord) -> Request:
        del record  # a chat has one active answer
        return Request("GET", f"{self._sent.thread.chat}/stream")

    def _step_back(self) -> None:
        """Forgets nothing, because it reads the answer from its beginning each time."""

    async def _after(self, refusal: Refused) -> None:
        if refusal.answer.status == NO_CONTENT:
            self.is_over = self._ended = True
            return
        await super()._after(refusal)

    def _take(self, frame: bytes) -> None:
        if self._ended:
            # The rest of another run's answer.
            return
        data = frame.rpartition(b"data: ")[2]
        chunk: Any = "[DONE]" if data == b"[DONE]" else json_of(frame)
        if chunk != "[DONE]" and chunk["type"] == "start" and not self._is_ours(chunk):
            self.is_over = self._ended = True
            return
        try:
            self.view.take(chunk)
        except AssertionError as refused:
            self._refused(str(refused))
            return
        if chunk == "[DONE]":
            self._end()

    def _is_ours(self, start: dict[str, Any]) -> bool:
        """Whether the stream shows the run's answer. A chat streams its active answer. If the run's answer is over,
        another tab may have requested that one."""
        if self.record is None:
            assert self._submission is not None
            self.record = self._submission.accept(str(start["messageMetadata"]["holdfast"]["run_id"]))
        page = self._ledger.page(self.record, "ai-sdk")
        page.answer = page.answer or start["messageId"]
        return page.answer == start["messageId"]

    def _refused(self, why: str) -> None:
        self._ended = True
        if self.record is not None:
            self._broken(Column.PAGES, f"AI SDK: {why}")

    def _end(self) -> None:
        self._ended = True
        if self.record is None:
            return
        if "id" not in self.view.message:
            self._broken(Column.PAGES, f"AI SDK: an answer ended without its start: {self.view.error}")
            return
        self._ledger.page(self.record, "ai-sdk").shown.append(self.view.message)

    def _closed_early(self) -> None:
        if self.record is not None and self.view.chunks:
            self._broken(Column.ENDS, "an answer in the AI SDK's stream ended properly without [DONE]")
        super()._closed_early()
