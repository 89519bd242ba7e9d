"""Checks the streams: all readers got the same frames, and these equal the stored ones and those that are read now."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import sqlalchemy as sa

from bench.chaos.client import Client
from bench.chaos.faults import Happened
from bench.chaos.ledger import Column, Ledger, RunRecord, json_of
from bench.chaos.readers import Reader, follows_of
from bench.chaos.schedule import LOSES_REDIS, LOSES_WORKER
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, Message
from shared.sql.engine import Database
from shared.sql.history.messages import message_of
from shared.sql.run_tables import runs
from shared.sql.tables import messages

AT_ONCE = 20
JUST_BEFORE_S = 1.0
"""Seconds that a run may have worked before its submission is answered."""

TOGETHER_S = 15.0
"""Losses of a worker and of Redis within this many seconds count as one: the log was not rewritten in between."""


@dataclass
class StreamChecks:
    """Reads every stream again from beginning to end, and compares it."""

    clients: dict[str, Client]
    """By project."""
    ledger: Ledger
    database: Database
    happened: list[Happened]
    dice: random.Random
    explicit_gaps: int = 0
    _whole: dict[str, Reader] = field(default_factory=dict[str, Reader])

    async def check(self) -> None:
        """Runs all checks of this module."""
        records = list(self.ledger.runs.values())
        turnstile = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for record in records:
                group.create_task(self._read(record, turnstile), name=f"read {record.run_id} again")
        async with self.database.read() as connection:
            found = await connection.execute(sa.select(messages).order_by(messages.c.turn, messages.c.position))
            stored: dict[str | None, list[Message]] = defaultdict(list)
            for row in found.mappings():
                stored[row["run_id"]].append(message_of(row))
            found = await connection.execute(sa.select(runs.c.id, runs.c.last_seq, runs.c.status))
            ended = {str(row.id): (int(row.last_seq), str(row.status)) for row in found}
        for record in records:
            last, status = ended.get(record.run_id, (None, None))
            self._check_numbers(record, last)
            self._check_text(record, stored[record.run_id], completed=status == RunStatus.COMPLETED)
            self._check_gaps(record)
            if record.story.notes:
                # Readers with status events get no other numbered pings.
                unknown = sum(seq > 1 and b'"message_type":"ping"' in frame for seq, frame in record.frames.items())
                self.ledger.notes["unknown events of the newer release in streams"] += unknown

    async def _read(self, record: RunRecord, turnstile: asyncio.Semaphore) -> None:
        client = self.clients[record.story.thread.project]
        async with turnstile:
            reader = Reader(client, self.ledger, self.dice, record, restless=False)
            try:
                async with asyncio.timeout(30):
                    await reader.read()
            except TimeoutError:
                self.ledger.broken(Column.ENDS, record.run_id, "read again from its beginning, it does not end")

    def _check_numbers(self, record: RunRecord, last_seq: int | None) -> None:
        if len(record.ends) != 1:
            self.ledger.broken(Column.ENDS, record.run_id, f"ends at {sorted(record.ends)}")
            return
        [end] = record.ends
        if last_seq is not None and last_seq != end:
            self.ledger.broken(Column.ENDS, record.run_id, f"ends at {end}, in SQL at {last_seq}")
        for first, last in self._unseen(record, end):
            self.ledger.broken(Column.GAPS, record.run_id, f"no reader got {first} to {last} of {end}")
        beyond = [number for number in record.frames if number >= end]
        if beyond:
            self.ledger.broken(Column.ENDS, record.run_id, f"frames {beyond[:20]} at or after the end {end}")

    def _unseen(self, record: RunRecord, end: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of numbers that no reader got, neither as a frame nor in a gap. A new owner's first frame skips
        numbers, and follows one that a reader must have got."""
        gaps = {last: first for first, last in record.gaps}
        known = 0
        for seq in [*sorted({*record.frames, *gaps}), end]:
            begins = gaps.get(seq, seq)
            follows = follows_of(record.frames[seq]) if seq in record.frames else None
            expected = begins - 1 if follows is None else follows
            if expected > known:
                yield known + 1, expected
            known = seq

    def _check_text(self, record: RunRecord, stored: list[Message], *, completed: bool) -> None:
        """Checks that the frames of each stored answer are that answer, and that a completed script was streamed."""
        shown: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for seq, frame in sorted(record.frames.items()):
            follows = follows_of(frame)
            if follows is not None:
                # The frames of a lost owner after that number are void.
                shown = defaultdict(
                    list, {one: [part for part in said if part[0] <= follows] for one, said in shown.items()}
                )
            if b'"assistant_message"' in frame:
                body = json_of(frame)
                shown[body["id"]].append((seq, body["content"]))
        answers = [(one.id, one.body) for one in stored if isinstance(one.body, AssistantMessage)]
        for message_id, body in answers:
            if body.text and not record.gaps:
                text = "".join(said for _, said in shown[message_id])
                if text.strip() != body.text.strip():
                    detail = f"{message_id}: streamed …{text[-120:]!r}, stored …{body.text[-120:]!r}"
                    self.ledger.broken(Column.SHOWN, record.run_id, detail)
        if not completed or record.script is None or record.is_pushed or record.script.waits:
            return
        said = " ".join(word for _, body in answers for word in body.text.split())
        if said != record.script.said:
            detail = f"scripted {record.script.said[-150:]!r}, stored {said[-150:]!r}"
            self.ledger.broken(Column.SHOWN, record.run_id, detail)

    def _check_gaps(self, record: RunRecord) -> None:
        """Checks that gaps are reported only if a worker and Redis were lost together."""
        if not record.gaps:
            return
        self.explicit_gaps += len(record.gaps)
        since = [one for one in self.happened if one.ended_at > record.accepted_at - JUST_BEFORE_S]
        workers = [one for one in since if one.fault.kind in LOSES_WORKER]
        redis = [one for one in since if one.fault.kind in LOSES_REDIS]
        if not any(_together(one, other) for one in workers for other in redis):
            self.ledger.broken(Column.GAPS, record.run_id, f"gaps {sorted(record.gaps)} without a double loss")


def _together(one: Happened, other: Happened) -> bool:
    return one.began_at - TOGETHER_S < other.ended_at and other.began_at - TOGETHER_S < one.ended_at
