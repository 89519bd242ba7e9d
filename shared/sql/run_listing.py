"""Finding runs: the lists that clients page through, and what sweepers and cancels look for."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa

from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ConversationId, ProjectId, RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, STREAM_ENDED, RunStatus
from shared.domain.runs import OTIDS, Run
from shared.sql.columns import run_of
from shared.sql.engine import Database
from shared.sql.paging import Page, rows_of_page
from shared.sql.tables import (
    approvals,
    callbacks,
    event_blocks,
    injected_messages,
    messages,
    runs,
    steps,
    submission_keys,
    tool_intents,
)


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list. None: no condition."""

    agent_ids: list[AgentId] | None = None
    conversation_id: ConversationId | None = None
    thread_id: ThreadId | None = None
    statuses: list[RunStatus] | None = None
    """Internal statuses; a run that waits for approval is `completed` on the wire."""
    background: bool | None = None
    stop_reason: str | None = None


class RunListing:
    """Finds runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, project_id: ProjectId, wanted: RunFilter, page: Page) -> list[Run]:
        """A page in the order asked for; its cursors are run ids. Raises `NotFound` for an unknown one."""
        async with self._database.read() as connection:
            rows = await rows_of_page(connection, runs, project_id, page, *_conditions(wanted))
        return [run_of(row) for row in rows]

    async def active_of_agent(
        self, project_id: ProjectId, agent_id: AgentId, thread_id: ThreadId | None = None
    ) -> list[Run]:
        """The agent's runs, of one thread or of all, that have not ended, parked ones included; oldest first."""
        query = sa.select(runs).where(
            runs.c.project_id == project_id, runs.c.agent_id == agent_id, runs.c.status.in_(ACTIVE)
        )
        if thread_id is not None:
            query = query.where(runs.c.thread_id == thread_id)
        async with self._database.read() as connection:
            found = await connection.execute(query.order_by(runs.c.number))
            return [run_of(row) for row in found.mappings()]

    async def just_streamed(
        self, project_id: ProjectId, agent_id: AgentId, thread_id: ThreadId | None, since: datetime
    ) -> Run | None:
        """The agent's newest run, of one thread or of all, if somebody watched it as it ended, and after `since`."""
        query = sa.select(runs).where(runs.c.project_id == project_id, runs.c.agent_id == agent_id)
        if thread_id is not None:
            query = query.where(runs.c.thread_id == thread_id)
        async with self._database.read() as connection:
            found = await connection.execute(query.order_by(runs.c.number.desc()).limit(1))
            row = found.mappings().one_or_none()
        newest = None if row is None else run_of(row)
        if newest is None or newest.completed_at is None or newest.completed_at < since:
            return None
        return newest if newest.options.streamed else None

    async def of_otid(self, thread_id: ThreadId, otid: str) -> Run:
        """The newest run whose submission had a message with this otid. Raises `NotFound`."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(submission_keys.c.key, *runs.c)
                .join(submission_keys, submission_keys.c.run_id == runs.c.id)
                .where(
                    submission_keys.c.thread_id == thread_id,
                    submission_keys.c.key.startswith(OTIDS, autoescape=True),
                    submission_keys.c.key.contains(otid, autoescape=True),
                )
                .order_by(runs.c.number.desc())
            )
            for row in found.mappings():
                if otid in row["key"].removeprefix(OTIDS).split(","):
                    return run_of(row)
        raise NotFound(f"No run found for otid {otid!r}")

    async def ended_among(self, run_ids: Sequence[RunId]) -> set[RunId]:
        """Which of these runs' streams have ended: a reader that hears nothing asks here."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(runs.c.id).where(runs.c.id.in_(run_ids), runs.c.status.in_(STREAM_ENDED))
            )
            return {RunId(run_id) for run_id in found.scalars()}

    async def unfinished(self, quiet_since: datetime, now: datetime, limit: int = 500) -> list[Run]:
        """Runs that somebody should be working on and that SQL has heard nothing of since then.

        Also those that it will have heard of: the clock was set back since, and waiting for it may take long.
        """
        earlier = runs.alias("earlier")
        blocked = sa.exists().where(
            earlier.c.thread_id == runs.c.thread_id,
            earlier.c.id != runs.c.id,
            earlier.c.status.in_([RunStatus.RUNNING, RunStatus.AWAITING_APPROVAL]),
        )
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(runs)
                .where(
                    runs.c.status.in_([RunStatus.CREATED, RunStatus.RUNNING]),
                    sa.or_(runs.c.updated_at < quiet_since, runs.c.updated_at > now),
                    sa.or_(runs.c.status == RunStatus.RUNNING, ~blocked),
                )
                .order_by(runs.c.updated_at)
                .limit(limit)
            )
            return [run_of(row) for row in found.mappings()]

    async def cancelled_but_waiting(self, limit: int = 100) -> list[Run]:
        """Parked or unclaimed runs for which a cancel is recorded."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(runs)
                .where(
                    runs.c.status.in_([RunStatus.AWAITING_APPROVAL, RunStatus.CREATED]),
                    runs.c.cancel_requested_at.is_not(None),
                )
                .limit(limit)
            )
            return [run_of(row) for row in found.mappings()]

    async def delete(self, project_id: ProjectId, run_id: RunId) -> None:
        """Deletes a run that has ended, with its log. Its messages stay in the history. Raises `NotFound`."""
        async with self._database.write() as connection:
            known = await connection.execute(
                sa.select(runs.c.id).where(runs.c.id == run_id, runs.c.project_id == project_id)
            )
            if known.one_or_none() is None:
                raise NotFound(f"Run not found with id='['{run_id}']'")
            for table in (submission_keys, steps, event_blocks, tool_intents, approvals, callbacks, injected_messages):
                await connection.execute(sa.delete(table).where(table.c.run_id == run_id))
            await connection.execute(sa.update(messages).where(messages.c.run_id == run_id).values(run_id=None))
            await connection.execute(sa.delete(runs).where(runs.c.id == run_id))


def _conditions(wanted: RunFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.agent_ids is not None:
        conditions.append(runs.c.agent_id.in_(wanted.agent_ids))
    if wanted.conversation_id is not None:
        conditions.append(runs.c.conversation_id == wanted.conversation_id)
    if wanted.thread_id is not None:
        conditions.append(runs.c.thread_id == wanted.thread_id)
    if wanted.statuses is not None:
        conditions.append(runs.c.status.in_(wanted.statuses))
    if wanted.background is not None:
        conditions.append(runs.c.background == wanted.background)
    if wanted.stop_reason is not None:
        conditions.append(runs.c.stop_reason == wanted.stop_reason)
    return conditions
