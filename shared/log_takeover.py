"""Taking a run's log over from whoever wrote it before: where it goes on, and what has to be said about its past."""

from shared.domain.events import Gap, encode
from shared.domain.ids import Seq
from shared.domain.runs import Run
from shared.redis.event_log import EventLog
from shared.sql.event_rows import LogTail


async def take_over_log(run: Run, event_log: EventLog, *, at: int) -> LogTail:
    """Shuts former owners out and gives the entries that readers have seen and SQL lacks; the log goes on behind them.

    Where Redis has lost those entries and their owner is gone as well, nobody knows what was shown: their numbers are
    not used again, and one `Gap` (of the moment `at`, Unix milliseconds) stands for all that may have been given out.
    Raises `LeaseLost` when a newer owner has the log, `Unavailable` when Redis does not answer.
    """
    opened = await event_log.open(run.id, run.fence)
    after = Seq(run.last_seq + 1)
    shown = await event_log.read(run.id, run.last_seq, limit=opened.last) if opened.last > run.last_seq else []
    if shown and shown[0][0] == after:
        return LogTail(after, [entry for _, entry in shown])
    if shown or (run.reserved_seq > run.last_seq and not opened.is_remembered):
        number = Seq(max(run.reserved_seq, opened.last + 1))
        return LogTail(number, [encode(Gap(at, first_missing=after))])
    return LogTail(after, ())
