"""Taking a run's log over from whoever wrote it before: where it goes on, and what has to be said about its past."""

from typing import NamedTuple

from shared.domain.events import Gap, encode
from shared.domain.ids import Seq
from shared.domain.runs import Run
from shared.redis.event_log import EventLog, OwnedLog
from shared.sql.event_rows import LogTail


class TakenLog(NamedTuple):
    """A log with what its new owner has to store."""

    log: OwnedLog
    tail: LogTail
    """What SQL lacks; the log goes on behind it."""
    found_gap: bool
    """The tail is a `Gap` that nobody has seen. It must be stored before any number behind it is reserved or shown:
    the reservation is what it was found by."""


async def take_over_log(run: Run, event_log: EventLog, *, at: int) -> TakenLog:
    """Shuts former owners out and gives the entries that readers have seen and SQL lacks.

    Numbers are reserved in SQL under the id of the log in which they are to be shown. If that log is no longer in Redis
    and its owner is gone as well, nobody knows what was shown: the numbers are not used again, and one `Gap` (of the
    moment `at`, Unix milliseconds) stands for all of them. Raises `LeaseLost` when a newer owner has the log,
    `Unavailable` when Redis does not answer.
    """
    log = await event_log.open(run.id, run.fence)
    after = Seq(run.last_seq + 1)
    shown = await event_log.read(run.id, run.last_seq, limit=log.last) if log.last > run.last_seq else []
    is_kept = run.reserved_seq <= run.last_seq or log.has_kept(run.reserved_log)
    if is_kept and shown and shown[0][0] == after:
        return TakenLog(log, LogTail(after, [entry for _, entry in shown]), found_gap=False)
    if is_kept and not shown:
        return TakenLog(log, LogTail(after, ()), found_gap=False)
    return TakenLog(log, gap_after(run, at=at, shown_to=log.last), found_gap=True)


def gap_after(run: Run, *, at: int, shown_to: Seq) -> LogTail:
    """What stands for all that may have been shown of a run and that SQL lacks."""
    number = Seq(max(run.reserved_seq, run.last_seq, shown_to) + 1)
    return LogTail(number, [encode(Gap(at, first_missing=Seq(run.last_seq + 1)))])
