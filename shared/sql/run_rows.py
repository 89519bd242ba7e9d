"""Rows of runs inside somebody's transaction: reading one, storing a new one."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.errors import NotFound
from shared.domain.ids import RunId
from shared.domain.runs import Run
from shared.sql.columns import run_of, to_json
from shared.sql.tables import runs, submission_keys


async def get_run(connection: AsyncConnection, run_id: RunId) -> Run:
    """One run of any project. Raises `NotFound`."""
    found = await connection.execute(sa.select(runs).where(runs.c.id == run_id))
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(not_found(run_id))
    return run_of(row)


def not_found(run_id: str) -> str:
    """The wire's words for a run that is not there."""
    return f"Run not found with id='['{run_id}']'"


async def insert_run(connection: AsyncConnection, run: Run, keys: Sequence[str] = ()) -> Run:
    """Stores a new run with the keys by which its submission is known again; the run as stored."""
    inserted = await connection.execute(
        sa.insert(runs)
        .values(
            id=run.id,
            project_id=run.project_id,
            agent_id=run.agent_id,
            thread_id=run.thread_id,
            conversation_id=run.conversation_id,
            status=run.status,
            background=run.options.background,
            options=to_json(run.options),
            input=to_json(run.input),
            continues=run.continues,
            turn=run.turn,
            ring=run.ring,
            fence=run.fence,
            stalled_claims=0,
            usage=to_json(run.usage),
            step_count=0,
            last_seq=run.last_seq,
            checkpoint_seq=run.checkpoint_seq,
            reserved_seq=run.reserved_seq,
            callback_url=run.callback_url,
            created_at=run.created_at,
            updated_at=run.created_at,
        )
        .returning(*runs.c)
    )
    stored = run_of(inserted.mappings().one())
    if keys:
        rows = [{"thread_id": run.thread_id, "key": key, "run_id": run.id} for key in dict.fromkeys(keys)]
        await connection.execute(sa.insert(submission_keys), rows)
    return stored
