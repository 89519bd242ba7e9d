"""Submits runs, claims them and records requests to cancel them. `checkpoints` has the end of a step, `settlement` that
of a run."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningUpdate

from shared.crash_points import CrashPoint
from shared.domain.approvals import ReopenedTurn
from shared.domain.code_agents import ANY_VERSION, OwnVersions
from shared.domain.errors import Busy, CancelMode, HistoryWentOn, LifecycleError, NotFound, QuarantineRequired
from shared.domain.ids import ConversationId, Fence, ProjectId, RunId, Seq, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus, RunTrigger
from shared.domain.messages import Message, NewMessage
from shared.domain.runs import HANDED_OVER, NO_KEYS, AttemptLimits, CancelRequest, Dispatch, Run, SubmissionKeys
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.history.messages import (
    FIRST_TURN,
    SYSTEM_POSITION,
    clear_context,
    insert_into_thread,
    insert_messages,
    insert_of_run,
)
from shared.sql.history.thread_queue import (
    input_to_place,
    is_next_in_queue,
    lock_of,
    lock_thread,
    next_dispatches,
    thread_lock,
    turn_after_all,
)
from shared.sql.run_tables import has_one_of, run_inputs, runs
from shared.sql.runs.approvals import record_decision, refuse_if_waiting
from shared.sql.runs.inbox import has_left_over, take_left_over
from shared.sql.runs.listing import QuietRun
from shared.sql.runs.rows import (
    RUN_COLUMNS,
    cancel_mode_of,
    get_run,
    input_of,
    insert_run,
    lock_owned,
    lock_run,
    move_of,
    not_found,
    parameters_of,
    refusal,
    run_of,
    run_of_keys,
    status_of,
    update_owned,
)
from shared.sql.tables import from_json

# The claim of a run, inside a caller's transaction. The first claim puts the run's input into the history.
#
# The first token waits for the claim, so it has as few statements as possible: one reads the run and locks its thread,
# one claims the run, and one writes its input.


_QUEUED = (
    sa.select(runs.c.number)
    .where(runs.c.project_id == sa.bindparam("of_project"), has_one_of(runs, ACTIVE))
    .where(runs.c.status == RunStatus.CREATED)
    .limit(sa.bindparam("at_most"))
)
_COUNT_QUEUED = sa.select(sa.func.count()).select_from(_QUEUED.subquery())

# Only the first claim reads the input, which may be megabytes.
_WAITING = (
    sa.select(*RUN_COLUMNS, sa.case((runs.c.fence == 0, run_inputs.c.input)).label("given"), lock_of(runs.c.thread_id))
    .select_from(sa.join(runs, run_inputs, run_inputs.c.run_id == runs.c.id, isouter=True))
    .where(runs.c.id == sa.bindparam("run_id"))
)


async def waiting_run(connection: Connection, run_id: RunId) -> tuple[Run, list[NewMessage]]:
    """Returns a run to be claimed, with its input if this is its first claim. From here on, other processes that end or
    claim a run of its thread wait. Raises `NotFound`."""
    row = (await connection.execute(_WAITING, {"run_id": run_id})).mappings().one_or_none()
    if row is None:
        raise not_found(run_id)
    return run_of(row), from_json(row["given"] or "[]", list[NewMessage])


@lru_cache(maxsize=10)
def _claim(*columns: str, continues: bool) -> ReturningUpdate[Any]:
    may_be_claimed = (runs.c.dispatch == sa.bindparam("of_dispatch"), is_next_in_queue(continues=continues))
    claimed = move_of(RunTrigger.CLAIM, *columns).where(*may_be_claimed)
    turn = sa.func.coalesce(runs.c.turn, turn_after_all())
    # The thread was locked before this statement begins, so it sees the final state of every earlier run of the thread.
    return claimed.values(turn=turn).returning(*RUN_COLUMNS, has_left_over().label("has_left_over"))


async def claim_run(
    connection: Connection,
    waiting: Run,
    given: list[NewMessage],
    dispatch: int,
    owner: str,
    now: datetime,
    code: OwnVersions = ANY_VERSION,
) -> Run:
    """Claims a run that `waiting_run` returned, with its input. Raises `LifecycleError` if the run must not be claimed
    now, or not by this dispatch."""
    fence = Fence(waiting.fence + 1)
    values = {
        "updated_at": now,
        "fence": fence,
        "owner": owner,
        "attempts_without_progress": waiting.attempts_without_progress + 1,
        "started_at": waiting.started_at or now,
        "waits_until": None,
        "waits_for": None,
        "code_version": code.of(waiting),
    }
    of_run = {"of_thread": waiting.thread_id, "of_number": waiting.number, "of_dispatch": dispatch}
    moved = await connection.execute(
        _claim(*values, continues=waiting.continues is not None),
        {**of_run, **parameters_of(waiting.id, waiting.fence, values)},
    )
    row = moved.mappings().one_or_none()
    if row is None:
        raise refusal(await lock_run(connection, waiting.id), waiting.id, RunTrigger.CLAIM, waiting.fence)
    claimed = run_of(row)
    if waiting.fence > 0:
        return msgspec.structs.replace(_following(claimed, waiting.owner), follows_wait=waiting.waits_for == "runs")
    placed = input_to_place(claimed, given)
    if waiting.turn is None:
        await _begin_turn(connection, claimed, placed, now, has_left_over=row["has_left_over"])
    else:
        await insert_messages(connection, claimed, placed)
    return claimed


async def _begin_turn(
    connection: Connection, run: Run, placed: list[NewMessage], now: datetime, *, has_left_over: bool
) -> None:
    """Puts the input of the first run of a turn into the history."""
    if run.options.clears_context:
        await clear_context(connection, run.thread_id)
    # Left-over messages go only to a run that answers messages.
    takes_more = has_left_over and run.answers_messages
    left_over = await take_left_over(connection, run, now) if takes_more else []
    insert_of_run(connection, run, [*left_over, *placed], after=0)


class Opened(NamedTuple):
    """The conversation that a run opens, as it is stored."""

    conversation_id: ConversationId
    write_history: Callable[[], None] | None
    """Begins its history; deferred. None: another process has stored a conversation of this name meanwhile."""


Opens = Callable[[Connection], Awaitable[Opened]]
"""Stores a conversation inside the transaction that stores its first run."""


class Place(NamedTuple):
    """The point in a history at which a run begins."""

    begins: bool = False
    """The run begins a new thread, which no other caller knows yet."""
    history: Sequence[NewMessage] = ()
    """The first messages of that thread."""
    reopened: ReopenedTurn | None = None
    """The turn after them, which the run continues. None: the run begins a turn."""
    after: RunId | None = None
    """The run that the new run follows: the thread must not have a newer one. None: it follows the newest run."""
    opens: Opens | None = None
    """Stores the conversation whose thread is the run's. None: it exists, or the run has none."""


