"""Keys and the audit log as JSON. Letta's server has neither: the shapes are ours, in Letta's style."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from api.letta.messages import AwareMoment, wire_time
from shared.domain.api_keys import MOST_AGENTS, MOST_NAME, ApiKey
from shared.domain.operations import (
    ApiState,
    CallbackStats,
    OpenCallback,
    OpenDelivery,
    QueueState,
    RunStats,
    ServerMemory,
    WorkerState,
)
from shared.domain.tools import SandboxTier
from shared.sql.access.audit import AuditEvent


class KeyCreate(BaseModel):
    """The body of a request that creates a key."""

    # A misspelled field must not create a key with more scopes, or a longer life, than intended.
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=MOST_NAME, description="The user of the key.")]
    scopes: Annotated[
        list[Annotated[str, Field(max_length=100)]],
        Field(
            min_length=1,
            max_length=MOST_AGENTS + 3,
            description="One of `read`, `write` and `admin`; with `agent:<agent id>` only for that agent.",
        ),
    ]
    expires_at: Annotated[AwareMoment | None, Field(description="The key's end; null: never.")] = None


class KeyRotate(BaseModel):
    """The body of a rotation; it may be omitted."""

    model_config = ConfigDict(extra="forbid")

    grace_s: Annotated[int | None, Field(ge=0, description="Seconds for which the old secret stays valid.")] = None


def wire_key(key: ApiKey, now: datetime) -> dict[str, Any]:
    """A key, without its secret."""
    return {
        "id": key.id,
        "project": key.project_id,
        "name": key.name,
        "scopes": list(key.scopes),
        "prefix": key.prefix,
        "status": status_of(key, now),
        "created_at": wire_time(key.created_at),
        "created_by": key.created_by,
        "expires_at": wire_time(key.expires_at),
        "last_used_at": wire_time(key.last_used_at),
        "rotated_at": wire_time(key.rotated_at),
        "revoked_at": wire_time(key.revoked_at),
    }


def status_of(key: ApiKey, now: datetime) -> str:
    """The key's status: valid, or the reason why it is not."""
    if key.revoked_at is not None:
        return "revoked"
    return "active" if key.is_valid(now) else "expired"


def wire_status(
    version: str, answers: Mapping[str, bool | None], sandboxes: Sequence[SandboxTier], javascript: bool | None
) -> dict[str, Any]:
    """A deployment's state for an operator: the services by name, None for unknown ones, and the isolation of workers,
    the strongest first."""
    return {
        "holdfast_version": version,
        "status": "ready" if all(answers.values()) else "not ready",
        "services": dict(answers),
        "sandbox": sandboxes[-1] if sandboxes else None,
        "sandboxes": list(sandboxes),
        "javascript": javascript,
    }


def wire_audit_event(event: AuditEvent) -> dict[str, Any]:
    """An audit event: actor, action, time and origin."""
    shown = msgspec.to_builtins(event)
    return {"project": shown.pop("project_id"), **shown}


# A deployment as an operator sees it, as JSON. Letta's server has no such answer: the shapes are ours.


@dataclass(frozen=True, kw_only=True)
class OperationsView:
    """A deployment, and the work of one project on it. None: the service that has the value is away."""

    at: datetime
    version: str
    services: Mapping[str, bool | None]
    database_kind: str
    database_ms: float | None
    redis_is_embedded: bool
    redis_ms: float | None
    redis_memory: list[ServerMemory] | None
    """The memory of the shared server, then of the logs' servers; empty for an embedded Redis."""
    workers: list[WorkerState] | None
    api_processes: list[ApiState] | None
    queue: QueueState | None
    runs: RunStats | None
    callbacks: CallbackStats | None


def wire_operations(view: OperationsView) -> dict[str, Any]:
    """The whole answer. A field is null while the service that has its value is away."""
    queue, runs, callbacks = view.queue, view.runs, view.callbacks
    shared_memory, *log_memory = view.redis_memory or [ServerMemory(server="")]
    return {
        "at": wire_time(view.at),
        "version": view.version,
        "services": dict(view.services),
        "database": {"kind": view.database_kind, "answers_ms": view.database_ms},
        "redis": {"embedded": view.redis_is_embedded, "answers_ms": view.redis_ms, **_memory(shared_memory)},
        "log_servers": None
        if view.redis_memory is None
        else [{"server": one.server, **_memory(one)} for one in log_memory],
        "workers": None if view.workers is None else [_process(worker) for worker in view.workers],
        "api_processes": None if view.api_processes is None else [_process(one) for one in view.api_processes],
        "queue": {
            "waiting": None if queue is None else queue.waiting,
            "oldest_wait_s": None if queue is None else queue.oldest_wait_s,
            "in_flight": None if queue is None else queue.in_flight,
        },
        "runs": None if runs is None else _active(runs),
        "ended_last_hour": None if runs is None else _ended(runs),
        "queue_wait_ms": None if runs is None else msgspec.to_builtins(runs.queue_wait_ms),
        "first_token_ms": None if runs is None else msgspec.to_builtins(runs.first_token_ms),
        "callbacks": None if callbacks is None else msgspec.to_builtins(callbacks),
        "last_hour": None if runs is None else msgspec.to_builtins(runs.minutes),
    }


def wire_open_callback(callback: OpenCallback) -> dict[str, Any]:
    """A callback that waits, or that was given up, in which case `next_attempt_at` is null."""
    return msgspec.to_builtins(callback)


def wire_open_delivery(delivery: OpenDelivery) -> dict[str, Any]:
    """An event that a webhook endpoint has not received. `next_attempt_at` is null if it was given up."""
    shown = msgspec.to_builtins(delivery)
    return {"id": delivery.id, "webhook_id": shown.pop("endpoint_id"), **shown}


def _memory(of: ServerMemory) -> dict[str, int | None]:
    return {"used_memory_bytes": of.used, "max_memory_bytes": of.limit}


def _active(runs: RunStats) -> dict[str, int]:
    return {"created": runs.created, "running": runs.running, "awaiting_approval": runs.awaiting_approval}


def _ended(runs: RunStats) -> dict[str, int]:
    return {
        "completed": sum(minute.completed for minute in runs.minutes),
        "failed": sum(minute.failed for minute in runs.minutes),
        "cancelled": sum(minute.cancelled for minute in runs.minutes),
    }


def _process(state: WorkerState | ApiState) -> dict[str, Any]:
    shown = msgspec.to_builtins(state)
    # It concerns the whole deployment, and is only for operators with its settings: `holdfast doctor` compares it.
    del shown["secret_keys"]
    shown.pop("code_agents", None)  # they have a route of their own
    return shown
