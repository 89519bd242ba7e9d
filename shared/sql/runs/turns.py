"""Reads the turns and states of threads, for readers that follow a whole thread, and the states of a project's runs."""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from shared.domain.ids import ProjectId, RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.runs import Run
from shared.domain.threads import Leg, RunGlance, RunScope, has_begun, legs_of
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.history.messages import message_of
from shared.sql.run_tables import approvals, has_one_of, runs
from shared.sql.runs.rows import RUN_COLUMNS, input_of, run_of, status_of
from shared.sql.tables import agents, conversations, made_of, messages

THREADS_AT_ONCE = 1000
MOST_FAILED = 100


ThreadState = tuple[int | None, tuple[tuple[RunId, RunStatus], ...]]
"""The state of a thread: its newest turn, and the runs that have not ended, oldest first. Equal states mean that the
thread has not changed."""


class TurnStore(Store):
    """Reads the turns of threads."""

    async def first_from(self, project_id: ProjectId, thread_id: ThreadId, turn: int) -> list[Leg]:
        """Returns the legs of the first turn that has this number or a higher one; empty if the thread has none."""
        of_thread = (runs.c.thread_id == thread_id, runs.c.project_id == project_id)
        first = sa.select(sa.func.min(runs.c.turn)).where(*of_thread, runs.c.turn >= turn).scalar_subquery()
        query = sa.select(*RUN_COLUMNS).where(*of_thread, runs.c.turn == first).order_by(runs.c.number)
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return list(legs_of(await made_of(found.mappings().all(), run_of, "options")))

    async def newest(self, project_id: ProjectId, thread_id: ThreadId) -> Leg | None:
        """Returns the newest leg of the thread that has begun or ended; None if it has none."""
        newest = (
            sa.select(runs.c.turn)
            .where(runs.c.thread_id == thread_id, runs.c.project_id == project_id, runs.c.turn.is_not(None))
            .order_by(runs.c.turn.desc())
            .limit(1)
        )
        async with self._database.read() as connection:
            turn = (await connection.execute(newest)).scalar_one_or_none()
        legs = [] if turn is None else await self.first_from(project_id, thread_id, turn)
        return next((leg for leg in reversed(legs) if has_begun(leg.run)), None)

    async def failed_from(self, project_id: ProjectId, thread_id: ThreadId, turn: int) -> list[Run]:
        """Returns the runs that have failed, from this turn on, the newest first and `MOST_FAILED` at most. Nothing
        continues such a run, so a turn has one."""
        query = (
            sa.select(*RUN_COLUMNS)
            .where(runs.c.thread_id == thread_id, runs.c.project_id == project_id, runs.c.turn >= turn)
            .where(runs.c.status == RunStatus.FAILED)
            .order_by(runs.c.turn.desc())
            .limit(MOST_FAILED)
        )
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return await made_of(found.mappings().all(), run_of, "options")

    async def input_of(self, run: Run) -> list[NewMessage]:
        """Returns the users' messages that the run added to its thread: messages that an earlier run received and did
        not use, followed by those of its submission. If retention has deleted the submission, reads them from the
        history."""
        async with self._database.read() as connection:
            given = [one for one in await input_of(connection, run.id) if isinstance(one.body, UserMessage)]
            if run.continues is not None and given:
                return given
            before = given[0] if given else None
            return [*await _leading(connection, run, before), *given]

    async def states(self, thread_ids: Collection[ThreadId]) -> dict[ThreadId, ThreadState]:
        """Returns the states of these threads, of all projects. Deleted threads are left out."""
        wanted, states = list(thread_ids), dict[ThreadId, ThreadState]()
        async with self._database.read() as connection:
            for start in range(0, len(wanted), THREADS_AT_ONCE):
                states |= await _states(connection, wanted[start : start + THREADS_AT_ONCE])
        return states


async def _leading(connection: Connection, run: Run, before: NewMessage | None) -> list[NewMessage]:
    """Returns the users' messages of the run in its history before `before`; without `before`, those before the first
    message of another kind."""
    mine = (messages.c.thread_id == run.thread_id, messages.c.turn == run.turn, messages.c.run_id == run.id)
    query = sa.select(messages).where(*mine).order_by(messages.c.position)
    if before is not None:
        place = sa.select(messages.c.position).where(messages.c.id == before.id).scalar_subquery()
        query = query.where(messages.c.position < place)
    found = await connection.execute(query.limit(MOST_INPUT))
    leading: list[NewMessage] = []
    for message in await made_of(found.mappings().all(), message_of, "body"):
        if not isinstance(message.body, UserMessage):
            break
        leading.append(NewMessage(id=message.id, created_at=message.created_at, body=message.body))
    return leading


