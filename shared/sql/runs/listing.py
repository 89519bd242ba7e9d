"""Lists of runs: lists that clients page through, and lists for the sweeper and for cancels."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, Fence, ProjectId, RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, TERMINAL, RunStatus
from shared.domain.operations import MINUTE, CallbackStats, Minute, RunStats, minutes_until, percentiles
from shared.domain.runs import MAX_OTIDS_CHARS, OTIDS, Run, has_otid, quoted_otid
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.paging import Page, remember_place, rows_of_page
from shared.sql.portable import OwnedBy
from shared.sql.run_tables import OF_A_RUN, callbacks, has_one_of, runs, submission_keys, webhook_deliveries
from shared.sql.runs.callbacks import IS_OPEN
from shared.sql.runs.rows import RUN_COLUMNS, RUNS_OF_KEYS, not_found, run_of
from shared.sql.tables import EPOCH, made_of, messages

QUIET_PAGE = 500

OUT_OF_ORDER = timedelta(minutes=10)
"""The database numbers runs when it stores them, but their times come from the clocks of several machines. The time of
a run with a higher number may be earlier by at most this."""

UNCLAIMED = frozenset({RunStatus.CREATED, RunStatus.AWAITING_APPROVAL})
"""The statuses in which no worker owns a run."""


_EARLIER = runs.alias("earlier")
_IS_BLOCKED = sa.exists().where(
    _EARLIER.c.thread_id == runs.c.thread_id,
    _EARLIER.c.id != runs.c.id,
    has_one_of(_EARLIER, ACTIVE),
    _EARLIER.c.status != RunStatus.CREATED,
)
"""Whether another run of the thread is running or parked."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list. None: no condition."""

    agent_ids: list[AgentId] | None = None
    thread_id: ThreadId | None = None
    parent_run_id: RunId | None = None
    """Only runs that a call of this run started."""
    statuses: list[RunStatus] | None = None
    """The stored statuses. A dialect may show clients other names."""
    background: bool | None = None
    stop_reason: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


class QuietRun(NamedTuple):
    """A run without a recent write to SQL."""

    run_id: RunId
    status: RunStatus
    dispatch: int
    fence: Fence
    updated_at: datetime
    waits: bool = False
    """The run waits for room in a budget, or has waited and may be dispatched again."""


