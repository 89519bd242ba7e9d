"""The order of a thread: the places of its readers, and how a dialect renders the events there."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from api.runs.streaming import LogView
from shared.domain.approvals import Approval
from shared.domain.errors import InvalidCursor
from shared.domain.ids import MAX_SEQ, AgentId, ApprovalId, ProjectId, RunId, Seq, ThreadId
from shared.domain.messages import Message, NewMessage
from shared.domain.threads import Leg

MAX_TURN = 2**31 - 1


class ThreadCursor(NamedTuple):
    """A place in the order of a thread. The reader has seen everything up to it."""

    turn: int = 0
    leg: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.turn}.{self.leg}.{self.number}"

    @property
    def line(self) -> bytes:
        """The line of a frame that carries the cursor."""
        return b"id: %d.%d.%d\n" % self


NOW: Literal["now"] = "now"
"""In place of a cursor: the reader wants new events only."""


def thread_cursor_of(after: str | None, last_event_id: str | None) -> ThreadCursor | Literal["now"]:
    """Returns the cursor of a reader. Raises `InvalidCursor`.

    A browser that reconnects repeats its first query, and sends the id of its last frame in `Last-Event-ID`.
    """
    if last_event_id is not None and last_event_id.strip():
        return _cursor(last_event_id.strip(), "header.Last-Event-ID")
    if after == NOW:
        return NOW
    return ThreadCursor() if after is None else _cursor(after, "query.after")


def page_cursor_of(after: str | None, last_event_id: str | None) -> ThreadCursor | None:
    """Returns the cursor of a page's reader; None without one. Raises `InvalidCursor`.

    Programs of pages send `after` with each request, and a browser's own `Last-Event-ID` may be of an earlier stream.
    """
    if after is not None:
        return _cursor(after, "query.after")
    if last_event_id is not None and last_event_id.strip():
        return _cursor(last_event_id.strip(), "header.Last-Event-ID")
    return None


def _cursor(text: str, name: str) -> ThreadCursor:
    parts = text.split(".")
    if len(parts) == 3 and all(part.isdecimal() and part.isascii() and len(part) <= 19 for part in parts):
        cursor = ThreadCursor(*map(int, parts))
        if max(cursor.turn, cursor.leg) <= MAX_TURN and cursor.number <= MAX_SEQ:
            return cursor
    allowed = " or 'now'" if name == "query.after" else ""
    raise InvalidCursor(
        f"{name.partition('.')[2]} is {text[:50]!r}: it must be the id of the last frame seen, such as 3.0.17{allowed}",
        field=name,
    )


class Present(NamedTuple):
    """The runs and open calls of a thread at the moment when a reader has seen all of it."""

    at: datetime
    running: RunId | None
    queued: list[RunId]
    waiting: list[ApprovalId]
    """The calls that wait for a decision or a result."""


class LegInput(NamedTuple):
    """The messages and decisions that a leg begins with."""

    given: Sequence[NewMessage]
    """The messages of its input."""
    decided: Sequence[Approval]
    """The decisions that the leg follows."""
    before: Sequence[Message] = ()
    """The newest messages of the thread before its input, oldest first: those of earlier turns, and of earlier legs of
    its turn. Empty unless the projection wants history."""


class ThreadProjection(Protocol):
    """A reader's view of a thread in a dialect: the frames between the logs, and the view of each log. Pure: bytes
    depend only on the arguments and on the calls before."""

    @property
    def wants_input(self) -> bool:
        """Whether the next `began` needs the leg's input. Otherwise its `LegInput` is empty, and costs no query."""
        ...

    @property
    def wants_history(self) -> bool:
        """Whether the next `began` needs the messages before its leg, which costs a query of the history."""
        ...

    def starts_at(self, after: ThreadCursor) -> ThreadCursor:
        """Returns the place from which the projection has to see the thread in order to render the events after
        `after`. It is called for everything from there on, and renders nothing up to `after` itself. A projection
        without state returns `after`."""
        ...

    def of_log(self, leg: Leg) -> LogView:
        """Returns the view of the leg's log, which renders all entries but the first and the last. An interrupted
        reader calls this again for the same leg, and continues where it was: a projection with state returns the
        same view."""
        ...

    def began(self, leg: Leg, beginning: LegInput) -> bytes:
        """Renders the beginning of a leg. Its cursor is the leg's place with the number 1. A leg whose run has no turn
        ended before it began; only the sender of its submission gets it, without cursors."""
        ...

    def ended(self, leg: Leg, seq: Seq, at: int, asked: Sequence[Approval]) -> bytes:
        """Renders the end of a leg's log, which has this number and time. The leg is parked if it has asked for
        decisions; the decisions that were made must not be shown here."""
        ...

    def resolved(self, leg: Leg, seq: Seq, asked: Sequence[Approval]) -> bytes:
        """Renders the decisions on the calls for which the leg has asked, when none of them is open."""
        ...

    def caught_up(self, cursor: ThreadCursor, present: Present) -> bytes:
        """Renders the mark that the reader has seen everything up to the present."""
        ...

    def over(self) -> bytes:
        """Renders the end of the stream."""
        ...


class Thread(NamedTuple):
    """The thread that a reader follows."""

    project_id: ProjectId
    agent_id: AgentId
    id: ThreadId