MOST_INPUT = 1000
"""The limit for the search of a run's input in its history, in messages."""


async def _states(connection: Connection, thread_ids: Sequence[ThreadId]) -> dict[ThreadId, ThreadState]:
    # Uses the index of each thread's turns, so the cost does not depend on the number of turns.
    newest: dict[ThreadId, int | None] = {}
    for owner in (conversations, agents):
        turn = sa.select(sa.func.max(runs.c.turn)).where(runs.c.thread_id == owner.c.id).scalar_subquery()
        found = await connection.execute(sa.select(owner.c.id, turn.label("turn")).where(owner.c.id.in_(thread_ids)))
        newest |= {ThreadId(row.id): row.turn for row in found}
    active: dict[ThreadId, list[tuple[RunId, RunStatus]]] = {}
    found = await connection.execute(
        sa.select(runs.c.thread_id, runs.c.id, runs.c.status)
        .where(runs.c.thread_id.in_(thread_ids), has_one_of(runs, ACTIVE))
        .order_by(runs.c.number)
    )
    for row in found:
        active.setdefault(ThreadId(row.thread_id), []).append((RunId(row.id), status_of(row.status)))
    return {name: (turn, tuple(active.get(name, ()))) for name, turn in newest.items()}


# Reads the present states of the runs of a project or of one agent, for dashboards that follow them.


AT_ONCE = 1000


_OPEN_CALLS = (
    sa.select(sa.func.count())
    .select_from(approvals)
    .where(approvals.c.run_id == runs.c.id, approvals.c.decided_at.is_(None))
    .scalar_subquery()
)

_GLANCE = sa.select(
    runs.c.id,
    runs.c.number,
    runs.c.agent_id,
    runs.c.conversation_id,
    runs.c.status,
    runs.c.stop_reason,
    sa.case((runs.c.status == RunStatus.AWAITING_APPROVAL, _OPEN_CALLS), else_=0).label("waiting"),
)


class RunChangeStore(Store):
    """Reads the states of many runs."""

    async def newest_number(self, scope: RunScope) -> int:
        """Returns the number of the scope's newest run; 0 if it has none."""
        newest = sa.select(sa.func.max(runs.c.number)).where(*_of(scope))
        async with self._database.read() as connection:
            return (await connection.execute(newest)).scalar_one() or 0

    async def active(self, scope: RunScope) -> list[RunGlance]:
        """Returns the scope's runs that have not ended, newest first: `AT_ONCE` at most."""
        return await self._some(_GLANCE.where(*_of(scope), has_one_of(runs, ACTIVE)).order_by(runs.c.number.desc()))

    async def since(self, scope: RunScope, number: int) -> list[RunGlance]:
        """Returns the scope's first runs that were submitted after the one with this number."""
        return await self._some(_GLANCE.where(*_of(scope), runs.c.number > number).order_by(runs.c.number))

    async def among(self, scope: RunScope, run_ids: Collection[RunId]) -> list[RunGlance]:
        """Returns the runs among these that are in the scope."""
        wanted, found = list(run_ids), list[RunGlance]()
        for start in range(0, len(wanted), AT_ONCE):
            named = runs.c.id.in_(wanted[start : start + AT_ONCE])
            found += await self._some(_GLANCE.where(*_of(scope), named).order_by(runs.c.number))
        return found

    async def _some(self, query: sa.Select[Any, Any, Any, Any, Any, Any, Any]) -> list[RunGlance]:
        async with self._database.read() as connection:
            found = await connection.execute(query.limit(AT_ONCE))
            return [
                RunGlance(
                    row.id,
                    row.number,
                    row.agent_id,
                    row.conversation_id,
                    status_of(row.status),
                    row.stop_reason,
                    row.waiting,
                )
                for row in found
            ]


def _of(scope: RunScope) -> Sequence[sa.ColumnElement[bool]]:
    of_agent = () if scope.agent_id is None else (runs.c.agent_id == scope.agent_id,)
    return (runs.c.project_id == scope.project_id, *of_agent)