class RunListing(Store):
    """Finds runs."""

    async def page(self, project_id: ProjectId, wanted: RunFilter, page: Page) -> list[Run]:
        """Returns a page in the requested order; its cursors are run ids. With filters by agent, conversation, status,
        stop reason and time, its cost does not depend on how many other runs the project has."""
        found: dict[int, RowMapping] = {}
        async with self._database.read() as connection:
            times = await _times(connection, project_id, wanted)
            for owner, conditions in _ways(project_id, wanted):
                rows = await rows_of_page(
                    connection, runs, project_id, page, *conditions, *times, columns=RUN_COLUMNS, owner=owner
                )
                found |= {row["number"]: row for row in rows}
        numbers = sorted(found, reverse=not page.ascending)
        # With `before` alone the page ends at the cursor.
        ends_there = page.before is not None and page.after is None
        shown = numbers[-page.limit :] if ends_there else numbers[: page.limit]
        return await made_of([found[number] for number in shown], run_of, "options")

    async def active_of_agent(
        self, project_id: ProjectId, agent_id: AgentId, thread_id: ThreadId | None = None
    ) -> list[Run]:
        """Returns the runs of the agent, or of one of its threads, that have not ended, parked ones included; oldest
        first."""
        query = sa.select(*RUN_COLUMNS).where(
            runs.c.project_id == project_id, runs.c.agent_id == agent_id, has_one_of(runs, ACTIVE)
        )
        if thread_id is not None:
            query = query.where(runs.c.thread_id == thread_id)
        async with self._database.read() as connection:
            found = await connection.execute(query.order_by(runs.c.number))
            return await made_of(found.mappings().all(), run_of, "options")

    async def just_streamed(
        self, project_id: ProjectId, agent_id: AgentId, thread_id: ThreadId | None, since: datetime
    ) -> Run | None:
        """Returns the newest run of the agent, or of one of its threads, if a client streamed it and it ended after
        `since`."""
        # A tool call runs in its own thread beside other runs, so a client may consider another run the newest.
        is_in_history = runs.c.thread_id != runs.c.id
        query = sa.select(*RUN_COLUMNS).where(runs.c.project_id == project_id, is_in_history)
        owner = (runs.c.agent_id, agent_id)
        if thread_id is not None:
            query, owner = query.where(runs.c.agent_id == agent_id), (runs.c.thread_id, thread_id)
        newest_first = query.order_by(owner[0].desc(), runs.c.number.desc())
        async with self._database.read() as connection:
            found = await connection.execute(newest_first.where(OwnedBy(*owner)).limit(1))
            row = found.mappings().one_or_none()
        newest = None if row is None else run_of(row)
        if newest is None or newest.completed_at is None or newest.completed_at < since:
            return None
        return newest if newest.options.streamed else None

    async def of_names(self, project_id: ProjectId, thread_id: ThreadId, names: Collection[str]) -> dict[str, RunId]:
        """The project's runs whose submissions had these names on the thread (`SubmissionKeys.names`), by name,
        whatever their content."""
        given = {"of_thread": thread_id, "of_project": project_id, "keys": list(names)}
        async with self._database.read() as connection:
            return {row.key: RunId(row.run_id) for row in await connection.execute(RUNS_OF_KEYS, given)}

    async def of_otid(self, project_id: ProjectId, thread_id: ThreadId, otid: str) -> Run:
        """The project's newest run whose submission had a message with this otid. Raises `NotFound`."""
        if len(otid) > MAX_OTIDS_CHARS:  # no key is longer, and the query would have megabytes
            raise NotFound(f"No run found for an otid of {len(otid)} characters")
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(submission_keys.c.key, *RUN_COLUMNS)
                .join(submission_keys, submission_keys.c.run_id == runs.c.id)
                .where(
                    runs.c.project_id == project_id,
                    submission_keys.c.thread_id == thread_id,
                    submission_keys.c.key.startswith(OTIDS, autoescape=True),
                    submission_keys.c.key.contains(quoted_otid(otid), autoescape=True),
                )
                .order_by(runs.c.number.desc())
            )
            for row in found.mappings():
                if has_otid(row["key"], otid):
                    return run_of(row)
        raise NotFound(f"No run found for otid {otid!r}")

    async def quiet(
        self, since: datetime, now: datetime, after: QuietRun | None = None, limit: int = QUIET_PAGE
    ) -> list[QuietRun]:
        """Returns a page, after `after`, of the runs that a worker should or could execute and that have no write to
        SQL since `since`.

        It also returns runs whose last write lies in the future: the clock was set back, and to wait for that time
        could take long.
        """
        columns = (runs.c.id, runs.c.status, runs.c.dispatch, runs.c.fence, runs.c.updated_at)
        query = sa.select(*columns, runs.c.waits_until.is_not(None).label("waits")).where(
            runs.c.status.in_([RunStatus.CREATED, RunStatus.RUNNING]),
            sa.or_(runs.c.updated_at < since, runs.c.updated_at > now),
            sa.or_(runs.c.status == RunStatus.RUNNING, ~_IS_BLOCKED),
            # Leaves out runs that wait for room in a budget, unless a cancel of them is recorded.
            sa.or_(runs.c.waits_until.is_(None), runs.c.waits_until <= now, runs.c.cancel_requested_at.is_not(None)),
        )
        if after is not None:
            last = sa.tuple_(sa.literal(after.updated_at, runs.c.updated_at.type), after.run_id)
            query = query.where(sa.tuple_(runs.c.updated_at, runs.c.id) > last)
        async with self._database.read() as connection:
            found = await connection.execute(query.order_by(runs.c.updated_at, runs.c.id).limit(limit))
            return [
                QuietRun(row.id, RunStatus(row.status), row.dispatch, row.fence, row.updated_at, row.waits)
                for row in found
            ]

    async def cancelled_but_unclaimed(self, limit: int = 100) -> list[Run]:
        """Returns the runs without a worker (parked, or never claimed) for which a cancel is recorded."""
        is_open = (runs.c.cancel_requested_at.is_not(None), has_one_of(runs, UNCLAIMED))
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(*RUN_COLUMNS).where(*is_open).order_by(runs.c.number).limit(limit)
            )
            return await made_of(found.mappings().all(), run_of, "options")

    async def delete(self, project_id: ProjectId, run_id: RunId, *, with_thread: bool = False) -> None:
        """Deletes a run that has ended, with its log. Its messages stay in the history; `with_thread` also deletes the
        messages of the thread that the run began. Raises `NotFound`."""
        async with self._database.write() as connection:
            # Deletes the run's row first and then the rows that belong to it, as retention does: otherwise the two
            # could deadlock.
            known = await connection.execute(
                sa.select(runs.c.id).where(runs.c.id == run_id, runs.c.project_id == project_id).with_for_update()
            )
            if known.one_or_none() is None:
                raise not_found(run_id)
            for table in OF_A_RUN:
                await connection.execute(sa.delete(table).where(table.c.run_id == run_id))
            if with_thread:
                await connection.execute(sa.delete(messages).where(messages.c.thread_id == run_id))
            await connection.execute(sa.update(messages).where(messages.c.run_id == run_id).values(run_id=None))
            await remember_place(connection, runs, run_id)
            await connection.execute(sa.delete(runs).where(runs.c.id == run_id))
            await record(connection, project_id, "run.deleted", run_id)


