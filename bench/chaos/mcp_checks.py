"""Checks the calls of MCP servers' tools: each call reached its server at most once, the results match the calls, no
result was lost, and agents reach a restarted server."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from bench.chaos.client import Client, Request
from bench.chaos.ledger import Column, Ledger, RunRecord
from bench.chaos.mcp_slots import McpCall, McpSlot, Span
from bench.chaos.mcp_stories import AskedByClient, McpStories
from bench.chaos.tools import BOOK, HANG_UP, IDEMPOTENT, OF_SERVERS, REFUSAL, REFUSE
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, ToolReturns
from shared.domain.settling import CANCELLED_WHILE_RUNNING, NEVER_STARTED, OUTCOME_UNKNOWN, RUN_FAILED
from shared.sql.engine import Database
from shared.sql.history.messages import message_of
from shared.sql.run_tables import runs
from shared.sql.tables import messages

LATE_S = 1.0
"""Seconds after a server's return within which an answer may still report that it was away."""
AFTER_CANCEL_S = 2.0
"""Seconds after a cancel's answer within which a call that was sent before it may arrive, on a busy machine."""
FINDS_S = 40.0
PROBES = 6
"""Calls of each project at the end: enough that each worker probably makes one."""


class Meaning(StrEnum):
    """The meaning of a result."""

    DONE = "the tool did its work"
    REFUSED = "the tool answered with an error"
    NOT_MADE = "the call was not made"
    UNKNOWN = "the outcome is unknown"
    SOMETHING_ELSE = "something else"


@dataclass(frozen=True)
class Outcome:
    """The result of a call, and its circumstances."""

    key: str
    tool: str
    text: str
    is_success: bool
    began_at: float
    """When the model requested the call, or a client sent it. In seconds since the epoch."""
    ended_at: float
    run_id: str = "-"
    is_undisturbed: bool = True
    """One worker had the run from its beginning to its end, and no client interfered."""

    @property
    def meaning(self) -> Meaning:
        """What the model or the client can conclude from the result."""
        if self.is_success:
            return Meaning.DONE if self.text == self.key else Meaning.SOMETHING_ELSE
        if REFUSAL in self.text:
            return Meaning.REFUSED
        if any(said in self.text for said in (OUTCOME_UNKNOWN, CANCELLED_WHILE_RUNNING, "is not known")):
            return Meaning.UNKNOWN
        if any(said in self.text for said in ("was not called", NEVER_STARTED, RUN_FAILED, "denied")):
            return Meaning.NOT_MADE
        return Meaning.SOMETHING_ELSE


