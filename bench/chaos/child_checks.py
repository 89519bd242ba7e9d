"""Checks trees of runs at rest. Each call began each run once, its result is the run's outcome, and the caller's stream
reports it once. No run is active below one that was cancelled or has failed, and no run waits for others."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from bench.chaos.child_scripts import OF_AGENTS
from bench.chaos.child_stories import ChildStories, called_of
from bench.chaos.ledger import Column, Ledger, RunRecord, Thread, json_of
from bench.chaos.readers import follows_of
from shared.domain.errors import CancelMode
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.messages import AssistantMessage, Message, ToolCall, ToolReturn, ToolReturns
from shared.domain.runs import RunOptions
from shared.domain.tool_catalog import RUNS_AGENT, TELLS_AGENT
from shared.runs.started_runs import ACTOR
from shared.sql.engine import Database
from shared.sql.history.messages import message_of
from shared.sql.run_tables import runs
from shared.sql.tables import from_json, messages
from worker.runners.agent_tools import NO_RESPONSE

ENDS_CHILDREN = (RunStatus.CANCELLED, RunStatus.FAILED)
SENT = "Successfully sent message"
REFUSED = "waits for a person"
"""A part of the result of a call that was right to begin no run."""
CIRCLE = "The message was taken back"


@dataclass(frozen=True)
class Child:
    """A run that a call has begun."""

    run_ids: Sequence[str]
    """The run's own id, and the ids of its continuations."""
    parent_id: str
    call_id: str
    agent_id: str
    awaited: bool
    status: str
    """The status of its last continuation."""