Way = tuple[tuple[sa.Column[str], str], list[sa.ColumnElement[bool]]]
"""One way to read a page: a column with its value, for an index that begins with the column or ends with it and the
number; and the other conditions."""


def _ways(project_id: ProjectId, wanted: RunFilter) -> Iterator[Way]:
    """Returns the ways that together find the matching runs, each by an index with few other rows."""
    conditions = _conditions(wanted)
    if wanted.thread_id is not None or wanted.parent_run_id is not None:
        if wanted.stop_reason is not None:
            conditions.append(runs.c.stop_reason == wanted.stop_reason)
        yield _thread_or_parent(wanted), [*conditions, *_has_status(wanted.statuses)]
    elif wanted.stop_reason is not None:
        yield (runs.c.stop_reason, wanted.stop_reason), [*conditions, *_has_status(wanted.statuses)]
    elif wanted.statuses is not None:
        for status in TERMINAL.intersection(wanted.statuses):
            yield (runs.c.status, status.value), [*conditions, has_one_of(runs, TERMINAL)]
        active = ACTIVE.intersection(wanted.statuses)
        if active:
            # Few runs are active, and they have an index of their own.
            yield (runs.c.project_id, project_id), [*conditions, *_has_status(active), has_one_of(runs, ACTIVE)]
    elif wanted.agent_ids is not None and len(wanted.agent_ids) == 1:
        yield (runs.c.agent_id, wanted.agent_ids[0]), _conditions(msgspec.structs.replace(wanted, agent_ids=None))
    else:
        yield (runs.c.project_id, project_id), conditions


def _thread_or_parent(wanted: RunFilter) -> tuple[sa.Column[str], str]:
    if wanted.parent_run_id is not None:
        return runs.c.parent_run_id, wanted.parent_run_id
    return runs.c.thread_id, wanted.thread_id or ""


def _has_status(statuses: Collection[RunStatus] | None) -> list[sa.ColumnElement[bool]]:
    return [] if statuses is None else [runs.c.status.in_(sorted(statuses))]