@dataclass
class McpChecks:
    """Checks the calls of all projects once."""

    stories: Sequence[McpStories]
    ledger: Ledger
    database: Database
    calls: dict[str, list[McpCall]] = field(default_factory=dict[str, list[McpCall]])
    """All calls that reached a server, by key."""
    _fences: dict[str, int] = field(default_factory=dict[str, int])
    _statuses: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def count(self) -> int:
        """The number of calls that reached a server."""
        return sum(map(len, self.calls.values()))

    async def check(self) -> None:
        """Runs all checks of this module."""
        outcomes = [one async for one in self._in_histories()]
        for stories in self.stories:
            self.calls.update(stories.server.calls())
            outcomes += _of_clients(stories.asked)
        by_key: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            by_key[outcome.key].append(outcome)
            self.ledger.notes[f"MCP calls: {outcome.tool}: {outcome.meaning}"] += 1
        of_key = {key: record for record in self.ledger.runs.values() for key in record.story.keys}
        for stories in self.stories:
            self._check_counts(stories, of_key, by_key)
            troubles = stories.server.troubles()
            for outcome in outcomes:
                if self._is_of(stories, outcome, of_key):
                    self._check_outcome(outcome, troubles)
            for one in stories.not_read:
                if not _touches(troubles, one.began_at, one.ended_at):
                    self.ledger.broken(
                        Column.MCP_AWAY, "-", f"{_clock(one.began_at)}: its list was not read: {one.said}"
                    )
            await self._check_found_again(stories)

    def _is_of(self, stories: McpStories, outcome: Outcome, of_key: Mapping[str, RunRecord]) -> bool:
        record = of_key.get(outcome.key)
        if record is None:
            return any(one.key == outcome.key for one in stories.asked)
        return record.story.thread.project == stories.client.project

    def _check_counts(
        self, stories: McpStories, of_key: Mapping[str, RunRecord], by_key: Mapping[str, Sequence[Outcome]]
    ) -> None:
        names = {one.key: one.tool for one in stories.asked}
        for key, came in stories.server.calls().items():
            record = of_key.get(key)
            name = names[key] if record is None else record.story.keys[key]
            run_id = "-" if record is None else record.run_id
            if len(came) > self._most(name, record):
                shown = ", ".join(_clock(call.at) for call in came)
                self.ledger.broken(Column.MCP_TWICE, run_id, f"{name} {key} came at {shown}")
            if record is None:
                continue
            _check_after_cancel(self.ledger, stories.server, record, came)
            is_left = not any(one.is_pushed for one in self.ledger.runs.values() if one.story is record.story)
            if not by_key.get(key) and is_left:
                self.ledger.broken(
                    Column.MCP_LOST, run_id, f"{name} {key} reached its server, and no history has its result"
                )

    def _most(self, name: str, record: RunRecord | None) -> int:
        """Returns how many times a call may reach a server. If the tool only reads, each worker of the run may make the
        call once."""
        if record is None or name not in IDEMPOTENT:
            return 1
        return sum(self._fences.get(run_id, 1) for run_id in record.story.run_ids)

    def _check_outcome(self, outcome: Outcome, troubles: Sequence[Span]) -> None:
        came, meaning = self.calls.get(outcome.key, []), outcome.meaning
        call = f"{outcome.tool} {outcome.key}, {_clock(outcome.began_at)} to {_clock(outcome.ended_at)}"
        what = f"{call}, came {len(came)} times, and the result says: {outcome.text[:300]}"
        made_before = outcome.tool in IDEMPOTENT and not outcome.is_undisturbed
        is_true = {
            Meaning.DONE: bool(came) and outcome.tool not in (REFUSE, HANG_UP),
            Meaning.REFUSED: bool(came) and outcome.tool == REFUSE,
            Meaning.NOT_MADE: not came or made_before,
            Meaning.UNKNOWN: True,
            Meaning.SOMETHING_ELSE: False,
        }
        if not is_true[meaning]:
            self.ledger.broken(Column.MCP_WRONG, outcome.run_id, what)
        if not outcome.is_undisturbed or _touches(troubles, outcome.began_at, outcome.ended_at):
            return
        if meaning is Meaning.UNKNOWN and outcome.tool != HANG_UP:
            self.ledger.broken(Column.MCP_LOST, outcome.run_id, what)
        if meaning is Meaning.NOT_MADE and "denied" not in outcome.text:
            self.ledger.broken(Column.MCP_AWAY, outcome.run_id, what)

    async def _in_histories(self) -> AsyncGenerator[Outcome]:
        """Yields the results of the calls in the histories, each call once."""
        async with self.database.read() as connection:
            for row in await connection.execute(sa.select(runs.c.id, runs.c.fence, runs.c.status)):
                self._fences[row.id], self._statuses[row.id] = row.fence, row.status
            stored = [message_of(row) for row in (await connection.execute(sa.select(messages))).mappings()]
        asked: dict[str, tuple[str, float]] = {}
        for message in stored:
            if isinstance(message.body, AssistantMessage):
                for call in message.body.tool_calls:
                    if call.name in OF_SERVERS:
                        asked[call.id] = str(json.loads(call.arguments)["key"]), _seconds(message.created_at)
        pushed = {run_id for run_id, record in self.ledger.runs.items() if record.is_pushed}
        for message in stored:
            if not isinstance(message.body, ToolReturns) or message.run_id is None:
                continue
            run_id = message.run_id
            is_undisturbed = (
                self._fences.get(run_id) == 1
                and self._statuses.get(run_id) == RunStatus.COMPLETED
                and run_id not in pushed
            )
            for one in message.body.returns:
                if one.tool_call_id in asked:
                    key, began_at = asked[one.tool_call_id]
                    is_success, ended_at = one.status == "success", _seconds(message.created_at)
                    yield Outcome(key, one.tool_name, one.text, is_success, began_at, ended_at, run_id, is_undisturbed)

    async def _check_found_again(self, stories: McpStories) -> None:
        """Checks that agents can call the server at the end."""
        client = stories.client
        body: dict[str, Any] = {"name": "finds", "model": "builtin/scripted", "include_base_tools": False}
        made = await client.call(Request("POST", "/v1/agents/", {**body, "tool_ids": [stories.tool_ids[BOOK]]}))
        assert made is not None
        async with asyncio.TaskGroup() as group:
            for number in range(PROBES):
                group.create_task(self._probe(client, made.body["id"], number), name=f"probe {number}")

    async def _probe(self, client: Client, agent_id: str, number: int) -> None:
        conversation = await client.call(Request("POST", f"/v1/conversations?agent_id={agent_id}", {}))
        assert conversation is not None
        key = f"probe{number}"
        call = {"name": BOOK, "arguments": {"key": f"{client.project}-{key}", "seconds": 0.0}}
        script = json.dumps({"turns": [{"calls": [call]}, {"text": "Found."}]})
        message = {"role": "user", "content": script, "otid": f"{key}-{agent_id}"}
        path = f"/v1/conversations/{conversation.body['id']}/messages"
        try:
            async with asyncio.timeout(FINDS_S):
                answer = await client.call(Request("POST", path, {"messages": [message], "streaming": False}))
        except TimeoutError:
            self.ledger.broken(Column.MCP_AWAY, "-", f"{client.project}: no answer within {FINDS_S:.0f} s at the end")
            return
        assert answer is not None
        returned = [one for one in answer.body.get("messages", ()) if one["message_type"] == "tool_return_message"]
        if [one["status"] for one in returned] != ["success"]:
            self.ledger.broken(Column.MCP_AWAY, "-", f"{client.project}, at the end: {str(answer.body)[:500]}")


