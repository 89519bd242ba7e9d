"""The harness's records: accepted submissions, received frames, and violations. Nothing here asks the product."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any

from bench.chaos.scripts import Script

CODE = "agent in code"
"""The prefix of the kinds of stories whose agent is a function."""


class Column(StrEnum):
    """The counts that must be zero."""

    LOST = "lost"
    CHANGED = "changed after the end"
    DUPLICATED = "duplicated"
    GAPS = "gaps"
    ENDS = "streams without exactly one end"
    TOOLS = "double tool starts"
    UNCOUNTED = "tools with an uncounted start"
    MCP_TWICE = "MCP calls made twice"
    MCP_LOST = "MCP results lost"
    MCP_WRONG = "MCP outcomes that are not what happened"
    MCP_AWAY = "MCP servers that were not found again"
    CHILD_TWICE = "children that a call has twice"
    CHILD_LEFT = "children that outlive a cancelled or failed run"
    CHILD_MODE = "children cancelled in another mode"
    CHILD_WAIT = "runs that wait for others at rest"
    CHILD_WRONG = "results that are not the child's answer"
    CHILD_TOLD = "children told of never, or twice"
    SLEEPTIME = "sleep-time runs other than one per due turn"
    CODE_TOOLS = "tools of agents in code started twice"
    CODE_PAID = "recorded answers of models paid twice"
    CODE_REPLAY = "replays that differ"
    AFTER_CANCEL = "activity after cancelled"
    SHOWN = "streams that differ from stored answers"
    PAGES = "streams that pages' clients refuse"
    THREADS = "conversations' streams out of order"
    CONVERSATIONS = "invalid conversations"
    DECISIONS = "decisions that were not obeyed"
    CALLBACKS = "callbacks lost, forged or different"
    BUDGETS = "budgets that differ from their runs"
    WALLS = "data that another project got"
    STUCK = "stuck"
    FAILED = "unexpected failures"
    ERRORS = "answers 5xx other than 503"
    DIED = "processes that ended by themselves"
    OUTLIVED = "processes that outlived their worker"


@dataclass
class Thread:
    """A history to which runs are sent: an agent's own, or one of its conversations."""

    project: str
    agent_id: str
    conversation_id: str | None = None
    stories: int = 0
    """Stories that use it at this moment."""
    compactions: int = 0
    """Compactions that were answered with a summary."""

    @property
    def id(self) -> str:
        return self.conversation_id or self.agent_id

    @property
    def messages_path(self) -> str:
        owner = f"conversations/{self.conversation_id}" if self.conversation_id else f"agents/{self.agent_id}"
        return f"/v1/{owner}/messages"


@dataclass
class Story:
    """One use of the product by a client: a run, or several that belong together."""

    number: int
    kind: str
    thread: Thread
    notes: bool
    """Whether its runs are made and read with status events."""
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """Its tool calls: key and name of the tool."""
    run_ids: list[str] = field(default_factory=list[str])
    branches: int = 1
    """The most responses that answer the same calls. The worker makes the calls of each of them."""


@dataclass(frozen=True)
class Standstill:
    """A run's rows in SQL when a cancel of it was answered with "cancelled"."""

    at: float
    last_seq: int
    fence: int
    message_ids: frozenset[str]


@dataclass
class RunRecord:
    """An accepted run, and all that its readers got."""

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
    """Whether the story interferes with the run, so that the run may not end as its script does."""
    is_called_back: bool = False
    """Whether the run's submission named a callback's URL."""

    @property
    def is_of_code(self) -> bool:
        """Whether the run's agent is a function."""
        return self.kind.startswith(CODE)