ANYWHERE = Place()


async def begin_thread(connection: Connection, run: Run, place: Place) -> None:
    """Stores the messages with which a run's thread begins, deferred. The thread belongs to no conversation."""
    insert = partial(
        insert_into_thread,
        connection,
        agent_id=run.agent_id,
        thread_id=run.thread_id,
        conversation_id=None,
        run_id=None,
    )
    insert(place.history, turn=FIRST_TURN, after=SYSTEM_POSITION)
    if place.reopened is not None:
        insert(place.reopened.messages, turn=REOPENED_TURN, after=0)
        for approval_id, decision in place.reopened.decisions.items():
            await record_decision(connection, run.project_id, approval_id, decision)


REOPENED_TURN = FIRST_TURN + 1
"""The turn of a run that begins a thread with a reopened turn."""


async def newest_to_follow(connection: Connection, thread_id: ThreadId) -> RunId | None:
    """Returns the thread's newest run that other runs can follow; None if it has none. No run can follow a refused run,
    nor most compactions."""
    newest = (
        sa.select(*RUN_COLUMNS)
        .where(runs.c.thread_id == thread_id, ~((runs.c.status == RunStatus.FAILED) & (runs.c.fence == 0)))
        .order_by(runs.c.number.desc())
    )
    found = await connection.execute(newest.limit(MOST_COMPACTIONS))
    return next((run.id for row in found.mappings() if (run := run_of(row)).can_be_followed), None)


