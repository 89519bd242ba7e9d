"""Hands the log of a run to its next owner: to the worker that claims the run, or to the process that cancels an
orphaned one."""

from datetime import datetime
from typing import NamedTuple

from shared.domain.ids import Seq
from shared.domain.log_writer import unbroken
from shared.domain.runs import Run
from shared.redis.event_log import EventLog
from shared.sql.runs.checkpoints import CheckpointStore


class AdoptedLog(NamedTuple):
    """A log whose remaining events are all in SQL."""

    follows: Seq
    """The number before the new owner's first event. Later events that readers may have seen are void."""
    is_whole: bool
    """Redis still has the log's end, so readers have seen nothing after `follows`."""


async def adopt_log(
    run: Run, event_log: EventLog, checkpoints: CheckpointStore, now: datetime, *, stores_first: bool = False
) -> AdoptedLog:
    """Fences earlier owners off a run's log, and stores the events that they have shown and SQL lacks. With
    `stores_first`, SQL gets an event before readers do, so SQL's log is complete.

    A repetition does no harm. Raises `LeaseLost` if a newer owner has the log, `StaleFence` if one has the run, and
    `Unavailable`.
    """
    last = await event_log.open(run.id, run.fence)
    if last <= run.last_seq:
        return AdoptedLog(run.last_seq, is_whole=stores_first or last == run.last_seq)
    entries = await event_log.read(run.id, run.last_seq, limit=None)
    shown = unbroken(run.last_seq, entries)
    if len(shown) < len(entries):
        # Redis has lost a part of the log that SQL never had. Entries after that part would mislead readers.
        await event_log.drop(run.id)
    if shown:
        await checkpoints.adopt(run, shown, now)
    return AdoptedLog(shown[-1][0] if shown else run.last_seq, is_whole=stores_first or len(shown) == len(entries))
