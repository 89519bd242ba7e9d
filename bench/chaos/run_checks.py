"""Checks the runs in SQL at the end."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from bench.chaos.client import Client, Refused
from bench.chaos.ledger import Column, Injection, Ledger, RunRecord
from bench.chaos.witness import Witness
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.runs import RunError
from shared.sql.engine import Database
from shared.sql.run_tables import injected_messages, run_inputs, runs
from shared.sql.tables import EPOCH, from_json, messages

_OTID = re.compile(r'"otid":"((?:sent|decided)-\d+)"')
_ANY_OTID = re.compile(r'"otid":"((?:sent|given)-\d+)"')
SETTLED_LATE_S = 0.25
"""Seconds after a run's end by which a message of the settling transaction may be dated."""


@dataclass
class RunChecks:
    """Checks every run once."""

    clients: dict[str, Client]
    """By project."""
    ledger: Ledger
    witness: Witness
    database: Database
    ends: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Counts runs by kind and end."""
    errors: Counter[str] = field(default_factory=Counter[str])

    async def check(self) -> None:
        """Runs all checks of this module."""
        async with self.database.read() as connection:
            rows = {row.id: row for row in await connection.execute(sa.select(runs))}
            inputs = {row.run_id: str(row.input) for row in await connection.execute(sa.select(run_inputs))}
        for record in self.ledger.runs.values():
            await self._check_run(record, rows.get(record.run_id))
        self._check_otids(inputs)
        await self._check_messages(rows)
        self._check_continuations(rows)

    async def _check_run(self, record: RunRecord, row: sa.Row[tuple[object, ...]] | None) -> None:
        if row is None:
            self.ledger.broken(Column.LOST, record.run_id, f"was accepted, story {record.story.number}; SQL has no run")
            return
        self.ends[record.kind, row.status] += 1
        if row.status not in TERMINAL:
            self.ledger.broken(
                Column.STUCK, record.run_id, f"is {row.status}, fence {row.fence}, dispatch {row.dispatch}"
            )
            return
        try:
            shown = await self.clients[record.story.thread.project].get(f"/v1/runs/{record.run_id}")
        except Refused as refusal:
            self.ledger.broken(Column.LOST, record.run_id, f"the API does not show it: {refusal}")
            return
        if shown["status"] != row.status:
            self.ledger.broken(Column.CHANGED, record.run_id, f"SQL has {row.status}, the API {shown['status']}")
        self._check_failure(record, row)
        await self._check_standstill(record, row)

    def _check_failure(self, record: RunRecord, row: sa.Row[tuple[object, ...]]) -> None:
        error = None if row.error is None else from_json(row.error, RunError)
        if row.status != RunStatus.FAILED or error is None:
            return
        self.errors[error.error_type] += 1
        asked_for = record.script is not None and record.script.fails and error.error_type != "internal_error"
        waited = "approval" in (error.detail or "").lower()
        # Only the harness kills with this signal: the process, or its host and the process with it.
        is_kill = any(said in (error.detail or "") for said in ("SIGKILL", "with its host"))
        killed = error.error_type == "body_crashed" and self._was_killed(row) and is_kill
        if not asked_for and not waited and not killed and error.error_type != "worker_lost":
            self.ledger.broken(Column.FAILED, record.run_id, f"{error.error_type}: {error.message} {error.detail}")

    def _was_killed(self, row: sa.Row[tuple[Any, ...]]) -> bool:
        """Whether the harness has killed a process of the run, or, while it ran, a process whose run is unknown."""
        began, ended = row.created_at.timestamp(), row.completed_at.timestamp()
        return any(
            kill.run_id == row.id or (kill.run_id is None and began <= kill.at <= ended) for kill in self.ledger.killed
        )

    async def _check_standstill(self, record: RunRecord, row: sa.Row[tuple[object, ...]]) -> None:
        before = record.standstill
        if before is None:
            return
        now = await self.witness.standstill_of(record.run_id, before.at)
        assert now is not None
        if row.status != RunStatus.CANCELLED:
            self.ledger.broken(Column.CHANGED, record.run_id, f"was answered with cancelled, is {row.status}")
        if (now.last_seq, now.fence) != (before.last_seq, before.fence):
            detail = f"log and fence were at {before.last_seq}, {before.fence}, are at {now.last_seq}, {now.fence}"
            self.ledger.broken(Column.AFTER_CANCEL, record.run_id, detail)
        if now.message_ids - before.message_ids:
            added = sorted(now.message_ids - before.message_ids)
            self.ledger.broken(Column.AFTER_CANCEL, record.run_id, f"messages were written later: {added}")

    def _check_otids(self, inputs: dict[str, str]) -> None:
        """Checks that each submission made one run, even if it was sent many times."""
        made: dict[str, list[str]] = {}
        for run_id, given in inputs.items():
            for otid in set(_OTID.findall(given)):
                made.setdefault(otid, []).append(run_id)
        for otid, run_ids in made.items():
            if len(run_ids) > 1:
                self.ledger.broken(Column.DUPLICATED, run_ids[0], f"otid {otid} made {run_ids}")

    async def _check_messages(self, rows: dict[str, sa.Row[tuple[object, ...]]]) -> None:
        """Checks that the history has each message once."""
        async with self.database.read() as connection:
            found = await connection.execute(
                sa.select(messages.c.run_id, messages.c.body, messages.c.created_at).where(
                    messages.c.run_id.is_not(None)
                )
            )
            stored = found.all()
            open_ones = sa.select(injected_messages.c.message).where(injected_messages.c.delivered_at.is_(None))
            waiting = "".join((await connection.execute(open_ones)).scalars())
        said: Counter[str] = Counter()
        for message in stored:
            said.update(_ANY_OTID.findall(message.body))
            row = rows.get(message.run_id)
            ended = None if row is None else row.completed_at
            cancelled = row is not None and row.status == RunStatus.CANCELLED
            if cancelled and ended and (message.created_at - ended).total_seconds() > SETTLED_LATE_S:
                late = (message.created_at - EPOCH).total_seconds() - (ended - EPOCH).total_seconds()
                detail = f"a message is {late:.2f} s younger than the run's end"
                self.ledger.broken(Column.AFTER_CANCEL, message.run_id, detail)
        self._check_said(rows, said, waiting)

    def _check_said(self, rows: dict[str, sa.Row[tuple[object, ...]]], said: Counter[str], waiting: str) -> None:
        """`said` counts the stored messages of each otid; `waiting` are those that were injected and that no run has
        taken."""
        for otid, times in said.items():
            if times > 1:
                run_id = self.ledger.submissions.get(otid, "-")
                self.ledger.broken(Column.DUPLICATED, run_id, f"the message {otid} is stored {times} times")
        for otid, run_id in self.ledger.submissions.items():
            row = rows.get(run_id)
            if not otid.startswith("sent") or row is None or row.status != RunStatus.COMPLETED or said[otid]:
                continue
            record = self.ledger.runs.get(run_id)
            if record is not None and record.is_of_code and f'"{otid}"' in waiting:
                # The code has ended without it, so it is the next run's input, as `CodeChecks.check_injections` checks.
                self.ledger.injections.append(Injection(otid, run_id, "next"))
            else:
                self.ledger.broken(Column.LOST, run_id, f"the run is completed, but its message {otid} is nowhere")
        for injection in self.ledger.injections:
            row = rows.get(injection.run_id)
            answered = row is not None and (row.status, row.stop_reason) == (RunStatus.COMPLETED, "end_turn")
            record = self.ledger.runs.get(injection.run_id)
            # An agent in code may end without a look at its inbox: see `CodeChecks.check_injections`.
            is_of_code = record is not None and record.is_of_code
            if answered and not is_of_code and not said[injection.otid]:
                detail = f"the message {injection.otid} was taken in and is nowhere ({injection.if_ended})"
                self.ledger.broken(Column.LOST, injection.run_id, detail)

    def _check_continuations(self, rows: dict[str, sa.Row[tuple[object, ...]]]) -> None:
        """Checks that each decision made one continuation. Each branch has decisions, and a thread, of its own."""
        continued = Counter((row.continues, row.thread_id) for row in rows.values() if row.continues is not None)
        for (run_id, thread_id), times in continued.items():
            if times > 1:
                self.ledger.broken(Column.DUPLICATED, str(run_id), f"{times} runs of {thread_id} continue it")
