"""How a run's new owner takes its log: what earlier owners have shown, and how the new one goes on behind that."""

from datetime import datetime
from typing import NamedTuple

from shared.concurrency import unix_ms
from shared.domain.events import LogContinued, ShownStep, StepRestarted, decode
from shared.domain.ids import Seq
from shared.domain.runs import Run
from shared.redis.event_log import EventLog
from shared.runs.unowned import adopt_log
from shared.sql.runs.checkpoints import CheckpointStore
from shared.sql.runs.event_blocks import EventStore


class TakenLog(NamedTuple):
    """A log as its new owner finds it."""

    follows: Seq
    """The number that the owner's first event follows."""
    shown: ShownStep
    """What readers have seen of the step in hand."""
    opening: LogContinued | StepRestarted | None
    """The owner's first event; None for the first owner, who needs none."""


async def take_log(
    run: Run,
    event_log: EventLog,
    events: EventStore,
    checkpoints: CheckpointStore,
    now: datetime,
    *,
    goes_on: bool,
    stores_first: bool,
) -> TakenLog:
    """Adopts the log. `goes_on` is as in `Publisher.publishing`, `stores_first` as in `Publisher`. Raises `LeaseLost`,
    `StaleFence` or `Unavailable`."""
    adopted = await adopt_log(run, event_log, checkpoints, now)
    if run.fence == 1:
        return TakenLog(adopted.follows, ShownStep(), None)
    is_shown = adopted.follows > run.checkpoint_seq
    behind = await events.read(run.id, run.checkpoint_seq, None) if is_shown else []
    shown = ShownStep(decode(entry) for _, entry in behind)
    # Of what SQL has not, an embedded Redis has shown nothing.
    is_whole = adopted.is_whole or stores_first
    opening = _opening(run, shown, adopted.follows, unix_ms(now), goes_on=goes_on and is_whole)
    shown.take(opening)
    return TakenLog(adopted.follows, shown, opening)


def _opening(run: Run, shown: ShownStep, follows: Seq, at: int, *, goes_on: bool) -> LogContinued | StepRestarted:
    attempt, lost_call = int(run.fence), run.follows_lost_owner
    if goes_on and shown.beginning is not None:
        return LogContinued(at, follows, attempt, lost_call)
    void = list(shown.message_ids)
    return StepRestarted(at=at, attempt=attempt, void_message_ids=void, follows=follows, lost_call=lost_call)
