"""Stores the turns of agents for their sleep-time agents.

The transaction that ends a turn writes a row for each group that the turn's agent manages, and does nothing more for
them. `definitions/due_turns.py` reads the rows.
"""

from datetime import datetime

import sqlalchemy as sa

from shared.domain.groups import EndedTurn
from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import Run
from shared.sql.connection import Connection
from shared.sql.tables import agent_groups, group_turns

_TURN = {
    "project_id": sa.bindparam("of_project", type_=sa.Text),
    "thread_id": sa.bindparam("of_thread", type_=sa.Text),
    "turn": sa.bindparam("of_turn", type_=sa.Integer),
    "cause_id": sa.bindparam("of_cause", type_=sa.Text),
    "submitted_by": sa.bindparam("of_key", type_=sa.Text),
    "counts": sa.bindparam("counts", type_=sa.Boolean),
    "state": sa.literal_column("'new'", sa.Text),
    "look_at": sa.bindparam("now", type_=group_turns.c.look_at.type),
}
_TELL_GROUPS = sa.insert(group_turns).from_select(
    ["group_id", *_TURN],
    sa.select(agent_groups.c.id, *_TURN.values()).where(
        agent_groups.c.manager_agent_id == sa.bindparam("of_agent", type_=sa.Text),
        agent_groups.c.project_id == sa.bindparam("of_project", type_=sa.Text),
        agent_groups.c.is_on,
    ),
)


def enqueue_turn(connection: Connection, ended: EndedTurn, now: datetime) -> None:
    """Puts a turn into the outbox of the group that its agent manages, if there is one. The statement is deferred."""
    given = {
        "of_agent": ended.agent_id,
        "of_project": ended.project_id,
        "of_thread": ended.thread_id,
        "of_turn": ended.turn,
        "of_cause": ended.cause_id,
        "of_key": ended.submitted_by,
        "counts": ended.counts,
        "now": now,
    }
    connection.defer(_TELL_GROUPS, given)


def enqueue_turn_of(connection: Connection, run: Run, trigger: RunTrigger, now: datetime) -> None:
    """`enqueue_turn` for a run that ends. Only a completed turn counts, but the agents get the messages of other turns,
    too."""
    if not run.answers_messages or run.turn is None:
        return
    ended = EndedTurn(
        agent_id=run.agent_id,
        project_id=run.project_id,
        thread_id=run.thread_id,
        turn=run.turn,
        cause_id=run.id,
        submitted_by=run.options.submitted_by,
        counts=trigger is RunTrigger.COMPLETE,
    )
    enqueue_turn(connection, ended, now)
