"""What the harness knows: what was accepted, what was shown, what it saw go wrong. Nothing here asks the product."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any

from bench.chaos.scripts import Script


class Column(StrEnum):
    """What must be zero."""

    LOST = "lost"
    CHANGED = "changed after the end"
    DUPLICATED = "duplicated"
    GAPS = "gaps"
    ENDS = "streams without exactly one end"
    TOOLS = "double tool starts"
    UNCOUNTED = "tools whose start nobody counted"
    AFTER_CANCEL = "activity after cancelled"
    SHOWN = "shown differs from stored"
    CONVERSATIONS = "invalid conversations"
    DECISIONS = "decided otherwise than was said"
    CALLBACKS = "callbacks lost, forged or unlike"
    BUDGETS = "budgets unlike their runs"
    WALLS = "shown to another project"
    STUCK = "stuck"
    FAILED = "failed unasked"
    ERRORS = "answers 5xx other than 503"
    DIED = "processes that ended by themselves"
    OUTLIVED = "processes that outlive their worker"


@dataclass
class Thread:
    """A history that runs are sent to: an agent's own, or one of its conversations."""

    project: str
    agent_id: str
    conversation_id: str | None = None
    stories: int = 0
    """How many are told on it at this moment."""
    compactions: int = 0
    """How many were answered with a summary."""

    @property
    def id(self) -> str:
        return self.conversation_id or self.agent_id

    @property
    def messages_path(self) -> str:
        owner = f"conversations/{self.conversation_id}" if self.conversation_id else f"agents/{self.agent_id}"
        return f"/v1/{owner}/messages"


@dataclass
class Story:
    """One thing that a client does with the product: a run, or several that belong together."""

    number: int
    kind: str
    thread: Thread
    notes: bool
    """Its runs are made and read with status events."""
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """Its tool calls: key and name of the tool."""
    run_ids: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Standstill:
    """What SQL held of a run when a cancel of it was answered with "cancelled"."""

    at: float
    last_seq: int
    fence: int
    message_ids: frozenset[str]


@dataclass
class RunRecord:
    """A run that was accepted, and everything that was shown of it."""

    run_id: str
    kind: str
    story: Story
    script: Script | None
    frames: dict[int, bytes] = field(default_factory=dict[int, bytes])
    gaps: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    ends: set[int] = field(default_factory=set[int])
    standstill: Standstill | None = None
    accepted_at: float = field(default_factory=time.monotonic)
    is_pushed: bool = False
    """Something is done to it on purpose, so it may end otherwise than its script does."""
    is_called_back: bool = False
    """Its submission named a URL."""


@dataclass
class ResponseRecord:
    """What OpenAI's dialect has shown of a run."""

    run: RunRecord
    key: str
    """What its request was sent under."""
    events: dict[int, bytes] = field(default_factory=dict[int, bytes])
    jumps: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Where a reader was shown a number that does not follow the one before it."""
    ends: set[int] = field(default_factory=set[int])


@dataclass(frozen=True)
class Violation:
    """A promise that was broken."""

    column: Column
    run_id: str
    kind: str
    detail: str


@dataclass
class Injection:
    """A message that was given to a run, and whether that was answered for."""

    otid: str
    run_id: str
    if_ended: str


@dataclass(frozen=True)
class Decided:
    """What has become of a tool call that waited, as the answer to a decision said."""

    run_id: str
    """The run that waited."""
    tool_call_id: str
    key: str
    status: str
    tool_return: str | None


@dataclass
class Ledger:
    """Everything that is known."""

    runs: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    submissions: dict[str, str] = field(default_factory=dict[str, str])
    """The otid of each answered submission, and its run."""
    responses: dict[str, ResponseRecord] = field(default_factory=dict[str, ResponseRecord])
    """By the id of the run."""
    injections: list[Injection] = field(default_factory=list[Injection])
    decided: dict[str, Decided] = field(default_factory=dict[str, Decided])
    """By the id of the approval."""
    violations: list[Violation] = field(default_factory=list[Violation])
    http: Counter[str] = field(default_factory=Counter[str])
    limits: Counter[str] = field(default_factory=Counter[str])
    """How often which limit was used up, by project."""
    notes: Counter[str] = field(default_factory=Counter[str])
    """What is worth knowing and breaks no promise."""
    began_at: float = field(default_factory=time.monotonic)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def otid(self, word: str) -> str:
        """A new one, unlike those of every other project."""
        return f"{word}-{next(self._numbers):05d}"

    def decide(self, approval_id: str, decided: Decided) -> None:
        """An answer said how a call was decided. Every answer must say the same."""
        known = self.decided.setdefault(approval_id, decided)
        if known != decided:
            self.broken(Column.DECISIONS, decided.run_id, f"{approval_id} was {known}, is {decided}")

    def accept(self, run_id: str, story: Story, script: Script | None, otid: str | None) -> RunRecord:
        """A submission was answered with this run. The same otid must always be answered with the same one."""
        record = self.runs.get(run_id)
        if record is None:
            record = self.runs[run_id] = RunRecord(run_id, story.kind, story, script)
            story.run_ids.append(run_id)
        if otid is not None:
            known = self.submissions.setdefault(otid, run_id)
            if known != run_id:
                self.broken(Column.DUPLICATED, run_id, f"otid {otid} was answered with {known} before")
        return record

    def broken(self, column: Column, run_id: str, detail: str) -> None:
        """Notes a violation, once."""
        record = self.runs.get(run_id)
        violation = Violation(column, run_id, record.kind if record else "-", detail)
        if violation not in self.violations:
            self.violations.append(violation)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_at


def json_of(frame: bytes) -> dict[str, Any]:
    """The body of a frame; the end of the stream has none."""
    data = frame.rpartition(b"data: ")[2]
    return {} if data == b"[DONE]" else json.loads(data)