@dataclass
class ChildChecks:
    """Checks the trees of all projects once."""

    stories: Sequence[ChildStories]
    ledger: Ledger
    database: Database
    children: list[Child] = field(default_factory=list[Child])
    _statuses: dict[str, str] = field(default_factory=dict[str, str])
    _threads: dict[str, str] = field(default_factory=dict[str, str])

    async def adopt(self) -> None:
        """Records all runs that calls have begun, so that every other check sees them."""
        for stories in self.stories:
            project = stories.client.project
            for called in await called_of(self.database, runs.c.project_id == project):
                stories.delegations.adopt(called.marker, called.run_id, called.thread(project))
        await self._read()
        for child in self.children:
            record = self.ledger.runs.get(child.run_ids[0])
            for run_id in child.run_ids:
                if record is None:
                    self.ledger.broken(Column.CHILD_TWICE, run_id, f"nobody has asked for it: {child}")
                else:
                    self.ledger.accept(run_id, record.story, None, None)

    def threads(self) -> list[Thread]:
        """The histories that tasks have begun."""
        threads = [self.ledger.runs[child.run_ids[0]].story.thread for child in self.children]
        return [thread for thread in threads if thread.conversation_id is not None]

    async def check(self) -> None:
        """Checks the stored runs and messages."""
        times = Counter((child.parent_id, child.call_id, child.agent_id) for child in self.children)
        for (parent_id, call_id, agent_id), count in times.items():
            if count > 1:
                self.ledger.broken(Column.CHILD_TWICE, parent_id, f"{call_id} began {count} runs of {agent_id}")
        for child in self.children:
            parent = self._statuses[child.parent_id]
            if parent in ENDS_CHILDREN and child.status not in TERMINAL:
                self.ledger.broken(Column.CHILD_LEFT, child.parent_id, f"is {parent}, and {child}")
        await self._check_modes()
        await self._check_waits()
        await self._check_results()
        await self._check_lists()

    def check_streams(self) -> None:
        """Checks the events about children in the callers' streams, after all streams were read."""
        of_parent = defaultdict[str, list[Child]](list)
        for child in self.children:
            of_parent[child.parent_id].append(child)
        for record in self.ledger.runs.values():
            told = Counter(_told(record))
            for run_id, times in told.items():
                if times > 1:
                    self.ledger.broken(Column.CHILD_TOLD, record.run_id, f"tells {times} times of {run_id}")
            known = {run_id for child in of_parent[record.run_id] for run_id in child.run_ids}
            if strangers := told.keys() - known:
                self.ledger.broken(Column.CHILD_TOLD, record.run_id, f"tells of {strangers}, which it has not begun")
            if record.gaps or self._statuses[record.run_id] != RunStatus.COMPLETED:
                continue
            for child in of_parent[record.run_id]:
                if told.keys().isdisjoint(child.run_ids):
                    self.ledger.broken(Column.CHILD_TOLD, record.run_id, f"does not tell of {child}")

    async def _read(self) -> None:
        async with self.database.read() as connection:
            rows = {row.id: row for row in await connection.execute(sa.select(runs))}
        self._statuses = {run_id: str(row.status) for run_id, row in rows.items()}
        self._threads = {run_id: str(row.thread_id) for run_id, row in rows.items()}
        for row in rows.values():
            call = from_json(row.options, RunOptions).parent
            if call is None or row.continues is not None:
                continue
            turn = [row]
            while turn[-1].continued_by is not None:
                turn.append(rows[turn[-1].continued_by])
            run_ids = [one.id for one in turn]
            self.children.append(
                Child(run_ids, call.run_id, call.call_id, row.agent_id, call.awaited, str(turn[-1].status))
            )

    async def _check_modes(self) -> None:
        """Checks that a cancel that followed from a parent's has its mode."""
        parent = runs.alias("parent")
        query = (
            sa.select(runs.c.id, runs.c.cancel_mode, parent.c.cancel_mode.label("of_parent"))
            .join(parent, parent.c.id == runs.c.parent_run_id)
            .where(runs.c.cancel_actor == ACTOR, parent.c.cancel_mode.in_(list(CancelMode)))
        )
        async with self.database.read() as connection:
            for row in await connection.execute(query):
                self.ledger.notes[f"children that processes cancelled after their parents: {row.cancel_mode}"] += 1
                if row.cancel_mode != row.of_parent:
                    detail = f"its parent was cancelled with {row.of_parent}, it was with {row.cancel_mode}"
                    self.ledger.broken(Column.CHILD_MODE, row.id, detail)

    async def _check_waits(self) -> None:
        waits = (runs.c.status == RunStatus.RUNNING, runs.c.waits_for == "runs", runs.c.waits_until.is_not(None))
        async with self.database.read() as connection:
            for row in await connection.execute(sa.select(runs.c.id, runs.c.waits_until).where(*waits)):
                below = [child for child in self.children if child.parent_id == row.id]
                self.ledger.broken(Column.CHILD_WAIT, row.id, f"waits until {row.waits_until} for {below}")

    async def _check_lists(self) -> None:
        """Checks that the API lists the children, and shows no wait of a run that has ended."""
        of_parent = defaultdict[str, set[str]](set)
        for child in self.children:
            of_parent[child.parent_id].update(child.run_ids)
        clients = {stories.client.project: stories.client for stories in self.stories}
        for parent_id, run_ids in of_parent.items():
            record = self.ledger.runs[parent_id]
            client = clients[record.story.thread.project]
            listed = {one["id"] for one in await client.get(f"/v1/runs?parent_run_id={parent_id}&limit=100")}
            if listed != run_ids:
                self.ledger.broken(Column.CHILD_WRONG, parent_id, f"the API lists {listed}, SQL has {run_ids}")
            shown = (await client.get(f"/v1/runs/{parent_id}"))["metadata"]
            if "waiting" in shown:
                self.ledger.broken(Column.CHILD_WAIT, parent_id, f"is shown as waiting: {shown['waiting']}")

    async def _check_results(self) -> None:
        async with self.database.read() as connection:
            found = await connection.execute(sa.select(messages).order_by(messages.c.turn, messages.c.position))
            stored = [message_of(row) for row in found.mappings()]
        said = _said(stored)
        of_call = defaultdict[tuple[str, str], list[Child]](list)
        for child in self.children:
            of_call[self._threads[child.parent_id], child.call_id].append(child)
        returned = {
            (str(message.thread_id), one.tool_call_id): (one, str(message.run_id))
            for message in stored
            if isinstance(message.body, ToolReturns)
            for one in message.body.returns
        }
        for message, call in _calls_of_agents(stored):
            place = str(message.thread_id), call.id
            if place not in returned:
                continue  # `ConversationChecks` looks for calls without results
            result, run_id = returned[place]
            problem = self._problem(run_id, result, of_call[place], said)
            self.ledger.notes[f"calls of agents: {call.name}: {result.status}"] += 1
            if problem is not None:
                detail = f"{call.name} {call.id}: {problem}: the result is {result.text[:300]!r}, of {of_call[place]}"
                self.ledger.broken(Column.CHILD_WRONG, run_id, detail)

    def _problem(
        self, run_id: str, result: ToolReturn, children: Sequence[Child], said: Mapping[str, list[str]]
    ) -> str | None:
        """Returns what is wrong with a result; None for a right one."""
        is_success, is_completed = result.status == "success", self._statuses.get(run_id) == RunStatus.COMPLETED
        if not children:
            # A run that was cancelled or has failed gives its calls results that say so.
            is_explained = not is_completed or REFUSED in result.text
            return None if is_explained and not is_success else "no run was begun"
        child = children[0]
        if result.tool_name == TELLS_AGENT:
            return None if is_success or not is_completed else "the message was sent"
        if child.status == RunStatus.COMPLETED:
            if not is_success:
                return "the child has answered" if is_completed else None
            return (
                None if result.text == _answer(result.tool_name, child, said) else "the child has said something else"
            )
        if is_success:
            return "the child has not answered"
        is_explained = child.run_ids[-1] in result.text or CIRCLE in result.text
        return None if is_explained or not is_completed else "it does not report the outcome of the child"


def _calls_of_agents(stored: Sequence[Message]) -> Iterator[tuple[Message, ToolCall]]:
    for message in stored:
        if isinstance(message.body, AssistantMessage):
            yield from ((message, call) for call in message.body.tool_calls if call.name in OF_AGENTS)


def _said(stored: Sequence[Message]) -> dict[str, list[str]]:
    """Returns the texts of each run, in order."""
    said = defaultdict[str, list[str]](list)
    for message in stored:
        if isinstance(message.body, AssistantMessage) and message.body.text:
            said[str(message.run_id)].append(message.body.text)
    return said


def _answer(tool_name: str, child: Child, said: Mapping[str, list[str]]) -> str:
    texts = [text for run_id in child.run_ids for text in said.get(run_id, ())] or [NO_RESPONSE]
    return texts[-1] if tool_name == RUNS_AGENT else str({"agent_id": child.agent_id, "response": texts})


def _told(record: RunRecord) -> list[str]:
    """Returns the runs whose beginning a stream shows, without frames that a new owner has made void."""
    told = list[tuple[int, str]]()
    for seq, frame in sorted(record.frames.items()):
        follows = follows_of(frame)
        if follows is not None:
            told = [one for one in told if one[0] <= follows]
        if b'"child_run_started"' in frame:
            body: dict[str, Any] = json_of(frame)
            if body.get("event_type") == "child_run_started":
                told.append((seq, str(body["event_data"]["run_id"])))
    return [run_id for _, run_id in told]
