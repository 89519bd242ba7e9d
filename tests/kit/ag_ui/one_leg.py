"""One run's log in AG-UI, as a stream shows it: the walk over a thread, without the thread."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf

from msgspec.structs import replace

from api.ag_ui.leg_fold import Client
from api.ag_ui.service import ThreadFrames
from api.runs.thread_projection import LegInput, ThreadCursor
from shared.domain import events
from shared.domain.approvals import Approval
from shared.domain.ids import AgentId, ProjectId, RunId, Seq, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.log_writer import Entries
from shared.domain.messages import Message, NewMessage
from shared.domain.runs import Run, RunOptions
from shared.domain.threads import Leg
from shared.domain.tools import ClientTool

RUN = Run(
    id=RunId("run-00000000-0000-4000-8000-000000000002"),
    project_id=ProjectId("default"),
    agent_id=AgentId("agent-1"),
    thread_id=ThreadId("agent-1"),
    options=RunOptions(item_events=True, client_tools=[ClientTool(name="mine")], named="run-of-page"),
    created_at=datetime(2026, 11, 1, tzinfo=UTC),
)
CURRENT, OLDER = Client("thread-1", is_current=True), Client("thread-1", is_current=False)


class OneLeg:
    """The stream of one run, from its first entry on, or after a cursor. It is the run's first turn."""

    shared_as = None
    cut = None
    longest_silence_s = inf

    def __init__(
        self,
        run: Run,
        client: Client = CURRENT,
        *,
        after: int | None = None,
        given: Sequence[NewMessage] = (),
        before: Sequence[Message] = (),
        asked: Sequence[Approval] = (),
    ) -> None:
        cursor = None if after is None else ThreadCursor(1, 0, after)
        self.frames = ThreadFrames(client, cursor)
        self._leg = Leg(1, 0, replace(run, turn=1))
        self._beginning = LegInput(given, (), before if self.frames.wants_history else ())
        self._asked = asked

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The frames of some entries, and whether they end the run."""
        shown = b""
        for seq, entry in entries:
            match events.decode(entry):
                case events.RunCreated():
                    shown += self.frames.began(self._leg, self._beginning)
                case events.Ended(at=at):
                    return shown + self.frames.ended(self._ended_leg(), seq, at, self._asked), True
                case _:
                    shown += self.frames.of_log(self._leg).of([(seq, entry)])[0]
        return shown, False

    def _ended_leg(self) -> Leg:
        waits = any(one.decision is None for one in self._asked)
        status = RunStatus.AWAITING_APPROVAL if waits else RunStatus.COMPLETED
        return self._leg._replace(run=replace(self._leg.run, status=status))

    def silence(self, _last: Seq, _now: datetime) -> bytes:
        """Nothing: the sender sends a comment."""
        return b""

    def end_of(self, last: Seq) -> bytes:
        """The end of a stream whose log has none."""
        del last
        return self.frames.over()


def log_of(*happened: events.Event) -> Entries:
    """A log as a reader gets it, from its first entry on."""
    at = 1_700_000_000_000
    return [(Seq(seq), events.encode(event)) for seq, event in enumerate((events.RunCreated(at), *happened), start=1)]
