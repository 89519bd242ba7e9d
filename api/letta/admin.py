"""Keys and the audit log on the wire. Letta's server has neither: the shapes are ours, in Letta's manner."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from api.letta.envelope import wire_time
from shared.domain.api_keys import MOST_AGENTS, MOST_NAME, ApiKey
from shared.domain.tools import SandboxTier
from shared.sql.access.audit import AuditEvent


class KeyCreate(BaseModel):
    """The body that makes a key."""

    # A misspelled field must not make a key that does more, or lives longer, than was meant.
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=MOST_NAME, description="Who will use the key.")]
    scopes: Annotated[
        list[Annotated[str, Field(max_length=100)]],
        Field(
            min_length=1,
            max_length=MOST_AGENTS + 3,
            description="One of `read`, `write` and `admin`; with `agent:<agent id>` for that agent only.",
        ),
    ]
    expires_at: Annotated[AwareDatetime | None, Field(description="When the key ends; null: never.")] = None


class KeyRotate(BaseModel):
    """The body of a rotation; it may be left out."""

    model_config = ConfigDict(extra="forbid")

    grace_s: Annotated[
        int | None, Field(ge=0, description="Seconds that the old secret goes on; 0: it ends at once.")
    ] = None


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
    """Whether the key opens anything, and else why not."""
    if key.revoked_at is not None:
        return "revoked"
    return "active" if key.is_valid(now) else "expired"


def wire_status(
    version: str, answers: Mapping[str, bool | None], sandboxes: Sequence[SandboxTier], javascript: bool | None
) -> dict[str, Any]:
    """A deployment as an operator asks for it: the services by name, None for what cannot be known, and the walls of
    workers, the strongest first."""
    return {
        "holdfast_version": version,
        "status": "ready" if all(answers.values()) else "not ready",
        "services": dict(answers),
        "sandbox": sandboxes[-1] if sandboxes else None,
        "sandboxes": list(sandboxes),
        "javascript": javascript,
    }


def wire_audit_event(event: AuditEvent) -> dict[str, Any]:
    """Who did what, when and from where."""
    return {
        "id": event.id,
        "at": wire_time(event.at),
        "project": event.project_id,
        "key_id": event.key_id,
        "key_name": event.key_name,
        "action": event.action,
        "object_id": event.object_id,
        "outcome": event.outcome,
        "address": event.address,
        "user_agent": event.user_agent,
        "request_id": event.request_id,
    }
