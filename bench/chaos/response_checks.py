"""Checks the runs that were submitted as responses: every reader got the same events, the API still shows them, and
each request made one response."""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from api.openai.response_object import DIALECT, response_id
from bench.chaos.client import Client, Refused
from bench.chaos.faults import Happened
from bench.chaos.ledger import Column, Ledger, ResponseRecord, Thread, json_of
from bench.chaos.responses import RESPONSES, ResponseReader
from bench.chaos.schedule import LOSES_REDIS, STOPS_REDIS
from bench.chaos.stream_checks import JUST_BEFORE_S
from shared.domain.ids import RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import RunOptions
from shared.sql.engine import Database
from shared.sql.run_tables import runs
from shared.sql.tables import from_json

AT_ONCE = 20
QUEUED = 1
"""The number of the last event that shows no work of the run."""

ASKS = frozenset({"function_call", "mcp_approval_request"})
"""The last items of a response that waits for its client."""

IS_RESPONSE = runs.c.options.contains(f'"dialect":"{DIALECT}"')


@dataclass
class ResponseChecks:
    """Reads every response once more, and compares. It follows the checks of the runs' own streams."""

    clients: dict[str, Client]
    """By project."""
    ledger: Ledger
    database: Database
    happened: list[Happened]
    dice: random.Random

    async def check(self) -> None:
        """Runs all checks of this module."""
        turnstile = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for record in self.ledger.responses.values():
                group.create_task(self._read(record, turnstile), name=f"read the response {record.run.run_id} again")
        async with self.database.read() as connection:
            found = await connection.execute(sa.select(runs.c.id, runs.c.status, runs.c.options).where(IS_RESPONSE))
            rows = {str(row.id): row for row in found}
        for record in self.ledger.responses.values():
            self._check_numbers(record)
            row = rows.get(record.run.run_id)
            if row is not None and len(record.ends) == 1:
                self._check_end(record, str(row.status))
        self._check_submissions(rows)

    async def threads(self) -> list[Thread]:
        """Returns the histories that responses have begun."""
        query = sa.select(runs.c.project_id, runs.c.thread_id, runs.c.agent_id).where(IS_RESPONSE).distinct()
        async with self.database.read() as connection:
            found = (await connection.execute(query)).all()
        return [
            Thread(str(row.project_id), str(row.agent_id), str(row.thread_id))
            for row in found
            if str(row.thread_id).startswith("run-")
        ]

    async def _read(self, record: ResponseRecord, turnstile: asyncio.Semaphore) -> None:
        client = self.clients[record.run.story.thread.project]
        async with turnstile:
            reader = ResponseReader(client, self.ledger, self.dice, record.run, restless=False)
            try:
                async with asyncio.timeout(30):
                    await reader.read()
                shown = await client.get(f"{RESPONSES}/{response_id(RunId(record.run.run_id))}")
            except TimeoutError:
                self._broken(record, Column.ENDS, "read again from its beginning, it does not end")
                return
            except Refused as refusal:
                self._broken(record, Column.LOST, f"it is not shown: {refusal}")
                return
        last = json_of(record.events[max(record.ends)]) if record.ends else {}
        if shown != last.get("response"):
            self._broken(record, Column.SHOWN, f"the last event says {last}, the response is {shown}")

    def _check_numbers(self, record: ResponseRecord) -> None:
        """Checks that numbers jump only where a part of the log may be lost: at a gap, or if a worker and Redis were
        lost together. A worker that gives a run up in a model's call, because Redis takes no writes, counts as lost:
        it stores its events in SQL, but the next worker cannot know that readers have seen no others. Numbers also jump
        after the first two events if a worker was lost before it opened the log."""
        if len(record.ends) != 1 or max(record.events, default=None) not in record.ends:
            last = max(record.events, default=None)
            self._broken(record, Column.ENDS, f"ends at {sorted(record.ends)}, and the last event is {last}")
        jumps = sorted(jump for jump in record.jumps if jump[0] > QUEUED)
        if jumps and not record.run.gaps and not self._may_lack_events(record):
            self._broken(record, Column.GAPS, f"numbers jump at {jumps}, and the log is whole")

    def _may_lack_events(self, record: ResponseRecord) -> bool:
        since = record.run.accepted_at - JUST_BEFORE_S
        return any(one.ended_at > since and one.fault.kind in LOSES_REDIS | STOPS_REDIS for one in self.happened)

    def _check_end(self, record: ResponseRecord, status: str) -> None:
        response = json_of(record.events[max(record.ends)])["response"]
        waited = any(item["type"] in ASKS for item in response["output"])
        fits: dict[str, bool] = {
            "completed": status == RunStatus.COMPLETED or waited,
            "incomplete": status in (RunStatus.COMPLETED, RunStatus.FAILED) or waited,
            "failed": status == RunStatus.FAILED,
            "cancelled": status == RunStatus.CANCELLED,
        }
        if not fits.get(response["status"], False):
            self._broken(record, Column.CHANGED, f"the response is {response['status']}, its run {status}")
        script = record.run.script
        if response["status"] != "completed" or script is None or script.waits or record.run.is_pushed:
            return
        if said_in(response) != script.said:
            detail = f"scripted {script.said[-150:]!r}, the response has {said_in(response)[-150:]!r}"
            self._broken(record, Column.SHOWN, detail)

    def _check_submissions(self, rows: dict[str, Any]) -> None:
        """Checks that each request made one response, even if it was sent many times, and that its client knows it."""
        made: dict[str, list[str]] = defaultdict(list)
        for run_id, row in rows.items():
            echoed: dict[str, dict[str, str]] = from_json(row.options, RunOptions).echoed
            key = echoed["metadata"]["sent"]
            if run_id not in self.ledger.responses:
                self.ledger.broken(Column.LOST, run_id, f"no client got the response of {key}")
            made[key].append(run_id)
        for key, run_ids in made.items():
            if len(run_ids) > 1:
                self.ledger.broken(Column.DUPLICATED, run_ids[0], f"{key} made {run_ids}")

    def _broken(self, record: ResponseRecord, column: Column, detail: str) -> None:
        self.ledger.broken(column, record.run.run_id, f"as a response: {detail}")


def said_in(response: dict[str, Any]) -> str:
    """Returns all words of the messages of a response, in order."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return " ".join(word for part in parts for word in part["text"].split())
