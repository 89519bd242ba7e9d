"""The adoption of a run's log by its next owner."""

from datetime import datetime
from typing import NamedTuple

from shared.domain.ids import Seq
from shared.domain.log_writer import unbroken
from shared.domain.runs import Run
from shared.redis.event_log import EventLog
from shared.sql.runs.checkpoints import CheckpointStore


class AdoptedLog(NamedTuple):
    """A log of which SQL has everything that is left."""

    follows: Seq
    """The number that the first event of its new owner follows: what readers may have seen after it is void."""
    is_whole: bool
    """Redis still has the log's end, so readers have seen nothing after `follows`."""


async def adopt_log(run: Run, event_log: EventLog, checkpoints: CheckpointStore, now: datetime) -> AdoptedLog:
    """Shuts earlier owners out of a run's log, and stores what they have shown and SQL lacks.

    A repetition does no harm. Raises `LeaseLost` when a newer owner has the log, `StaleFence` when one has the run, and
    `Unavailable`.
    """
    last = await event_log.open(run.id, run.fence)
    if last <= run.last_seq:
        return AdoptedLog(run.last_seq, is_whole=last == run.last_seq)
    entries = await event_log.read(run.id, run.last_seq, limit=None)
    shown = unbroken(run.last_seq, entries)
    if len(shown) < len(entries):
        # Redis has lost a part of the log that SQL never had. Entries after that part would mislead readers.
        await event_log.drop(run.id)
    if shown:
        await checkpoints.adopt(run, shown, now)
    return AdoptedLog(shown[-1][0] if shown else run.last_seq, is_whole=len(shown) == len(entries))
