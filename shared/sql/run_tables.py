"""The tables of runs, and the tables whose rows belong to a run."""

from collections.abc import Collection

import sqlalchemy as sa

from shared.domain.lifecycle import ACTIVE, TERMINAL, RunStatus
from shared.sql.tables import BigNumber, UtcMoment, listed, metadata, texts, times, where


def _one_of(statuses: Collection[RunStatus]) -> str:
    return "status IN ({})".format(", ".join(f"'{status}'" for status in RunStatus if status in statuses))


def has_one_of(table: sa.FromClause, statuses: Collection[RunStatus]) -> sa.ColumnElement[bool]:
    """Returns the condition of the partial indices, for `runs` or an alias of it. A database uses a partial index only
    for a condition with literally the same text."""
    wanted = [sa.literal(status.value, literal_execute=True) for status in RunStatus if status in statuses]
    return table.c.status.in_(wanted)


runs = sa.Table(
    "runs",
    metadata,
    *listed(),
    *texts("project_id", "agent_id", "thread_id"),
    sa.Column("conversation_id", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    *texts("stop_reason", "cause", "error", nullable=True),
    sa.Column("background", sa.Boolean, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    *texts("continues", "continued_by", nullable=True),
    sa.Column("decided_at", UtcMoment),
    sa.Column("turn", sa.Integer),
    sa.Column("dispatch", sa.Integer, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("attempts_without_progress", sa.Integer, nullable=False),
    sa.Column("cancel_requested_at", UtcMoment),
    *texts("cancel_actor", "cancel_reason", "cancel_mode", nullable=True),
    sa.Column("cancel_acknowledged_at", UtcMoment),
    sa.Column("usage", sa.Text, nullable=False),
    sa.Column("step_count", sa.Integer, nullable=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("checkpoint_seq", sa.BigInteger, nullable=False),
    # The amount reserved for the model call in progress (`Reservation`).
    sa.Column("reservation", sa.Text),
    # The body's own state (`RunHandle.state`), as the body has encoded it.
    sa.Column("body_state", sa.LargeBinary),
    sa.Column("waits_until", UtcMoment),
    sa.Column("waits_for", sa.Text),
    # Only for a run that another run's call has started (`ParentCall`).
    *texts("parent_run_id", "root_run_id", nullable=True),
    sa.Column("awaited", sa.Boolean),
    # Only for a run of an operator's own code: the version that has executed it last.
    *texts("code_version", "callback_url", nullable=True),
    sa.Column("callback_sent_at", UtcMoment),
    sa.Column("callback_status_code", sa.Integer),
    sa.Column("callback_error", sa.Text),
    *times("created_at", "updated_at"),
    *times("started_at", "first_token_at", "completed_at", "pruned_at", nullable=True),
    sa.CheckConstraint(_one_of(RunStatus), name="status"),
    sa.Index("ix_runs_project_id_number", "project_id", "number"),
    sa.Index("ix_runs_agent_id_number", "agent_id", "number"),
    sa.Index("ix_runs_thread_id_number", "thread_id", "number"),
    sa.Index("ix_runs_status_updated_at", "status", "updated_at"),
    sa.Index("ix_runs_thread_id_turn", "thread_id", "turn"),
    # With these, queries for a thread's queue and a project's active runs cost the same after ten runs and after a
    # hundred thousand.
    sa.Index("ix_runs_active_project", "project_id", "number", **where(_one_of(ACTIVE))),
    sa.Index("ix_runs_active_thread", "thread_id", "number", **where(_one_of(ACTIVE))),
    sa.Index(
        "ix_runs_cancel_open",
        "number",
        **where("cancel_requested_at IS NOT NULL AND status IN ('created', 'awaiting_approval')"),
    ),
    sa.Index("ix_runs_not_pruned", "completed_at", **where("pruned_at IS NULL")),
    # With this, a list of the few failed runs among a million others is as quick as a list of all.
    sa.Index("ix_runs_ended_project", "project_id", "status", "number", **where(_one_of(TERMINAL))),
    sa.Index("ix_runs_ended_agent", "agent_id", "status", "number", **where(_one_of(TERMINAL))),
    sa.Index("ix_runs_stopped_project", "project_id", "stop_reason", "number", **where("stop_reason IS NOT NULL")),
    sa.Index("ix_runs_stopped_agent", "agent_id", "stop_reason", "number", **where("stop_reason IS NOT NULL")),
    sa.Index("ix_runs_project_id_created_at", "project_id", "created_at"),
    sa.Index(
        "ix_runs_project_id_completed_at", "project_id", "completed_at", "status", **where("completed_at IS NOT NULL")
    ),
    sa.Index("ix_runs_parent_run_id", "parent_run_id", "number", **where("parent_run_id IS NOT NULL")),
    sa.Index("ix_runs_root_run_id", "root_run_id", "number", **where("root_run_id IS NOT NULL")),
    # For the sweeper.
    sa.Index("ix_runs_waits_for_runs", "number", **where("waits_for = 'runs'")),
    # Enforces one run at a time per thread, even if a claim overlooked another.
    sa.Index("uq_runs_running_thread", "thread_id", unique=True, **where("status = 'running'")),
)

run_inputs = sa.Table(
    "run_inputs",
    metadata,
    # A submission's messages, images included. Only the first claim reads these, and they may be megabytes.
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("input", sa.Text, nullable=False),
)

submission_keys = sa.Table(
    "submission_keys",
    metadata,
    sa.Column("thread_id", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False, index=True),
    # For a key that is a name: a hash of the content that was sent under it.
    sa.Column("content", sa.Text),
    # For a key that is a body's hash: the last time when the body was sent.
    sa.Column("sent_at", UtcMoment),
)

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    *texts("project_id", "run_id"),
    sa.Column("agent_id", sa.Text, nullable=False, index=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    # A person's feedback on the step; `tags` is a JSON list of texts.
    *texts("feedback", "tags", nullable=True),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Index("ix_steps_run_id_number", "run_id", "number"),
    sa.Index("ix_steps_project_id_created_at", "project_id", "created_at"),
    # In the order of the lists. Partial, because few steps have feedback.
    sa.Index(
        "ix_steps_opinions",
        "project_id",
        "created_at",
        "number",
        "id",
        **where("feedback IS NOT NULL OR tags IS NOT NULL"),
    ),
)

tool_intents = sa.Table(
    "tool_intents",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("tool_call_id", sa.Text, primary_key=True),
    *texts("tool_name", "state"),
    sa.Column("started_at", UtcMoment, nullable=False),
    sa.Column("result", sa.Text),
    # How often the tool was started.
    sa.Column("attempt", sa.Integer, nullable=False, server_default="1"),
)

settled_effects = sa.Table(
    "settled_effects",
    metadata,
    # The verdict of a probe or a person on a call whose outcome was unknown.
    sa.Column("idempotency_key", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False, index=True),
    *texts("call_id", "settled_by", "outcome"),
    sa.Column("who", sa.Text),
    sa.Column("result", sa.Text),
    sa.Column("settled_at", UtcMoment, nullable=False),
)

run_steps = sa.Table(
    "run_steps",
    metadata,
    # The run with which the turn began; its continuations have the same journal.
    sa.Column("journal", sa.Text, primary_key=True),
    sa.Column("slot", sa.Text, primary_key=True),
    # The turn's newest run.
    sa.Column("run_id", sa.Text, nullable=False, index=True),
    sa.Column("number", sa.Integer, nullable=False),
    *texts("kind", "name", "branch"),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("settings_hash", sa.Text, nullable=False, server_default=""),
    sa.Column("state", sa.Text, nullable=False),
    # Compressed JSON.
    sa.Column("result", sa.LargeBinary),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("started_at", UtcMoment, nullable=False),
    sa.Column("ended_at", UtcMoment),
    sa.Column("idempotency_key", sa.Text, nullable=False),
)

code_agents = sa.Table(
    "code_agents",
    metadata,
    # The agents of the deployment, as workers report them.
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("framework", sa.Text, nullable=False, server_default=sa.text("'function'")),
    sa.Column("seen_at", UtcMoment, nullable=False),
)

code_agent_versions = sa.Table(
    "code_agent_versions",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),
    # Its place among the versions: the newest is the version whose first sight is the latest.
    *times("first_seen_at", "seen_at"),
)

event_blocks = sa.Table(
    "event_blocks",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("first_seq", sa.BigInteger, primary_key=True),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    *texts("project_id", "agent_id"),
    sa.Column("thread_id", sa.Text, nullable=False, index=True),
    sa.Column("run_id", sa.Text, nullable=False, index=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("tool_call_id", sa.Text, nullable=False, index=True),
    *texts("tool_name", "arguments", "arguments_hash"),
    # NULL for a tool that the client runs.
    sa.Column("tool_version", sa.Text),
    sa.Column("client_side", sa.Boolean, nullable=False),
    sa.Column("asked_at", UtcMoment, nullable=False),
    sa.Column("expires_at", UtcMoment),
    sa.Column("on_expiry", sa.Text, nullable=False),
    sa.Column("decision", sa.Text),
    sa.Column("decided_at", UtcMoment),
    *texts("decided_by", "continued_by", nullable=True),
    sa.Index("ix_approvals_project_id_decided_at", "project_id", "decided_at"),
    sa.Index("ix_approvals_agent_id_decided_at", "agent_id", "decided_at"),
    # A worker looks for expired requests every few seconds, and nearly all rows are decided.
    sa.Index("ix_approvals_expires_at", "expires_at", **where("decided_at IS NULL")),
    sa.Index("ix_approvals_open_thread", "thread_id", **where("decided_at IS NULL")),
    sa.Index("ix_approvals_decided_thread", "thread_id", "decided_at", **where("decided_at IS NOT NULL")),
)

injected_messages = sa.Table(
    "injected_messages",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.Text, nullable=False, index=True),
    *texts("thread_id", "message_id", "message", "if_ended"),
    sa.Column("delivered_at", UtcMoment),
    sa.Index("uq_injected_messages_message_id", "message_id", unique=True),
    sa.Index("ix_injected_messages_open", "run_id", **where("delivered_at IS NULL")),
    sa.Index("ix_injected_messages_open_thread", "thread_id", **where("delivered_at IS NULL")),
)

callbacks = sa.Table(
    "callbacks",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.Text, nullable=False, unique=True),
    *texts("project_id", "url"),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_attempt_at", UtcMoment, index=True),
    *times("claimed_until", "given_up_at", nullable=True),
    # For callbacks that wait or were given up: nearly all other rows are delivered.
    sa.Index(
        "ix_callbacks_open", "project_id", "number", **where("next_attempt_at IS NOT NULL OR given_up_at IS NOT NULL")
    ),
)

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    *texts("project_id", "run_id", "endpoint_id"),
    # The outcome of the run when it ended or parked. A later change of a parked run's status does not change it.
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    *times("next_attempt_at", "claimed_until", "given_up_at", nullable=True),
    sa.Column("last_status_code", sa.Integer),
    sa.Column("last_error", sa.Text),
    sa.UniqueConstraint("run_id", "endpoint_id"),
    sa.Index("ix_webhook_deliveries_next_attempt_at", "next_attempt_at", **where("next_attempt_at IS NOT NULL")),
    sa.Index(
        "ix_webhook_deliveries_open",
        "project_id",
        "number",
        **where("next_attempt_at IS NOT NULL OR given_up_at IS NOT NULL"),
    ),
)

budget_totals = sa.Table(
    "budget_totals",
    metadata,
    # One row per account and day. `reserved` is the amount for calls in progress.
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("day", sa.Text, primary_key=True),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("used_tokens", sa.BigInteger, nullable=False),
    sa.Column("used_nano_usd", sa.BigInteger, nullable=False),
    sa.Column("reserved_tokens", sa.BigInteger, nullable=False),
    sa.Column("reserved_nano_usd", sa.BigInteger, nullable=False),
    sa.Index("ix_budget_totals_day", "day"),
)

OF_A_RUN = (
    *(approvals, callbacks, event_blocks, injected_messages, run_inputs, run_steps, settled_effects),
    *(steps, submission_keys, tool_intents, webhook_deliveries),
)
"""The tables with a `run_id`, except messages, which stay in the history."""

RETAINED_FOR_A_WHILE = tuple(table for table in OF_A_RUN if table not in (approvals, settled_effects))
"""The tables whose rows retention deletes. Decisions on approvals, and verdicts on calls, stay with the history."""
