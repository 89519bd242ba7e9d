"""Checks the runs that pages have read: the final state of each tab equals the stored messages, and the messages that a
page gets if it loads the conversation again."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from bench.chaos.client import Client, Refused
from bench.chaos.ledger import Column, Ledger, PageRecord
from shared.domain.messages import AssistantMessage, Message
from shared.sql.engine import Database
from shared.sql.history.messages import message_of
from shared.sql.tables import messages

AT_ONCE = 20

SAID_NOTHING = frozenset({"step-start", "reasoning", "data-holdfast-error"})
"""Parts of an answer that has failed before its first word or call. The history keeps no reasoning that was cut off."""

TAKEN_BACK = frozenset({"data-holdfast-void", "data-holdfast-gap"})
"""Parts that make earlier parts void, or report missing parts."""


@dataclass
class PageChecks:
    """Compares the state of pages with the stored messages."""

    clients: dict[str, Client]
    """By project."""
    ledger: Ledger
    database: Database

    async def check(self) -> None:
        """Runs all checks of this module."""
        async with self.database.read() as connection:
            found = await connection.execute(sa.select(messages).order_by(messages.c.turn, messages.c.position))
            stored: dict[str | None, list[Message]] = defaultdict(list)
            for row in found.mappings():
                stored[row["run_id"]].append(message_of(row))
        runs = {str(message.id): run_id for run_id, found in stored.items() for message in found}
        for record in self.ledger.pages.values():
            said = _words(
                body.text for one in stored[record.run.run_id] if isinstance(body := one.body, AssistantMessage)
            )
            for shown in record.shown:
                self._check_text(record, shown, said, runs)
        turnstile = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for record in self.ledger.pages.values():
                group.create_task(self._check_loaded(record, turnstile), name=f"load the chat of {record.run.run_id}")

    def _check_text(self, record: PageRecord, shown: Any, said: str, runs: Mapping[str, str | None]) -> None:
        """`runs` are the runs of all stored messages."""
        if record.run.gaps or (record.run.is_pushed and not said):
            return  # rolled back: its messages are in no history
        if record.dialect == "ag-ui":
            # A reader that had to load the whole conversation has earlier answers, too.
            own = [one for name, one in shown.items() if runs.get(name, record.run.run_id) == record.run.run_id]
            seen = _words(one.get("content") for one in own if one["role"] == "assistant")
            is_same = seen == said
        else:
            seen = _words(part["text"] for part in shown["parts"] if part["type"] == "text")
            # The answer contains the texts of the runs before this one, too.
            is_same = seen.endswith(said) or any(part["type"] in TAKEN_BACK for part in shown["parts"])
        if not is_same:
            self._broken(record, f"stored …{said[-150:]!r}, a page has …{seen[-150:]!r}")

    async def _check_loaded(self, record: PageRecord, turnstile: asyncio.Semaphore) -> None:
        """Checks that a page that loads the chat again gets the answers that the tabs have read."""
        client, thread = self.clients[record.run.story.thread.project], record.run.story.thread
        if record.dialect != "ai-sdk" or not record.shown:
            return
        async with turnstile:
            try:
                chat = await client.get(f"/ai-sdk/{thread.agent_id}/chat/{quote(record.name, safe='')}")
            except Refused as refusal:
                self.ledger.broken(Column.LOST, record.run.run_id, f"its chat cannot be loaded: {refusal}")
                return
        loaded = {message["id"]: message for message in chat["messages"]}
        for shown in record.shown:
            message = loaded.get(shown["id"])
            if message is None:
                # An answer that has failed at once is listed only as long as it is the newest.
                has_said = any(part["type"] not in SAID_NOTHING for part in shown["parts"])
                if has_said and not record.run.is_pushed:
                    self._broken(record, f"the loaded chat has no answer {shown['id']}")
            elif not any(part["type"] in TAKEN_BACK for part in shown["parts"]):
                self._check_answer(record, shown, message)

    def _check_answer(self, record: PageRecord, shown: dict[str, Any], loaded: dict[str, Any]) -> None:
        before, now = (
            _words(part["text"] for part in message["parts"] if part["type"] == "text") for message in (shown, loaded)
        )
        # Runs that continue the answer may have added text since.
        if not now.startswith(before):
            self._broken(record, f"the loaded chat says …{now[-150:]!r}, a page has …{before[-150:]!r}")
        calls = [{part["toolCallId"] for part in one["parts"] if "toolCallId" in part} for one in (shown, loaded)]
        if not record.run.is_pushed and not calls[0] <= calls[1]:
            self._broken(record, f"the loaded chat lacks the calls {sorted(calls[0] - calls[1])}")

    def _broken(self, record: PageRecord, detail: str) -> None:
        self.ledger.broken(Column.SHOWN, record.run.run_id, f"in {record.dialect}: {detail}")


def _words(texts: Any) -> str:
    return " ".join(word for text in texts for word in (text or "").split())