def _conditions(wanted: RunFilter) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions of the filter except status, stop reason, thread and time."""
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.agent_ids is not None:
        is_one = len(wanted.agent_ids) == 1
        conditions.append(runs.c.agent_id == wanted.agent_ids[0] if is_one else runs.c.agent_id.in_(wanted.agent_ids))
    if wanted.background is not None:
        conditions.append(runs.c.background == wanted.background)
    if wanted.parent_run_id is not None and wanted.thread_id is not None:
        conditions.append(runs.c.thread_id == wanted.thread_id)
    return conditions


async def _times(connection: Connection, project_id: ProjectId, wanted: RunFilter) -> list[sa.ColumnElement[bool]]:
    """Returns conditions for the times of submission, and for the range of numbers that these runs can have. Lists are
    ordered by number, and must not read a million runs to reach a time.

    A run that is older than `created_after` by more than `OUT_OF_ORDER` has a lower number than every run of the list,
    and a run younger than `created_before` by more than that has a higher one. The nearest such run bounds the range.
    """
    created = (runs.c.project_id, runs.c.created_at)
    numbers = sa.select(runs.c.number).where(runs.c.project_id == project_id).limit(1)
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.created_after is not None:
        conditions.append(runs.c.created_at > wanted.created_after)
        is_older = runs.c.created_at < _moved(wanted.created_after, -OUT_OF_ORDER)
        newest_first = [column.desc() for column in created]
        older = await connection.execute(numbers.where(is_older).order_by(*newest_first))
        if (number := older.scalar_one_or_none()) is not None:
            conditions.append(runs.c.number > number)
    if wanted.created_before is not None:
        conditions.append(runs.c.created_at < wanted.created_before)
        is_younger = runs.c.created_at > _moved(wanted.created_before, OUT_OF_ORDER)
        younger = await connection.execute(numbers.where(is_younger).order_by(*created))
        if (number := younger.scalar_one_or_none()) is not None:
            conditions.append(runs.c.number < number)
    return conditions


def _moved(moment: datetime, by: timedelta) -> datetime:
    """Returns the time later by this span, or the last time that can be represented in this direction."""
    try:
        return moment + by
    except OverflowError:
        return moment


async def delete_histories(connection: Connection, owner: Literal["agent_id", "thread_id"], owner_id: str) -> None:
    """Deletes the runs and messages of an agent (in all its histories) or of one thread.

    The next fenced write of a worker that still executes one of the runs finds no row, and the worker leaves the run.
    """
    of_owner = sa.select(runs.c.id).where(runs.c[owner] == owner_id)
    # As in `RunListing.delete`: the runs first, then the rows that belong to them.
    await connection.execute(sa.select(sa.func.count()).select_from(of_owner.with_for_update().subquery()))
    for table in OF_A_RUN:
        await connection.execute(sa.delete(table).where(table.c.run_id.in_(of_owner)))
    await connection.execute(sa.delete(messages).where(messages.c[owner] == owner_id))
    await connection.execute(sa.delete(runs).where(runs.c[owner] == owner_id))


# Statistics of a project's runs and callbacks for operators. They are cheap even with a million runs: active runs have
# a separate index, an index by time finds the last hour, and a few runs of each minute serve as a sample for the waits.


SAMPLE = 30
"""How many runs of a minute are sampled for their waits: the first ones."""

_US_PER_MINUTE = 60_000_000

Waits = Mapping[int, list[float]]
"""The waits of runs in milliseconds, by the minute of their submission."""


class RunStatStore(Store):
    """Counts a project's runs and callbacks."""

    async def of_runs(self, project_id: ProjectId, now: datetime) -> RunStats:
        """The project's active runs, and its last sixty minutes."""
        begins = minutes_until(now)
        async with self._database.read() as connection:
            is_ours, was_submitted = runs.c.project_id == project_id, runs.c.created_at >= begins[0]
            has_ended = (runs.c.completed_at >= begins[0], runs.c.status.in_(list(TERMINAL)))
            active = await _counted(connection, [runs.c.status], is_ours, has_one_of(runs, ACTIVE))
            submitted = await _counted(connection, [_minute(runs.c.created_at)], is_ours, was_submitted)
            ended = await _counted(connection, [_minute(runs.c.completed_at), runs.c.status], is_ours, *has_ended)
            queue_waits, first_tokens = await _waits(connection, project_id, begins)
        return RunStats(
            created=active[RunStatus.CREATED],
            running=active[RunStatus.RUNNING],
            awaiting_approval=active[RunStatus.AWAITING_APPROVAL],
            queue_wait_ms=percentiles([wait for waits in queue_waits.values() for wait in waits]),
            first_token_ms=percentiles([wait for waits in first_tokens.values() for wait in waits]),
            minutes=[
                Minute(
                    at=begin,
                    submitted=submitted[minute],
                    completed=ended[minute, RunStatus.COMPLETED],
                    failed=ended[minute, RunStatus.FAILED],
                    cancelled=ended[minute, RunStatus.CANCELLED],
                    queue_wait_p50_ms=percentiles(queue_waits.get(minute, [])).p50,
                    first_token_p50_ms=percentiles(first_tokens.get(minute, [])).p50,
                )
                for begin in begins
                for minute in [_minute_of(begin)]
            ],
        )

    async def of_callbacks(self, project_id: ProjectId) -> CallbackStats:
        """The project's callbacks that wait or failed."""
        # A claimed callback already counts the attempt in progress.
        under_way = sa.case((callbacks.c.claimed_until.is_not(None), 1), else_=0)
        has_failed = sa.or_(callbacks.c.given_up_at.is_not(None), callbacks.c.attempts > under_way)
        query = sa.select(
            sa.func.count(callbacks.c.next_attempt_at).label("waiting"), sa.func.count(sa.case((has_failed, 1)))
        ).where(callbacks.c.project_id == project_id, IS_OPEN)
        async with self._database.read() as connection:
            waiting, failing = (await connection.execute(query)).one()
        return CallbackStats(waiting=waiting, failing=failing)

    async def of_deployment(self) -> "DeploymentCounts":
        """Counts the active work of all projects together. The caller's database must not be scoped to one project."""
        outboxes = (callbacks, webhook_deliveries)
        each = [
            sa.select(sa.func.count()).where(box.c.next_attempt_at.is_not(None)).scalar_subquery() for box in outboxes
        ]
        waiting = sa.select(each[0] + each[1])
        async with self._database.read() as connection:
            active = await _counted(connection, [runs.c.status], has_one_of(runs, ACTIVE))
            return DeploymentCounts(active, (await connection.execute(waiting)).scalar_one())

    async def quietest(self, at_most: int) -> "list[SilentRun]":
        """Returns the running runs of all projects by their last write to SQL, the longest ago first. Runs that wait
        for room in a budget are left out."""
        query = (
            sa.select(runs.c.id, runs.c.updated_at)
            .where(runs.c.status == RunStatus.RUNNING.value, runs.c.waits_until.is_(None))
            .order_by(runs.c.updated_at)
            .limit(at_most)
        )
        async with self._database.read() as connection:
            return [SilentRun(RunId(row.id), row.updated_at) for row in await connection.execute(query)]


