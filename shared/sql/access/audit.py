"""The audit log: acts of administration and decisions on approvals, each with its caller, time and origin.

A store records an act in the act's own transaction: no act lacks its event, and no event lacks its act. The store does
not know the caller. The code that accepts a request or a command sets `ASKER` while it lasts, and so does the code that
decides overdue approvals. Other acts of the product itself are not recorded, because no caller asked for them. The log
never has the text of a message or the argument of a call.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.ids import AuditEventId, IdMaker, ProjectId
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.paging import Page, rows_of_page
from shared.sql.tables import audit_events, fields_of


@dataclass(frozen=True, kw_only=True)
class Asker:
    """The caller of the current act. Its texts are already cut to the length that the log stores."""

    key_id: str
    key_name: str
    at: datetime
    ids: IdMaker
    address: str = ""
    user_agent: str = ""
    request_id: str = ""


ASKER: ContextVar[Asker | None] = ContextVar("asker", default=None)


@contextmanager
def asked_by(asker: Asker) -> Generator[None]:
    """Attributes every act that is recorded within the block to this caller."""
    token = ASKER.set(asker)
    try:
        yield
    finally:
        ASKER.reset(token)


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One act."""

    id: AuditEventId
    project_id: ProjectId
    at: datetime
    key_id: str
    key_name: str
    action: str
    """The noun and the verb, such as `key.revoked`."""
    object_id: str
    outcome: str
    """`done`, or `refused`."""
    address: str
    user_agent: str
    request_id: str


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events a list shows. All given conditions must hold."""

    action: str | None = None
    key_id: str | None = None
    object_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def record(
    connection: Connection, project_id: ProjectId, action: str, *object_ids: str, outcome: str = "done"
) -> None:
    """Records an act of the current caller in the transaction of `connection`, one event per object. Without a caller,
    records nothing."""
    asker = ASKER.get()
    if asker is None or not object_ids:
        return
    shared = {
        "project_id": project_id,
        "at": asker.at,
        "key_id": asker.key_id,
        "key_name": asker.key_name,
        "action": action,
        "outcome": outcome,
        "address": asker.address,
        "user_agent": asker.user_agent,
        "request_id": asker.request_id,
    }
    rows = [{"id": asker.ids.audit_event(), "object_id": object_id, **shared} for object_id in object_ids]
    await connection.execute(sa.insert(audit_events), rows)


class AuditLog(Store):
    """Reads the log, and records acts that have no transaction of their own."""

    async def add(self, project_id: ProjectId, action: str, *object_ids: str, outcome: str = "done") -> None:
        """Records one event per object. Raises `Unavailable`."""
        async with self._database.write() as connection:
            await record(connection, project_id, action, *object_ids, outcome=outcome)

    async def newest(self, project_id: ProjectId | None, wanted: AuditFilter, limit: int) -> list[AuditEvent]:
        """Returns the newest events of a project, or of all projects, oldest first."""
        query = sa.select(audit_events).where(*_conditions(wanted)).order_by(audit_events.c.number.desc()).limit(limit)
        if project_id is not None:
            query = query.where(audit_events.c.project_id == project_id)
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return [_event_of(row) for row in reversed(found.mappings().all())]

    async def list(self, project_id: ProjectId, wanted: AuditFilter, page: Page) -> list[AuditEvent]:
        """Returns a page of the project's events."""
        async with self._database.read() as connection:
            owner = (audit_events.c.project_id, project_id)
            rows = await rows_of_page(connection, audit_events, project_id, page, *_conditions(wanted), owner=owner)
            return [_event_of(row) for row in rows]

    async def prune(self, before: datetime, limit: int) -> int:
        """Deletes the older ones among the first `limit` events and returns their number. If that is less than `limit`,
        no older event is left, except those written in between while a clock was set back."""
        first = sa.select(audit_events.c.number, audit_events.c.at).order_by(audit_events.c.number).limit(limit)
        looked_at = first.subquery()
        old = sa.select(looked_at.c.number).where(looked_at.c.at < before)
        async with self._database.write() as connection:
            deleted = await connection.execute(sa.delete(audit_events).where(audit_events.c.number.in_(old)))
            return deleted.rowcount

    async def count_before(self, before: datetime) -> int:
        """Returns how many events are older, which repeated calls of `prune` would delete. It may take minutes."""
        query = sa.select(sa.func.count()).select_from(audit_events).where(audit_events.c.at < before)
        async with self._database.read() as connection:
            return (await connection.execute(query)).scalar_one()


def _conditions(wanted: AuditFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    for name in ("action", "key_id", "object_id"):
        value: str | None = getattr(wanted, name)
        if value is not None:
            conditions.append(audit_events.c[name] == value)
    if wanted.since is not None:
        conditions.append(audit_events.c.at >= wanted.since)
    if wanted.until is not None:
        conditions.append(audit_events.c.at < wanted.until)
    return conditions


def _event_of(row: RowMapping) -> AuditEvent:
    return AuditEvent(**fields_of(row, AuditEvent))