MOST_COMPACTIONS = 20
"""The limit for the search for the newest run to follow, in runs: those that it skips are compactions."""

LOGS_AT_ONCE = 1000


class Submitted(NamedTuple):
    """A stored submission. `is_new` is False when its keys were seen before: then `run` is the run of the first
    submission."""

    run: Run
    is_new: bool


class EndOfLog(NamedTuple):
    """How far a run's log reaches in SQL."""

    run_id: RunId
    status: RunStatus
    last_seq: Seq


class RunStore(Store):
    """Reads and writes runs."""

    async def submit(
        self,
        run: Run,
        given: Sequence[NewMessage],
        *,
        keys: SubmissionKeys = NO_KEYS,
        refuse_if_busy: bool = False,
        again: bool = False,
        place: Place = ANYWHERE,
    ) -> Submitted:
        """Stores a run with its input. With the same keys on one thread, returns the first run again.

        `again`: an earlier try may have stored this very run and lost its answer. Raises `PendingApproval` if a person
        must decide first, `Busy` if `refuse_if_busy` and a run is active, `HistoryWentOn` if the thread has a newer run
        than `place` allows, and `NameTaken` if other content was sent under one of the names. If another process has
        opened the conversation meanwhile, the run is one of that conversation.
        """
        async with self._database.write(CrashPoint.SUBMIT, thread_lock(run.keys_thread_id)) as connection:
            run, write_history = await _in_its_thread(connection, run, place)
            # A new conversation has no earlier submissions.
            seen = await submitted_before(connection, run, keys, again=again) if write_history is None else None
            if seen is not None:
                return Submitted(seen, is_new=False)
            if place.after is not None and await newest_to_follow(connection, run.thread_id) != place.after:
                raise HistoryWentOn(f"a newer run than {place.after} has gone on from there")
            if place.begins:
                await begin_thread(connection, run, place)
            inserted = await insert_run(connection, run, given, keys)
            if inserted.behind is not None:
                await refuse_if_waiting(connection, run.thread_id)
            if inserted.behind is not None and refuse_if_busy:
                raise Busy(run_id=inserted.behind)
            if write_history is not None:
                write_history()
            return Submitted(inserted.run, is_new=True)

    async def of_keys(self, project_id: ProjectId, thread_id: ThreadId, keys: SubmissionKeys) -> Run | None:
        """Returns the project's run of an earlier submission with these keys; None if there is none. Raises
        `NameTaken`."""
        async with self._database.read() as connection:
            return await _run_of_keys(connection, project_id, thread_id, keys)

    async def get(self, project_id: ProjectId, run_id: RunId) -> Run:
        """One run of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            run = await get_run(connection, run_id)
        if run.project_id != project_id:
            raise not_found(run_id)
        return run

    async def look_up(self, run_id: RunId) -> Run:
        """One run of any project: for workers. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await get_run(connection, run_id)

    async def input_of(self, run: Run) -> list[NewMessage]:
        """The messages of the run's submission; none when retention has deleted them."""
        async with self._database.read() as connection:
            return await input_of(connection, run.id)

    async def waiting_input(self, run: Run) -> list[Message]:
        """Returns the messages that the run will add to its history when it begins, in the form that they will have
        there, oldest first. The run must not have a turn yet. For a run that asks a model one question and has no
        history, returns the question."""
        async with self._database.read() as connection:
            stored = await input_of(connection, run.id)
        given = input_to_place(run, stored) if run.options.generation is None else stored
        return [
            Message(
                id=message.id,
                agent_id=run.agent_id,
                thread_id=run.thread_id,
                conversation_id=run.conversation_id,
                run_id=run.id,
                step_id=message.step_id,
                created_at=message.created_at,
                body=message.body,
                position=position,
            )
            for position, message in enumerate(given, start=1)
        ]

    async def claim(
        self,
        run_id: RunId,
        dispatch: int,
        owner: str,
        now: datetime,
        *,
        limits: AttemptLimits | None = None,
        code: OwnVersions = ANY_VERSION,
    ) -> Run | None:
        """Makes `owner` the run's owner, with a new fence. Returns None if this dispatch may not execute the run, or
        not yet.

        A claim is refused while another run of the thread is running, waits for a person, or is earlier in the queue.
        The first claim puts the run's input into the history. Each claim has its own `owner`, so a repetition by the
        same owner changes nothing.

        Raises `QuarantineRequired`, and changes nothing, if by `limits` no other run may be executed beside it, and
        `OtherVersion` if the run began in a version that is not in `code`.
        """
        try:
            async with self._database.write(CrashPoint.CLAIM) as connection:
                waiting, given = await waiting_run(connection, run_id)
                if waiting.owner == owner:
                    return _claimed_before(waiting)
                claimed = await claim_run(connection, waiting, given, dispatch, owner, now, code)
                code.refuse_others(waiting)
                if limits is not None and limits.demand_quarantine(waiting):
                    raise QuarantineRequired(f"{waiting.attempts_without_progress} workers were lost with {run_id}")
                return claimed
        except (LifecycleError, NotFound):
            return None

    async def owns(self, run_id: RunId, fence: Fence, dispatch: int) -> bool:
        """Whether the run is running under this fence and was not dispatched again for another worker."""
        is_mine = (runs.c.fence == fence, runs.c.dispatch == dispatch, runs.c.status == RunStatus.RUNNING)
        async with self._database.read() as connection:
            found = await connection.execute(sa.select(runs.c.id).where(runs.c.id == run_id, *is_mine))
            return found.one_or_none() is not None

    async def take_over(self, run: Run, owner: str, now: datetime) -> Run:
        """Makes `owner` the owner of a running run whose worker is gone, so that it can settle the run. A repetition by
        the same owner changes nothing. Raises `StaleFence` if another process was first, `IllegalTransition` if the run
        has ended."""
        async with self._database.write(CrashPoint.TAKE_OVER) as connection:
            current = await get_run(connection, run.id)
            if current.owner == owner:
                return msgspec.structs.replace(current, follows_lost_owner=True)
            locked = await lock_owned(connection, run.id, run.fence)
            fence = Fence(locked.fence + 1)
            update_owned(connection, run.id, now, {"fence": fence, "owner": owner})
            return _following(msgspec.structs.replace(current, fence=fence, owner=owner), current.owner)

    async def count_queued(self, project_id: ProjectId, at_most: int) -> int:
        """Returns how many runs of the project no worker has claimed yet. Counts up to `at_most`."""
        async with self._database.read() as connection:
            counted = await connection.execute(_COUNT_QUEUED, {"of_project": project_id, "at_most": at_most})
            return counted.scalar_one()

    async def request_cancel(self, run: Run, request: CancelRequest) -> Run:
        """Records a cancel request. Returns the run as stored. A stronger mode replaces `after_step`."""
        values = {
            "cancel_requested_at": request.requested_at,
            "cancel_actor": request.actor,
            "cancel_reason": request.reason,
            "cancel_mode": request.mode,
        }
        is_new = runs.c.cancel_requested_at.is_(None)
        if request.mode is not CancelMode.AFTER_STEP:
            is_new = is_new | (runs.c.cancel_mode == CancelMode.AFTER_STEP)
        async with self._database.write(CrashPoint.CANCEL) as connection:
            recorded = await connection.execute(
                sa.update(runs)
                .where(runs.c.id == run.id, runs.c.project_id == run.project_id, has_one_of(runs, ACTIVE), is_new)
                .values(values)
            )
            if recorded.rowcount:
                await record(connection, run.project_id, "run.cancelled", run.id)
            return await get_run(connection, run.id)

    async def cancels_among(self, run_ids: Sequence[RunId]) -> dict[RunId, CancelMode]:
        """The runs among these for which a cancel is recorded, with its mode."""
        is_wanted = (runs.c.id.in_(run_ids), runs.c.cancel_requested_at.is_not(None))
        async with self._database.read() as connection:
            found = await connection.execute(sa.select(runs.c.id, runs.c.cancel_mode).where(*is_wanted))
            return {RunId(row.id): cancel_mode_of(row.cancel_mode) for row in found}

    async def ends_of_logs(self, run_ids: Collection[RunId]) -> list[EndOfLog]:
        """Returns how far the logs of these runs reach in SQL, without deleted runs."""
        wanted, ends = list(run_ids), list[EndOfLog]()
        query = sa.select(runs.c.id, runs.c.status, runs.c.last_seq)
        async with self._database.read() as connection:
            for start in range(0, len(wanted), LOGS_AT_ONCE):
                found = await connection.execute(query.where(runs.c.id.in_(wanted[start : start + LOGS_AT_ONCE])))
                ends += [EndOfLog(row.id, status_of(row.status), row.last_seq) for row in found]
        return ends

    async def acknowledge_cancel(self, run_id: RunId, fence: Fence, now: datetime) -> None:
        """Records when the run's owner began to stop it. Raises `StaleFence`."""
        async with self._database.write() as connection:
            await lock_owned(connection, run_id, fence)
            update_owned(connection, run_id, now, {"cancel_acknowledged_at": now})

    async def dispatch_again(self, quiet: Sequence[QuietRun]) -> list[Dispatch]:
        """Gives runs a new dispatch, after which older ones can no longer claim them. A run that was dispatched or
        claimed since the caller read it keeps its dispatch."""
        seen = [(run.run_id, run.dispatch, run.fence) for run in quiet]
        async with self._database.write(CrashPoint.DISPATCH_AGAIN) as connection:
            return await next_dispatches(connection, seen)