class SilentRun(NamedTuple):
    """A running run, and the time of its last write to SQL."""

    id: RunId
    heard_at: datetime


class DeploymentCounts(NamedTuple):
    """The active work of a deployment."""

    runs: Mapping[str, int]
    """The number of active runs by status, without statuses that no run has."""
    callbacks_waiting: int


async def _counted(connection: Connection, by: Sequence[sa.ColumnElement[Any]], *conditions: Any) -> Counter[Any]:
    """Counts runs by the value of an expression, or by the values of several."""
    counted = await connection.execute(sa.select(*by, sa.func.count()).where(*conditions).group_by(*by))
    return Counter({key[0] if len(by) == 1 else tuple(key): count for *key, count in counted})


async def _waits(connection: Connection, project_id: ProjectId, begins: Sequence[datetime]) -> tuple[Waits, Waits]:
    """How long runs have waited for a worker, and for the model's first token, by the minute of their submission."""
    queue_waits, first_tokens = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    samples = [_sample(project_id, begin) for begin in begins]
    for row in await connection.execute(sa.union_all(*samples)):
        if row.started is not None:
            queue_waits[row.minute].append(max(0, row.started) / 1000)
        if row.shown is not None:
            first_tokens[row.minute].append(max(0, row.shown) / 1000)
    return queue_waits, first_tokens


def _sample(project_id: ProjectId, begin: datetime) -> sa.Select[Any]:
    """The first runs of a minute, each with its waits in microseconds from its submission."""
    created = _microseconds(runs.c.created_at)
    first = (
        sa.select(
            sa.literal(_minute_of(begin), sa.BigInteger).label("minute"),
            (_microseconds(runs.c.started_at) - created).label("started"),
            (_microseconds(runs.c.first_token_at) - created).label("shown"),
        )
        .where(runs.c.project_id == project_id, runs.c.created_at >= begin, runs.c.created_at < begin + MINUTE)
        .order_by(runs.c.project_id, runs.c.created_at)
        .limit(SAMPLE)
    )
    # SQLite accepts a limit inside a union only in a subquery.
    return sa.select(first.subquery())


def _microseconds(moment: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    return sa.type_coerce(moment, sa.BigInteger)


def _minute(moment: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Minutes since 1970; both databases use integer division. The expression's text is the same each time, so that
    Postgres recognises the selected column as the grouped one."""
    return _microseconds(moment).op("/")(sa.literal_column(str(_US_PER_MINUTE), sa.BigInteger))


def _minute_of(begin: datetime) -> int:
    return (begin - EPOCH) // MINUTE
