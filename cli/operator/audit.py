"""What `holdfast audit` shows: who did what, read where the database is; it needs no key, and no API that runs."""

import sys
from datetime import UTC, datetime

import msgspec

from api.letta.admin import wire_audit_event
from cli.operator.processes import production_database
from cli.printable import printable, printable_json
from shared.domain.ids import ProjectId
from shared.process.settings import Settings
from shared.sql.access.audit import AuditEvent, AuditFilter, AuditLog


async def show_audit(
    settings: Settings, *, project: str | None, wanted: AuditFilter, limit: int, as_json: bool
) -> None:
    """Prints the newest entries that fit."""
    database = await production_database(settings)
    try:
        events = await AuditLog(database).newest(None if project is None else ProjectId(project), wanted, limit)
    finally:
        await database.aclose()
    for event in events:
        print(
            printable_json(msgspec.json.encode(wire_audit_event(event)).decode())
            if as_json
            else printable(_shown(event))
        )
    if not events:
        print("holdfast audit: nothing was recorded that fits", file=sys.stderr)


def _shown(event: AuditEvent) -> str:
    refused = "" if event.outcome == "done" else f" ({event.outcome})"
    origin = f" from {event.address}" if event.address else ""
    return (
        f"{_second(event.at)}  {event.project_id}  {event.action}{refused}  {event.object_id}  "
        f"by {event.key_id} ({event.key_name}){origin}"
    )


def _second(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
