"""An execution of a body that is answered only from a recorded journal: it starts no step and no tool, and stores
nothing.

It shows, before a deploy, whether changed code still makes the recorded calls.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from shared.domain.journal import BodyChanged, EntryKind, JournalEntry, Replay
from worker.agents.body_process import BodyProcess, Frame
from worker.agents.frames import go, recorded_answer

QUIET_S = 5.0
"""Seconds without a further call after which tasks beside a waiting one count as waiting, too."""

LONGEST_S = 60.0
"""Seconds without a call after which the execution is given up."""

End = Literal["end_of_record", "diverged", "returned", "raised", "crashed", "silent"]


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an execution against a recorded journal."""

    end: End
    said: str
    """The result as a sentence."""
    replayed: int
    """Calls that the journal has answered."""
    recorded: int
    """Calls whose ends the journal contains."""
    left: list[str]
    """The slots of recorded calls that the code did not make."""
    instructions_changed: list[str]
    """The slots of model calls with other instructions or settings than recorded. Their answers still count."""


class DryReplay:
    """A journal, and the progress of an execution in it."""

    def __init__(self, hello: Frame, entries: Sequence[JournalEntry]) -> None:
        self._hello = {**hello, "models": {"socket": "", "token": ""}}
        self._replay = Replay(hello["journal"], entries)
        self._ended = {entry.slot: entry for entry in entries if entry.state != "started"}
        self._waiting: list[JournalEntry] = []
        self._asked: set[str] = set()
        self._replayed = 0
        self._changed: list[str] = []

    async def execute(self, process: BodyProcess, *, quiet_s: float = QUIET_S) -> ReplayReport:
        """Answers the process until it ends, or makes calls that the journal cannot answer."""
        process.send(self._hello)
        while not self._waiting or self._left():
            try:
                async with asyncio.timeout(quiet_s if self._waiting else LONGEST_S):
                    frame = await process.receive()
            except TimeoutError:
                if self._waiting:
                    break
                return self._report("silent", f"the code has asked for nothing within {LONGEST_S:g} s")
            if frame is None:
                return self._report("crashed", "the process has ended by itself")
            ended = self._answered(process, frame)
            if ended is not None:
                return ended
        names = ", ".join(repr(entry.name) for entry in self._waiting)
        return self._report("end_of_record", f"the code reaches the end of the record, and would go on with {names}")

    def _answered(self, process: BodyProcess, frame: Frame) -> ReplayReport | None:
        match frame["t"]:
            case "begin":
                try:
                    answer = self._begun(frame)
                except BodyChanged as change:
                    return self._report("diverged", str(change))
                if answer is not None:
                    process.send({**answer, "id": frame["id"]})
            case "returned":
                return self._report("returned", "the code returns")
            case "raised":
                return self._report("raised", f"the code raises {frame['type']}: {frame['text']}")
            case _:
                pass  # a frame that only shows output
        return None

    def _begun(self, frame: Frame) -> Frame | None:
        """Answers from the journal. None if the journal does not contain the end of this call."""
        kind = cast("EntryKind", frame["kind"])
        now = datetime.fromtimestamp(0).astimezone()
        entry, is_known = self._replay.begin(kind, frame["name"], frame["branch"], frame["hash"], now)
        self._asked.add(entry.slot)
        if is_known and entry.state == "started" and frame.get("scope"):
            return go(entry)
        if not is_known or entry.state == "started":
            self._waiting.append(entry)
            return None
        self._replayed += 1
        if kind == "model" and entry.settings_hash != frame["settings_hash"]:
            self._changed.append(entry.slot)
        return recorded_answer(entry, self._replay.began_at)

    def _left(self) -> list[str]:
        """The recorded calls that the code has not made, except those inside a call that has not ended."""
        inside = tuple(f"{entry.slot}/" for entry in self._waiting)
        to_come = [entry for slot, entry in self._ended.items() if slot not in self._asked]
        return [entry.slot for entry in to_come if not entry.branch.startswith(inside)]

    def _report(self, end: End, said: str) -> ReplayReport:
        return ReplayReport(
            end=end,
            said=said,
            replayed=self._replayed,
            recorded=len(self._ended),
            left=self._left(),
            instructions_changed=self._changed,
        )


def entry_of(record: dict[str, Any]) -> JournalEntry:
    """Converts an entry of the answer of `GET /v1/runs/{run_id}/replay`."""
    ended = record["ended_at"]
    return JournalEntry(
        number=record["number"],
        kind=record["kind"],
        name=record["name"],
        branch=record["branch"],
        ordinal=int(str(record["slot"]).rpartition("#")[2]),
        hash=record["hash"],
        settings_hash=record["settings_hash"],
        state=record["state"],
        result=None if ended is None else msgspec.json.encode(record["result"]),
        attempt=record["attempt"],
        started_at=datetime.fromisoformat(record["started_at"]),
        ended_at=None if ended is None else datetime.fromisoformat(ended),
        idempotency_key=record["idempotency_key"],
    )