def _of_clients(asked: Sequence[AskedByClient]) -> Iterator[Outcome]:
    """Yields the results of the calls that clients made themselves."""
    for one in asked:
        if one.answer is None or one.answer.status == 503:
            continue  # the API process has ended, and the client cannot know the call's outcome
        body = one.answer.body
        if one.answer.is_success:
            is_success, text = body["status"] == "success", str(body["func_return"])
        else:
            is_success, text = False, str(body)
        yield Outcome(one.key, one.tool, text, is_success, one.began_at, one.ended_at)


def _check_after_cancel(ledger: Ledger, server: McpSlot, record: RunRecord, came: Sequence[McpCall]) -> None:
    if record.standstill is None:
        return
    at = record.standstill.at
    for call in came:
        # A suspended process reads requests later that were sent before.
        if call.at > at + AFTER_CANCEL_S and not _touches(server.frozen, at - AFTER_CANCEL_S, call.at):
            detail = f"{call.key} reached its MCP server {call.at - at:.2f} s after cancelled"
            ledger.broken(Column.AFTER_CANCEL, record.run_id, detail)


def _touches(spans: Sequence[Span], began_at: float, ended_at: float) -> bool:
    return any(span.touches(began_at - LATE_S, ended_at) for span in spans)


def _seconds(moment: datetime) -> float:
    return moment.timestamp()


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S.%f")[:-3]
