"""`holdfast audit`: who did what, read where the database is; it needs no key, and no API that runs."""

import argparse
from datetime import UTC, datetime, timedelta

import msgspec

from api.commands.processes import AddCommand, positive, production_database
from api.letta.admin import wire_audit_event
from shared.clock import SystemClock
from shared.domain.ids import ProjectId
from shared.process.settings import Settings
from shared.sql.access.audit import AuditEvent, AuditFilter, AuditLog

SHOWN = 50


def add_audit_command(add: AddCommand) -> None:
    """Adds it to the parser, through its `add_parser`."""
    showing = add("audit", help="show who did what: keys, decisions, deletions; needs HOLDFAST_DATABASE_URL")
    showing.add_argument("--project", help="(default: all)")
    showing.add_argument("--action", help="such as key.revoked (default: all)")
    showing.add_argument("--key", help="the id of the key that was used (default: all)")
    showing.add_argument("--object", help="the id of what it was done to (default: all)")
    showing.add_argument("--days", type=positive, metavar="N", help="of the last N days (default: all)")
    showing.add_argument("--limit", type=positive, default=SHOWN, metavar="N", help=f"the newest N (default: {SHOWN})")
    showing.add_argument("--json", action="store_true", help="one JSON object per line, with all fields")
    showing.set_defaults(run=_run_audit)


async def _run_audit(settings: Settings, options: argparse.Namespace) -> None:
    project = None if options.project is None else ProjectId(options.project)
    since = None if options.days is None else SystemClock().now() - timedelta(days=options.days)
    wanted = AuditFilter(action=options.action, key_id=options.key, object_id=options.object, since=since)
    database = await production_database(settings)
    try:
        events = await AuditLog(database).newest(project, wanted, options.limit)
    finally:
        await database.aclose()
    for event in events:
        print(msgspec.json.encode(wire_audit_event(event)).decode() if options.json else _shown(event))
    if not events:
        print("holdfast audit: nothing was recorded that fits")


def _shown(event: AuditEvent) -> str:
    refused = "" if event.outcome == "done" else f" ({event.outcome})"
    origin = f" from {event.address}" if event.address else ""
    return (
        f"{_second(event.at)}  {event.project_id}  {event.action}{refused}  {event.object_id}  "
        f"by {event.key_id} ({event.key_name}){origin}"
    )


def _second(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
