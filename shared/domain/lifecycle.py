"""The life of a run: THE state machine. Nothing else in Holdfast decides a status.

Theory of operation
-------------------
The API creates a run, and a worker claims it and runs its steps. A worker may also claim a run that is running already:
its last owner died, handed it over, or lost its lease. Then the fence grows, and SQL and the log refuse later writes of
the last owner. A run leaves `running` in exactly one of four ways. It is completed, failed or cancelled; or it is
*parked*: it waits for a person to decide a tool call, and no worker has it. The decision closes the parked run as
completed (its stream ended when it was parked) and starts its continuation, a new run.

A request to cancel is not a status. It is a fact on the run (`cancel_requested_at`), recorded before it is announced.
The run's owner at that time applies CANCEL, once.

Terminal statuses have no way out. `rows.apply` compiles this table into `WHERE status IN (…) AND fence = …`. So two
owners cannot both win, and the later one gets an error with the reason (`StaleFence`, `IllegalTransition`).
"""

from enum import StrEnum

from shared.domain.errors import IllegalTransition


class RunStatus(StrEnum):
    """The status of a run."""

    CREATED = "created"
    """Accepted and stored; no worker has begun."""
    RUNNING = "running"
    """A worker runs its steps, or the sweeper is about to dispatch it again."""
    AWAITING_APPROVAL = "awaiting_approval"
    """Parked: a person must decide a tool call, or the client must run one."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunTrigger(StrEnum):
    """The triggers that move a run from one status to the next."""

    CLAIM = "claim"
    PARK = "park"
    DECIDE = "decide"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


TRANSITIONS: dict[tuple[RunStatus, RunTrigger], RunStatus] = {
    (RunStatus.CREATED, RunTrigger.CLAIM): RunStatus.RUNNING,
    (RunStatus.CREATED, RunTrigger.FAIL): RunStatus.FAILED,
    (RunStatus.CREATED, RunTrigger.CANCEL): RunStatus.CANCELLED,
    (RunStatus.RUNNING, RunTrigger.CLAIM): RunStatus.RUNNING,
    (RunStatus.RUNNING, RunTrigger.PARK): RunStatus.AWAITING_APPROVAL,
    (RunStatus.RUNNING, RunTrigger.COMPLETE): RunStatus.COMPLETED,
    (RunStatus.RUNNING, RunTrigger.FAIL): RunStatus.FAILED,
    (RunStatus.RUNNING, RunTrigger.CANCEL): RunStatus.CANCELLED,
    (RunStatus.AWAITING_APPROVAL, RunTrigger.DECIDE): RunStatus.COMPLETED,
    (RunStatus.AWAITING_APPROVAL, RunTrigger.CANCEL): RunStatus.CANCELLED,
}

TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
ACTIVE = frozenset(RunStatus) - TERMINAL
STREAM_ENDED = TERMINAL | {RunStatus.AWAITING_APPROVAL}
"""Statuses in which the run's stream has ended: a parked run's stream ends with `requires_approval`."""


def next_status(status: RunStatus, trigger: RunTrigger) -> RunStatus:
    """The status that `trigger` leads to. Raises `IllegalTransition` when the table has no such move."""
    try:
        return TRANSITIONS[status, trigger]
    except KeyError:
        raise IllegalTransition(status, trigger) from None


def sources_of(trigger: RunTrigger) -> dict[RunStatus, RunStatus]:
    """From which statuses `trigger` may be applied, and where it leads from each."""
    return {source: target for (source, moved_by), target in TRANSITIONS.items() if moved_by is trigger}
