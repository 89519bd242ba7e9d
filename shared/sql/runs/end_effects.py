"""What the end of a run changes beside the run, inside the transaction that ends it: its agent, the outbox of callbacks
and the approvals that it waited for."""

from datetime import datetime

import sqlalchemy as sa

from shared.domain.messages import Decision
from shared.domain.runs import Run
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.run_tables import approvals, callbacks
from shared.sql.tables import agents, to_json

_STOPPED = (
    sa.update(agents)
    .where(agents.c.id == sa.bindparam("of_agent"))
    .values(last_stop_reason=sa.bindparam("stop_reason"))
)


def tell_agent(connection: Connection, run: Run, stop_reason: str | None) -> None:
    """Stores how the agent's newest run stopped; deferred."""
    if run.answers_messages:
        connection.defer(_STOPPED, {"of_agent": run.agent_id, "stop_reason": stop_reason})


async def call_back(connection: Connection, run: Run, now: datetime) -> None:
    """Puts the run's callback into the outbox, if it asked for one and the outbox has none."""
    if run.callback_url is None:
        return
    known = await connection.execute(sa.select(callbacks.c.run_id).where(callbacks.c.run_id == run.id))
    if known.one_or_none() is None:
        await connection.execute(
            sa.insert(callbacks).values(
                run_id=run.id, project_id=run.project_id, url=run.callback_url, attempts=0, next_attempt_at=now
            )
        )


async def deny_what_waits(connection: Connection, run: Run, *, reason: str, cause: str | None, now: datetime) -> None:
    """Denies every call of the run that waits for a person. `cause`: why the run ends."""
    denial = Decision(tool_call_id="", approve=False, reason=reason)
    is_waiting = (approvals.c.run_id == run.id, approvals.c.decided_at.is_(None))
    if cause == "approval_expired":
        waiting = await connection.execute(sa.select(approvals.c.id).where(*is_waiting))
        await record(connection, run.project_id, "approval.expired", *waiting.scalars())
    await connection.execute(
        sa.update(approvals)
        .where(*is_waiting)
        .values(decision=to_json(denial), decided_at=now, decided_by=cause or "system")
    )