def _following(run: Run, owner: str | None) -> Run:
    """Returns a claimed run with the state in which its previous owner left it."""
    return msgspec.structs.replace(run, follows_lost_owner=owner is not None, follows_stored_log=owner == HANDED_OVER)


def _claimed_before(run: Run) -> Run | None:
    """Returns the run as its owner has claimed it. The row no longer shows its state under the previous owner; most
    second claims come after a lost worker."""
    if run.status is not RunStatus.RUNNING:
        return None
    return msgspec.structs.replace(run, follows_lost_owner=run.fence > 1)


async def _in_its_thread(connection: Connection, run: Run, place: Place) -> tuple[Run, Callable[[], None] | None]:
    """Locks the run's thread, for a transaction that has locked the thread of its keys. If the run opens a
    conversation, also returns the function that begins the history of a new one."""
    if place.opens is None:
        if run.keys_thread_id != run.thread_id and not place.begins:
            await lock_thread(connection, run.thread_id)
        return run, None
    opened = await place.opens(connection)
    if opened.write_history is None:
        thread_id = ThreadId(opened.conversation_id)
        run = msgspec.structs.replace(run, thread_id=thread_id, conversation_id=opened.conversation_id)
        await lock_thread(connection, thread_id)
    return run, opened.write_history


async def submitted_before(connection: Connection, run: Run, keys: SubmissionKeys, *, again: bool) -> Run | None:
    """Returns the stored run with the same keys, or the run itself."""
    if again:
        found = await connection.execute(sa.select(*RUN_COLUMNS).where(runs.c.id == run.id))
        row = found.mappings().one_or_none()
        if row is not None:
            return run_of(row)
    return await _run_of_keys(connection, run.project_id, run.keys_thread_id, keys)


async def _run_of_keys(
    connection: Connection, project_id: ProjectId, thread_id: ThreadId, keys: SubmissionKeys
) -> Run | None:
    run_id = await run_of_keys(connection, project_id, thread_id, keys)
    return None if run_id is None else await get_run(connection, run_id)
