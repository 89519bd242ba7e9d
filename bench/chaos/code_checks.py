"""Checks the runs of agents in code: no recorded call is made again, and a replay gets the same values."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import sqlalchemy as sa
from msgspec import json

from bench.chaos.code_notes import Note
from bench.chaos.faults import OVERLAP_S, Happened
from bench.chaos.ledger import Column, Ledger
from bench.chaos.schedule import FaultKind
from bench.chaos.tools import NOTE_CHECKED
from shared.domain.lifecycle import RunStatus
from shared.sql.engine import Database
from shared.sql.run_tables import runs
from shared.sql.tables import messages

Place = tuple[str, str]
"""A turn and the number of a model call in it, or a run and the key of a tool's call."""


@dataclass
class CodeChecks:
    """Compares the notes of agents."""

    ledger: Ledger
    database: Database
    happened: list[Happened]
    epoch: float
    """The time of day at the monotonic clock's zero, in seconds since the epoch."""
    _turns: dict[str, str] = field(default_factory=dict[str, str])
    """The run with which each run's turn began."""

    async def check(self, notes: list[Note]) -> None:
        """Runs all checks of this module."""
        async with self.database.read() as connection:
            found = (await connection.execute(sa.select(runs).order_by(runs.c.number))).all()
        for row in found:
            run_id, continued = str(row.id), str(row.continues)
            self._turns[run_id] = self._turns.get(continued, run_id)
        self._check_answers(notes)
        self._check_keys(notes)
        self._check_taken(notes)
        self._check_after_cancel(notes)
        completed = [row for row in found if row.status == RunStatus.COMPLETED and row.body_state is not None]
        self._check_states(sorted(completed, key=lambda row: row.turn))
        for what in ("asked", "unknown", "denied"):
            self.ledger.notes[f"agents in code: {what}"] += sum(one.what == what for one in notes)

    async def check_injections(self) -> None:
        """Checks that a message that becomes the next run's input if its run has ended is in the history. Before this
        check, each conversation has had another run."""
        async with self.database.read() as connection:
            said = "".join((await connection.execute(sa.select(messages.c.body))).scalars())
        for one in self.ledger.injections:
            record = self.ledger.runs.get(one.run_id)
            if record is not None and record.is_of_code and one.if_ended == "next" and f'"{one.otid}"' not in said:
                self.ledger.broken(Column.LOST, one.run_id, f"the message {one.otid} was taken in and is nowhere")

    def _check_answers(self, notes: list[Note]) -> None:
        """Checks that a model with a recorded answer is not called again, that the run gets this answer each time it
        comes to the call, and that all answers that a run has got are recorded."""
        asked, got = self._by_turn(notes, "asked"), self._by_turn(notes, "got")
        for (turn, number), told in got.items():
            if len({one.detail for one in told}) > 1:
                detail = f"call {number} got {sorted({one.detail for one in told})}"
                self.ledger.broken(Column.CODE_REPLAY, told[-1].run_id, detail)
            first = min(one.at for one in told)
            again = [one for one in asked[turn, number] if one.at > first]
            if again:
                detail = f"call {number} was asked again {again[0].at - first:.2f} s after its answer was recorded"
                self.ledger.broken(Column.CODE_PAID, again[0].run_id, detail)

    def _by_turn(self, notes: list[Note], what: str) -> dict[Place, list[Note]]:
        found: dict[Place, list[Note]] = defaultdict(list)
        for one in notes:
            if one.what == what:
                found[self._turns.get(one.run_id, one.run_id), one.key].append(one)
        return found

    def _check_keys(self, notes: list[Note]) -> None:
        """Checks that a call has one idempotency key for ever, and that a tool with a probe has its effect once."""
        of_call: dict[str, set[str]] = defaultdict(set)
        effects: dict[str, list[Note]] = defaultdict(list)
        for one in notes:
            if one.what == "keyed":
                of_call[one.key].add(one.detail)
            elif one.what == "effect":
                effects[one.key].append(one)
        for record in self.ledger.runs.values():
            for key, name in record.story.keys.items():
                if len(of_call[key]) > 1:
                    self.ledger.broken(Column.CODE_REPLAY, record.run_id, f"{key} had the keys {of_call[key]}")
                if name == NOTE_CHECKED and len(effects[key]) > 1 and not self._was_frozen(effects[key]):
                    self.ledger.broken(Column.CODE_TOOLS, record.run_id, f"{key} had its effect twice")

    def _was_frozen(self, effects: Iterable[Note]) -> bool:
        """Whether a worker was suspended: the processes of its agents continue, and another worker's probe asks before
        they have had their effect."""
        frozen = [one for one in self.happened if one.fault.kind is FaultKind.FREEZE_WORKER]
        return any(
            one.began_at + self.epoch < effect.at < one.ended_at + self.epoch + OVERLAP_S
            for effect in effects
            for one in frozen
        )

    def _check_taken(self, notes: list[Note]) -> None:
        """Checks that an injected message is taken at one place."""
        places: dict[Place, set[str]] = defaultdict(set)
        for one in notes:
            if one.what == "taken":
                places[self._turns.get(one.run_id, one.run_id), one.detail].add(one.key)
        for (turn, message_id), numbers in places.items():
            if len(numbers) > 1:
                detail = f"{message_id} was taken before the calls {sorted(numbers)}"
                self.ledger.broken(Column.DUPLICATED, turn, detail)

    def _check_after_cancel(self, notes: list[Note]) -> None:
        for one in notes:
            record = self.ledger.runs.get(one.run_id)
            if record is None or record.standstill is None or one.what != "asked":
                continue
            if one.at > record.standstill.at:
                late = one.at - record.standstill.at
                detail = f"its model was asked {late:.2f} s after cancelled"
                self.ledger.broken(Column.AFTER_CANCEL, one.run_id, detail)

    def _check_states(self, completed: list[sa.Row[tuple[object, ...]]]) -> None:
        """Checks that the state of a thread counts its completed runs."""
        count: dict[str, int] = defaultdict(int)
        for row in completed:
            count[row.thread_id] += 1
            stored = json.decode(row.body_state)
            if row.options and '"code_agent":"player"' in row.options and stored["runs"] != count[row.thread_id]:
                detail = f"the state says {stored}, and {count[row.thread_id]} runs were completed"
                self.ledger.broken(Column.CODE_REPLAY, row.id, detail)