@dataclass
class ResponseRecord:
    """The part of a run that OpenAI's dialect has shown."""

    run: RunRecord
    key: str
    """The key of its request."""
    events: dict[int, bytes] = field(default_factory=dict[int, bytes])
    jumps: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Pairs of numbers that a reader got in a row, although the second does not follow the first."""
    ends: set[int] = field(default_factory=set[int])


@dataclass
class PageRecord:
    """The part of a run that pages have seen."""

    run: RunRecord
    dialect: str
    name: str = ""
    """The page's name for the conversation."""
    answer: str = ""
    """The id of the message that contains the run in the AI SDK."""
    shown: list[Any] = field(default_factory=list[Any])
    """The final state of each reader: the messages of the run by their ids, or the message of the answer."""


@dataclass(frozen=True)
class Violation:
    """A promise that was broken."""

    column: Column
    run_id: str
    kind: str
    detail: str


@dataclass
class Killed:
    """A process of an agent in code that the harness has killed."""

    pid: int
    at: float
    """Seconds since the epoch."""
    run_id: str | None = None
    """The run that it executed; None if that is not known."""


@dataclass
class Injection:
    """A message that was injected into a run, and whether the API acknowledged it."""

    otid: str
    run_id: str
    if_ended: str


@dataclass(frozen=True)
class Decided:
    """The outcome of a waiting tool call, from the answer to a decision."""

    run_id: str
    """The run whose call waited."""
    tool_call_id: str
    key: str
    status: str
    tool_return: str | None


@dataclass
class Ledger:
    """All records of a performance."""

    runs: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    submissions: dict[str, str] = field(default_factory=dict[str, str])
    """By otid: the run of each answered submission."""
    responses: dict[str, ResponseRecord] = field(default_factory=dict[str, ResponseRecord])
    """By the id of the run."""
    pages: dict[str, PageRecord] = field(default_factory=dict[str, PageRecord])
    """By the id of the run."""
    injections: list[Injection] = field(default_factory=list[Injection])
    decided: dict[str, Decided] = field(default_factory=dict[str, Decided])
    """By the id of the approval."""
    violations: list[Violation] = field(default_factory=list[Violation])
    http: Counter[str] = field(default_factory=Counter[str])
    killed: list[Killed] = field(default_factory=list[Killed])
    limits: Counter[str] = field(default_factory=Counter[str])
    """How often each limit of a project was reached."""
    notes: Counter[str] = field(default_factory=Counter[str])
    """Counts of noteworthy events that break no promise."""
    began_at: float = field(default_factory=time.monotonic)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def otid(self, word: str) -> str:
        """Returns a new otid that no other project uses."""
        return f"{word}-{next(self._numbers):05d}"

    def decide(self, approval_id: str, decided: Decided) -> None:
        """Records the outcome of a call from an answer. Every answer must have the same."""
        known = self.decided.setdefault(approval_id, decided)
        if known != decided:
            self.broken(Column.DECISIONS, decided.run_id, f"{approval_id} was {known}, is {decided}")

    def accept(self, run_id: str, story: Story, script: Script | None, otid: str | None) -> RunRecord:
        """Records the run of an answered submission. The same otid must always give the same run."""
        record = self.runs.get(run_id)
        if record is None:
            record = self.runs[run_id] = RunRecord(run_id, story.kind, story, script)
            story.run_ids.append(run_id)
        if otid is not None:
            known = self.submissions.setdefault(otid, run_id)
            if known != run_id:
                self.broken(Column.DUPLICATED, run_id, f"otid {otid} was answered with {known} before")
        return record

    def page(self, run: RunRecord, dialect: str) -> PageRecord:
        """Returns the record of the part of a run that pages have seen."""
        return self.pages.setdefault(run.run_id, PageRecord(run, dialect))

    def broken(self, column: Column, run_id: str, detail: str) -> None:
        """Records a violation, once."""
        record = self.runs.get(run_id)
        violation = Violation(column, run_id, record.kind if record else "-", detail)
        if violation not in self.violations:
            self.violations.append(violation)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_at


def json_of(frame: bytes) -> dict[str, Any]:
    """Returns the body of a frame; empty for the mark of the stream's end."""
    data = frame.rpartition(b"data: ")[2]
    return {} if data == b"[DONE]" else json.loads(data)
