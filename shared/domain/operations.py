"""The statistics of a deployment and of a project's last hour for operators. No I/O.

Workers, API processes and the queue are the deployment's. All counts of runs and callbacks are of one project. They
contain no text of a user, a model or a tool.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from shared.domain.code_agents import ShownAgent
from shared.domain.ids import RunId, WebhookId
from shared.domain.settling import RunOutcome
from shared.domain.tools import SandboxTier

MINUTE = timedelta(minutes=1)

MINUTES_SHOWN = 60


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as it last reported itself."""

    name: str
    version: str
    started_at: datetime
    seen_at: datetime
    """The time of that report, by the worker's own clock."""
    runs: int
    """Runs that it executes."""
    max_runs: int
    sandbox: SandboxTier | None = None
    javascript: bool | None = None
    secret_keys: list[str] | None = None
    """Fingerprints of the keys for agents' secrets; None: the process is of a release that does not report them."""
    code_agents: list[ShownAgent] = []
    """Its agents of operators' own code."""


class ApiState(msgspec.Struct, frozen=True, kw_only=True):
    """An API process, as it last reported itself."""

    name: str
    version: str
    started_at: datetime
    seen_at: datetime
    """The time of that report, by the process's own clock."""
    readers: int
    """Open streams."""
    secret_keys: list[str] | None = None
    """As in `WorkerState`."""


class ServerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that a Redis server uses and its limit, in bytes."""

    server: str
    """Its address, without credentials."""
    used: int | None = None
    """None: it does not answer."""
    limit: int | None = None
    """None: there is no limit, or the server does not report it."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of all projects together."""

    waiting: int
    """Dispatched runs that no worker has."""
    oldest_wait_s: float | None
    """Seconds since the dispatch of the run that waits longest; None if none waits."""
    in_flight: int
    """Runs that a worker has leased."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in milliseconds. None without runs."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """A project's runs in one minute. The waits are those of runs submitted in that minute."""

    at: datetime
    submitted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    queue_wait_p50_ms: float | None = None
    first_token_p50_ms: float | None = None


class RunStats(msgspec.Struct, frozen=True, kw_only=True):
    """A project's active runs, and the runs of the last sixty minutes, which include the present one."""

    created: int
    running: int
    awaiting_approval: int
    queue_wait_ms: Percentiles
    first_token_ms: Percentiles
    minutes: list[Minute]


class CallbackStats(msgspec.Struct, frozen=True, kw_only=True):
    """A project's callbacks that were not delivered."""

    waiting: int
    failing: int
    """Callbacks with at least one failed attempt, including those that were given up."""


class OpenCallback(msgspec.Struct, frozen=True, kw_only=True):
    """A callback that waits, or was given up."""

    run_id: RunId
    url: str
    attempts: int
    next_attempt_at: datetime | None
    """None: it was given up."""
    last_status_code: int | None
    last_error: str | None
    created_at: datetime


class OpenDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a webhook endpoint has not received: it waits, or was given up."""

    run_id: RunId
    endpoint_id: WebhookId
    url: str | None
    """The endpoint's present URL. None: the endpoint was deleted."""
    outcome: RunOutcome
    attempts: int
    next_attempt_at: datetime | None
    """None: it was given up."""
    last_status_code: int | None
    last_error: str | None
    created_at: datetime

    @property
    def id(self) -> str:
        """Its cursor in lists. It is unique, because an endpoint gets one event per run."""
        return f"{self.run_id}.{self.endpoint_id}"


def percentiles(values: Sequence[float]) -> Percentiles:
    """The percentiles by nearest rank, so that each is a measured value."""
    ordered = sorted(values)
    if not ordered:
        return Percentiles()
    p50, p95, p99 = (ordered[max(0, math.ceil(len(ordered) * part) - 1)] for part in (0.5, 0.95, 0.99))
    return Percentiles(p50=p50, p95=p95, p99=p99)


def minutes_until(now: datetime) -> list[datetime]:
    """The beginnings of the last sixty minutes, which end with the present one."""
    present = now.replace(second=0, microsecond=0)
    return [present - MINUTE * back for back in range(MINUTES_SHOWN - 1, -1, -1)]
