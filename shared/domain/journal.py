"""The journal of a turn: the calls of its body that cannot be computed again, and the position of a replay in it.

The state of a run with a body of an operator's own code is its journal. After a crash, a hand-over or a decision the
body is executed again from its beginning, and takes the results of its earlier calls from the journal. An entry answers
a call of the same branch, kind, name and content, never a call that only has the same position.

Pure: `Replay` matches, and its caller stores.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from typing import Literal

import msgspec

EntryKind = Literal["step", "model", "answer", "tool", "approval", "inbox", "sleep", "agent"]
"""`model`: a call that the body makes. `answer`: an answer of one of the worker's models to any code of the process.
`agent`: no call, but the agent as it was when the turn began."""

EntryState = Literal["started", "done", "failed", "unknown"]
"""`unknown`: the call was started, and its end was lost."""

ANSWERS = "models/"
"""The branch of answers of the worker's models. No task of the body has it, and a replay need not request its
entries."""

GIVEN = "given/"
"""The branch of entries that the body gets without a call, such as the agent."""

ANY = "*"
"""The hash of an entry that answers a call of any content: a call that was made before its turn began anew."""


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a body."""

    number: int
    """Its place in the journal, from 1; 0 for the agent."""
    kind: EntryKind
    name: str
    branch: str
    """The task that made the call, and the call around the task. Empty: the body itself."""
    ordinal: int
    """Its place among the calls of its branch with this kind and name."""
    hash: str
    """The hash of the arguments."""
    settings_hash: str = ""
    """The hash of a model's instructions and settings. If only these have changed, the recorded answer is valid."""
    state: EntryState
    result: bytes | None = None
    """JSON: the value, or the `error` that it raised."""
    attempt: int = 1
    """How many times it was started; 0 while it waits for a person."""
    started_at: datetime
    ended_at: datetime | None = None
    idempotency_key: str

    @property
    def slot(self) -> str:
        """Its name in the journal, which no other entry has."""
        return f"{self.branch}{self.kind}:{self.name}#{self.ordinal}"

    @property
    def call_id(self) -> str:
        """The id under which clients see a call. It never changes, because it is a hash of the idempotency key."""
        return f"call-{sha256(self.idempotency_key.encode()).hexdigest()[:24]}"


class BodyChanged(Exception):
    """The code makes another call than the journal has."""


class Replay:
    """A journal, and how far the present execution of the body has come in it."""

    def __init__(self, journal: str, entries: Iterable[JournalEntry]) -> None:
        self.journal = journal
        self.entries: dict[str, JournalEntry] = {entry.slot: entry for entry in entries}
        self.began_at = min((entry.started_at for entry in self.entries.values()), default=None)
        self._left: dict[str, _LeftInBranch] = defaultdict(_LeftInBranch)
        """The entries that no call of the present execution has taken, by branch."""
        self._last = 0
        self._ordinals: Counter[str] = Counter()
        for entry in sorted(self.entries.values(), key=lambda entry: entry.number):
            self._left[entry.branch].append(entry)
            self._last = entry.number

    def begin(self, kind: EntryKind, name: str, branch: str, content: str, now: datetime) -> tuple[JournalEntry, bool]:
        """Returns the entry of a call, and whether the journal had it. Raises `BodyChanged`, which names both, if the
        journal has another call there."""
        known = self._left[branch].take(kind, name, content)
        if known is None:
            self._refuse_change(kind, name, branch)
            known = self._new(kind, name, branch, content, now)
            self.entries[known.slot] = known
            return known, False
        return self.entries[known.slot], True

    def begin_answer(self, model: str, content: str, now: datetime) -> JournalEntry:
        """Returns a new entry for an answer of this model. Its caller has found no recorded answer to take."""
        entry = self._new("answer", model, ANSWERS, content, now)
        self.entries[entry.slot] = entry
        return entry

    def put(self, entry: JournalEntry) -> None:
        """Replaces an entry by its new state."""
        self.entries[entry.slot] = entry

    def _refuse_change(self, kind: str, name: str, branch: str) -> None:
        recorded = self._left[branch].first()
        if recorded is None:
            return
        asked = f"for {name!r}" if (recorded.kind, recorded.name) != (kind, name) else "for it with other arguments"
        calls = sorted(entry.number for entry in self.entries.values() if entry.branch != GIVEN)
        said = f"recorded as {recorded.name!r} ({recorded.kind}, {calls.index(recorded.number) + 1} of {len(calls)})"
        raise BodyChanged(f"{said}, the code now asks {asked}")

    def _new(self, kind: EntryKind, name: str, branch: str, content: str, now: datetime) -> JournalEntry:
        named, self._last = f"{branch}{kind}:{name}#", self._last + 1
        while (slot := f"{named}{self._ordinals[named]}") in self.entries:
            self._ordinals[named] += 1
        return JournalEntry(
            number=self._last,
            kind=kind,
            name=name,
            branch=branch,
            ordinal=self._ordinals[named],
            hash=content,
            state="started",
            started_at=now,
            idempotency_key=f"hf-{self.journal}-{sha256(slot.encode()).hexdigest()[:16]}",
        )


class _LeftInBranch:
    """The entries of one branch that no call has taken, in order. A turn may have thousands, so one call looks at no
    entry twice."""

    def __init__(self) -> None:
        self._by_call: dict[tuple[str, str], deque[JournalEntry]] = {}

    def append(self, entry: JournalEntry) -> None:
        self._by_call.setdefault((entry.kind, entry.name), deque()).append(entry)

    def take(self, kind: str, name: str, content: str) -> JournalEntry | None:
        """Removes and returns the first entry of this kind, name and content."""
        left = self._by_call.get((kind, name), deque())
        place = next((place for place, entry in enumerate(left) if entry.hash in (content, ANY)), None)
        if place is None:
            return None
        taken = left[place]
        del left[place]
        if not left:
            del self._by_call[kind, name]
        return taken

    def first(self) -> JournalEntry | None:
        """The first entry that answers calls of one content alone."""
        recorded = (next((entry for entry in left if entry.hash != ANY), None) for left in self._by_call.values())
        return min((one for one in recorded if one is not None), key=lambda entry: entry.number, default=None)


def agent_entry(journal: str, agent: bytes, now: datetime) -> JournalEntry:
    """The entry with the agent as JSON, so that every attempt of the turn gets the same."""
    return JournalEntry(
        number=0,
        kind="agent",
        name="agent",
        branch=GIVEN,
        ordinal=0,
        hash="",
        state="done",
        result=agent,
        started_at=now,
        ended_at=now,
        idempotency_key=f"hf-{journal}-agent",
    )


def begun_anew(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """The journal of a turn that begins anew, because its code has changed. It keeps only the tools that were started,
    each with an unknown outcome."""
    return [
        msgspec.structs.replace(entry, hash=ANY, state="unknown", result=None)
        for entry in entries
        if entry.kind == "tool"
    ]
